// Package fold turns what was sent to a codex app-server and what it said into the
// state of a thread and the events of its turns. The same lines always make the same
// state and the same positions, so that a new process of the bridge goes on where a
// killed one was; the state is plain data and can be stored between any two lines.
package fold

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// State is what the bytes say that went to one app-server (Sent) and came from it
// (Received). The same bytes give the same fold and the same events at the same
// positions, whoever reads them, so a process that was killed loses nothing that its
// successor cannot read again. It is plain data: its JSON is the checkpoint.
//
// What was sent may be folded earlier than in truth, up to all of it at once before
// the first byte of output; a response is never seen before its request.
type State struct {
	Launch string           `json:"launch"`          // what the process was started for, as the bridge tells it
	Login  string           `json:"login,omitempty"` // which login it was started with
	Out    int64            `json:"out"`             // where the output of the process begins
	Next   int64            `json:"next"`            // where the first message begins that is not folded yet
	Thread string           `json:"thread,omitempty"`
	LastID int64            `json:"last_id"`
	Calls  map[int64]string `json:"calls"` // the methods of our calls without an answer
	// Asked are the agent's requests without an answer, by raw id; Replied the
	// answers to requests that are not folded yet, true for one that denies.
	Asked   map[string]int64 `json:"asked"`
	Replied map[string]bool  `json:"replied"`
	Total   *tokens          `json:"total,omitempty"` // of the thread, as last told
	Turn    *Turn            `json:"turn,omitempty"`  // the last one started
	Past    string           `json:"past,omitempty"`  // codex's id of the one before
	// Model and Effort are what the thread is set to, Provider who serves it.
	Model    string `json:"model,omitempty"`
	Effort   string `json:"effort,omitempty"`
	Default  string `json:"default,omitempty"` // the effort that codex starts with, where it tells
	Provider string `json:"provider,omitempty"`
	Version  string `json:"version,omitempty"`
}

// Turn is the fold of one turn.
type Turn struct {
	ID          string           `json:"id"`   // the host's, with the session's before it
	Call        int64            `json:"call"` // the id of its turn/start
	Codex       string           `json:"codex,omitempty"`
	Model       string           `json:"model,omitempty"`
	Interrupted bool             `json:"interrupted,omitempty"` // an interrupt was sent
	Refused     *jsonrpc.Error   `json:"refused,omitempty"`     // turn/start was answered with it
	End         *Ending          `json:"end,omitempty"`
	Before      *tokens          `json:"before,omitempty"` // the thread's total at its start
	Usage       *bridges.Usage   `json:"usage,omitempty"`
	Denied      int              `json:"denied,omitempty"`
	Tools       int              `json:"tools,omitempty"`
	Failed      int              `json:"failed,omitempty"`
	Unauthed    int              `json:"unauthed,omitempty"` // retries because of the login
	Last        string           `json:"last,omitempty"`     // what the last of them said
	Compacted   bool             `json:"compacted,omitempty"`
	Shown       map[string]int64 `json:"shown"` // bytes of text shown, by open message
	Items       map[string]*Item `json:"items"` // tool calls under way
	Notices     int              `json:"notices,omitempty"`
}

// Ending is what the agent's terminal frame said.
type Ending struct {
	Status string `json:"status"`
	Fault  *Fault `json:"fault,omitempty"`
}

// New is the fold of a process whose output begins at offset.
func New(launch, login string, offset int64) *State {
	return &State{Launch: launch, Login: login, Out: offset, Next: offset, Calls: map[int64]string{}, Asked: map[string]int64{}, Replied: map[string]bool{}}
}

// Load reads a checkpoint.
func Load(data []byte) (*State, error) {
	f := New("", "", 0)
	if err := json.Unmarshal(data, f); err != nil {
		return nil, fmt.Errorf("the session's checkpoint: %w", err)
	}
	t := f.Turn
	if f.Calls == nil || f.Asked == nil || f.Replied == nil || t != nil && (t.Shown == nil || t.Items == nil) {
		return nil, errors.New("the session's checkpoint is not whole")
	}
	return f, nil
}

// Sent folds one frame of ours.
func (f *State) Sent(frame []byte) {
	for m := range jsonrpc.Messages(jsonrpc.Frame{Data: frame, Size: int64(len(frame))}) {
		switch m.Kind {
		case jsonrpc.Request:
			id, ok := m.ID.Int()
			if !ok {
				continue
			}
			f.LastID = max(f.LastID, id)
			f.Calls[id] = m.Method
			switch m.Method {
			case "turn/start":
				f.begin(id, m.Params)
			case "turn/interrupt":
				if f.Turn != nil {
					f.Turn.Interrupted = true
				}
			}
		case jsonrpc.Response:
			id, no := string(m.ID), denies(m.Result)
			if _, open := f.Asked[id]; open {
				f.settle(id, no)
			} else {
				f.Replied[id] = no
			}
		}
	}
}

func (f *State) begin(id int64, params []byte) {
	if f.Turn != nil && f.Turn.Call == id {
		return // a checkpoint may hold more than it says
	}
	if f.Turn != nil && f.Turn.Codex != "" {
		f.Past = f.Turn.Codex
	}
	clear(f.Asked) // codex waits for no answer of a turn that is over
	f.Turn = &Turn{
		ID: jsonrpc.GetString(params, "clientUserMessageId"), Call: id, Model: jsonrpc.GetString(params, "model"),
		Shown: map[string]int64{}, Items: map[string]*Item{},
	}
	if f.Turn.Model == "" {
		f.Turn.Model = f.Model
	}
	f.Model = f.Turn.Model
	if effort := jsonrpc.GetString(params, "effort"); effort != "" {
		f.Effort = effort
	}
}

