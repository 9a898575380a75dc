package core

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// Entry is one line of a session's history, in the order in which it happened.
// Exactly one of Accepted, Event and Ended is set.
type Entry struct {
	// Cursor is where the next entry begins: hand it to Follow to go on from here.
	Cursor   int64          `json:"cursor"`
	Turn     string         `json:"turn"`
	At       time.Time      `json:"at"`
	Accepted *Accepted      `json:"accepted,omitempty"`
	Event    *bridges.Event `json:"event,omitempty"`
	Ended    *Ended         `json:"ended,omitempty"`
}

// Accepted is the promise that a turn will run at most once and be answered for.
type Accepted struct {
	N      int          `json:"n"` // 1 for the session's first turn
	Task   string       `json:"task"`
	Key    string       `json:"key,omitempty"` // the caller's idempotency key
	Mode   ceiling.Mode `json:"mode"`
	Model  string       `json:"model,omitempty"`
	Effort string       `json:"effort,omitempty"`
}

// Ended is how a turn came out.
type Ended struct {
	N          int              `json:"n"`
	Status     TurnStatus       `json:"status"`
	StopReason string           `json:"stop_reason,omitempty"`
	Model      string           `json:"model,omitempty"` // as observed
	Usage      *bridges.Usage   `json:"usage,omitempty"`
	Error      *bridges.Error   `json:"error,omitempty"`
	Warnings   []string         `json:"warnings,omitempty"`
	Tools      map[string]int   `json:"tools,omitempty"` // tool calls by their last status
	Denied     int              `json:"denied,omitempty"`
	TextBytes  int64            `json:"text_bytes"`
	Duration   time.Duration    `json:"duration"`
	Hold       bridges.Hold     `json:"hold"`
	Exit       *bridges.Exit    `json:"exit,omitempty"`
	Receipt    *bridges.Receipt `json:"receipt,omitempty"`
}

// kind is the kind of the turn's error, empty for none.
func (e *Ended) kind() bridges.ErrorKind {
	if e.Error == nil {
		return ""
	}
	return e.Error.Kind
}

// TurnStatus is the host's word for how a turn stands. It has the bridge's own
// four and what only the host can know.
type TurnStatus string

const (
	TurnRunning   TurnStatus = "running"
	TurnCompleted TurnStatus = TurnStatus(bridges.StatusCompleted)
	TurnFailed    TurnStatus = TurnStatus(bridges.StatusFailed)
	TurnCancelled TurnStatus = TurnStatus(bridges.StatusCancelled)
	TurnRefused   TurnStatus = TurnStatus(bridges.StatusRefused)
	// TurnLost: the agent died in the turn, or nobody can say what became of it.
	TurnLost TurnStatus = "lost"
)

// The types of records in a session's log. They are stored: append only.
const (
	recAccepted byte = 'A'
	recEvent    byte = 'E'
	recEnded    byte = 'Z'
)

// wireEntry is what a record holds; its type says which member is set.
type wireEntry struct {
	Turn     string         `json:"t"`
	At       int64          `json:"ms"` // Unix milliseconds
	Accepted *Accepted      `json:"a,omitempty"`
	Event    *bridges.Event `json:"e,omitempty"`
	Ended    *Ended         `json:"z,omitempty"`
}

func encodeEntry(e Entry) (byte, []byte, error) {
	w := wireEntry{Turn: e.Turn, At: e.At.UnixMilli(), Accepted: e.Accepted, Event: e.Event, Ended: e.Ended}
	typ := recEvent
	switch {
	case e.Accepted != nil:
		typ = recAccepted
	case e.Ended != nil:
		typ = recEnded
	}
	b, err := json.Marshal(w)
	if err != nil {
		return 0, nil, fmt.Errorf("encode log entry: %w", err)
	}
	return typ, b, nil
}

// decodeEntry returns ok=false for a record type that this version does not know,
// which is no error: a newer one may have written it.
func decodeEntry(typ byte, payload []byte) (e Entry, ok bool, err error) {
	switch typ {
	case recAccepted, recEvent, recEnded:
	default:
		return Entry{}, false, nil
	}
	var w wireEntry
	if err := json.Unmarshal(payload, &w); err != nil {
		return Entry{}, false, fmt.Errorf("log entry of type %q: %w", typ, err)
	}
	e = Entry{Turn: w.Turn, At: time.UnixMilli(w.At), Accepted: w.Accepted, Event: w.Event, Ended: w.Ended}
	if e.Accepted == nil && e.Event == nil && e.Ended == nil {
		return Entry{}, false, fmt.Errorf("log entry of type %q holds nothing", typ)
	}
	return e, true, nil
}
