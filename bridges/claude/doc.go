// Package claude drives Claude Code: one long-lived process per session that
// speaks stream-json, with its permission questions on the same stream.
//
// # What holds what
//
// A session is a conversation in Claude Code's own store, under an id that we
// derive from the host's. Its process is started at the first task, because an
// id without a task cannot be resumed, and again whenever it is gone or its
// settings have changed: a start with --resume goes on where the last one ended.
// The keeper of package agentproc holds the process, so that it outlives the
// bridge; what was written to it and what it printed are folded (package stream)
// into the state that the bridge works from. A new bridge process folds them again.
//
// A task travels as a user message whose uuid is derived from session and turn.
// Claude Code runs a message once for its uuid and notes it in its transcript:
// that is how a new process knows whether a task has reached the agent, and why
// one that was perhaps sent can be sent again.
//
// # Configuration
//
// CLAUDE_CONFIG_DIR is a folder of the session's own below Folders.State, never
// the user's and not shared between sessions: the agent must be able to write to
// it, and a hook or shell snapshot that a readonly session plants there must not
// run in a wider one. All of it but the conversation is written afresh at every
// start. Of the repository's settings none is honoured, of the user's none is
// read; CLAUDE.md is not loaded either.
//
// The login is a copy of the user's without its refresh token, taken before every
// task; see readLogin. Tried with Claude Code 2.1.197: such a copy logs in, a
// running agent is content with a newer one, and a refused token ends in
// auth_required with the user's own file untouched. On macOS the login is in the
// keychain under another name for another folder: there, and wherever nobody
// uses Claude Code by hand, set ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN.
package claude