func (f *State) settle(id string, denied bool) {
	delete(f.Asked, id)
	if denied && f.Turn != nil {
		f.Turn.Denied++
	}
}

// denies reports whether an answer of ours said no.
func denies(result []byte) bool {
	for _, key := range []string{"decision", "action"} {
		if v := jsonrpc.Get(result, key); v != nil {
			return jsonrpc.Unquote(v) != "accept"
		}
	}
	for _, key := range []string{"permissions", "answers"} {
		if v := jsonrpc.Get(result, key); v != nil {
			for range jsonrpc.Members(v) {
				return false
			}
			return true
		}
	}
	return false
}

// emitter gives the events of one message their positions.
type emitter struct {
	offset int64
	part   int
	out    func(bridges.Event)
}

func (e *emitter) emit(ev bridges.Event) {
	e.part++
	ev.Pos = bridges.Position{Offset: e.offset, Part: e.part}
	e.out(ev)
}

func (e *emitter) notice(level, code, text string) {
	id := code
	if code != "retry" { // of which only the last one matters
		id = fmt.Sprintf("%s-%d", code, e.offset)
	}
	e.emit(bridges.Event{Kind: bridges.KindNotice, ID: id, Text: Clip(text, MaxNotice), Notice: &bridges.Notice{Level: level, Code: code}})
}

const (
	MaxNotice  = 4 << 10
	maxNotices = 200 // of one turn: an agent that warns for ever fills no log
)

// Received folds one message of the agent and hands its events to out.
func (f *State) Received(m *jsonrpc.Message, out func(bridges.Event)) {
	f.Next = m.Offset + m.Size
	e := &emitter{offset: m.Offset, out: out}
	switch m.Kind {
	case jsonrpc.Response:
		f.response(m)
	case jsonrpc.Request:
		id := string(m.ID)
		f.Asked[id] = m.Offset
		if denied, done := f.Replied[id]; done {
			delete(f.Replied, id)
			f.settle(id, denied)
		}
	case jsonrpc.Notification:
		f.notification(m, e)
	case jsonrpc.Oversize:
		f.oversize(m, e)
	}
}

func (f *State) response(m *jsonrpc.Message) {
	id, ok := m.ID.Int()
	if !ok {
		return
	}
	method := f.Calls[id]
	delete(f.Calls, id)
	switch method {
	case "initialize":
		f.Version = versionOf(jsonrpc.GetString(m.Result, "userAgent"))
	case "thread/start", "thread/resume", "thread/fork":
		if m.Error != nil {
			return
		}
		f.Thread = jsonrpc.GetString(m.Result, "thread", "id")
		f.Model = jsonrpc.GetString(m.Result, "model")
		f.Provider = jsonrpc.GetString(m.Result, "modelProvider")
		f.Default = jsonrpc.GetString(m.Result, "reasoningEffort")
	case "turn/start":
		if f.Turn == nil || f.Turn.Call != id {
			return
		}
		if m.Error != nil {
			f.Turn.Refused = m.Error
			return
		}
		if own := jsonrpc.GetString(m.Result, "turn", "id"); own != "" {
			f.Turn.Codex = own
		}
	}
}

// versionOf picks the version out of a user agent such as "subspan/0.171.0 (Debian …)".
func versionOf(userAgent string) string {
	_, rest, _ := strings.Cut(userAgent, "/")
	version, _, _ := strings.Cut(rest, " ")
	return version
}

// Current returns the running turn when the frame with these parameters belongs to
// it. What belongs to a subagent's thread, to an earlier turn, or came after the end
// is nobody's any more.
func (f *State) Current(params []byte) *Turn {
	t := f.Turn
	if t == nil || t.End != nil || t.Refused != nil {
		return nil
	}
	if thread := jsonrpc.GetString(params, "threadId"); thread != "" && thread != f.Thread {
		return nil
	}
	id := jsonrpc.GetString(params, "turnId")
	if id == "" {
		id = jsonrpc.GetString(params, "turn", "id")
	}
	if id == "" || id == t.Codex {
		return t
	}
	return nil
}

// started takes a turn/started that overtook the answer to turn/start. No other
// notification says which turn is meant: after a resume codex tells of old ones.
func (f *State) started(params []byte) {
	id := jsonrpc.GetString(params, "turn", "id")
	if t := f.Turn; t != nil && t.Codex == "" && id != f.Past && jsonrpc.GetString(params, "threadId") == f.Thread {
		t.Codex = id
	}
}

func (f *State) oversize(m *jsonrpc.Message, e *emitter) {
	t := f.Turn
	if t == nil || t.Codex == "" || t.End != nil {
		return
	}
	e.notice("error", "oversize_frame", "codex sent a frame of "+size(m.Size)+" ("+m.Method+"), too long to read; it was skipped")
	if m.Method == "turn/completed" {
		t.End = &Ending{Status: "failed", Fault: &Fault{Message: "the turn ended with a frame of " + size(m.Size) + ", too long to read"}}
	}
}
