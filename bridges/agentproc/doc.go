// Package agentproc runs agents so that they outlive whoever started them.
//
// A session's process is a folder. A keeper, a process of its own that is detached
// from its starter, holds the folder's lock and keeps the agent: it starts it,
// confines it, records how it ended and ends its whole tree. The bridge talks to
// files alone:
//
//	spec.json     what runs here; environment by name, values never reach the disk
//	in            the agent's stdin, a FIFO
//	out           the agent's stdout, an append-only spool that the bridge follows
//	sent          journal of what the bridge wrote to in
//	checkpoint    the bridge's own state as of some place in sent and out
//	err           the agent's stderr, of which the end is kept; nobody has to read it
//	orders        orders to the keeper, a FIFO
//	keeper.json   who keeps and who is kept
//	exit.json     how the agent ended; written the moment it does
//	receipt.json  how its tree ended; written when that is over
//
// No process stands between the agent and these files, so there is nothing to lose
// when one dies. Bridge and host may be killed at any instant: the agent goes on,
// and the next process calls Runner.Attach and reads on. When the keeper is killed,
// the kernel kills the agent with it, and the next look at the folder ends what is
// left of the tree.
//
// # Ends
//
// The tree ends by order (Proc.Stop), when the lease has been free for longer than
// Spec.Grace, when the spool is over its cap, and two seconds after the agent itself
// has ended. The keeper asks first (SIGINT if told so, SIGTERM), then kills until
// nobody is left. On Linux it is the subreaper of the tree, so that nobody gets out
// by setsid or a double fork, and "no child is left" is the proof in the receipt.
//
// # Sandbox
//
// The sandbox is put on the agent and what it starts, never on the keeper: what is
// recorded about the agent stays out of its reach. Linux: Landlock (from ABI 3) and
// a seccomp filter that refuses unix sockets, which lead around Landlock. What it
// does not stop: chmod and utimes on the user's own files, network, and files that
// the agent inherits open, which are its own stdin, stdout and stderr.
//
// # Systems
//
// Linux is the system this is made for and tested on. For macOS and Windows the
// package compiles and is vetted, and has not been run: macOS has no subreaper, so
// receipts are never Proven there, an agent survives the death of its keeper until
// somebody looks, and the sandbox is Seatbelt. Windows has no FIFOs, so the keeper
// feeds the agent's stdin from a growing file, a write never waits for the agent,
// the tree is a job object, and no sandbox is offered.
package agentproc
