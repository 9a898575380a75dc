package dialect

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/subspan-dev/subspan/test/modelserver/internal/script"
)

// Messages is the Anthropic Messages format.
type Messages struct{}

func (Messages) Name() string { return "messages" }

func (Messages) Decode(_ string, body []byte) (script.Conversation, error) {
	var in struct {
		Model     string          `json:"model"`
		Stream    bool            `json:"stream"`
		System    json.RawMessage `json:"system"`
		MaxTokens int             `json:"max_tokens"`
		Output    struct {
			Effort string `json:"effort"`
		} `json:"output_config"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"input_schema"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return script.Conversation{}, fmt.Errorf("messages request: %w", err)
	}
	c := script.Conversation{
		Model: in.Model, Stream: in.Stream, Effort: in.Output.Effort, System: text(in.System), MaxTokens: in.MaxTokens,
	}
	for _, m := range in.Messages {
		if m.Role == "system" {
			c.System = join(c.System, text(m.Content))
			continue
		}
		out := script.Message{FromUser: m.Role == "user", Text: text(m.Content)}
		var blocks []struct {
			Type    string          `json:"type"`
			Content json.RawMessage `json:"content"`
		}
		_ = json.Unmarshal(m.Content, &blocks) // content that is a string has no blocks
		for _, b := range blocks {
			switch b.Type {
			case "tool_use":
				out.Calls++
			case "tool_result":
				out.Results = append(out.Results, text(b.Content))
			}
		}
		c.Messages = append(c.Messages, out)
	}
	for _, t := range in.Tools {
		c.Tools = append(c.Tools, script.Tool{Name: t.Name, Schema: t.Schema, About: t.Description})
	}
	return c, nil
}

func stopReason(r script.Reply) string {
	if r.Call != nil {
		return "tool_use"
	}
	return "end_turn"
}

func messagesUsage(output int) object {
	return object{
		"input_tokens": InputTokens - CachedTokens, "cache_read_input_tokens": CachedTokens,
		"cache_creation_input_tokens": 0, "output_tokens": output,
	}
}

func (Messages) Whole(c script.Conversation, r script.Reply) any {
	content := []object{}
	if t := r.Thought(); t != "" {
		content = append(content, object{"type": "thinking", "thinking": t, "signature": "scripted"})
	}
	if t := r.Text(); t != "" {
		content = append(content, object{"type": "text", "text": t})
	}
	if r.Call != nil {
		content = append(content, object{"type": "tool_use", "id": r.Call.ID, "name": r.Call.Name, "input": r.Call.Args})
	}
	return object{
		"id": newID("msg_"), "type": "message", "role": "assistant", "model": c.Model, "content": content,
		"stop_reason": stopReason(r), "stop_sequence": nil, "usage": messagesUsage(OutputTokens),
	}
}

func (Messages) Failure(f script.Failure) (int, any) {
	kind, message := refusal(f)
	status := int(f)
	switch f {
	case script.FailQuota:
		status, kind = http.StatusBadRequest, "invalid_request_error"
		message = "Your credit balance is too low to access the API. Please go to Plans & Billing to upgrade or purchase credits."
	case http.StatusUnauthorized:
		message = "invalid x-api-key"
	}
	return status, object{"type": "error", "error": object{"type": kind, "message": message}}
}

// messagesEncoder keeps one content block open at a time.
type messagesEncoder struct {
	send  func(string, any)
	model string
	index int
	open  bool
	think bool // the open block is a thought
}

func (Messages) Encode(c script.Conversation, send func(string, any)) Encoder {
	return &messagesEncoder{send: send, model: c.Model}
}

func (e *messagesEncoder) event(kind string, data object) {
	data["type"] = kind
	e.send(kind, data)
}

func (e *messagesEncoder) delta(d object) {
	e.event("content_block_delta", object{"index": e.index, "delta": d})
}

func (e *messagesEncoder) Begin() {
	e.event("message_start", object{"message": object{
		"id": newID("msg_"), "type": "message", "role": "assistant", "model": e.model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": messagesUsage(1),
	}})
	e.event("ping", object{})
}

func (e *messagesEncoder) Delta(p script.Part) {
	if !e.open || e.think != p.Thought {
		e.close()
		e.open, e.think = true, p.Thought
		block := object{"type": "text", "text": ""}
		if e.think {
			block = object{"type": "thinking", "thinking": "", "signature": ""}
		}
		e.event("content_block_start", object{"index": e.index, "content_block": block})
	}
	if e.think {
		e.delta(object{"type": "thinking_delta", "thinking": p.Text})
		return
	}
	e.delta(object{"type": "text_delta", "text": p.Text})
}

func (e *messagesEncoder) close() {
	if !e.open {
		return
	}
	if e.think {
		e.delta(object{"type": "signature_delta", "signature": "scripted"})
	}
	e.event("content_block_stop", object{"index": e.index})
	e.index++
	e.open = false
}

func (e *messagesEncoder) End(r script.Reply) {
	e.close()
	if r.Call != nil {
		e.event("content_block_start", object{"index": e.index, "content_block": object{
			"type": "tool_use", "id": r.Call.ID, "name": r.Call.Name, "input": object{},
		}})
		for _, half := range halves(string(r.Call.Args)) {
			e.delta(object{"type": "input_json_delta", "partial_json": half})
		}
		e.event("content_block_stop", object{"index": e.index})
	}
	e.event("message_delta", object{
		"delta": object{"stop_reason": stopReason(r), "stop_sequence": nil}, "usage": messagesUsage(OutputTokens),
	})
	e.event("message_stop", object{})
}
