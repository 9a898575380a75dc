package dialect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/subspan-dev/subspan/test/modelserver/internal/script"
)

// Chat is the OpenAI Chat Completions format.
type Chat struct{}

func (Chat) Name() string { return "chat" }

func (Chat) Decode(_ string, body []byte) (script.Conversation, error) {
	var in struct {
		Model     string `json:"model"`
		Stream    bool   `json:"stream"`
		Effort    string `json:"reasoning_effort"`
		Reasoning struct {
			Effort string `json:"effort"`
		} `json:"reasoning"`
		MaxTokens           int `json:"max_tokens"`
		MaxCompletionTokens int `json:"max_completion_tokens"`
		Messages            []struct {
			Role      string            `json:"role"`
			Content   json.RawMessage   `json:"content"`
			ToolCalls []json.RawMessage `json:"tool_calls"`
		} `json:"messages"`
		Tools []struct {
			Function struct {
				Name        string          `json:"name"`
				Description string          `json:"description"`
				Parameters  json.RawMessage `json:"parameters"`
			} `json:"function"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return script.Conversation{}, fmt.Errorf("chat completions request: %w", err)
	}
	c := script.Conversation{
		Model: in.Model, Stream: in.Stream, Effort: in.Effort + in.Reasoning.Effort,
		MaxTokens: max(in.MaxTokens, in.MaxCompletionTokens),
	}
	for _, m := range in.Messages {
		t := text(m.Content)
		switch m.Role {
		case "system", "developer":
			c.System = join(c.System, t)
		case "user":
			c.Messages = append(c.Messages, script.Message{FromUser: true, Text: t})
		case "tool":
			c.Messages = append(c.Messages, script.Message{Results: []string{t}})
		default:
			c.Messages = append(c.Messages, script.Message{Text: t, Calls: len(m.ToolCalls)})
		}
	}
	for _, t := range in.Tools {
		f := t.Function
		c.Tools = append(c.Tools, script.Tool{Name: f.Name, Schema: f.Parameters, About: f.Description})
	}
	return c, nil
}

func chatUsage() object {
	return object{
		"prompt_tokens": InputTokens, "completion_tokens": OutputTokens, "total_tokens": InputTokens + OutputTokens,
		"prompt_tokens_details":     object{"cached_tokens": CachedTokens},
		"completion_tokens_details": object{"reasoning_tokens": ReasoningTokens},
	}
}

func finish(r script.Reply) string {
	if r.Call != nil {
		return "tool_calls"
	}
	return "stop"
}

func chatCall(call *script.Call) object {
	return object{"id": call.ID, "type": "function", "function": object{"name": call.Name, "arguments": string(call.Args)}}
}

func (Chat) Whole(c script.Conversation, r script.Reply) any {
	m := object{"role": "assistant", "content": r.Text()}
	if t := r.Thought(); t != "" {
		m["reasoning_content"] = t
	}
	if r.Call != nil {
		m["tool_calls"] = []object{chatCall(r.Call)}
	}
	return object{
		"id": newID("chatcmpl-"), "object": "chat.completion", "created": time.Now().Unix(), "model": c.Model,
		"choices": []object{{"index": 0, "message": m, "finish_reason": finish(r)}},
		"usage":   chatUsage(),
	}
}

func (Chat) Failure(f script.Failure) (int, any) {
	kind, message := refusal(f)
	code := any(kind)
	status := int(f)
	switch f {
	case script.FailQuota:
		status, kind, code = http.StatusTooManyRequests, "insufficient_quota", "insufficient_quota"
		message = "You exceeded your current quota, please check your plan and billing details."
	case http.StatusUnauthorized:
		code = "invalid_api_key"
	case http.StatusNotFound:
		code = "model_not_found"
	}
	return status, object{"error": object{"message": message, "type": kind, "param": nil, "code": code}}
}

type chatEncoder struct {
	send  func(string, any)
	model string
	id    string
}

func (Chat) Encode(c script.Conversation, send func(string, any)) Encoder {
	return &chatEncoder{send: send, model: c.Model, id: newID("chatcmpl-")}
}

func (e *chatEncoder) chunk(choices []object, usage any) {
	e.send("", object{
		"id": e.id, "object": "chat.completion.chunk", "created": time.Now().Unix(), "model": e.model,
		"choices": choices, "usage": usage,
	})
}

func (e *chatEncoder) delta(d object, finish any) {
	e.chunk([]object{{"index": 0, "delta": d, "finish_reason": finish}}, nil)
}

func (e *chatEncoder) Begin() { e.delta(object{"role": "assistant", "content": ""}, nil) }

func (e *chatEncoder) Delta(p script.Part) {
	if p.Thought {
		e.delta(object{"reasoning_content": p.Text}, nil)
		return
	}
	e.delta(object{"content": p.Text}, nil)
}

func (e *chatEncoder) End(r script.Reply) {
	if r.Call != nil {
		args := halves(string(r.Call.Args))
		first := chatCall(r.Call)
		first["index"] = 0
		first["function"] = object{"name": r.Call.Name, "arguments": args[0]}
		e.delta(object{"tool_calls": []object{first}}, nil)
		e.delta(object{"tool_calls": []object{{"index": 0, "function": object{"arguments": args[1]}}}}, nil)
	}
	e.delta(object{}, finish(r))
	e.chunk([]object{}, chatUsage())
	e.send("", json.RawMessage("[DONE]"))
}
