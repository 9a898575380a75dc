// Package bridges is the contract between the host and the code that drives one
// agent product. It holds types and prose and no logic beyond the errors' own.
//
// # Words
//
// An agent is the product driven (Codex, opencode). A bridge is the code that
// drives it. A session is one durable conversation with an agent; a turn is one
// task of that conversation, from its acceptance to its single final event. A
// handle is the bridge's own opaque note by which it finds a session again.
//
// # The five verbs
//
//	Describe   what the bridge is and can do; needs no credentials, starts nothing
//	Create     a new session (or a fork of one) for a session id that the host chose
//	Submit     one task: events while it runs, questions when the agent asks, one Result
//	Reconnect  find a session again in a new process, also in the middle of a turn
//	Dispose    end every process of a session and prove it
//
// A bridge runs in a process of its own and may be killed at any instant. What it
// must survive is simple to state: after a kill, a new process of the same bridge
// gets Reconnect with the last handle the host stored, and then either Submit for
// the next turn, or Submit with Resume set for the turn that was under way. The
// agent itself lives under a keeper (package agentproc), not under the bridge, so
// it goes on meanwhile; its output waits in the session's folder.
//
// # Concurrency
//
// The host calls different sessions at the same time, so a Bridge is safe for
// concurrent use. For one session it has at most one Create, Submit, Reconnect or
// Dispose in flight, with one exception: Dispose may arrive while a Submit runs;
// the Submit then returns with StatusCancelled or an error.
//
// # Cancellation
//
// Turn.Cancelled is closed when somebody asks to stop the turn: the bridge asks
// the agent politely, once, waits a grace, and still returns a Result (with
// StatusCancelled). The ctx of a Submit ends only when the host or the stream is
// gone: nobody listens any more, and the bridge returns at once and leaves the
// agent running for the next process to pick up. Mixing the two up would make
// every crash of a host a stop of the user's work.
//
// # Permission
//
// Settings.Mode is the most the agent may do. A bridge turns it into explicit
// flags and a sandbox on every start, resume and turn; it never relies on the
// product's own configuration. It reports in Info.Hold how the limit is held, and
// refuses with ErrSandboxUnavailable what it cannot hold strongly enough.
//
// # Truth
//
// A turn is over when the product's own terminal frame says so; an exit code is
// secondary. A session that is not there is ErrSessionGone, never a fresh one. A
// setting that the agent cannot honour is an error before the task is sent.
package bridges
