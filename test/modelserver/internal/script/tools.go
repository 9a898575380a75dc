package script

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Call is one tool call of the model.
type Call struct {
	ID        string
	Name      string
	Namespace string
	Args      json.RawMessage // always JSON, also for a freeform tool
	Input     string          // the text for a freeform tool
	Freeform  bool
}

// The names that agents give to the tools a script needs, best first.
var (
	shellTools = []string{"Bash", "bash", "run_shell_command", "exec_command", "shell_command", "shell", "run_terminal_command", "run_terminal_cmd"}
	writeTools = []string{"Write", "write", "write_file", "create_file", "search_replace"}
	readTools  = []string{"Read", "read", "read_file"}
)

// The names that agents give to the arguments of those tools.
var (
	commandArgs = []string{"command", "cmd"}
	pathArgs    = []string{"file_path", "filePath", "absolute_path", "target_file", "path"}
	contentArgs = []string{"content", "contents", "file_text", "new_string"}
)

// call turns a marker into a call of a tool that the agent offers.
func (c Conversation) call(m marker) (Call, error) {
	call, err := c.resolve(m)
	call.ID = "call_" + strings.ToLower(rand.Text()[:16]) // agents pair calls and results over all turns
	return call, err
}

func (c Conversation) resolve(m marker) (Call, error) {
	switch m.name {
	case "call":
		t, _ := c.tool(m.words[0])
		return Call{Name: m.words[0], Namespace: t.Namespace, Args: m.json}, nil
	case "mcp":
		return c.mcp(m.words[0], m.words[1], m.json)
	case "sh":
		return c.shell(m.text)
	case "read":
		t, ok := c.tool(readTools...)
		if !ok {
			return c.shell("cat " + m.text)
		}
		return t.with(map[string]any{t.arg(pathArgs): m.text})
	}
	return c.write(m.words[0], m.text)
}

func (c Conversation) shell(command string) (Call, error) {
	t, ok := c.tool(shellTools...)
	if !ok {
		if code, ok := c.codeMode(); ok {
			return code.run("exec_command", map[string]any{"cmd": command}), nil
		}
		return Call{}, c.missing("shell")
	}
	arg := t.arg(commandArgs)
	if t.argType(arg) == "array" {
		return t.with(map[string]any{arg: []string{"bash", "-lc", command}})
	}
	return t.with(map[string]any{arg: command})
}

func (c Conversation) write(path, text string) (Call, error) {
	patch := "*** Begin Patch\n*** Add File: " + path + "\n+" + strings.ReplaceAll(text, "\n", "\n+") + "\n*** End Patch\n"
	if t, ok := c.tool(writeTools...); ok {
		args := map[string]any{t.arg(pathArgs): path, t.arg(contentArgs): text}
		if t.has("old_string") {
			args["old_string"] = ""
		}
		return t.with(args)
	}
	if t, ok := c.tool("apply_patch"); ok {
		if t.Freeform {
			return Call{Name: t.Name, Freeform: true, Input: patch}, nil
		}
		return t.with(map[string]any{t.arg([]string{"patchText", "input", "patch"}): patch})
	}
	if code, ok := c.codeMode(); ok {
		return code.run("apply_patch", patch), nil
	}
	return Call{}, c.missing("write")
}

// mcp finds the tool of an MCP server under the names that agents give it.
func (c Conversation) mcp(server, tool string, args json.RawMessage) (Call, error) {
	for _, name := range []string{"mcp__" + server + "__" + tool, server + "_" + tool, "mcp_" + server + "_" + tool, server + "__" + tool} {
		if t, ok := c.tool(name); ok {
			return Call{Name: t.Name, Namespace: t.Namespace, Args: args}, nil
		}
	}
	if t, ok := c.tool("use_tool"); ok {
		return t.with(map[string]any{"tool_name": server + "__" + tool, "tool_input": args})
	}
	if code, ok := c.codeMode(); ok {
		return code.run("mcp__"+server+"__"+tool, args), nil
	}
	if _, ok := c.tool("exec_command", "shell_command"); ok {
		// Codex defers the tools of MCP servers: they are not offered, and still taken.
		return Call{Name: tool, Namespace: "mcp__" + server, Args: args}, nil
	}
	if _, ok := c.tool("tool_search"); ok {
		return Call{Name: "mcp__" + server + "__" + tool, Args: args}, nil
	}
	return Call{}, c.missing("MCP " + server + "/" + tool)
}

