package bridges

import "encoding/json"

// Event is one thing that happened in a turn. Events with the same Kind and ID
// are one thing growing: text appends, everything else replaces what it sets.
type Event struct {
	Kind Kind `json:"kind"`
	// ID is the upsert key: a message's, a tool call's, a plan's.
	ID string `json:"id,omitempty"`
	// Pos is where in the agent's output the event comes from. The host stores it
	// with the event and hands the last one back after a crash. Events that come
	// from no output (a watchdog's notice) have the zero Position.
	Pos Position `json:"pos,omitzero"`

	// Text is for KindText and KindThought (the piece to append, at most 256 KiB)
	// and KindNotice (the whole text).
	Text   string      `json:"text,omitempty"`
	Tool   *Tool       `json:"tool,omitempty"`
	Plan   []PlanEntry `json:"plan,omitempty"`
	Usage  *Usage      `json:"usage,omitempty"`
	Notice *Notice     `json:"notice,omitempty"`
	// Session is new knowledge of the session, such as its native id; the host
	// stores Handle before it shows the event.
	Session *SessionUpdate `json:"session,omitempty"`
	// Question and Answer are recorded by the host; a bridge uses Turn.Ask.
	Question *Question `json:"question,omitempty"`
	Answer   *Answer   `json:"answer,omitempty"`
	// Raw keeps the agent's own frame for kinds that the bridge does not know.
	Raw json.RawMessage `json:"raw,omitempty"`
}

// Kind names what an event is. The set is open: pass on what you do not know.
type Kind string

const (
	KindText     Kind = "text"    // a piece of the answer
	KindThought  Kind = "thought" // a piece of reasoning, never part of the answer
	KindTool     Kind = "tool"
	KindPlan     Kind = "plan" // replaces the whole plan
	KindUsage    Kind = "usage"
	KindSession  Kind = "session"
	KindNotice   Kind = "notice"
	KindQuestion Kind = "question"
	KindAnswer   Kind = "answer"
	KindUnknown  Kind = "unknown" // Raw has it
)

// Position orders events within a session: Offset is where the frame begins in
// the agent's output, Part counts the events made from that one frame, from 1.
type Position struct {
	Offset int64 `json:"o"`
	Part   int   `json:"p"`
}

// IsZero reports whether the position is of no output at all.
func (p Position) IsZero() bool { return p == Position{} }

// After reports whether p comes later than q.
func (p Position) After(q Position) bool {
	return p.Offset > q.Offset || p.Offset == q.Offset && p.Part > q.Part
}

// Tool is the state of one tool call. Zero fields leave what was known.
type Tool struct {
	Name   string     `json:"name,omitempty"`  // the product's own name of it
	Title  string     `json:"title,omitempty"` // for a person, one line
	Kind   ToolKind   `json:"kind,omitempty"`
	Status ToolStatus `json:"status,omitempty"`
	// Input is the call's arguments as the agent sent them, at most 16 KiB.
	Input json.RawMessage `json:"input,omitempty"`
	// Output is the tool's text so far, whole, at most 32 KiB with the middle cut.
	Output    string   `json:"output,omitempty"`
	Locations []string `json:"locations,omitempty"` // files concerned
}

// ToolKind sorts tools by what they touch. The set is open; unknown = other.
type ToolKind string

const (
	ToolRead       ToolKind = "read"
	ToolEdit       ToolKind = "edit"
	ToolDelete     ToolKind = "delete"
	ToolMove       ToolKind = "move"
	ToolSearch     ToolKind = "search"
	ToolExecute    ToolKind = "execute"
	ToolThink      ToolKind = "think"
	ToolFetch      ToolKind = "fetch"
	ToolSwitchMode ToolKind = "switch_mode"
	ToolOther      ToolKind = "other"
)

// ToolStatus is how far a tool call is.
type ToolStatus string

const (
	ToolPending   ToolStatus = "pending"
	ToolRunning   ToolStatus = "in_progress"
	ToolCompleted ToolStatus = "completed"
	ToolFailed    ToolStatus = "failed"
	ToolCancelled ToolStatus = "cancelled"
)

