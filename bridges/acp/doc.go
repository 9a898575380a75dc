// Package acp is the bridge to every agent that speaks the Agent Client Protocol,
// version 1, over its standard input and output.
//
// # One agent process a session
//
// The agent lives under a keeper (package agentproc), one process for each session.
// Nothing runs here between two calls: the agent writes to its spool, and the next
// call reads on where the last one stopped.
//
// What is known of a session is a fold over what was sent and what was received
// (package fold). It is checkpointed before every prompt, and in a long turn behind
// the host by some 16 MiB, after which the output before it is freed. A new process
// folds the rest again and goes on in the middle of the turn: it emits what the
// host has not recorded, asks open questions again, and returns the result, also
// when the agent has answered or died meanwhile. The one thing it cannot know is
// whether a prompt whose writing was cut short has arrived; then it ends the agent
// and says that the outcome is unknown.
//
// # Permission
//
// The limit is held by the kernel where it can be: agentproc's sandbox, with the
// agent's own home (a folder of ours, never the user's) and TMPDIR writable, and the
// workspace in mode default. Whatever the agent asks goes to the host, in every mode;
// an Allow selects an option of the kind allow_once, or nothing. The agent's own
// modes that approve by themselves are never chosen below full.
//
// # Task text
//
// A leading "/", "@" or "!" makes many agents run a command or attach a file instead
// of asking the model, some of them commands that lift all limits. Such a text gets
// one zero-width space (U+200B) in front: the agents' parsers do not trim it, and a
// model does not see it. A space or a newline does not help: they trim those. Any
// other text arrives byte for byte.
//
// # Agents
//
// What has to be known of an agent beyond the protocol is data: Profile, in
// bridges.Agent.Options. Agents lists those that are known by name; one that is
// not needs a command, and nothing else.
package acp
