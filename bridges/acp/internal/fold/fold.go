// Package fold is the protocol state of an ACP session as a fold: what was sent and
// what was received, in order, and nothing else, make the state. A new process that
// folds the journal and the output again from the last checkpoint knows what the
// one before it knew, down to the position of every event.
//
// A State is not safe for concurrent use, and touches neither files nor clocks.
package fold

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// State is everything that is known of a session from its frames.
type State struct {
	NextID int64 `json:"next_id"` // of our next request
	// NativeID is the agent's own id of the session.
	NativeID string `json:"native_id,omitempty"`
	Agent    Agent  `json:"agent"`
	Config   Config `json:"config"`
	// Calls are our requests without an answer, by their ids.
	Calls map[int64]Call `json:"calls,omitempty"`
	// Open are the agent's requests that we have not answered, oldest first.
	Open []Question `json:"open,omitempty"`
	Turn *Turn      `json:"turn,omitempty"`
	// Past are the ids of the turns before, the newest last. A turn that is there is
	// never taken for one that was not sent.
	Past []string `json:"past,omitempty"`
	// Late counts pieces of a turn that came after its end.
	Late int `json:"late,omitempty"`
	// Replayed counts messages of the history that a load brought.
	Replayed int `json:"replayed,omitempty"`
	// Instructed is the digest of the instructions that the agent was given.
	Instructed string `json:"instructed,omitempty"`

	// Totals and Cost are what the agent counted for the whole session so far.
	Totals bridges.Usage `json:"totals"`
	Cost   float64       `json:"cost,omitempty"`
	// SessionTotals is set for agents whose usage counts the session, not the turn.
	SessionTotals bool `json:"session_totals,omitempty"`
}

// Call is one of our requests on its way.
type Call struct {
	Method string `json:"method"`
	Value  string `json:"value,omitempty"` // the mode or model that it sets
}

// Turn is the session's newest turn.
type Turn struct {
	ID      string         `json:"id"`
	Prompt  int64          `json:"prompt,omitempty"` // id of the prompt; 0 = not sent
	From    int64          `json:"from,omitempty"`   // the output before this offset is of an earlier turn
	Cancel  bool           `json:"cancel,omitempty"` // the agent was asked to stop
	Ended   bool           `json:"ended,omitempty"`
	Tail    bool           `json:"tail,omitempty"` // what comes after the end still belongs to it
	Stop    string         `json:"stop,omitempty"` // the agent's stop reason
	Error   *jsonrpc.Error `json:"error,omitempty"`
	Usage   *bridges.Usage `json:"usage,omitempty"`
	Model   string         `json:"model,omitempty"`
	Denied  int            `json:"denied,omitempty"`
	Message string         `json:"message,omitempty"` // id of the message that grows
	Head    string         `json:"head,omitempty"`    // the beginning of that message
	Tools   []string       `json:"tools,omitempty"`   // ids of tool calls without an end

	// Used and Size are the context window's filling, StartCost the session's cost
	// when the turn began.
	Used      int64   `json:"used,omitempty"`
	Size      int64   `json:"size,omitempty"`
	StartCost float64 `json:"start_cost,omitempty"`
}

// headSize is how much of a message is kept to see whether it is an error in disguise.
const headSize = 512

// maxTools bounds how many unfinished tool calls are remembered.
const maxTools = 1024

// Question is a request of the agent. Only permission requests have more than an ID
// and a method.
type Question struct {
	ID      []byte           `json:"id"` // of the agent's request, as written
	Method  string           `json:"method"`
	Asked   bridges.Question `json:"asked"`
	Options []Option         `json:"options,omitempty"`
}

// Option is one answer that the agent offers.
type Option struct {
	ID   string `json:"id"`
	Kind string `json:"kind"` // allow_once, allow_always, reject_once, reject_always
	Name string `json:"name,omitempty"`
}

// Option returns the first offered option of a kind.
func (q Question) Option(kind string) (Option, bool) {
	for _, o := range q.Options {
		if o.Kind == kind {
			return o, true
		}
	}
	return Option{}, false
}

