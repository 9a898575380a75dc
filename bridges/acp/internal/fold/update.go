package fold

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

const (
	maxRaw       = 64 << 10 // of a frame that is kept as it came
	maxInput     = 16 << 10
	outputHead   = 20 << 10
	outputTail   = 12 << 10
	maxTitle     = 1 << 10
	maxLocations = 64
)

// update folds a session/update.
func (s *State) update(m *jsonrpc.Message) Step {
	update := jsonrpc.Get(m.Params, "update")
	kind := jsonrpc.GetString(update, "sessionUpdate")
	// What concerns the session and not a turn is taken whenever it comes.
	switch kind {
	case "config_option_update":
		s.Config.merge(update)
		return Step{Activity: true}
	case "current_mode_update":
		mode := jsonrpc.GetString(update, "currentModeId")
		s.Config.Modes.Current = mode
		s.Config.setCurrent(CategoryMode, mode)
		return Step{Activity: true}
	case "available_commands_update", "user_message_chunk":
		if kind == "user_message_chunk" && s.loading() {
			s.Replayed++
		}
		return Step{Activity: true}
	}
	if s.loading() {
		s.Replayed++ // history, which the host has
		return Step{}
	}
	native := jsonrpc.GetString(m.Params, "sessionId")
	foreign := native != "" && s.NativeID != "" && native != s.NativeID
	if !s.inTurn(m.Offset) {
		switch kind {
		case "session_info_update", "usage_update":
			s.contextUsage(update)
		case "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan":
			if !foreign && s.Turn != nil {
				s.Late++
			}
		}
		return Step{}
	}
	if foreign { // a helper of the agent; never part of the answer
		return Step{Events: []bridges.Event{s.unknown(m, m.Raw)}, Activity: true}
	}
	step := s.turnUpdate(m, kind, update)
	step.Activity = true
	return step
}

func (s *State) loading() bool {
	for _, c := range s.Calls {
		if c.Method == "session/load" || c.Method == "session/resume" {
			return true
		}
	}
	return false
}

// turnUpdate makes the events of an update in a turn.
func (s *State) turnUpdate(m *jsonrpc.Message, kind string, update []byte) Step {
	switch kind {
	case "agent_message_chunk":
		return s.chunk(m, bridges.KindText, update)
	case "agent_thought_chunk":
		return s.chunk(m, bridges.KindThought, update)
	case "tool_call", "tool_call_update":
		if ev, ok := s.tool(m, update); ok {
			return Step{Events: []bridges.Event{ev}}
		}
	case "plan":
		return Step{Events: []bridges.Event{{Kind: bridges.KindPlan, ID: "plan", Pos: position(m.Offset, 1), Plan: plan(update)}}}
	case "usage_update":
		s.contextUsage(update)
		return Step{Events: []bridges.Event{{Kind: bridges.KindUsage, ID: "context", Pos: position(m.Offset, 1), Usage: s.usageSoFar()}}}
	case "session_info_update":
		if title := jsonrpc.GetString(update, "title"); title != "" {
			return Step{Events: []bridges.Event{{Kind: bridges.KindSession, Pos: position(m.Offset, 1),
				Session: &bridges.SessionUpdate{Title: cut(title, maxTitle)}}}}
		}
		return Step{}
	case "notice":
		text := firstText(update, "message", "text", "title")
		if text != "" {
			return Step{Events: []bridges.Event{s.notice(m, "info", "agent", cut(text, maxTitle))}}
		}
	}
	return Step{Events: []bridges.Event{s.unknown(m, m.Raw)}}
}

// chunk is a piece of the answer or of reasoning.
func (s *State) chunk(m *jsonrpc.Message, kind bridges.Kind, update []byte) Step {
	content := jsonrpc.Get(update, "content")
	text := jsonrpc.Get(content, "text")
	if usage := jsonrpc.Get(update, "_meta", "usage"); usage != nil {
		s.chunkUsage(usage)
	}
	if t := jsonrpc.GetString(content, "type"); t != "text" || !jsonrpc.IsString(text) {
		return Step{Events: []bridges.Event{s.unknown(m, m.Raw)}}
	}
	if len(text) == 2 {
		return Step{}
	}
	t := s.Turn
	id := jsonrpc.GetString(update, "messageId")
	if kind == bridges.KindText {
		if id == "" {
			// Without ids a message lasts until the next tool call. Its name comes from
			// its place, so that it has the same one after a crash.
			if id = t.Message; !strings.HasPrefix(id, "at-") {
				id = "at-" + strconv.FormatInt(m.Offset, 10)
			}
		}
		if id != t.Message {
			t.Message, t.Head = id, ""
		}
		if room := headSize - len(t.Head); room > 0 {
			t.Head += headText(text[1:], room)
		}
	} else if id == "" {
		id = "thought"
	}
	return Step{Text: text, TextEvent: bridges.Event{Kind: kind, ID: id, Pos: position(m.Offset, 0)}}
}

