package dialect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/subspan-dev/subspan/test/modelserver/internal/script"
)

// Responses is the OpenAI Responses format.
type Responses struct{}

func (Responses) Name() string { return "responses" }

// responseTool is a function, a freeform tool, or a namespace of functions.
type responseTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Tools       []responseTool  `json:"tools"`
}

func (t responseTool) flatten(namespace string) []script.Tool {
	switch t.Type {
	case "namespace":
		var all []script.Tool
		for _, sub := range t.Tools {
			all = append(all, sub.flatten(t.Name)...)
		}
		return all
	case "function", "custom":
		return []script.Tool{{
			Name: t.Name, Namespace: namespace, Schema: t.Parameters, About: t.Description, Freeform: t.Type == "custom",
		}}
	}
	if t.Name == "" {
		t.Name = t.Type // built-in tools have a type and no name
	}
	return []script.Tool{{Name: t.Name, Namespace: namespace, Schema: t.Parameters}}
}

func (Responses) Decode(_ string, body []byte) (script.Conversation, error) {
	var in struct {
		Model        string          `json:"model"`
		Stream       bool            `json:"stream"`
		Instructions string          `json:"instructions"`
		Input        json.RawMessage `json:"input"`
		Tools        []responseTool  `json:"tools"`
		MaxTokens    int             `json:"max_output_tokens"`
		Reasoning    struct {
			Effort string `json:"effort"`
		} `json:"reasoning"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return script.Conversation{}, fmt.Errorf("responses request: %w", err)
	}
	c := script.Conversation{
		Model: in.Model, Stream: in.Stream, Effort: in.Reasoning.Effort, System: in.Instructions, MaxTokens: in.MaxTokens,
	}
	for _, t := range in.Tools {
		c.Tools = append(c.Tools, t.flatten("")...)
	}
	var single string
	if json.Unmarshal(in.Input, &single) == nil {
		c.Messages = []script.Message{{FromUser: true, Text: single}}
		return c, nil
	}
	var items []struct {
		Type    string          `json:"type"`
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
		Output  json.RawMessage `json:"output"`
		Tools   []responseTool  `json:"tools"`
	}
	if err := json.Unmarshal(in.Input, &items); err != nil {
		return script.Conversation{}, fmt.Errorf("responses request: input: %w", err)
	}
	for _, it := range items {
		switch it.Type {
		case "", "message":
			t := text(it.Content)
			switch it.Role {
			case "system", "developer":
				c.System = join(c.System, t)
			default:
				c.Messages = append(c.Messages, script.Message{FromUser: it.Role == "user", Text: t})
			}
		case "function_call", "custom_tool_call", "local_shell_call":
			c.Messages = append(c.Messages, script.Message{Calls: 1})
		case "function_call_output", "custom_tool_call_output", "local_shell_call_output":
			c.Messages = append(c.Messages, script.Message{Results: []string{text(it.Output)}})
		case "additional_tools":
			for _, t := range it.Tools {
				c.Tools = append(c.Tools, t.flatten("")...)
			}
		}
	}
	return c, nil
}

func responsesUsage() object {
	return object{
		"input_tokens": InputTokens, "input_tokens_details": object{"cached_tokens": CachedTokens},
		"output_tokens": OutputTokens, "output_tokens_details": object{"reasoning_tokens": ReasoningTokens},
		"total_tokens": InputTokens + OutputTokens,
	}
}

func messageItem(id, status, text string) object {
	content := []object{}
	if status == "completed" {
		content = append(content, outputText(text))
	}
	return object{"type": "message", "id": id, "role": "assistant", "status": status, "content": content}
}

func outputText(text string) object {
	return object{"type": "output_text", "text": text, "annotations": []any{}}
}

func reasoningItem(id, text string) object {
	summary := []object{}
	if text != "" {
		summary = append(summary, object{"type": "summary_text", "text": text})
	}
	return object{"type": "reasoning", "id": id, "summary": summary, "encrypted_content": nil}
}

func callItem(id, status string, call *script.Call, args string) object {
	if call.Freeform {
		return object{"type": "custom_tool_call", "id": id, "call_id": call.ID, "name": call.Name, "status": status, "input": args}
	}
	item := object{"type": "function_call", "id": id, "call_id": call.ID, "name": call.Name, "status": status, "arguments": args}
	if call.Namespace != "" {
		item["namespace"] = call.Namespace
	}
	return item
}

func callText(call *script.Call) string {
	if call.Freeform {
		return call.Input
	}
	return string(call.Args)
}

// output lists the whole items of a reply.
func output(r script.Reply) []object {
	items := []object{}
	if t := r.Thought(); t != "" {
		items = append(items, reasoningItem(newID("rs_"), t))
	}
	if t := r.Text(); t != "" {
		items = append(items, messageItem(newID("msg_"), "completed", t))
	}
	if r.Call != nil {
		items = append(items, callItem(newID("fc_"), "completed", r.Call, callText(r.Call)))
	}
	return items
}

func response(id, model, status string, items []object, usage any) object {
	return object{
		"id": id, "object": "response", "created_at": time.Now().Unix(), "status": status, "model": model,
		"output": items, "usage": usage, "error": nil, "incomplete_details": nil, "instructions": nil,
		"parallel_tool_calls": false, "tool_choice": "auto", "tools": []any{}, "metadata": object{},
	}
}

func (Responses) Whole(c script.Conversation, r script.Reply) any {
	return response(newID("resp_"), c.Model, "completed", output(r), responsesUsage())
}

func (Responses) Failure(f script.Failure) (int, any) {
	if f != script.FailQuota {
		return Chat{}.Failure(f)
	}
	fail := response(newID("resp_"), "", "failed", []object{}, nil)
	fail["error"] = object{
		"code":    "insufficient_quota",
		"message": "You exceeded your current quota, please check your plan and billing details.",
	}
	return http.StatusOK, object{"type": "response.failed", "sequence_number": 0, "response": fail}
}

// responsesEncoder keeps one item open at a time: a reasoning or a message.
type responsesEncoder struct {
	send  func(string, any)
	model string
	id    string
	seq   int
	done  []object
	open  string // id of the open item
	think bool   // the open item is a reasoning
	text  []byte // of the open item
}

func (Responses) Encode(c script.Conversation, send func(string, any)) Encoder {
	return &responsesEncoder{send: send, model: c.Model, id: newID("resp_"), done: []object{}}
}

func (e *responsesEncoder) event(kind string, data object) {
	data["type"] = kind
	data["sequence_number"] = e.seq
	e.seq++
	e.send(kind, data)
}

func (e *responsesEncoder) item(kind string, item object) {
	e.event(kind, object{"output_index": len(e.done), "item": item})
}

// part is an event about the open item's only part.
func (e *responsesEncoder) part(kind string, data object) {
	data["item_id"] = e.open
	data["output_index"] = len(e.done)
	index := "content_index"
	if e.think {
		index = "summary_index"
	}
	data[index] = 0
	e.event(kind, data)
}

func (e *responsesEncoder) Begin() {
	for _, kind := range []string{"response.created", "response.in_progress"} {
		e.event(kind, object{"response": response(e.id, e.model, "in_progress", []object{}, nil)})
	}
}

func (e *responsesEncoder) Delta(p script.Part) {
	if e.open == "" || e.think != p.Thought {
		e.close()
		e.think = p.Thought
		if e.think {
			e.open = newID("rs_")
			e.item("response.output_item.added", reasoningItem(e.open, ""))
			e.part("response.reasoning_summary_part.added", object{"part": object{"type": "summary_text", "text": ""}})
		} else {
			e.open = newID("msg_")
			e.item("response.output_item.added", messageItem(e.open, "in_progress", ""))
			e.part("response.content_part.added", object{"part": outputText("")})
		}
	}
	e.text = append(e.text, p.Text...)
	kind := "response.output_text.delta"
	if e.think {
		kind = "response.reasoning_summary_text.delta"
	}
	e.part(kind, object{"delta": p.Text})
}

// close ends the open item, if any.
func (e *responsesEncoder) close() {
	if e.open == "" {
		return
	}
	t := string(e.text)
	var item object
	if e.think {
		e.part("response.reasoning_summary_text.done", object{"text": t})
		e.part("response.reasoning_summary_part.done", object{"part": object{"type": "summary_text", "text": t}})
		item = reasoningItem(e.open, t)
	} else {
		e.part("response.output_text.done", object{"text": t})
		e.part("response.content_part.done", object{"part": outputText(t)})
		item = messageItem(e.open, "completed", t)
	}
	e.item("response.output_item.done", item)
	e.done = append(e.done, item)
	e.open, e.text = "", nil
}

func (e *responsesEncoder) End(r script.Reply) {
	e.close()
	if r.Call != nil {
		e.call(r.Call)
	}
	e.event("response.completed", object{"response": response(e.id, e.model, "completed", e.done, responsesUsage())})
}

func (e *responsesEncoder) call(call *script.Call) {
	e.open, e.think = newID("fc_"), false
	args := callText(call)
	e.item("response.output_item.added", callItem(e.open, "in_progress", call, ""))
	kind, field := "response.function_call_arguments", "arguments"
	if call.Freeform {
		kind, field = "response.custom_tool_call_input", "input"
	}
	for _, half := range halves(args) {
		e.event(kind+".delta", object{"item_id": e.open, "output_index": len(e.done), "delta": half})
	}
	e.event(kind+".done", object{"item_id": e.open, "output_index": len(e.done), field: args})
	item := callItem(e.open, "completed", call, args)
	e.item("response.output_item.done", item)
	e.done = append(e.done, item)
	e.open = ""
}