// Unanswered returns the open request with an id, if there is one.
func (s *State) Unanswered(id jsonrpc.ID) (Question, bool) {
	for _, q := range s.Open {
		if bytes.Equal(q.ID, id) {
			return q, true
		}
	}
	return Question{}, false
}

// Step is what one received message means.
type Step struct {
	// Events are in order, with their positions. The text of Text follows them.
	Events []bridges.Event
	// Text is a string literal whose text belongs in events like TextEvent, in pieces.
	// It aliases the message.
	Text      []byte
	TextEvent bridges.Event
	// Ended is set when the message ended the turn.
	Ended bool
	// Activity is set when the message shows that the agent works.
	Activity bool
}

// position returns the position of the part-th event of the message at offset.
func position(offset int64, part int) bridges.Position {
	return bridges.Position{Offset: offset, Part: part}
}

// Begin opens a turn. Nothing of an earlier one is left but its id.
func (s *State) Begin(turnID string) {
	s.retire()
	s.Past = slices.DeleteFunc(s.Past, func(id string) bool { return id == turnID }) // it was not sent then
	s.Turn = &Turn{ID: turnID, StartCost: s.Cost}
	s.Late = 0
}

// Forget notes a turn of which nothing but the id is known.
func (s *State) Forget(turnID string) {
	const most = 16
	if turnID == "" || slices.Contains(s.Past, turnID) {
		return
	}
	s.Past = append(s.Past, turnID)
	if n := len(s.Past); n > most {
		s.Past = slices.Clone(s.Past[n-most:])
	}
}

func (s *State) retire() {
	if s.Turn != nil {
		s.Forget(s.Turn.ID)
		s.Turn = nil
	}
}

// Running reports whether a prompt is with the agent.
func (s *State) Running() bool { return s.Turn != nil && s.Turn.Prompt != 0 && !s.Turn.Ended }

// Fresh returns the state for the session's next agent process.
func (s *State) Fresh() State {
	fresh := State{NextID: 1, NativeID: s.NativeID, Instructed: s.Instructed, Past: slices.Clone(s.Past)}
	if s.Turn != nil {
		fresh.Forget(s.Turn.ID)
	}
	return fresh
}

// Sent folds a frame of ours. outOffset is the size of the agent's output when it
// was sent.
func (s *State) Sent(frame []byte, outOffset int64) {
	for m := range jsonrpc.Messages(jsonrpc.Frame{Data: frame}) {
		switch m.Kind {
		case jsonrpc.Request:
			s.sentRequest(&m, outOffset)
		case jsonrpc.Notification:
			if m.Method == "session/cancel" && s.Running() {
				s.Turn.Cancel = true
			}
		case jsonrpc.Response:
			s.sentAnswer(&m)
		}
	}
}

func (s *State) sentRequest(m *jsonrpc.Message, outOffset int64) {
	id, ok := m.ID.Int()
	if !ok {
		return // none of ours: they are whole numbers
	}
	s.NextID = max(s.NextID, id+1)
	call := Call{Method: m.Method}
	switch m.Method {
	case "session/set_mode":
		call.Value = jsonrpc.GetString(m.Params, "modeId")
	case "session/set_model":
		call.Value = jsonrpc.GetString(m.Params, "modelId")
	case "session/load", "session/resume":
		s.NativeID = jsonrpc.GetString(m.Params, "sessionId")
		s.Replayed = 0
	case "session/prompt":
		if s.Turn != nil {
			s.Turn.Prompt, s.Turn.From, s.Turn.Ended, s.Turn.Error = id, outOffset, false, nil
		}
	}
	if s.Calls == nil {
		s.Calls = map[int64]Call{}
	}
	s.Calls[id] = call
}

func (s *State) sentAnswer(m *jsonrpc.Message) {
	for i, q := range s.Open {
		if !bytes.Equal(q.ID, m.ID) {
			continue
		}
		chosen := jsonrpc.GetString(m.Result, "outcome", "optionId")
		for _, o := range q.Options {
			if o.ID == chosen && s.Turn != nil && (o.Kind == "reject_once" || o.Kind == "reject_always") {
				s.Turn.Denied++
				break
			}
		}
		s.Open = append(s.Open[:i:i], s.Open[i+1:]...)
		return
	}
}

