// Package codex drives OpenAI's Codex: one `codex app-server` per session, spoken to
// in its own JSON-RPC over lines. It was made against 0.171 and works with 0.169,
// the release before.
//
// # Where things are
//
// The app-server lives under a keeper in the session's run folder (package
// agentproc). CODEX_HOME is the product's state folder, shared by all sessions: its
// config.toml is written by us before each start, the user's own is never read. What
// tells sessions apart goes into each thread instead. How the login gets there is
// told in login.go.
//
// # One sandbox
//
// Codex has a sandbox of its own (bubblewrap and seccomp) that can ask before it lets
// something out; ours (Landlock and seccomp) holds all of codex and asks nobody. One
// inside of the other does not work: Landlock refuses the mounts that bubblewrap
// needs, and every command fails. So exactly one is on:
//
//	readonly  ours, codex's off: MCP servers, patches and codex itself are held too,
//	          it works in containers, and nothing is asked because nothing can be
//	          granted. Hold: kernel. Where ours cannot be had: codex's read-only.
//	default   codex's workspace-write with approvals, because what lies beyond the
//	          workspace is to be asked for, and only codex can. /tmp is closed, TMPDIR
//	          is the session's own. Hold: product-sandbox. Where it cannot run, or a
//	          kernel hold is wanted: ours around the workspace, which refuses.
//	full      neither. Hold: none.
//
// Both sandboxes are proven once per process by an experiment before they are relied
// on. The mode, the approvals, the model and the effort go with every thread and with
// every turn, because codex keeps what one turn sets for the next.
//
// Every folder is untrusted to codex, whatever it may have been told elsewhere: from a
// trusted one it would take configuration, and with it commands to run outside of the
// sandbox. Codex does not get to write its trust down either.
//
// # Turns
//
// The state of a session is a fold over what was sent and what came back (package
// fold), so that a new process goes on in the middle of a turn. A turn carries the
// host's id as clientUserMessageId, which codex writes into the thread's record: where
// the journal cannot say whether a task arrived, the record can. Codex takes a second
// task in a running turn as a word in on it, so there is one at a time.
//
// A thread without a turn is on no disk. When its process is gone it is started anew,
// and the caller is told.
//
// # What codex does not tell
//
// A command that fails within a second with words of a sandbox in its output gets no
// item at all, and patches that are refused by its policy none either. So the tool
// events of a turn are what codex shows, not all that it did.
package codex
