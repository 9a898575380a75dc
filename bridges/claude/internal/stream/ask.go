package stream

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/tidwall/gjson"
)

// Question is something the agent waits for.
type Question struct {
	ID     string             `json:"id"` // the request id that the answer must carry
	Pos    bridges.Position   `json:"pos"`
	Kind   string             `json:"kind"` // the request's subtype
	Name   string             `json:"name,omitempty"`
	ToolID string             `json:"tool_id,omitempty"`
	Input  json.RawMessage    `json:"input,omitempty"`
	Ask    bridges.Question   `json:"ask"`
	Picks  []bridges.Question `json:"picks,omitempty"` // AskUserQuestion: one for each of its questions
}

// request folds a control request of the agent into an open question.
func (s *State) request(root gjson.Result) {
	req := root.Get("request")
	q := Question{
		ID: root.Get("request_id").String(), Kind: req.Get("subtype").String(),
		Pos: bridges.Position{Offset: s.out.offset, Part: 1},
	}
	if q.ID == "" {
		s.unknown(root)
		return
	}
	s.close(q.ID)
	if q.Kind == "can_use_tool" {
		input := req.Get("input")
		q.Name, q.ToolID = req.Get("tool_name").String(), req.Get("tool_use_id").String()
		if input.IsObject() {
			q.Input = json.RawMessage(input.Raw)
		}
		tool := s.describe(q.Name, input)
		tool.Status = bridges.ToolPending
		q.Ask = bridges.Question{ID: q.ID, ToolID: q.ToolID, Tool: *tool, Title: tool.Title, Pos: q.Pos}
		if p := req.Get("blocked_path").String(); p != "" {
			q.Ask.Tool.Locations = append(q.Ask.Tool.Locations, s.scrub.Clean(clip(p, 1024)))
		}
		if q.Name == "AskUserQuestion" {
			q.Picks = s.picks(q.Ask, input)
		}
	}
	s.Open = append(s.Open, q)
}

// picks makes one question with choices of each that the agent put together.
func (s *State) picks(base bridges.Question, input gjson.Result) []bridges.Question {
	var picks []bridges.Question
	for i, each := range input.Get("questions").Array() {
		q := base
		q.ID = fmt.Sprintf("%s/%d", base.ID, i+1)
		q.Title = s.scrub.Clean(clip(each.Get("question").String(), 2000))
		for _, o := range each.Get("options").Array() {
			q.Choices = append(q.Choices, s.scrub.Clean(clip(o.Get("label").String(), 200)))
		}
		picks = append(picks, q)
	}
	return picks
}

// Allow is the reply that lets a call happen as it was asked.
func (q Question) Allow() []byte {
	return q.success(map[string]any{"behavior": "allow", "updatedInput": q.input()})
}

// Deny is the reply that refuses a call; stop also ends the turn.
func (q Question) Deny(reason string, stop bool) []byte {
	r := map[string]any{"behavior": "deny", "message": reason}
	if stop {
		r["interrupt"] = true
	}
	return q.success(r)
}

// Choose is the reply to AskUserQuestion: one choice for each of its questions.
func (q Question) Choose(choices []string) []byte {
	questions := gjson.GetBytes(q.input(), "questions")
	if !questions.IsArray() {
		return q.Deny("there was nothing to choose from", false)
	}
	answers := map[string]string{}
	for i, each := range questions.Array() {
		if i < len(choices) {
			answers[each.Get("question").String()] = choices[i]
		}
	}
	return q.success(map[string]any{"behavior": "allow", "updatedInput": map[string]any{
		"questions": json.RawMessage(questions.Raw), "answers": answers,
	}})
}

// Decline is the reply to a request that nobody here can serve.
func (q Question) Decline() []byte {
	if q.Kind == "elicitation" {
		return q.success(map[string]any{"action": "decline"})
	}
	return Line(map[string]any{"type": "control_response", "response": map[string]any{
		"subtype": "error", "request_id": q.ID, "error": "this client does not serve " + q.Kind,
	}})
}

func (q Question) input() json.RawMessage {
	if len(q.Input) == 0 {
		return json.RawMessage("{}")
	}
	return q.Input
}

func (q Question) success(response map[string]any) []byte {
	return Line(map[string]any{"type": "control_response", "response": map[string]any{
		"subtype": "success", "request_id": q.ID, "response": response,
	}})
}

// Initialize is the handshake. Instructions go here and not into the command
// line, where every process of the machine could read them.
func Initialize(id, instructions string) []byte {
	req := map[string]any{"subtype": "initialize", "hooks": nil}
	if instructions != "" {
		req["appendSystemPrompt"] = instructions
	}
	return Line(map[string]any{"type": "control_request", "request_id": id, "request": req})
}

// Interrupt asks the agent to stop its turn; why is "cancel" or "fatal".
func Interrupt(why, turn string) []byte {
	return Line(map[string]any{"type": "control_request", "request_id": why + "-" + turn, "request": map[string]any{"subtype": "interrupt"}})
}

// Task is the message that begins a turn. The agent runs a message once for its
// uuid, however often it gets it.
func Task(turn, text string) []byte {
	return Line(map[string]any{
		"type": "user", "uuid": turn, "session_id": "", "parent_tool_use_id": nil,
		"message": map[string]any{"role": "user", "content": text},
	})
}

// MessageID returns the uuid of a frame that carries a task, or "".
func MessageID(frame []byte) string {
	root := gjson.ParseBytes(frame)
	if root.Get("type").String() != "user" {
		return ""
	}
	return root.Get("uuid").String()
}

// Line encodes one frame. What is encoded here are texts and frames that were
// JSON before, so it cannot fail.
func Line(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode a frame for claude: %v", err))
	}
	return append(data, '\n')
}

func unixTime(sec int64) string { return time.Unix(sec, 0).UTC().Format(time.RFC3339) }
