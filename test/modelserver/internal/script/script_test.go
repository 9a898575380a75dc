package script

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	tests := []struct {
		text  string
		names string // of the markers, joined by a space
		fails string // what the error holds; empty: none
	}{
		{"plain text", "", ""},
		{"x [[ y ]] [[nosuch z]] [x]", "", ""},
		{"[[say hi]] and [[sh ls -l | wc]] then", "say sh", ""},
		{"[[hang]][[drop]][[quota]][[unicode]][[empty]]", "hang drop quota unicode empty", ""},
		{`[[mcp srv tool {"a":[[1]],"b":"]]"}]][[say x]]`, "mcp say", ""},
		{`[[call Bash {"command":"[[ -f x ]]"}]]`, "call", ""},
		{"[[mcp srv tool]]", "mcp", ""},
		{"[[write /a/b some text\nmore]]", "write", ""},
		{"[[delta 3 x 5]][[delta 4]][[big 10]][[slow 20]][[status 429]]", "delta delta big slow status", ""},
		{"[[say hi", "", "not closed"},
		{"[[say]]", "", "wants a text"},
		{"[[hang on]]", "", "takes no argument"},
		{"[[delta x]]", "", "invalid syntax"},
		{"[[delta 100000 x 100000]]", "", "more than"},
		{"[[big -1]]", "", "not in 0"},
		{"[[status 418]]", "", "none of"},
		{"[[mcp srv]]", "", "wants 2 words"},
		{"[[call Bash {]]", "", "not JSON"},
	}
	for _, tt := range tests {
		got, err := parse(tt.text)
		if tt.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("parse(%q): error %v, want one with %q", tt.text, err, tt.fails)
			}
			continue
		}
		var names []string
		for _, m := range got {
			names = append(names, m.name)
		}
		if err != nil || strings.Join(names, " ") != tt.names {
			t.Errorf("parse(%q) = %q, %v, want %q", tt.text, names, err, tt.names)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`[[mcp a b {"x":1}]][[say é]]`)
	f.Add("[[call [[call {[[")
	f.Fuzz(func(t *testing.T, text string) {
		Plan(Conversation{Messages: []Message{{FromUser: true, Text: head(text, 200)}}, Tools: []Tool{{Name: "bash"}}})
	})
}

func user(text string) Message { return Message{FromUser: true, Text: text} }

var bash = Tool{Name: "bash", Schema: json.RawMessage(`{"properties":{"command":{"type":"string"},"description":{"type":"string"},"bg":{"type":"boolean"}},"required":["command","description","bg"]}`)}

// withoutID drops the part of a reply that is never the same.
func withoutID(r Reply) Reply {
	if r.Call != nil {
		c := *r.Call
		c.ID = ""
		r.Call = &c
	}
	return r
}

