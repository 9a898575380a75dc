// Package stream understands Claude Code's stream-json: it folds what was
// written to the agent and what the agent printed into one State, and turns the
// agent's frames into events on the way.
//
// The fold is the whole of what a bridge process knows about a session. It is
// deterministic (the same frames at the same offsets always give the same events
// at the same positions) and a State is plain data, so that a new process can
// take it up from a checkpoint and go on in the middle of a turn.
package stream

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/tidwall/gjson"
)

// Version is the layout of State as JSON. A checkpoint of another version is of
// no use: fold from the beginning instead.
const Version = 1

// State is the fold of one agent process. The zero value is that of a process
// that was just started. It is not safe for concurrent use.
type State struct {
	Version int `json:"v"`
	// Note is the caller's own, kept with the state.
	Note json.RawMessage `json:"note,omitempty"`

	// Ready is set once the process has answered the handshake; Refused holds its
	// words when it declined.
	Ready   bool   `json:"ready,omitempty"`
	Refused string `json:"refused,omitempty"`
	// Failed holds the agent's words when it ended a turn that nobody had given it,
	// which it does when it cannot start.
	Failed string   `json:"failed,omitempty"`
	Models []string `json:"models,omitempty"` // the names that the agent offers

	// What the last system/init said.
	NativeID       string `json:"native_id,omitempty"`
	AgentVersion   string `json:"agent_version,omitempty"`
	Model          string `json:"model,omitempty"`
	PermissionMode string `json:"permission_mode,omitempty"`
	KeySource      string `json:"key_source,omitempty"`

	// Echoes says that this agent repeats every message that it takes up.
	Echoes bool `json:"echoes,omitempty"`

	// Turn is the latest turn, ended or not; nil before the first.
	Turn *Turn `json:"turn,omitempty"`
	// Open are the agent's questions without an answer, oldest first.
	Open []Question `json:"open,omitempty"`
	// Last is the position of the last event.
	Last bridges.Position `json:"last,omitzero"`
	// Late counts the agent's words after the end of a turn, which are nobody's.
	Late int `json:"late,omitempty"`
	// Told is what modelUsage and the cost had added up to at the last result:
	// both count from the start of the process.
	Told usage `json:"told"`

	// Handshake is the request id of an initialize that is not answered yet.
	Handshake string `json:"handshake,omitempty"`

	scrub *Scrubber
	out   emitter
}

// Turn is what is known of one task.
type Turn struct {
	ID string `json:"id"` // the uuid of its user message
	// Seen says that the agent has taken the message up: it echoed it.
	Seen bool `json:"seen,omitempty"`
	// Began says that some frame came after the message was written.
	Began bool `json:"began,omitempty"`
	// Inited says that the agent opened a turn since.
	Inited bool `json:"inited,omitempty"`
	// Interrupted is why an interrupt was sent: "cancel", "fatal", or nothing.
	Interrupted string `json:"interrupted,omitempty"`
	// Fatal is set by a retry of what no retry can mend; the turn should be
	// interrupted and will fail for this reason.
	Fatal *failure `json:"fatal,omitempty"`
	// Result is set by the turn's terminal frame.
	Result *bridges.Result `json:"result,omitempty"`

	Denied    int      `json:"denied,omitempty"`
	Tools     int      `json:"tools,omitempty"`
	ToolsDone int      `json:"tools_done,omitempty"`
	ToolsBad  int      `json:"tools_bad,omitempty"`
	Answered  string   `json:"answered,omitempty"` // the model of the last message
	Context   int64    `json:"context,omitempty"`
	Text      bool     `json:"text,omitempty"` // some text was emitted
	Message   message  `json:"message"`
	Problem   *failure `json:"problem,omitempty"` // the last synthetic error message
	Warnings  []string `json:"warnings,omitempty"`
	LastReset string   `json:"last_reset,omitempty"` // when a used-up quota comes back
}

// Working reports whether a tool runs, which may take its time in silence.
func (t *Turn) Working() bool { return t.Tools > t.ToolsDone }

// Running reports whether a turn is under way.
func (s *State) Running() bool { return s.Turn != nil && s.Turn.Result == nil }

// Use sets what is to be removed from every text before it becomes an event.
func (s *State) Use(scrub *Scrubber) { s.scrub = scrub }

// Marshal returns the state for a checkpoint.
func (s *State) Marshal() ([]byte, error) {
	s.Version = Version
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write down the state of the session: %w", err)
	}
	return data, nil
}

// Unmarshal restores a state from a checkpoint.
func Unmarshal(data []byte) (*State, error) {
	s := new(State)
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("read the checkpoint: %w", err)
	}
	if s.Version != Version {
		return nil, fmt.Errorf("read the checkpoint: it has layout %d, this program knows %d", s.Version, Version)
	}
	return s, nil
}

// Sent folds in a frame that was written to the agent. Frames that the agent had
// printed before must have been folded before.
func (s *State) Sent(frame []byte) {
	root := gjson.ParseBytes(frame)
	switch root.Get("type").String() {
	case "user":
		if id := root.Get("uuid").String(); s.Turn == nil || s.Turn.ID != id { // else it was sent again
			s.Turn = &Turn{ID: id}
		}
	case "control_request":
		switch id := root.Get("request_id").String(); root.Get("request.subtype").String() {
		case "initialize":
			s.Handshake = id
		case "interrupt":
			if s.Running() && s.Turn.Interrupted == "" {
				s.Turn.Interrupted, _, _ = strings.Cut(id, "-")
			}
		}
	case "control_response":
		r := root.Get("response")
		if !s.close(r.Get("request_id").String()) {
			return
		}
		if s.Running() && r.Get("response.behavior").String() == "deny" && !r.Get("response.interrupt").Bool() {
			s.Turn.Denied++
		}
	}
}

