package stream

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/tidwall/gjson"
)

// kinds sorts Claude Code's tools by what they touch.
var kinds = map[string]bridges.ToolKind{
	"Read": bridges.ToolRead, "NotebookRead": bridges.ToolRead,
	"Glob": bridges.ToolSearch, "Grep": bridges.ToolSearch, "LS": bridges.ToolSearch,
	"Edit": bridges.ToolEdit, "MultiEdit": bridges.ToolEdit, "Write": bridges.ToolEdit, "NotebookEdit": bridges.ToolEdit,
	"Bash": bridges.ToolExecute, "KillShell": bridges.ToolExecute, "BashOutput": bridges.ToolExecute,
	"WebFetch": bridges.ToolFetch, "WebSearch": bridges.ToolFetch,
	"EnterPlanMode": bridges.ToolSwitchMode, "ExitPlanMode": bridges.ToolSwitchMode,
}

// ToolKind sorts a tool of Claude Code by its name.
func ToolKind(name string) bridges.ToolKind {
	if k, ok := kinds[name]; ok {
		return k
	}
	return bridges.ToolOther
}

// describe makes a Tool of a call's name and arguments.
func (s *State) describe(name string, input gjson.Result) *bridges.Tool {
	t := &bridges.Tool{Name: name, Kind: ToolKind(name), Title: name}
	for _, key := range []string{"file_path", "notebook_path", "path"} {
		if p := input.Get(key).String(); p != "" {
			t.Locations = append(t.Locations, s.scrub.Clean(clip(p, 1024)))
			t.Title = name + " " + filepath.Base(p)
		}
	}
	for _, key := range []string{"description", "command", "pattern", "url", "query"} {
		if v := input.Get(key).String(); v != "" {
			t.Title = name + ": " + v
			if key != "description" {
				break
			}
		}
	}
	line, _, _ := strings.Cut(t.Title, "\n")
	t.Title = s.scrub.Clean(clip(line, 200))
	if input.IsObject() {
		t.Input = s.arguments(input)
	}
	return t
}

// arguments returns a call's arguments within the contract's size. Too large
// ones keep their form: long texts in them are shortened.
func (s *State) arguments(input gjson.Result) json.RawMessage {
	if raw := s.scrub.Clean(input.Raw); len(raw) <= maxInput && json.Valid([]byte(raw)) {
		return json.RawMessage(raw)
	}
	const each = 1 << 10
	short, left := map[string]any{}, maxInput/2
	input.ForEach(func(key, value gjson.Result) bool {
		text := value.Raw
		if value.Type == gjson.String {
			text = value.String()
		}
		text = strings.ToValidUTF8(s.scrub.Clean(middleOut(text, each)), "\uFFFD")
		if left -= len(text) + len(key.String()); left < 0 {
			return false
		}
		short[clip(key.String(), 100)] = text
		return true
	})
	raw, err := json.Marshal(short)
	if err != nil || len(raw) > maxInput {
		return nil
	}
	return raw
}

// toolStarts emits the beginning of a call. Calls of subagents are shown too:
// they are work of this turn, only their words are not its answer.
func (s *State) toolStarts(cb gjson.Result, status bridges.ToolStatus, sub string) {
	id, name, input := cb.Get("id").String(), cb.Get("name").String(), cb.Get("input")
	tool := s.describe(name, input)
	tool.Status = status
	if status == bridges.ToolPending {
		tool.Input, tool.Title = nil, name
	}
	if sub != "" {
		tool.Title = "subagent: " + tool.Title
	}
	s.emit(bridges.Event{Kind: bridges.KindTool, ID: id, Tool: tool})
	if status == bridges.ToolPending || sub != "" {
		return
	}
	s.Turn.Tools++
	if name == "TodoWrite" {
		s.plan(input)
	}
}

// plan emits the agent's list of steps.
func (s *State) plan(input gjson.Result) {
	ev := bridges.Event{Kind: bridges.KindPlan, ID: "plan"}
	for _, todo := range input.Get("todos").Array() {
		ev.Plan = append(ev.Plan, bridges.PlanEntry{
			Text:   s.scrub.Clean(clip(todo.Get("content").String(), 1024)),
			Status: todo.Get("status").String(),
		})
	}
	if len(ev.Plan) > 0 {
		s.emit(ev)
	}
}

// toolEnds emits the end of a call.
func (s *State) toolEnds(cb gjson.Result, sub string) {
	status := bridges.ToolCompleted
	if sub == "" {
		s.Turn.ToolsDone++
	}
	if cb.Get("is_error").Bool() {
		status = bridges.ToolFailed
		if sub == "" {
			s.Turn.ToolsBad++
		}
	}
	s.emit(bridges.Event{Kind: bridges.KindTool, ID: cb.Get("tool_use_id").String(), Tool: &bridges.Tool{
		Status: status,
		Output: middleOut(strings.ToValidUTF8(s.scrub.Clean(contentText(cb.Get("content"))), "\uFFFD"), maxOutput),
	}})
}

// contentText returns the text of a tool result: a string, or a list of blocks.
func contentText(content gjson.Result) string {
	if content.Type == gjson.String {
		return content.String()
	}
	var b strings.Builder
	for _, cb := range content.Array() {
		text := cb.Get("text").String()
		if typ := cb.Get("type").String(); typ != "text" {
			text = "[" + typ + "]"
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(text)
	}
	return b.String()
}
