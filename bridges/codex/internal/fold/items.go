package fold

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

const (
	maxPiece  = 256 << 10 // of text in one event
	maxInput  = 16 << 10  // of a tool's arguments
	maxOutput = 32 << 10  // of a tool's text
	outStep   = 4 << 10   // a running tool's output is shown again after this much more
	maxTitle  = 200
)

// Item is a tool call under way.
type Item struct {
	Tool   bridges.Tool `json:"tool"`
	Output excerpt      `json:"output,omitzero"` // so far
	Fresh  int          `json:"fresh,omitempty"` // bytes of it that no event showed
}

// silent are notifications that say nothing about the turn that others do not.
var silent = map[string]bool{
	"account/rateLimits/updated": true, "account/updated": true, "app/list/updated": true,
	"deprecationNotice": true, "hook/completed": true, "hook/started": true,
	"item/commandExecution/terminalInteraction": true, "item/fileChange/outputDelta": true,
	"item/fileChange/patchUpdated": true, "item/mcpToolCall/progress": true,
	"item/plan/delta": true, "item/reasoning/summaryPartAdded": true,
	"model/safetyBuffering/updated": true, "model/verification": true,
	"remoteControl/status/changed": true, "skills/changed": true,
	"thread/goal/cleared": true, "thread/name/updated": true, "thread/readState/changed": true,
	"thread/settings/updated": true, "thread/started": true, "thread/status/changed": true,
	"turn/diff/updated": true, "turn/moderationMetadata": true,
}

func (f *State) notification(m *jsonrpc.Message, e *emitter) {
	if m.Method == "turn/started" {
		f.started(m.Params)
		return
	}
	t := f.Current(m.Params)
	switch m.Method {
	case "thread/tokenUsage/updated":
		f.usage(m.Params, t, e)
		return
	case "serverRequest/resolved":
		// Answered by us, or withdrawn because the turn was interrupted.
		delete(f.Asked, string(jsonrpc.Get(m.Params, "requestId")))
		return
	}
	if t == nil {
		return
	}
	switch m.Method {
	case "turn/completed":
		t.End = &Ending{Status: jsonrpc.GetString(m.Params, "turn", "status"), Fault: faultOf(jsonrpc.Get(m.Params, "turn", "error"))}
	case "item/agentMessage/delta":
		t.delta(e, bridges.KindText, m.Params)
	case "item/reasoning/summaryTextDelta", "item/reasoning/textDelta":
		t.delta(e, bridges.KindThought, m.Params)
	case "item/commandExecution/outputDelta":
		t.output(e, m.Params)
	case "item/started", "item/completed":
		t.item(e, jsonrpc.Get(m.Params, "item"), m.Method == "item/completed")
	case "turn/plan/updated":
		t.plan(e, m.Params)
	case "error":
		t.failure(e, m.Params)
	case "warning", "guardianWarning":
		t.notice(e, "warning", "agent_warning", jsonrpc.GetString(m.Params, "message"))
	case "configWarning":
		t.notice(e, "warning", "agent_warning", jsonrpc.GetString(m.Params, "summary"))
	case "model/rerouted":
		t.Model = jsonrpc.GetString(m.Params, "toModel")
		t.notice(e, "warning", "model_rerouted", fmt.Sprintf("codex lets %s answer in place of %s (%s)", t.Model,
			jsonrpc.GetString(m.Params, "fromModel"), jsonrpc.GetString(m.Params, "reason")))
	case "mcpServer/startupStatus/updated":
		if status := jsonrpc.GetString(m.Params, "status"); status == "failed" || status == "cancelled" {
			t.notice(e, "warning", "mcp_failed", fmt.Sprintf("MCP server %s did not start: %s",
				jsonrpc.GetString(m.Params, "name"), jsonrpc.GetString(m.Params, "error")))
		}
	default:
		if !silent[m.Method] {
			e.emit(bridges.Event{Kind: bridges.KindUnknown, ID: m.Method, Raw: rawJSON(m.Raw, maxPiece)})
		}
	}
}

func (t *Turn) notice(e *emitter, level, code, text string) {
	if t.Notices++; t.Notices <= maxNotices {
		e.notice(level, code, text)
	}
}

