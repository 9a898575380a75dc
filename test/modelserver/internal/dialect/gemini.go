package dialect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/subspan-dev/subspan/test/modelserver/internal/script"
)

// Gemini is the generateContent format.
type Gemini struct{}

func (Gemini) Name() string { return "gemini" }

type geminiContent struct {
	Role  string `json:"role"`
	Parts []struct {
		Text     string          `json:"text"`
		Thought  bool            `json:"thought"`
		Call     json.RawMessage `json:"functionCall"`
		Response *struct {
			Response json.RawMessage `json:"response"`
		} `json:"functionResponse"`
	} `json:"parts"`
}

func (g geminiContent) message() script.Message {
	m := script.Message{FromUser: g.Role != "model"}
	for _, p := range g.Parts {
		switch {
		case p.Response != nil:
			m.Results = append(m.Results, geminiResult(p.Response.Response))
		case len(p.Call) > 0:
			m.Calls++
		case !p.Thought:
			m.Text = join(m.Text, p.Text)
		}
	}
	return m
}

// geminiResult takes a tool's text out of the object in which Gemini wants it.
func geminiResult(raw json.RawMessage) string {
	var r struct {
		Output json.RawMessage `json:"output"`
		Error  json.RawMessage `json:"error"`
	}
	if json.Unmarshal(raw, &r) != nil || len(r.Output)+len(r.Error) == 0 {
		return string(raw)
	}
	return join(text(r.Output), text(r.Error))
}

func (Gemini) Decode(path string, body []byte) (script.Conversation, error) {
	var in struct {
		System   geminiContent   `json:"systemInstruction"`
		Contents []geminiContent `json:"contents"`
		Config   struct {
			MaxTokens int `json:"maxOutputTokens"`
			Thinking  struct {
				Level  string `json:"thinkingLevel"`
				Budget *int   `json:"thinkingBudget"`
			} `json:"thinkingConfig"`
		} `json:"generationConfig"`
		Tools []struct {
			Functions []struct {
				Name        string          `json:"name"`
				Description string          `json:"description"`
				Parameters  json.RawMessage `json:"parameters"`
				Schema      json.RawMessage `json:"parametersJsonSchema"`
			} `json:"functionDeclarations"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return script.Conversation{}, fmt.Errorf("generateContent request: %w", err)
	}
	_, name, _ := strings.Cut(path, "/models/")
	model, method, _ := strings.Cut(name, ":")
	c := script.Conversation{
		Model: model, Stream: strings.HasPrefix(method, "stream"), System: in.System.message().Text,
		Effort: in.Config.Thinking.Level, MaxTokens: in.Config.MaxTokens,
	}
	if b := in.Config.Thinking.Budget; c.Effort == "" && b != nil {
		c.Effort = fmt.Sprint(*b)
	}
	for _, content := range in.Contents {
		c.Messages = append(c.Messages, content.message())
	}
	for _, t := range in.Tools {
		for _, f := range t.Functions {
			s := f.Schema
			if len(s) == 0 {
				s = f.Parameters
			}
			c.Tools = append(c.Tools, script.Tool{Name: f.Name, Schema: s, About: f.Description})
		}
	}
	return c, nil
}

// chunk is one streamed piece, or the whole answer; last marks the end.
func geminiChunk(model string, parts []object, last bool) object {
	candidate := object{"index": 0, "content": object{"role": "model", "parts": parts}}
	if last {
		candidate["finishReason"] = "STOP"
	}
	return object{
		"candidates":   []object{candidate},
		"modelVersion": model,
		"usageMetadata": object{
			"promptTokenCount": InputTokens, "cachedContentTokenCount": CachedTokens,
			"candidatesTokenCount": OutputTokens - ReasoningTokens, "thoughtsTokenCount": ReasoningTokens,
			"totalTokenCount": InputTokens + OutputTokens,
		},
	}
}

func geminiPart(p script.Part) object {
	if p.Thought {
		return object{"text": p.Text, "thought": true}
	}
	return object{"text": p.Text}
}

func geminiCall(call *script.Call) object {
	return object{"functionCall": object{"id": call.ID, "name": call.Name, "args": call.Args}, "thoughtSignature": "c2NyaXB0ZWQ="}
}

func (Gemini) Whole(c script.Conversation, r script.Reply) any {
	parts := []object{}
	for _, p := range r.Parts {
		parts = append(parts, geminiPart(p))
	}
	if r.Call != nil {
		parts = append(parts, geminiCall(r.Call))
	}
	return geminiChunk(c.Model, parts, true)
}

func (Gemini) Failure(f script.Failure) (int, any) {
	_, message := refusal(f)
	code := int(f)
	status := map[script.Failure]string{
		400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
		429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 529: "UNAVAILABLE",
	}[f]
	if f == script.FailQuota {
		code, status = http.StatusTooManyRequests, "RESOURCE_EXHAUSTED"
		message = "You exceeded your current quota, please check your plan and billing details."
	}
	return code, object{"error": object{"code": code, "message": message, "status": status}}
}

type geminiEncoder struct {
	send  func(string, any)
	model string
}

func (Gemini) Encode(c script.Conversation, send func(string, any)) Encoder {
	return &geminiEncoder{send: send, model: c.Model}
}

// Begin sends nothing: this format has no opening.
func (e *geminiEncoder) Begin() {}

func (e *geminiEncoder) Delta(p script.Part) {
	e.send("", geminiChunk(e.model, []object{geminiPart(p)}, false))
}

func (e *geminiEncoder) End(r script.Reply) {
	parts := []object{}
	if r.Call != nil {
		parts = append(parts, geminiCall(r.Call))
	}
	e.send("", geminiChunk(e.model, parts, true))
}