func TestPlanFollowsTheConversation(t *testing.T) {
	task := user("[[think a]][[say b]][[sh ls]][[slow 5]][[say c]][[read /f]]")
	call, result := Message{Calls: 1}, Message{Results: []string{"listing"}}
	shell := func(command string) *Call {
		args, _ := json.Marshal(map[string]any{"bg": false, "command": command, "description": "scripted"})
		return &Call{Name: "bash", Args: args}
	}
	first := Reply{Parts: []Part{{Thought: true, Text: "a"}, {Text: "b"}}, Call: shell("ls")}
	tests := []struct {
		name     string
		messages []Message
		want     Reply
	}{
		{"first", []Message{task}, first},
		{"second", []Message{task, call, result}, Reply{Parts: []Part{{Text: "c", Delay: 5 * time.Millisecond}}, Call: shell("cat /f")}},
		{"end", []Message{task, call, result, call, {Results: []string{" content "}}}, say("done: content")},
		{"a reminder is not the task", []Message{task, call, result, user("<system-reminder>[[say no]]</system-reminder>"), call, result}, say("done: listing")},
		{"the next task starts anew", []Message{task, call, result, call, result, {Text: "x"}, task}, first},
		{"cut turn, next task", []Message{task, call, user("[[say y]]")}, say("y")},
		{"wrapped words", []Message{user("<user_info>x</user_info>\n<user_query>\n[[say y]]\n</user_query>")}, say("y")},
		{"no marker", []Message{user("hello")}, say(Echo("hello"))},
		{"no message", nil, say(Echo(""))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Plan(Conversation{Messages: tt.messages, Tools: []Tool{bash}})
			if diff := cmp.Diff(tt.want, withoutID(got)); diff != "" {
				t.Errorf("reply (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCallsUseTheToolsThatAreOffered(t *testing.T) {
	schema := func(props string) json.RawMessage { return json.RawMessage(`{"properties":{` + props + `}}`) }
	codex := []Tool{{Name: "exec_command", Schema: schema(`"cmd":{"type":"string"}`)}, {Name: "apply_patch", Freeform: true}}
	code := []Tool{{Name: "exec", Freeform: true}}
	const patch = "*** Begin Patch\n*** Add File: f\n+one\n+two\n*** End Patch\n"
	tests := []struct {
		name   string
		marker string
		tools  []Tool
		want   Call
	}{
		{"argv", "[[sh ls]]", []Tool{{Name: "shell", Schema: schema(`"command":{"type":["array"]}`)}}, Call{Name: "shell", Args: json.RawMessage(`{"command":["bash","-lc","ls"]}`)}},
		{"cmd", "[[sh ls]]", codex, Call{Name: "exec_command", Args: json.RawMessage(`{"cmd":"ls"}`)}},
		{"freeform patch", "[[write f one\ntwo]]", codex, Call{Name: "apply_patch", Freeform: true, Input: patch}},
		{"camel case", "[[write f x]]", []Tool{{Name: "write", Schema: schema(`"filePath":{},"content":{}`)}}, Call{Name: "write", Args: json.RawMessage(`{"content":"x","filePath":"f"}`)}},
		{"search and replace", "[[write f x]]", []Tool{{Name: "search_replace", Schema: schema(`"file_path":{},"old_string":{},"new_string":{}`)}}, Call{Name: "search_replace", Args: json.RawMessage(`{"file_path":"f","new_string":"x","old_string":""}`)}},
		{"code mode shell", "[[sh ls]]", code, Call{Name: "exec", Freeform: true, Input: "const r = await tools.exec_command({\"cmd\":\"ls\"});\ntext(typeof r === \"string\" ? r : JSON.stringify(r));\n"}},
		{"code mode MCP", `[[mcp s t {"a":1}]]`, code, Call{Name: "exec", Freeform: true, Input: "const r = await tools.mcp__s__t({\"a\":1});\ntext(typeof r === \"string\" ? r : JSON.stringify(r));\n"}},
		{"MCP by full name", `[[mcp s t {"a":1}]]`, []Tool{{Name: "mcp__s__t"}}, Call{Name: "mcp__s__t", Args: json.RawMessage(`{"a":1}`)}},
		{"MCP by namespace", `[[mcp s t]]`, []Tool{{Name: "t", Namespace: "mcp__s"}}, Call{Name: "t", Namespace: "mcp__s", Args: json.RawMessage(`{}`)}},
		{"MCP deferred", `[[mcp s t]]`, codex, Call{Name: "t", Namespace: "mcp__s", Args: json.RawMessage(`{}`)}},
		{"MCP through a tool", `[[mcp s t {"a":1}]]`, []Tool{{Name: "use_tool"}}, Call{Name: "use_tool", Args: json.RawMessage(`{"tool_input":{"a":1},"tool_name":"s__t"}`)}},
		{"not offered, called all the same", `[[call Bash {"command":"x"}]]`, nil, Call{Name: "Bash", Args: json.RawMessage(`{"command":"x"}`)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := Plan(Conversation{Messages: []Message{user(tt.marker)}, Tools: tt.tools})
			if r.Call == nil {
				t.Fatalf("no call, text %q", r.Text())
			}
			if diff := cmp.Diff(tt.want, *withoutID(r).Call); diff != "" {
				t.Errorf("call (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMissingToolIsAnAnswer(t *testing.T) {
	r := Plan(Conversation{Messages: []Message{user("[[write /f x]]")}, Tools: []Tool{{Name: "read"}, {Name: "grep"}}})
	if want := "script error: no write tool offered, only read grep"; r.Call != nil || r.Text() != want {
		t.Errorf("reply %+v, want the text %q", r, want)
	}
}

func TestErrandsDoNotPlayTheScript(t *testing.T) {
	quoted := user("[[sh rm x]]")
	tests := []struct {
		name string
		c    Conversation
		want bool
	}{
		{"title by system prompt", Conversation{System: "You are a title generator.", Messages: []Message{quoted}}, true},
		{"title by tool", Conversation{Messages: []Message{quoted}, Tools: []Tool{{Name: "session_title"}}}, true},
		{"summary", Conversation{Messages: []Message{user("You are performing a CONTEXT CHECKPOINT COMPACTION. [[sh x]]")}}, true},
		{"a turn", Conversation{System: "You may be asked to generate a title.", Messages: []Message{quoted}, Tools: []Tool{bash, bash, bash}}, false},
		{"no tools", Conversation{Messages: []Message{quoted}}, false},
	}
	for _, tt := range tests {
		if got := tt.c.Errand(); got != tt.want {
			t.Errorf("%s: Errand() = %t, want %t", tt.name, got, tt.want)
		}
		if r := Plan(tt.c); tt.want && r.Text() != Errand {
			t.Errorf("%s: answer %q, want %q", tt.name, r.Text(), Errand)
		}
	}
}

func TestEnds(t *testing.T) {
	for text, want := range map[string]Reply{
		"[[say a]][[hang]]":  {Parts: []Part{{Text: "a"}}, End: EndHang},
		"[[say a]][[drop]]":  {Parts: []Part{{Text: "a"}}, End: EndDrop},
		"[[status 503]]":     {Failure: 503},
		"[[quota]]":          {Failure: FailQuota},
		"[[empty]]":          {},
		"[[say a]][[say b]]": {Parts: []Part{{Text: "a"}, {Text: "b"}}},
	} {
		if diff := cmp.Diff(want, Plan(Conversation{Messages: []Message{user(text)}})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestSizes(t *testing.T) {
	r := Plan(Conversation{Messages: []Message{user("[[delta 7 x 11]]")}})
	if len(r.Parts) != 7 || r.Text() != Filler(77) {
		t.Errorf("[[delta 7 x 11]]: %d parts, text %q", len(r.Parts), r.Text())
	}
	r = Plan(Conversation{Messages: []Message{user("[[big 40000]]")}})
	if len(r.Parts) != 3 || r.Text() != Filler(40000) {
		t.Errorf("[[big 40000]]: %d parts, %d bytes", len(r.Parts), len(r.Text()))
	}
	if !utf8.ValidString(Unicode) {
		t.Error("Unicode is not valid UTF-8")
	}
}