// PlanEntry is one step of the agent's plan.
type PlanEntry struct {
	Text     string `json:"text"`
	Status   string `json:"status,omitempty"`   // pending, in_progress, completed
	Priority string `json:"priority,omitempty"` // high, medium, low
}

// Usage is what a turn cost, in tokens. Input includes cached input. Source says
// where the numbers come from; agents differ, and a sum of guesses is no number.
type Usage struct {
	Input      int64   `json:"input"`
	Output     int64   `json:"output"`
	CacheRead  int64   `json:"cache_read,omitempty"`
	CacheWrite int64   `json:"cache_write,omitempty"`
	Reasoning  int64   `json:"reasoning,omitempty"`
	CostUSD    float64 `json:"cost_usd,omitempty"`
	Source     string  `json:"source,omitempty"` // turn, last_call, session_diff
	// ContextUsed and ContextSize are the window's filling, 0 when not told.
	ContextUsed int64           `json:"context_used,omitempty"`
	ContextSize int64           `json:"context_size,omitempty"`
	Raw         json.RawMessage `json:"raw,omitempty"`
}

// Notice is something a person should know that is not part of the answer.
type Notice struct {
	Level string `json:"level"` // info, warning, error
	Code  string `json:"code"`  // stable, such as retry, oversize_frame, silent
}

// SessionUpdate is new knowledge of the session.
type SessionUpdate struct {
	Handle *Handle `json:"handle,omitempty"`
	Info   *Info   `json:"info,omitempty"`
	Title  string  `json:"title,omitempty"`
}

// Question is something the agent needs answered before it goes on.
type Question struct {
	ID     string `json:"id"` // stable across processes
	ToolID string `json:"tool_id,omitempty"`
	Tool   Tool   `json:"tool"` // what it wants to do
	Title  string `json:"title"`
	// Choices are set when the agent asks for a choice rather than a permission;
	// the answer is then one of them, in Answer.Choice.
	Choices []string        `json:"choices,omitempty"`
	Pos     Position        `json:"pos,omitzero"`
	Raw     json.RawMessage `json:"raw,omitempty"`
}

// Answer is the reply to a Question. A bridge maps Allow to the agent's narrowest
// "once" option by its kind, never by its position or name, and never to "always".
type Answer struct {
	Decision Decision `json:"decision"`
	Choice   string   `json:"choice,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	By       string   `json:"by,omitempty"` // policy, user, timeout, nobody
}

// Decision is one of three; the zero value denies.
type Decision string

const (
	Deny   Decision = "deny"
	Allow  Decision = "allow"
	Cancel Decision = "cancel" // the turn is being stopped
)

// Strength is how a limit is held, from the strongest to the weakest.
type Strength string

const (
	HoldKernel         Strength = "kernel"          // our sandbox, enforced by the system
	HoldProductSandbox Strength = "product-sandbox" // the product's own, enforced by the system
	HoldProductPolicy  Strength = "product-policy"  // the product promises not to
	HoldAsked          Strength = "asked"           // the agent asks, and the answer is no
	HoldNone           Strength = "none"            // nothing to hold: full
)

// Hold is how the session's permission mode is held.
type Hold struct {
	Strength Strength `json:"strength,omitempty"`
	Detail   string   `json:"detail,omitempty"` // such as landlock-7+seccomp
}

func (h Hold) String() string {
	if h.Detail == "" {
		return string(h.Strength)
	}
	return string(h.Strength) + ": " + h.Detail
}

// Result ends a turn: there is exactly one, and nothing comes after it.
type Result struct {
	Status Status `json:"status"`
	// StopReason is the agent's own word, unchanged.
	StopReason string `json:"stop_reason,omitempty"`
	Usage      *Usage `json:"usage,omitempty"`
	// Model is what really answered, when the agent tells.
	Model string `json:"model,omitempty"`
	// Error says why, for StatusFailed and StatusRefused.
	Error    *Error   `json:"error,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Denied counts the questions of this turn that were answered with Deny.
	Denied int `json:"denied,omitempty"`
}

// Status is how a turn ended, by the agent's own account.
type Status string

const (
	StatusCompleted Status = "completed"
	StatusFailed    Status = "failed"    // Error says why
	StatusCancelled Status = "cancelled" // somebody stopped it
	StatusRefused   Status = "refused"   // the model declined
)
