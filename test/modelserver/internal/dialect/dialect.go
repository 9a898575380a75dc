// Package dialect reads model requests and writes model answers in the four
// wire formats that coding agents speak: OpenAI Chat Completions and Responses,
// Anthropic Messages and Gemini generateContent. It knows formats only; what is
// answered comes from package script, when and whether at all from the server.
package dialect

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/subspan-dev/subspan/test/modelserver/internal/script"
)

// Dialect is one wire format.
type Dialect interface {
	// Name is the format's name in records: chat, responses, messages, gemini.
	Name() string
	// Decode reads a request. path is the URL's path, for formats that name the
	// model there.
	Decode(path string, body []byte) (script.Conversation, error)
	// Encode starts a streamed answer. send writes one server-sent event; an empty
	// event name leaves the name out.
	Encode(c script.Conversation, send func(event string, data any)) Encoder
	// Whole is the body of an answer that is not streamed.
	Whole(c script.Conversation, r script.Reply) any
	// Failure is the answer when the provider refuses. A status of 200 means that
	// the format reports it within the stream: the body then is that event.
	Failure(f script.Failure) (status int, body any)
}

// Encoder writes one streamed answer: Begin, any number of Deltas, End. A stream
// that hangs or is cut has no End.
type Encoder interface {
	Begin()
	Delta(p script.Part)
	End(r script.Reply)
}

// What every model call costs. Input includes Cached; Output includes Reasoning.
const (
	InputTokens     = 120
	CachedTokens    = 20
	OutputTokens    = 30
	ReasoningTokens = 5
)

// MissingModel is the prefix of the model names that the provider does not know.
const MissingModel = "missing-"

type object = map[string]any

func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:20]) }

// text reads content that is a string or a list of parts with a text.
func text(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return string(raw)
	}
	var all []string
	for _, p := range parts {
		if p.Text != "" {
			all = append(all, p.Text)
		}
	}
	return strings.Join(all, "\n")
}

func join(texts ...string) string {
	var all []string
	for _, t := range texts {
		if t != "" {
			all = append(all, t)
		}
	}
	return strings.Join(all, "\n")
}

// halves cuts arguments in two, so that readers have to put fragments together.
func halves(args string) [2]string {
	n := len(args) / 2
	return [2]string{args[:n], args[n:]}
}

// refusal is what providers say to a status, in words close to the real ones.
func refusal(f script.Failure) (kind, message string) {
	switch f {
	case http.StatusUnauthorized:
		return "authentication_error", "Invalid API key"
	case http.StatusForbidden:
		return "permission_error", "This key may not use the requested resource"
	case http.StatusNotFound:
		return "not_found_error", "The model does not exist or you do not have access to it"
	case http.StatusTooManyRequests:
		return "rate_limit_error", "Rate limit reached, try again later"
	case http.StatusBadRequest:
		return "invalid_request_error", "The request was refused"
	case 529:
		return "overloaded_error", "Overloaded"
	}
	return "api_error", fmt.Sprintf("Internal server error (%d)", f)
}