// headText returns the beginning of raw text, of at most n bytes. It is for looking
// at, not for handing on: escapes stay as they are.
func headText(raw []byte, n int) string {
	if len(raw) > 0 && raw[len(raw)-1] == '"' {
		raw = raw[:len(raw)-1]
	}
	return cut(string(bytes.ToValidUTF8(raw[:min(len(raw), n)], nil)), n)
}

// tool is the new state of a tool call.
func (s *State) tool(m *jsonrpc.Message, call []byte) (bridges.Event, bool) {
	id := jsonrpc.GetString(call, "toolCallId")
	if id == "" {
		return bridges.Event{}, false
	}
	t := s.Turn
	if strings.HasPrefix(t.Message, "at-") {
		t.Message = "" // what follows is another message
	}
	tool := parseTool(call)
	switch i := slices.Index(t.Tools, id); {
	case ended(tool.Status):
		if i >= 0 {
			t.Tools = slices.Delete(t.Tools, i, i+1)
		}
	case i < 0 && tool.Status != "" && len(t.Tools) < maxTools:
		t.Tools = append(t.Tools, id)
	}
	return bridges.Event{Kind: bridges.KindTool, ID: id, Pos: position(m.Offset, 1), Tool: &tool}, true
}

func ended(status bridges.ToolStatus) bool {
	return status == bridges.ToolCompleted || status == bridges.ToolFailed || status == bridges.ToolCancelled
}

func parseTool(call []byte) bridges.Tool {
	var t bridges.Tool
	var output cutter
	for key, value := range jsonrpc.Members(call) {
		switch string(key) {
		case "name":
			t.Name = cut(jsonrpc.Unquote(value), maxTitle)
		case "title":
			t.Title = cut(oneLine(jsonrpc.Unquote(value)), maxTitle)
		case "kind":
			t.Kind = bridges.ToolKind(jsonrpc.Unquote(value))
		case "status":
			t.Status = bridges.ToolStatus(jsonrpc.Unquote(value))
		case "rawInput":
			if string(value) != "null" {
				t.Input = keep(value, maxInput)
			}
		case "_meta":
			if name := firstText(value, "toolName"); name != "" {
				t.Name = name
			} else if name = jsonrpc.GetString(value, "claudeCode", "toolName"); name != "" {
				t.Name = name
			} else if name = jsonrpc.GetString(value, "x.ai/tool", "name"); name != "" {
				t.Name = name
			}
		case "locations":
			for l := range jsonrpc.Elements(value) {
				addLocation(&t, jsonrpc.GetString(l, "path"))
			}
		case "content":
			for c := range jsonrpc.Elements(value) {
				switch jsonrpc.GetString(c, "type") {
				case "content":
					output.add(jsonrpc.Get(c, "content", "text"))
				case "diff":
					addLocation(&t, jsonrpc.GetString(c, "path"))
				}
			}
		}
	}
	if output.size == 0 {
		raw := jsonrpc.Get(call, "rawOutput")
		for _, v := range [][]byte{raw, jsonrpc.Get(raw, "output_for_prompt"), jsonrpc.Get(raw, "formatted_output"),
			jsonrpc.Get(raw, "output"), jsonrpc.Get(raw, "content"), jsonrpc.Get(raw, "error")} {
			if jsonrpc.IsString(v) && len(v) > 2 {
				output.add(v)
				break
			}
		}
	}
	t.Output = output.String()
	return t
}

func plan(update []byte) []bridges.PlanEntry {
	entries := []bridges.PlanEntry{}
	for e := range jsonrpc.Elements(jsonrpc.Get(update, "entries")) {
		entries = append(entries, bridges.PlanEntry{
			Text:     cut(jsonrpc.GetString(e, "content"), maxTitle),
			Status:   jsonrpc.GetString(e, "status"),
			Priority: jsonrpc.GetString(e, "priority"),
		})
	}
	return entries
}