// failure folds an error notification. One that will be retried is news; one that
// will not is repeated by turn/completed. A login that is refused twice in a row is
// refused for good: codex would go on asking for the better part of a minute.
func (t *Turn) failure(e *emitter, params []byte) {
	fl := faultOf(jsonrpc.Get(params, "error"))
	if fl == nil || string(jsonrpc.Get(params, "willRetry")) != "true" {
		return
	}
	text := fl.Message
	if fl.Details != "" {
		text += ": " + fl.Details
	}
	if fl.unauthorized() {
		t.Unauthed, t.Last = t.Unauthed+1, cmp.Or(fl.Details, fl.Message)
	}
	t.notice(e, "warning", "retry", text)
}

// delta shows a piece of a message.
func (t *Turn) delta(e *emitter, kind bridges.Kind, params []byte) {
	id := jsonrpc.GetString(params, "itemId")
	t.text(e, kind, id, jsonrpc.Get(params, "delta"), 0)
}

// text shows what a literal holds beyond its first skip bytes.
func (t *Turn) text(e *emitter, kind bridges.Kind, id string, literal []byte, skip int64) {
	for piece := range jsonrpc.Pieces(literal, maxPiece) {
		if n := int64(len(piece)); skip >= n {
			skip -= n
			continue
		}
		// Deltas end between characters, so what was shown does too; a text that
		// was rewritten may not, and must still be text.
		piece, skip = strings.ToValidUTF8(piece[skip:], "\uFFFD"), 0
		t.Shown[id] += int64(len(piece))
		e.emit(bridges.Event{Kind: kind, ID: id, Text: piece})
	}
}

// item folds the beginning or the end of an item.
func (t *Turn) item(e *emitter, it []byte, done bool) {
	id := jsonrpc.GetString(it, "id")
	switch kind := jsonrpc.GetString(it, "type"); kind {
	case "userMessage", "hookPrompt":
	case "agentMessage", "plan":
		if done {
			t.text(e, bridges.KindText, id, jsonrpc.Get(it, "text"), t.Shown[id])
			delete(t.Shown, id)
		}
	case "reasoning":
		if done {
			t.reasoning(e, id, it)
		}
	case "contextCompaction":
		if done {
			t.Compacted = true
			t.notice(e, "info", "compaction", "codex replaced the conversation so far by a summary")
		}
	case "":
	default:
		if tool, known := toolOf(kind, it); known {
			t.tool(e, id, tool, done)
		} else if done {
			e.emit(bridges.Event{Kind: bridges.KindUnknown, ID: id, Raw: rawJSON(it, maxPiece)})
		}
	}
}

// reasoning shows a whole reasoning item that came without deltas.
func (t *Turn) reasoning(e *emitter, id string, it []byte) {
	if t.Shown[id] == 0 {
		for _, key := range []string{"summary", "content"} {
			for literal := range jsonrpc.Elements(jsonrpc.Get(it, key)) {
				t.text(e, bridges.KindThought, id, literal, 0)
			}
			if t.Shown[id] > 0 {
				break
			}
		}
	}
	delete(t.Shown, id)
}

func (t *Turn) tool(e *emitter, id string, tool bridges.Tool, done bool) {
	open := t.Items[id]
	if done {
		if open != nil && tool.Output == "" {
			tool.Output = open.Output.String()
		}
		delete(t.Items, id)
		t.Tools++
		if tool.Status == bridges.ToolFailed {
			t.Failed++
		}
	} else if open == nil {
		t.Items[id] = &Item{Tool: tool}
	}
	e.emit(bridges.Event{Kind: bridges.KindTool, ID: id, Tool: &tool})
}

// output folds what a running command printed.
func (t *Turn) output(e *emitter, params []byte) {
	id := jsonrpc.GetString(params, "itemId")
	open := t.Items[id]
	if open == nil {
		return
	}
	for piece := range jsonrpc.Pieces(jsonrpc.Get(params, "delta"), maxOutput) {
		open.Output.add(piece)
		open.Fresh += len(piece)
	}
	if open.Fresh >= outStep {
		open.Fresh = 0
		e.emit(bridges.Event{Kind: bridges.KindTool, ID: id, Tool: &bridges.Tool{Status: bridges.ToolRunning, Output: open.Output.String()}})
	}
}

func (t *Turn) plan(e *emitter, params []byte) {
	var plan []bridges.PlanEntry
	for step := range jsonrpc.Elements(jsonrpc.Get(params, "plan")) {
		status := jsonrpc.GetString(step, "status")
		if status == "inProgress" {
			status = "in_progress"
		}
		plan = append(plan, bridges.PlanEntry{Text: jsonrpc.GetString(step, "step"), Status: status})
	}
	e.emit(bridges.Event{Kind: bridges.KindPlan, ID: "plan", Plan: plan})
}

