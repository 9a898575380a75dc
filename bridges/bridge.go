package bridges

import (
	"context"
	"encoding/json"
	"time"

	"github.com/subspan-dev/subspan/core/ceiling"
)

// ContractVersion is the major version of this contract. It grows by struct
// fields, capability names and optional interfaces, never by methods of Bridge.
const ContractVersion = 1

// Mode is the permission mode; see package ceiling for its order and its rules.
type Mode = ceiling.Mode

// Bridge drives one agent product. See the package comment for what an
// implementation owes on concurrency, cancellation and death.
type Bridge interface {
	// Describe tells what the bridge is. It returns within a second, needs no
	// credentials, and neither starts an agent nor touches the network.
	Describe(ctx context.Context) (Description, error)

	// Create starts a session. It is idempotent on SessionID: called again for an
	// id whose first call was cut short, it ends what that call left and starts
	// afresh, or returns the same session. The host stores Created.Handle durably
	// before anybody learns that the session exists.
	Create(ctx context.Context, req CreateRequest) (Created, error)

	// Submit runs one turn. Events go to turn.Emit in the agent's order; Submit
	// returns after the last of them was handed over. An error means that the
	// turn did not run or that its outcome is not known (ErrOutcomeUnknown);
	// everything that the agent itself reported about the turn, failure included,
	// is a Result.
	//
	// With req.Resume set, the turn was submitted before: the bridge must not send
	// the task again once its journal shows that it may have reached the agent. It
	// emits what comes after req.Resume.After and returns the turn's Result, also
	// when the agent finished long ago.
	Submit(ctx context.Context, req SubmitRequest, turn Turn) (Result, error)

	// Reconnect finds the session of a handle again, in this or a new process. The
	// error is for what went wrong on the way (agent missing, no login); what
	// became of the session is in Reconnected.Status.
	Reconnect(ctx context.Context, req ReconnectRequest) (Reconnected, error)

	// Dispose ends every process that the session has and frees its run folder.
	// The conversation stays in the agent's own store, so that a later Reconnect
	// may find it, unless req.Delete is set. It is idempotent and succeeds for
	// handles and ids it does not know.
	Dispose(ctx context.Context, req DisposeRequest) (Receipt, error)
}

// Turn is the host's side of a running Submit. Its methods may be called from
// several goroutines; they must not be called after Submit returned.
type Turn interface {
	// Emit hands over one event. It blocks while the host is behind, which is the
	// back-pressure that ends at the agent's spool. After an error the host is
	// gone: return from Submit, leave the agent as it is.
	Emit(Event) error

	// Ask puts a question to whoever may answer for this session and waits. The
	// answer is never missing: when nobody can or will answer it is a Deny, when
	// the turn is being stopped it is a Cancel. A question is asked again, with the
	// same ID, by a new process that finds it open.
	Ask(ctx context.Context, q Question) (Answer, error)

	// Cancelled is closed when the turn shall stop.
	Cancelled() <-chan struct{}
}

// Description is what a bridge says of itself.
type Description struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Contract []int  `json:"contract"` // major versions of this contract it speaks
	// Capabilities are open: names a host does not know mean nothing to it.
	Capabilities []Capability `json:"capabilities,omitempty"`
}

// Has reports whether the description lists a capability.
func (d Description) Has(c Capability) bool {
	for _, have := range d.Capabilities {
		if have == c {
			return true
		}
	}
	return false
}

// Capability names something that not every bridge can do.
type Capability string

const (
	CanFork      Capability = "fork"      // Create with ForkFrom
	CanReconnect Capability = "reconnect" // a conversation survives its process
	CanAsk       Capability = "ask"       // permission questions reach Turn.Ask
	CanDelete    Capability = "delete"    // Dispose with Delete removes the agent's own record
	CanMCP       Capability = "mcp"       // Settings.MCPServers are offered to the agent
)