// Received folds a message of the agent.
func (s *State) Received(m *jsonrpc.Message) Step {
	switch m.Kind {
	case jsonrpc.Response:
		return s.answered(m)
	case jsonrpc.Request:
		if m.Method == "session/request_permission" {
			return s.asked(m)
		}
		s.Open = append(s.Open, Question{ID: bytes.Clone(m.ID), Method: m.Method})
		if m.Method == "session/update" {
			return s.update(m) // with an id that it should not have
		}
		return Step{Activity: s.inTurn(m.Offset)}
	case jsonrpc.Notification:
		if m.Method == "session/update" {
			return s.update(m)
		}
		if s.inTurn(m.Offset) && jsonrpc.GetString(m.Params, "update", "sessionUpdate") == "retry_state" {
			return Step{Events: []bridges.Event{s.retry(m)}, Activity: true}
		}
		if s.inTurn(m.Offset) && !extension(m.Method) {
			return Step{Events: []bridges.Event{s.unknown(m, m.Raw)}, Activity: true}
		}
	case jsonrpc.Oversize:
		if s.inTurn(m.Offset) {
			return Step{Events: []bridges.Event{s.notice(m, "warning", "oversize_frame",
				"a message of "+strconv.FormatInt(m.Size, 10)+" bytes is over the limit and was left out")}}
		}
	case jsonrpc.Noise:
		if s.inTurn(m.Offset) {
			return Step{Events: []bridges.Event{s.notice(m, "info", "noise", headText(m.Raw, 256))}}
		}
	}
	return Step{}
}

// inTurn reports whether output at offset belongs to the turn.
func (s *State) inTurn(offset int64) bool {
	t := s.Turn
	return t != nil && t.Prompt != 0 && (!t.Ended || t.Tail) && offset >= t.From
}

// extension reports whether a method is one that a client may ignore by its name.
func extension(method string) bool {
	return len(method) > 0 && (method[0] == '_' || method[0] == '$')
}

func (s *State) answered(m *jsonrpc.Message) Step {
	id, ok := m.ID.Int()
	call, known := s.Calls[id]
	if !ok || !known {
		return Step{}
	}
	delete(s.Calls, id)
	if call.Method == "session/prompt" {
		return s.ended(m, id)
	}
	if m.Error != nil {
		return Step{}
	}
	switch call.Method {
	case "initialize":
		s.Agent = parseAgent(m.Result)
	case "session/new", "session/fork":
		if native := jsonrpc.GetString(m.Result, "sessionId"); native != "" {
			s.NativeID = native
		}
		s.Config.merge(m.Result)
	case "session/load", "session/resume", "session/set_config_option":
		s.Config.merge(m.Result)
	case "session/set_mode":
		s.Config.merge(m.Result)
		s.Config.Modes.Current = call.Value
		s.Config.setCurrent(CategoryMode, call.Value)
	case "session/set_model":
		s.Config.merge(m.Result)
		s.Config.Models.Current = call.Value
		s.Config.setCurrent(CategoryModel, call.Value)
	}
	return Step{}
}

// ended closes the turn with the answer to its prompt.
func (s *State) ended(m *jsonrpc.Message, id int64) Step {
	t := s.Turn
	if t == nil || t.Prompt != id {
		return Step{}
	}
	t.Ended = true
	t.Error = m.Error
	t.Stop = jsonrpc.GetString(m.Result, "stopReason")
	s.turnUsage(t, m.Result)
	step := Step{Ended: true, Activity: true}
	if t.Cancel {
		// Agents leave the tools of a stopped turn without an end.
		for i, tool := range t.Tools {
			step.Events = append(step.Events, bridges.Event{
				Kind: bridges.KindTool, ID: tool, Pos: position(m.Offset, i+1),
				Tool: &bridges.Tool{Status: bridges.ToolCancelled},
			})
		}
	}
	t.Tools = nil
	return step
}
