package fold

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// A request of the agent becomes one or more questions, and their answers one reply.
// Allow is codex's "accept", which holds for this one time; what it offers beyond
// that ("acceptForSession", amendments of its policy) is never taken.

// Inquiry is a request of the agent on its way to an answer.
type Inquiry struct {
	Questions []bridges.Question
	// Reply makes the result out of the answers, one per question.
	Reply func(answers []bridges.Answer) any
}

// Inquire reads a request. ok is false for one that this bridge does not serve.
// id is the same in every process that reads the request: it is made of its place.
func Inquire(m *jsonrpc.Message, id string, known *Item) (Inquiry, bool) {
	base := bridges.Question{ID: id, ToolID: jsonrpc.GetString(m.Params, "itemId"), Raw: rawJSON(m.Params, maxPiece)}
	switch m.Method {
	case "item/commandExecution/requestApproval":
		whole := jsonrpc.GetString(m.Params, "command")
		command := inner(m.Params, whole)
		base.Tool = bridges.Tool{Name: "shell", Kind: bridges.ToolExecute, Title: title(command),
			Input: input(map[string]any{"command": Clip(whole, maxInput/2), "cwd": jsonrpc.GetString(m.Params, "cwd")})}
		base.Title = title("run " + command)
		if reason := jsonrpc.GetString(m.Params, "reason"); reason != "" {
			base.Title = title(reason + ": " + command)
		}
		return Inquiry{[]bridges.Question{base}, decision}, true
	case "item/fileChange/requestApproval":
		base.Tool = bridges.Tool{Name: "apply_patch", Kind: bridges.ToolEdit, Title: "edit files"}
		if known != nil {
			base.Tool = known.Tool
		}
		base.Title = base.Tool.Title
		if reason := jsonrpc.GetString(m.Params, "reason"); reason != "" {
			base.Title = title(reason + ": " + base.Tool.Title)
		}
		return Inquiry{[]bridges.Question{base}, decision}, true
	case "item/permissions/requestApproval":
		wanted := rawJSON(jsonrpc.Get(m.Params, "permissions"), maxPiece)
		base.Tool = bridges.Tool{Name: "request_permissions", Kind: bridges.ToolOther, Title: "more permissions", Input: rawJSON(wanted, maxInput)}
		base.Title = title("grant more permissions for this turn: " + jsonrpc.GetString(m.Params, "reason"))
		return Inquiry{[]bridges.Question{base}, func(a []bridges.Answer) any {
			if a[0].Decision != bridges.Allow || wanted == nil {
				return map[string]any{"permissions": struct{}{}, "scope": "turn"}
			}
			return map[string]any{"permissions": wanted, "scope": "turn"}
		}}, true
	case "mcpServer/elicitation/request":
		return elicitation(m.Params, base), true
	case "item/tool/requestUserInput":
		return userInput(m.Params, base), true
	}
	return Inquiry{}, false
}

func decision(a []bridges.Answer) any {
	switch a[0].Decision {
	case bridges.Allow:
		return map[string]string{"decision": "accept"}
	case bridges.Cancel:
		return map[string]string{"decision": "cancel"}
	}
	return map[string]string{"decision": "decline"}
}

// elicitation reads a request for an MCP server: its permission to run a tool, or a
// form of its own, of which a single choice can be asked and the rest is declined.
func elicitation(params []byte, base bridges.Question) Inquiry {
	server := jsonrpc.GetString(params, "serverName")
	base.Title = title(jsonrpc.GetString(params, "message"))
	base.Tool = bridges.Tool{Name: server, Kind: bridges.ToolOther, Title: base.Title}
	content := func(bridges.Answer) (any, bool) { return struct{}{}, true }
	schema := jsonrpc.Get(params, "requestedSchema")
	if jsonrpc.GetString(params, "_meta", "codex_approval_kind") == "mcp_tool_call" {
		base.Tool.Name = server + "." + jsonrpc.GetString(params, "_meta", "tool_name")
		base.Tool.Input = rawJSON(jsonrpc.Get(params, "_meta", "tool_params"), maxInput)
	} else if name, choices := onlyChoice(schema); len(choices) > 0 {
		base.Choices = choices
		content = func(a bridges.Answer) (any, bool) {
			return map[string]string{name: a.Choice}, a.Choice != ""
		}
	} else {
		for range jsonrpc.Members(jsonrpc.Get(schema, "properties")) {
			content = func(bridges.Answer) (any, bool) { return nil, false } // a form that cannot be filled in here
		}
		if schema == nil { // a page to open in a browser
			content = func(bridges.Answer) (any, bool) { return nil, false }
		}
	}
	return Inquiry{[]bridges.Question{base}, func(a []bridges.Answer) any {
		switch a[0].Decision {
		case bridges.Allow:
			if c, ok := content(a[0]); ok {
				return map[string]any{"action": "accept", "content": c}
			}
		case bridges.Cancel:
			return map[string]any{"action": "cancel", "content": nil}
		}
		return map[string]any{"action": "decline", "content": nil}
	}}
}

// onlyChoice returns the one property of a form when it is a list to choose from.
func onlyChoice(schema []byte) (name string, choices []string) {
	n := 0
	for key, value := range jsonrpc.Members(jsonrpc.Get(schema, "properties")) {
		n++
		name = string(key)
		for literal := range jsonrpc.Elements(jsonrpc.Get(value, "enum")) {
			choices = append(choices, jsonrpc.Unquote(literal))
		}
		for option := range jsonrpc.Elements(jsonrpc.Get(value, "oneOf")) {
			choices = append(choices, jsonrpc.GetString(option, "const"))
		}
	}
	if n != 1 {
		return "", nil
	}
	return name, choices
}

// userInput reads the agent's own questions to the user. Only those with options can
// be asked; to the others the reply holds no answer, which codex tells the model.
func userInput(params []byte, base bridges.Question) Inquiry {
	var in Inquiry
	var ids []string
	n := 0
	for q := range jsonrpc.Elements(jsonrpc.Get(params, "questions")) {
		ask := base
		ask.ID += "." + strconv.Itoa(n)
		n++
		ask.Title = title(jsonrpc.GetString(q, "question"))
		ask.Tool = bridges.Tool{Name: "request_user_input", Kind: bridges.ToolOther, Title: title(jsonrpc.GetString(q, "header"))}
		for option := range jsonrpc.Elements(jsonrpc.Get(q, "options")) {
			ask.Choices = append(ask.Choices, jsonrpc.GetString(option, "label"))
		}
		if len(ask.Choices) == 0 {
			continue
		}
		ids = append(ids, jsonrpc.GetString(q, "id"))
		in.Questions = append(in.Questions, ask)
	}
	in.Reply = func(answers []bridges.Answer) any {
		out := map[string]any{}
		for i, a := range answers {
			if a.Decision == bridges.Allow && a.Choice != "" {
				out[ids[i]] = map[string][]string{"answers": {a.Choice}}
			}
		}
		return map[string]any{"answers": out}
	}
	return in
}

// QuestionID names a request by its place in the session's output, and its own id.
func QuestionID(place int64, id jsonrpc.ID) string {
	return fmt.Sprintf("%d-%s", place, strings.Trim(string(id), `"`))
}