// Agent says which product to run and how to reach it. It is data: the host
// resolves it (catalogue, configuration, drop-in manifest) and sends it with every
// call, so that a bridge keeps no table of its own.
type Agent struct {
	Name string `json:"name"`
	// Command is the executable, absolute, and its arguments.
	Command []string `json:"command"`
	// Env is set for the agent as it stands. Values are not secret.
	Env map[string]string `json:"env,omitempty"`
	// PassEnv names variables that the agent may have from the caller's
	// environment. Only their values in Settings.Env ever reach it.
	PassEnv []string `json:"pass_env,omitempty"`
	// Login names files below the user's home, slash-separated, that hold the
	// product's login. The bridge makes them reachable in the agent's own home.
	Login []string `json:"login,omitempty"`
	// LoginHint is the next step for a person who is not logged in.
	LoginHint string `json:"login_hint,omitempty"`
	// Options is for the bridge alone; its keys are the bridge's.
	Options json.RawMessage `json:"options,omitempty"`
}

// Settings are what a session runs under. They come with Create, with every
// Submit and with Reconnect, and hold from then on: a bridge re-applies all of
// them before the next task, and does not send the task when it cannot.
type Settings struct {
	Mode Mode `json:"mode"`
	// Accept is the weakest hold that the caller takes for Mode, by name. Empty
	// means HoldKernel or HoldProductSandbox, for readonly and default alike.
	Accept Strength `json:"accept,omitempty"`
	Cwd    string   `json:"cwd"` // absolute, symlinks resolved, exists
	Model  string   `json:"model,omitempty"`
	Effort string   `json:"effort,omitempty"`
	// Instructions are the role's text, put before or beside the agent's own prompt.
	Instructions string      `json:"instructions,omitempty"`
	MCPServers   []MCPServer `json:"mcp_servers,omitempty"`
	// Env holds KEY=VALUE of the agent's PassEnv names, from the caller. It is
	// secret: never logged, never recorded, never in a handle.
	Env []string `json:"-"`
}

