package modelserver_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/test/modelserver"
)

// answer is what a client of any format understands.
type answer struct {
	Text, Thought      string
	CallID, Call, Args string
	Stop               string
	Input, Output      int
}

// events returns the data of a stream, and fails on anything that is no stream.
func events(t *testing.T, body string) []map[string]any {
	t.Helper()
	var all []map[string]any
	sc := bufio.NewScanner(strings.NewReader(body))
	sc.Buffer(nil, 1<<20)
	name := ""
	for sc.Scan() {
		line := sc.Text()
		switch {
		case line == "":
			name = ""
		case strings.HasPrefix(line, "event: "):
			name = line[len("event: "):]
		case line == "data: [DONE]":
		case strings.HasPrefix(line, "data: "):
			var v map[string]any
			if err := json.Unmarshal([]byte(line[len("data: "):]), &v); err != nil {
				t.Fatalf("event %q: %v", line, err)
			}
			if name != "" && v["type"] != name {
				t.Fatalf("event named %q has the type %v", name, v["type"])
			}
			all = append(all, v)
		default:
			t.Fatalf("line %q is no part of an event stream", line)
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// at walks into decoded JSON; it returns nil where there is nothing.
func at(v any, path ...any) any {
	for _, p := range path {
		switch k := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[k]
		case int:
			l, _ := v.([]any)
			if k >= len(l) {
				return nil
			}
			v = l[k]
		}
	}
	return v
}

func str(v any, path ...any) string { s, _ := at(v, path...).(string); return s }
func num(v any, path ...any) int    { f, _ := at(v, path...).(float64); return int(f) }

// format is one dialect as a client sees it: how a conversation is asked, and how
// an answer is read from a stream or from one body.
type format struct {
	name   string
	path   func(stream bool) string
	ask    func(task string, call *answer, result string, stream bool) any
	stream func(t *testing.T, events []map[string]any) answer
	whole  func(body map[string]any) answer
}

type list = []any
type dict = map[string]any

var formats = []format{
	{
		name: "chat", path: func(bool) string { return "/v1/chat/completions" },
		ask: func(task string, call *answer, result string, stream bool) any {
			m := list{dict{"role": "system", "content": "be brief"}, dict{"role": "user", "content": list{dict{"type": "text", "text": task}}}}
			if call != nil {
				m = append(m, dict{"role": "assistant", "tool_calls": list{dict{"id": call.CallID, "type": "function", "function": dict{"name": call.Call, "arguments": call.Args}}}},
					dict{"role": "tool", "tool_call_id": call.CallID, "content": result})
			}
			return dict{"model": "m", "stream": stream, "reasoning_effort": "high", "messages": m,
				"tools": list{dict{"type": "function", "function": dict{"name": "bash", "parameters": dict{"properties": dict{"command": dict{"type": "string"}}}}}}}
		},
		stream: func(t *testing.T, events []map[string]any) (a answer) {
			for _, e := range events {
				d := at(e, "choices", 0, "delta")
				a.Text += str(d, "content")
				a.Thought += str(d, "reasoning_content")
				a.CallID += str(d, "tool_calls", 0, "id")
				a.Call += str(d, "tool_calls", 0, "function", "name")
				a.Args += str(d, "tool_calls", 0, "function", "arguments")
				a.Stop += str(e, "choices", 0, "finish_reason")
				a.Input += num(e, "usage", "prompt_tokens")
				a.Output += num(e, "usage", "completion_tokens")
			}
			return a
		},
		whole: func(b map[string]any) answer {
			m := at(b, "choices", 0, "message")
			return answer{Text: str(m, "content"), Thought: str(m, "reasoning_content"), CallID: str(m, "tool_calls", 0, "id"),
				Call: str(m, "tool_calls", 0, "function", "name"), Args: str(m, "tool_calls", 0, "function", "arguments"),
				Stop: str(b, "choices", 0, "finish_reason"), Input: num(b, "usage", "prompt_tokens"), Output: num(b, "usage", "completion_tokens")}
		},
	},
	{
		name: "responses", path: func(bool) string { return "/v1/responses" },
		ask: func(task string, call *answer, result string, stream bool) any {
			in := list{dict{"type": "message", "role": "developer", "content": list{dict{"type": "input_text", "text": "be brief"}}},
				dict{"type": "message", "role": "user", "content": list{dict{"type": "input_text", "text": task}}}}
			if call != nil {
				in = append(in, dict{"type": "function_call", "call_id": call.CallID, "name": call.Call, "arguments": call.Args},
					dict{"type": "function_call_output", "call_id": call.CallID, "output": result})
			}
			return dict{"model": "m", "stream": stream, "reasoning": dict{"effort": "high"}, "input": in,
				"tools": list{dict{"type": "function", "name": "bash", "parameters": dict{"properties": dict{"command": dict{"type": "string"}}}}}}
		},
		stream: func(t *testing.T, events []map[string]any) (a answer) {
			seq := 0
			for _, e := range events {
				if num(e, "sequence_number") != seq {
					t.Errorf("event %v has not the number %d", e, seq)
				}
				seq++
				switch str(e, "type") {
				case "response.output_text.delta":
					a.Text += str(e, "delta")
				case "response.reasoning_summary_text.delta":
					a.Thought += str(e, "delta")
				case "response.function_call_arguments.delta":
					a.Args += str(e, "delta")
				case "response.output_item.added":
					a.Call += str(e, "item", "name")
					a.CallID += str(e, "item", "call_id")
				case "response.completed":
					whole := wholeResponse(at(e, "response").(map[string]any))
					a.Stop, a.Input, a.Output = whole.Stop, whole.Input, whole.Output
					if diff := cmp.Diff(whole, a); diff != "" {
						t.Errorf("the deltas are not the final response (-final +deltas):\n%s", diff)
					}
				}
			}
			return a
		},
		whole: wholeResponse,
	},
	{
		name: "messages", path: func(bool) string { return "/v1/messages" },
		ask: func(task string, call *answer, result string, stream bool) any {
			m := list{dict{"role": "user", "content": task}}
			if call != nil {
				m = append(m, dict{"role": "assistant", "content": list{dict{"type": "tool_use", "id": call.CallID, "name": call.Call, "input": json.RawMessage(call.Args)}}},
					dict{"role": "user", "content": list{dict{"type": "tool_result", "tool_use_id": call.CallID, "content": list{dict{"type": "text", "text": result}}}}})
			}
			return dict{"model": "m", "stream": stream, "output_config": dict{"effort": "high"}, "system": list{dict{"type": "text", "text": "be brief"}}, "messages": m,
				"tools": list{dict{"name": "bash", "input_schema": dict{"properties": dict{"command": dict{"type": "string"}}}}}}
		},
		stream: func(t *testing.T, events []map[string]any) (a answer) {
			open := -1
			for _, e := range events {
				switch str(e, "type") {
				case "content_block_start":
					open++
					a.Call += str(e, "content_block", "name")
					a.CallID += str(e, "content_block", "id")
				case "content_block_delta":
					a.Text += str(e, "delta", "text")
					a.Thought += str(e, "delta", "thinking")
					a.Args += str(e, "delta", "partial_json")
				case "message_delta":
					a.Stop = str(e, "delta", "stop_reason")
					a.Input = num(e, "usage", "input_tokens") + num(e, "usage", "cache_read_input_tokens")
					a.Output = num(e, "usage", "output_tokens")
				}
				if strings.HasPrefix(str(e, "type"), "content_block") && num(e, "index") != open {
					t.Errorf("event %v is not of block %d", e, open)
				}
			}
			return a
		},
		whole: func(b map[string]any) (a answer) {
			for _, c := range at(b, "content").([]any) {
				a.Text += str(c, "text")
				a.Thought += str(c, "thinking")
				a.Call += str(c, "name")
				a.CallID += str(c, "id")
				a.Args += args(at(c, "input"))
			}
			a.Stop = str(b, "stop_reason")
			a.Input = num(b, "usage", "input_tokens") + num(b, "usage", "cache_read_input_tokens")
			a.Output = num(b, "usage", "output_tokens")
			return a
		},
	},
	{
		name: "gemini", path: func(stream bool) string {
			if stream {
				return "/v1beta/models/m:streamGenerateContent?alt=sse"
			}
			return "/v1beta/models/m:generateContent"
		},
		ask: func(task string, call *answer, result string, stream bool) any {
			c := list{dict{"role": "user", "parts": list{dict{"text": task}}}}
			if call != nil {
				c = append(c, dict{"role": "model", "parts": list{dict{"functionCall": dict{"name": call.Call, "args": json.RawMessage(call.Args)}}}},
					dict{"role": "user", "parts": list{dict{"functionResponse": dict{"name": call.Call, "response": dict{"output": result}}}}})
			}
			return dict{"contents": c, "systemInstruction": dict{"parts": list{dict{"text": "be brief"}}}, "generationConfig": dict{"thinkingConfig": dict{"thinkingLevel": "high"}},
				"tools": list{dict{"functionDeclarations": list{dict{"name": "bash", "parameters": dict{"properties": dict{"command": dict{"type": "STRING"}}}}}}}}
		},
		stream: func(t *testing.T, events []map[string]any) (a answer) {
			for _, e := range events {
				w := wholeGemini(e)
				a.Text, a.Thought, a.Call, a.CallID, a.Args = a.Text+w.Text, a.Thought+w.Thought, a.Call+w.Call, a.CallID+w.CallID, a.Args+w.Args
				a.Stop, a.Input, a.Output = w.Stop, w.Input, w.Output
			}
			return a
		},
		whole: wholeGemini,
	},
}

func wholeResponse(r map[string]any) (a answer) {
	for _, it := range at(r, "output").([]any) {
		a.Text += str(it, "content", 0, "text")
		a.Thought += str(it, "summary", 0, "text")
		a.Call += str(it, "name")
		a.CallID += str(it, "call_id")
		a.Args += str(it, "arguments")
	}
	a.Stop = str(r, "status")
	a.Input, a.Output = num(r, "usage", "input_tokens"), num(r, "usage", "output_tokens")
	return a
}

func wholeGemini(b map[string]any) (a answer) {
	c := at(b, "candidates", 0)
	for _, p := range at(c, "content", "parts").([]any) {
		if at(p, "thought") == true {
			a.Thought += str(p, "text")
		} else {
			a.Text += str(p, "text")
		}
		a.Call += str(p, "functionCall", "name")
		a.CallID += str(p, "functionCall", "id")
		a.Args += args(at(p, "functionCall", "args"))
	}
	a.Stop = str(c, "finishReason")
	a.Input = num(b, "usageMetadata", "promptTokenCount")
	a.Output = num(b, "usageMetadata", "candidatesTokenCount") + num(b, "usageMetadata", "thoughtsTokenCount")
	return a
}

func args(v any) string {
	if v == nil {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// request asks and reads one answer.
func (f format) request(t *testing.T, s *modelserver.Server, task string, call *answer, result string, stream bool) answer {
	t.Helper()
	status, body, err := post(t, s.URL()+f.path(stream), f.ask(task, call, result, stream))
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", status, err, body)
	}
	if stream {
		return f.stream(t, events(t, body))
	}
	var b map[string]any
	if err := json.Unmarshal([]byte(body), &b); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return f.whole(b)
}