// asked is a permission request: the tool call that it is about, and the question.
func (s *State) asked(m *jsonrpc.Message) Step {
	call := jsonrpc.Get(m.Params, "toolCall")
	q := Question{ID: bytes.Clone(m.ID), Method: m.Method}
	for o := range jsonrpc.Elements(jsonrpc.Get(m.Params, "options")) {
		q.Options = append(q.Options, Option{ID: jsonrpc.GetString(o, "optionId"), Kind: jsonrpc.GetString(o, "kind"), Name: jsonrpc.GetString(o, "name")})
	}
	var step Step
	if s.inTurn(m.Offset) {
		step.Activity = true
		if ev, ok := s.tool(m, call); ok {
			step.Events = append(step.Events, ev)
		}
	}
	pos := position(m.Offset, len(step.Events)+1)
	q.Asked = bridges.Question{
		ID:     "ask-" + strconv.FormatInt(pos.Offset, 10),
		ToolID: jsonrpc.GetString(call, "toolCallId"),
		Tool:   parseTool(call),
		Pos:    pos,
		Raw:    keep(m.Params, maxRaw),
	}
	q.Asked.Title = firstNonEmpty(jsonrpc.GetString(m.Params, "title"), q.Asked.Tool.Title, q.Asked.Tool.Name, "permission")
	s.Open = append(s.Open, q)
	return step
}

// unknown keeps what has no event of its own.
func (s *State) unknown(m *jsonrpc.Message, raw []byte) bridges.Event {
	return bridges.Event{Kind: bridges.KindUnknown, Pos: position(m.Offset, 1), Raw: keep(raw, maxRaw)}
}

func (s *State) notice(m *jsonrpc.Message, level, code, text string) bridges.Event {
	return bridges.Event{Kind: bridges.KindNotice, Pos: position(m.Offset, 1), Text: text, Notice: &bridges.Notice{Level: level, Code: code}}
}

// retry tells that a call of the model failed and what becomes of it, as grok does in
// a notification of its own. Only "retrying" goes on; and nothing helps a login.
func (s *State) retry(m *jsonrpc.Message) bridges.Event {
	update := jsonrpc.Get(m.Params, "update")
	state := jsonrpc.GetString(update, "type")
	text := firstText(update, "reason", "message")
	level := "info"
	if state != "retrying" || jsonrpc.GetString(update, "error_type") == "auth" {
		level = "error"
	}
	attempt, _ := jsonrpc.GetInt(update, "attempt")
	if limit, ok := jsonrpc.GetInt(update, "max_retries"); ok && attempt > 0 {
		state += " (" + strconv.FormatInt(attempt, 10) + " of " + strconv.FormatInt(limit, 10) + ")"
	}
	return s.notice(m, level, "retry", cut("the model failed, "+state+": "+text, maxTitle))
}

// keep copies a raw value that may be handed on as JSON: valid, and of at most limit
// bytes. What is neither becomes a JSON text with its beginning.
func keep(raw []byte, limit int) json.RawMessage {
	if len(raw) <= limit && json.Valid(raw) {
		return bytes.Clone(raw)
	}
	// A quoted byte is at most two: there are no control characters in a frame.
	head := string(bytes.ToValidUTF8(raw[:min(len(raw), limit/2-16)], []byte("\uFFFD")))
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(cut(head, limit/2-16) + "…"); err != nil || b.Len() > limit {
		return json.RawMessage(`"…"`)
	}
	return bytes.TrimSpace(b.Bytes())
}

// cut shortens a text to at most n bytes, between characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func oneLine(s string) string {
	if strings.ContainsAny(s, "\r\n") {
		return strings.Join(strings.Fields(s), " ")
	}
	return s
}

func firstText(obj []byte, names ...string) string {
	for _, name := range names {
		if text := jsonrpc.GetString(obj, name); text != "" {
			return text
		}
	}
	return ""
}

func firstNonEmpty(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// cutter keeps the beginning and the end of a long text, and counts the middle.
type cutter struct {
	head, tail []byte
	size       int
}

func (c *cutter) add(lit []byte) {
	for p := range jsonrpc.Pieces(lit, outputTail) {
		c.size += len(p)
		if room := outputHead - len(c.head); room > 0 && len(c.tail) == 0 {
			n := len(cut(p, room))
			c.head = append(c.head, p[:n]...)
			p = p[n:]
		}
		if p == "" {
			continue
		}
		c.tail = append(c.tail, p...)
		if len(c.tail) > 2*outputTail {
			c.tail = append(c.tail[:0], c.tail[len(c.tail)-outputTail:]...)
		}
	}
}

func (c *cutter) String() string {
	tail := c.tail
	if len(tail) > outputTail {
		tail = tail[len(tail)-outputTail:]
	}
	for len(tail) > 0 && len(tail) < c.size-len(c.head) && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	if left := c.size - len(c.head) - len(tail); left > 0 {
		return string(c.head) + "\n… " + strconv.Itoa(left) + " bytes left out …\n" + string(tail)
	}
	return string(c.head) + string(tail)
}

func addLocation(t *bridges.Tool, path string) {
	if path != "" && len(t.Locations) < maxLocations && !slices.Contains(t.Locations, path) {
		t.Locations = append(t.Locations, path)
	}
}
