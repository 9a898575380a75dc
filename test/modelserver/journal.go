package modelserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/subspan-dev/subspan/test/modelserver/internal/dialect"
	"github.com/subspan-dev/subspan/test/modelserver/internal/script"
)

// Request is what the server remembers of one HTTP request.
type Request struct {
	Time   time.Time `json:"time"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	// Auth is how the request authenticated: x-api-key, x-goog-api-key, bearer, query
	// or nothing. The key itself is not kept.
	Auth string `json:"auth,omitempty"`

	// The rest is set for model calls only, which have a Dialect.

	Dialect   string `json:"dialect,omitempty"` // chat, responses, messages or gemini
	Model     string `json:"model,omitempty"`
	Effort    string `json:"effort,omitempty"` // the reasoning effort as asked for
	Stream    bool   `json:"stream,omitempty"`
	MaxTokens int    `json:"max_tokens,omitempty"`
	System    string `json:"system,omitempty"` // all system and developer texts
	// UserText is the last user message as sent, Task the same without what the agent
	// wrapped around the user's words.
	UserText string   `json:"user_text,omitempty"`
	Task     string   `json:"task,omitempty"`
	Tools    []string `json:"tools,omitempty"`   // the names offered
	Results  []string `json:"results,omitempty"` // tool results since the last user message
	// Errand is set for what an agent asks on its own behalf, such as a title.
	Errand bool   `json:"errand,omitempty"`
	Reply  string `json:"reply,omitempty"` // "text 12", "call Bash", "status 500", "hang", …
	State  State  `json:"state"`
	// Body is the request as sent. It is not logged.
	Body []byte `json:"-"`
}

// State is how far an answer has come.
type State string

const (
	Playing   State = "playing"
	Hanging   State = "hanging"   // everything before [[hang]] is sent
	Whole     State = "whole"     // the answer was sent to its end
	Cut       State = "cut"       // by [[drop]]
	Abandoned State = "abandoned" // the client left before the end
)

// IsTurn reports whether the request is a model call of the user's conversation.
func (r Request) IsTurn() bool { return r.Dialect != "" && !r.Errand }

func (r *Request) describe(d dialect.Dialect, c script.Conversation, reply script.Reply, body []byte) {
	r.Dialect, r.Model, r.Effort, r.Stream, r.MaxTokens = d.Name(), c.Model, c.Effort, c.Stream, c.MaxTokens
	r.System = c.System
	r.UserText, r.Task = c.Task()
	r.Tools, r.Results, r.Errand = c.ToolNames(), c.Results(), c.Errand()
	r.Reply, r.State, r.Body = reply.Summary(), Playing, body
}

// journal keeps the requests in their order and wakes those who wait for one.
type journal struct {
	mu      sync.Mutex
	all     []Request
	err     error
	log     io.Writer
	changed chan struct{} // closed and replaced at each change
}

func (j *journal) add(r Request) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, r)
	if r.State == Whole {
		j.write(r)
	}
	j.wake()
	return len(j.all) - 1
}

func (j *journal) set(id int, s State) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all[id].State = s
	j.wake()
}

func (j *journal) end(id int, s State) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all[id].State = s
	j.write(j.all[id])
	j.wake()
}

func (j *journal) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = err
	j.wake()
}

// write logs a request. mu is held.
func (j *journal) write(r Request) {
	if j.log == nil {
		return
	}
	if err := json.NewEncoder(j.log).Encode(r); err != nil && j.err == nil {
		j.err = fmt.Errorf("model server: log: %w", err)
	}
}

// wake tells those who wait. mu is held.
func (j *journal) wake() {
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

// Requests returns all requests so far, the oldest first.
func (s *Server) Requests() []Request {
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	return slices.Clone(s.journal.all)
}

// Turns returns the model calls of users' conversations so far.
func (s *Server) Turns() []Request {
	return slices.DeleteFunc(s.Requests(), func(r Request) bool { return !r.IsTurn() })
}

// Last returns the newest model call of a user's conversation, and whether there
// was one.
func (s *Server) Last() (Request, bool) {
	turns := s.Turns()
	if len(turns) == 0 {
		return Request{}, false
	}
	return turns[len(turns)-1], true
}

// WaitFor returns the first request that want accepts, waiting for it until ctx
// ends. A request is looked at again when its State changes.
func (s *Server) WaitFor(ctx context.Context, want func(Request) bool) (Request, error) {
	j := &s.journal
	for {
		j.mu.Lock()
		i := slices.IndexFunc(j.all, want)
		if i >= 0 {
			r := j.all[i]
			j.mu.Unlock()
			return r, nil
		}
		if err := j.err; err != nil {
			j.mu.Unlock()
			return Request{}, err
		}
		if j.changed == nil {
			j.changed = make(chan struct{})
		}
		changed, n := j.changed, len(j.all)
		j.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Request{}, fmt.Errorf("model server: none of %d requests is the one waited for: %w", n, ctx.Err())
		}
	}
}