// close forgets an open question and reports whether there was one.
func (s *State) close(id string) bool {
	for i, q := range s.Open {
		if q.ID == id {
			s.Open = append(s.Open[:i:i], s.Open[i+1:]...)
			return true
		}
	}
	return false
}

// Out folds in a frame that the agent printed, which begins at offset, and
// returns the events it stands for. The frame is not kept.
func (s *State) Out(offset int64, frame []byte) []bridges.Event {
	s.out = emitter{offset: offset}
	text := strings.TrimSpace(string(frame))
	if text == "" {
		return nil
	}
	if s.Running() {
		s.Turn.Began = true
	}
	root := gjson.Parse(text)
	if !gjson.Valid(text) || !root.IsObject() {
		s.notice("warning", "noise", "claude printed a line that is no frame: "+clip(text, 300))
		return s.out.events
	}
	s.frame(root)
	return s.out.events
}

// Oversize notes a frame that was too long to be read.
func (s *State) Oversize(offset, size int64) []bridges.Event {
	s.out = emitter{offset: offset}
	if s.Running() {
		s.Turn.Began = true
	}
	s.notice("warning", "oversize_frame", fmt.Sprintf("a frame of %d bytes was too long and is missing", size))
	return s.out.events
}

// frame sorts one well-formed frame.
func (s *State) frame(root gjson.Result) {
	switch root.Get("type").String() {
	case "stream_event":
		if s.Running() && root.Get("parent_tool_use_id").String() == "" {
			s.partial(root.Get("event"))
		}
	case "assistant":
		if s.Running() {
			s.assistant(root)
		} else {
			s.Late++
		}
	case "user":
		if s.Running() {
			s.user(root)
		}
	case "result":
		s.result(root)
	case "system":
		s.system(root)
	case "rate_limit_event":
		s.limits(root.Get("rate_limit_info"))
	case "control_request":
		s.request(root)
	case "control_cancel_request":
		s.close(root.Get("request_id").String())
	case "control_response":
		s.response(root.Get("response"))
	case "keep_alive", "tool_progress", "auth_status", "prompt_suggestion", "tool_use_summary",
		"streamlined_text", "streamlined_tool_use_summary":
		// Nothing in them that the other frames do not say.
	default:
		s.unknown(root)
	}
}

// system folds the agent's notes on itself.
func (s *State) system(root gjson.Result) {
	switch root.Get("subtype").String() {
	case "init":
		s.init(root)
	case "api_retry":
		s.retry(root)
	case "permission_denied":
		s.notice("warning", "permission_denied", clip(root.Get("tool_name").String()+": "+root.Get("message").String(), 500))
	case "compact_boundary":
		s.notice("info", "compacted", "claude has shortened the conversation's history to make room")
	case "status":
		if m := root.Get("permissionMode").String(); m != "" {
			s.PermissionMode = m
		}
	case "hook_started", "hook_response", "hook_progress", "thinking_tokens", "task_started", "task_progress",
		"task_updated", "task_notification", "session_state_changed", "files_persisted", "local_command_output":
		// Progress of parts that report for themselves.
	default:
		s.unknown(root)
	}
}

// init folds the frame that opens every turn.
func (s *State) init(root gjson.Result) {
	s.NativeID = root.Get("session_id").String()
	s.AgentVersion = root.Get("claude_code_version").String()
	s.Model = root.Get("model").String()
	s.PermissionMode = root.Get("permissionMode").String()
	s.KeySource = root.Get("apiKeySource").String()
	if s.Running() {
		s.Turn.Inited = true
	}
	for _, server := range root.Get("mcp_servers").Array() {
		if st := server.Get("status").String(); st == "failed" && s.Running() {
			s.warn(fmt.Sprintf("the MCP server %s did not start; the agent runs without it", server.Get("name").String()))
		}
	}
	s.emit(bridges.Event{Kind: bridges.KindSession, Session: &bridges.SessionUpdate{Info: &bridges.Info{
		NativeID: s.NativeID, AgentVersion: s.AgentVersion, Model: s.Model, Models: s.Models,
	}}})
}

// response folds the agent's answer to a control request of ours.
func (s *State) response(r gjson.Result) {
	if id := r.Get("request_id").String(); id == "" || id != s.Handshake {
		return
	}
	s.Handshake = ""
	if r.Get("subtype").String() != "success" {
		s.Refused = r.Get("error").String()
		if s.Refused == "" {
			s.Refused = "no reason given"
		}
		return
	}
	s.Ready = true
	s.Models = nil
	for _, m := range r.Get("response.models").Array() {
		if v := m.Get("value").String(); v != "" {
			s.Models = append(s.Models, v)
		}
	}
}

// unknown passes on a frame that this version does not know.
func (s *State) unknown(root gjson.Result) {
	ev := bridges.Event{Kind: bridges.KindUnknown}
	if len(root.Raw) <= maxRaw {
		ev.Raw = json.RawMessage(s.scrub.Clean(root.Raw))
	} else {
		ev.Notice = &bridges.Notice{Level: "info", Code: "unknown_frame"}
		ev.Text = fmt.Sprintf("an unknown frame %q of %d bytes is not shown", clip(root.Get("type").String(), 80), len(root.Raw))
	}
	s.emit(ev)
}