// missing is the error for a tool that the agent does not offer.
func (c Conversation) missing(what string) error {
	return fmt.Errorf("no %s tool offered, only %s", what, strings.Join(c.ToolNames(), " "))
}

// ToolNames lists the tools that the agent offers.
func (c Conversation) ToolNames() []string {
	var names []string
	for _, t := range c.Tools {
		names = append(names, t.Name)
	}
	return names
}

// tool returns the offered tool that comes first in names.
func (c Conversation) tool(names ...string) (Tool, bool) {
	for _, name := range names {
		i := slices.IndexFunc(c.Tools, func(t Tool) bool {
			return t.Name == name || t.Namespace != "" && t.Namespace+"__"+t.Name == name
		})
		if i >= 0 {
			return c.Tools[i], true
		}
	}
	return Tool{}, false
}

// codeMode returns the tool of agents that have the model write JavaScript against
// their tools instead of calling them.
func (c Conversation) codeMode() (Tool, bool) {
	t, ok := c.tool("exec")
	return t, ok && t.Freeform
}

// run calls a tool from within code mode and prints its answer.
func (t Tool) run(name string, arg any) Call {
	b, err := json.Marshal(arg)
	if err != nil {
		b = []byte("null") // unreachable: only strings, maps of strings and JSON come here
	}
	code := fmt.Sprintf("const r = await tools.%s(%s);\ntext(typeof r === \"string\" ? r : JSON.stringify(r));\n", name, b)
	return Call{Name: t.Name, Freeform: true, Input: code}
}

// schema is the part of a tool's JSON Schema that matters here.
type schema struct {
	Properties map[string]property `json:"properties"`
	Required   []string            `json:"required"`
}

type property struct {
	Type any   `json:"type"`
	Enum []any `json:"enum"`
}

func (t Tool) schema() schema {
	var s schema
	_ = json.Unmarshal(t.Schema, &s) // an unreadable schema is one without properties
	return s
}

func (t Tool) has(arg string) bool {
	_, ok := t.schema().Properties[arg]
	return ok
}

// arg returns the first of names that the tool takes, or the first of all.
func (t Tool) arg(names []string) string {
	for _, n := range names {
		if t.has(n) {
			return n
		}
	}
	return names[0]
}

func (t Tool) argType(arg string) string {
	return t.schema().Properties[arg].kind()
}

// kind is the property's type in lower case; of several, the first.
func (p property) kind() string {
	switch v := p.Type.(type) {
	case string:
		return strings.ToLower(v)
	case []any:
		if len(v) > 0 {
			s, _ := v[0].(string)
			return strings.ToLower(s)
		}
	}
	return ""
}

// with calls the tool with args, and something harmless for whatever else it requires.
func (t Tool) with(args map[string]any) (Call, error) {
	s := t.schema()
	for _, name := range s.Required {
		if _, ok := args[name]; ok {
			continue
		}
		p := s.Properties[name]
		switch {
		case len(p.Enum) > 0:
			args[name] = p.Enum[0]
		case p.kind() == "boolean":
			args[name] = false
		case p.kind() == "integer", p.kind() == "number":
			args[name] = 1
		case p.kind() == "array":
			args[name] = []any{}
		case p.kind() == "object":
			args[name] = map[string]any{}
		default:
			args[name] = "scripted"
		}
	}
	b, err := json.Marshal(args)
	if err != nil {
		return Call{}, fmt.Errorf("arguments of %s: %w", t.Name, err)
	}
	return Call{Name: t.Name, Namespace: t.Namespace, Args: b}, nil
}