// MCPServer is one stdio MCP server that the agent shall be offered.
type MCPServer struct {
	Name    string            `json:"name"`
	Command string            `json:"command"` // absolute
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

// Folders are where a bridge may write for a session. Both are absolute, private
// (0700) and made by the bridge when missing.
type Folders struct {
	// Run is the session's own: the agent's process lives here, and all of it is
	// gone after Dispose or a reboot. Its path is short enough for a socket.
	Run string `json:"run"`
	// State is the product's: its home, shared by all sessions with that agent.
	State string `json:"state"`
}

// Handle is a bridge's opaque note on a session. Version is the bridge's own
// number for the layout of Data. It holds no secrets and is at most 64 KiB.
type Handle struct {
	Version int             `json:"version"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Keeping says how the session's process is kept when its host is gone.
type Keeping struct {
	// Lease is the file whose lock the host holds while it lives; empty for none.
	Lease string `json:"lease,omitempty"`
	// Grace is how long the agent may live after the lease is free.
	Grace time.Duration `json:"grace,omitempty"`
}

// CreateRequest asks for a session.
type CreateRequest struct {
	SessionID string   `json:"session_id"` // chosen by the host, unique for ever
	Agent     Agent    `json:"agent"`
	Settings  Settings `json:"settings"`
	Folders   Folders  `json:"folders"`
	Keeping   Keeping  `json:"keeping"`
	// ForkFrom is the handle of the session whose history the new one starts with.
	ForkFrom *Handle `json:"fork_from,omitempty"`
}

// Created is the answer to Create.
type Created struct {
	Handle Handle `json:"handle"`
	Info   Info   `json:"info"`
}

// Info is what is known of a session beyond its handle. Empty fields are unknown.
type Info struct {
	NativeID     string   `json:"native_id,omitempty"` // the product's own id
	AgentVersion string   `json:"agent_version,omitempty"`
	Model        string   `json:"model,omitempty"` // as observed, not as asked for
	Effort       string   `json:"effort,omitempty"`
	Hold         Hold     `json:"hold"`
	Models       []string `json:"models,omitempty"`  // what the agent offers
	Efforts      []string `json:"efforts,omitempty"` // what the agent offers
	Warnings     []string `json:"warnings,omitempty"`
}

// SubmitRequest asks for a turn.
type SubmitRequest struct {
	SessionID string   `json:"session_id"`
	TurnID    string   `json:"turn_id"` // unique within the session
	Agent     Agent    `json:"agent"`
	Handle    Handle   `json:"handle"`
	Settings  Settings `json:"settings"`
	Folders   Folders  `json:"folders"`
	Keeping   Keeping  `json:"keeping"`
	// Task is text and stays text: no part of it is ever a flag, a command or a
	// file reference to the agent's own front end.
	Task string `json:"task"`
	// Resume is set when this turn was submitted before, by this or another process.
	Resume *Resume `json:"resume,omitempty"`
}

// Resume says how far the host has recorded a turn.
type Resume struct {
	// After is the position of the last recorded event; later ones are due.
	After Position `json:"after"`
	// Cancel is set when the turn had been asked to stop.
	Cancel bool `json:"cancel,omitempty"`
}

// ReconnectRequest asks what became of a session, and to make it usable again.
type ReconnectRequest struct {
	SessionID string   `json:"session_id"`
	Agent     Agent    `json:"agent"`
	Handle    Handle   `json:"handle"`
	Settings  Settings `json:"settings"`
	Folders   Folders  `json:"folders"`
	Keeping   Keeping  `json:"keeping"`
	// TurnID is the turn that the host believes under way; empty for none.
	TurnID string `json:"turn_id,omitempty"`
}

// Reconnected is what became of a session.
type Reconnected struct {
	Status ReconnectStatus `json:"status"`
	Reason string          `json:"reason,omitempty"` // for a person; empty for Same
	Handle Handle          `json:"handle"`           // replaces the stored one when Same
	Info   Info            `json:"info"`
	// Turn says what became of ReconnectRequest.TurnID.
	Turn TurnState `json:"turn,omitempty"`
}

// ReconnectStatus is one of four words; there is no fifth, "a new session".
type ReconnectStatus string

const (
	ReconnectSame    ReconnectStatus = "same"    // the same conversation, ready
	ReconnectGone    ReconnectStatus = "gone"    // the agent does not know it any more
	ReconnectRefused ReconnectStatus = "refused" // it is there, and may not be used: busy elsewhere, other mode
	ReconnectCannot  ReconnectStatus = "cannot"  // this agent cannot continue conversations
)

// TurnState is what a new process can say of a turn under way.
type TurnState string

const (
	// TurnAttachable: the turn runs, or has ended with its output at hand. Submit
	// it with Resume.
	TurnAttachable TurnState = "attachable"
	// TurnNotSent: the task never left the bridge. Submit it with Resume and it
	// will be sent, for the first time.
	TurnNotSent TurnState = "not_sent"
	// TurnLost: the agent died in it, or its output is gone. It is not run again.
	TurnLost TurnState = "lost"
)

// DisposeRequest asks to end a session's processes. Handle may be the zero Handle
// when Create never returned one: the bridge then goes by Folders.Run.
type DisposeRequest struct {
	SessionID string   `json:"session_id"`
	Agent     Agent    `json:"agent"`
	Handle    Handle   `json:"handle"`
	Settings  Settings `json:"settings"`
	Folders   Folders  `json:"folders"`
	// Delete also removes the conversation from the agent's own store, where the
	// bridge has CanDelete.
	Delete bool `json:"delete,omitempty"`
	// Grace is how long to wait at each step between asking and killing; 0 = 2 s.
	Grace time.Duration `json:"grace,omitempty"`
}

// Receipt is the proof of an end. Ended and Survived hold at most 64 processes
// each; the counts are exact.
type Receipt struct {
	Ended         []Process `json:"ended,omitempty"`
	Survived      []Process `json:"survived,omitempty"`
	EndedCount    int       `json:"ended_count"`
	SurvivedCount int       `json:"survived_count"`
	// Proven is true when the whole tree is known to be gone. Without a subreaper
	// (other systems than Linux) it is false whenever there was a process at all.
	Proven bool `json:"proven"`
	// Exit is how the agent itself ended; nil when there was none.
	Exit *Exit `json:"exit,omitempty"`
	// Notes are for a person: what was asked, what had to be forced.
	Notes []string `json:"notes,omitempty"`
}

// Process names a process beyond doubt: a pid alone is reused.
type Process struct {
	PID     int    `json:"pid"`
	Start   uint64 `json:"start"` // clock ticks since boot on Linux, else 0
	Command string `json:"command,omitempty"`
}

// Exit is how an agent's process ended.
type Exit struct {
	Code   int       `json:"code"`             // -1 when ended by a signal
	Signal string    `json:"signal,omitempty"` // such as "killed"
	At     time.Time `json:"at"`
	// Ordered is the reason given by whoever ordered the end; empty when the agent
	// ended by itself.
	Ordered string `json:"ordered,omitempty"`
	Stderr  string `json:"stderr,omitempty"` // the last 8 KiB at most
}