// toolOf reads an item that is a tool call.
func toolOf(kind string, it []byte) (bridges.Tool, bool) {
	tool := bridges.Tool{Name: kind, Kind: bridges.ToolOther, Status: statusOf(jsonrpc.GetString(it, "status"))}
	str := func(path ...string) string { return jsonrpc.GetString(it, path...) }
	switch kind {
	case "commandExecution":
		tool.Name, tool.Kind = "shell", commandKind(it)
		command := str("command")
		tool.Title = title(inner(it, command))
		tool.Input = input(map[string]any{"command": Clip(command, maxInput/2), "cwd": str("cwd")})
		tool.Output = excerptOf(jsonrpc.Get(it, "aggregatedOutput"))
		if tool.Status != bridges.ToolRunning && tool.Output == "" {
			if code, ok := jsonrpc.GetInt(it, "exitCode"); ok && code != 0 {
				tool.Output = fmt.Sprintf("exit code %d", code)
			}
		}
	case "fileChange":
		tool.Name, tool.Kind = "apply_patch", bridges.ToolEdit
		changes := jsonrpc.Get(it, "changes")
		var names []string
		for change := range jsonrpc.Elements(changes) {
			path := jsonrpc.GetString(change, "path")
			tool.Locations = append(tool.Locations, path)
			names = append(names, filepath.Base(path))
			if jsonrpc.GetString(change, "kind", "type") == "delete" {
				tool.Kind = bridges.ToolDelete
			}
		}
		tool.Title = title("edit " + strings.Join(names, ", "))
		if tool.Input = rawJSON(changes, maxInput); tool.Input == nil {
			tool.Input = input(map[string]any{"paths": tool.Locations})
		}
	case "mcpToolCall":
		tool.Name = str("server") + "." + str("tool")
		tool.Title = title(tool.Name)
		tool.Input = rawJSON(jsonrpc.Get(it, "arguments"), maxInput)
		tool.Output = Clip(contentText(jsonrpc.Get(it, "result", "content"))+str("error", "message"), maxOutput)
	case "dynamicToolCall":
		tool.Name = str("tool")
		tool.Title = title(tool.Name)
		tool.Input = rawJSON(jsonrpc.Get(it, "arguments"), maxInput)
		tool.Output = Clip(contentText(jsonrpc.Get(it, "contentItems")), maxOutput)
	case "collabAgentToolCall":
		tool.Name = str("tool")
		tool.Title = title(tool.Name + " " + str("prompt"))
		tool.Input = input(map[string]any{"prompt": Clip(str("prompt"), maxInput/2), "model": str("model")})
	case "webSearch":
		tool.Name, tool.Kind, tool.Status = "web_search", bridges.ToolFetch, bridges.ToolCompleted
		tool.Title = title("search " + str("query"))
		tool.Input = input(map[string]any{"query": Clip(str("query"), maxInput/2)})
	case "imageView":
		tool.Name, tool.Kind, tool.Status = "view_image", bridges.ToolRead, bridges.ToolCompleted
		tool.Locations = []string{str("path")}
		tool.Title = title("look at " + str("path"))
	default:
		return tool, false
	}
	return tool, true
}

// inner is a command without the shell around it, where codex tells.
func inner(it []byte, command string) string {
	only := ""
	for action := range jsonrpc.Elements(jsonrpc.Get(it, "commandActions")) {
		if only != "" {
			return command
		}
		only = jsonrpc.GetString(action, "command")
	}
	if only == "" {
		return command
	}
	return only
}

func statusOf(s string) bridges.ToolStatus {
	switch s {
	case "completed":
		return bridges.ToolCompleted
	case "failed", "declined":
		return bridges.ToolFailed
	}
	return bridges.ToolRunning
}

// commandKind sorts a shell command by what codex makes of its parts.
func commandKind(it []byte) bridges.ToolKind {
	kind := bridges.ToolKind("")
	for action := range jsonrpc.Elements(jsonrpc.Get(it, "commandActions")) {
		one := bridges.ToolExecute
		switch jsonrpc.GetString(action, "type") {
		case "read":
			one = bridges.ToolRead
		case "search", "listFiles":
			one = bridges.ToolSearch
		}
		if kind != "" && kind != one {
			return bridges.ToolExecute
		}
		kind = one
	}
	if kind == "" {
		return bridges.ToolExecute
	}
	return kind
}
