package modelserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/subspan-dev/subspan/test/modelserver/internal/dialect"
	"github.com/subspan-dev/subspan/test/modelserver/internal/script"
)

// Unicode is the answer to [[unicode]].
const Unicode = script.Unicode

// Filler returns the n bytes of text that [[big n]] and [[delta …]] answer with:
// ASCII, never repeating itself, the same for the same n.
func Filler(n int) string { return script.Filler(n) }

// Echo returns the answer to a message without markers.
func Echo(message string) string { return script.Echo(message) }

// Usage counts the tokens of one or more model calls.
type Usage struct {
	Input     int // with Cached
	Cached    int
	Output    int // with Reasoning
	Reasoning int
}

// Cost returns what the given number of model calls costs.
func Cost(calls int) Usage {
	return Usage{
		Input: calls * dialect.InputTokens, Cached: calls * dialect.CachedTokens,
		Output: calls * dialect.OutputTokens, Reasoning: calls * dialect.ReasoningTokens,
	}
}

// Options are a Server's settings. The zero value is fine for most tests.
type Options struct {
	// Addr is where to listen; empty means a free port of 127.0.0.1. Only loopback
	// addresses are taken: whoever reaches the server has agents run commands.
	Addr string
	// Log, when set, gets each Request as one line of JSON when its answer has ended.
	Log io.Writer
}

// Server is a running scripted model. Its methods are safe for concurrent use.
type Server struct {
	url     string
	http    *http.Server
	stop    context.CancelFunc
	serving sync.WaitGroup // the accept loop and every handler
	journal journal

	mu     sync.Mutex
	key    string
	closed bool // no handler may begin any more
}

// Start listens and serves until Close.
func Start(o Options) (*Server, error) {
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", o.Addr)
	if err != nil {
		return nil, fmt.Errorf("model server: %w", err)
	}
	if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		l.Close()
		return nil, fmt.Errorf("model server: %s is not a loopback address: use 127.0.0.1", o.Addr)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{url: "http://" + l.Addr().String(), stop: stop}
	s.journal.log = o.Log
	s.http = &http.Server{
		Handler:     http.HandlerFunc(s.handle),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	s.serving.Go(func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.journal.fail(fmt.Errorf("model server: %w", err))
		}
	})
	return s, nil
}

// URL is the server's address without a trailing slash. The OpenAI formats live
// below URL/v1, Anthropic's at URL, Gemini's at URL too.
func (s *Server) URL() string { return s.url }

// SetKey has the server answer 401 to every request that does not carry key in
// one of the providers' ways. An empty key lets everybody in, which is the default.
func (s *Server) SetKey(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key = key
}

func (s *Server) admits(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key == "" || s.key == key
}

// Close ends every answer, hanging ones too, and waits for them.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	err := s.http.Close()
	s.serving.Wait()
	return err
}

// enter counts a handler in, unless the server is being closed.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.serving.Add(1)
	return true
}

// maxBody bounds a request: agents send whole conversations, tests send big ones.
const maxBody = 256 << 20

func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		return
	}
	defer s.serving.Done()
	d := route(r.URL.Path)
	kind, key := credentials(r)
	req := Request{Time: time.Now(), Method: r.Method, Path: r.URL.Path, Auth: kind}
	if d == nil || r.Method != http.MethodPost {
		req.State = Whole
		s.journal.add(req)
		s.plain(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	c, err := d.Decode(r.URL.Path, body)
	if err != nil {
		req.State, req.Reply = Whole, err.Error()
		s.journal.add(req)
		answer(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"message": err.Error()}})
		return
	}
	if counts(r.URL.Path) {
		req.State = Whole
		s.journal.add(req)
		answer(w, http.StatusOK, map[string]int{"input_tokens": dialect.InputTokens, "totalTokens": dialect.InputTokens})
		return
	}
	reply := script.Plan(c)
	switch {
	case !s.admits(key):
		reply = script.Reply{Failure: http.StatusUnauthorized}
	case strings.HasPrefix(c.Model, dialect.MissingModel):
		reply = script.Reply{Failure: http.StatusNotFound}
	}
	req.describe(d, c, reply, body)
	id := s.journal.add(req)
	state := Abandoned // also when play panics
	defer func() { s.journal.end(id, state) }()
	state = s.play(w, r, d, c, reply, id)
	if state == Cut {
		panic(http.ErrAbortHandler)
	}
}

// route returns the dialect of a path; nil for everything else.
func route(path string) dialect.Dialect {
	switch {
	case strings.HasSuffix(path, "/chat/completions"):
		return dialect.Chat{}
	case strings.HasSuffix(path, "/responses"):
		return dialect.Responses{}
	case strings.HasSuffix(path, "/messages"), strings.HasSuffix(path, "/messages/count_tokens"):
		return dialect.Messages{}
	case strings.Contains(path, "/models/") && strings.Contains(path, ":"):
		return dialect.Gemini{}
	}
	return nil
}

// counts reports whether a path only asks how long a conversation is.
func counts(path string) bool {
	return strings.HasSuffix(path, "/count_tokens") || strings.HasSuffix(path, ":countTokens")
}

// credentials returns how a request authenticates, and with what.
func credentials(r *http.Request) (kind, key string) {
	if key = r.Header.Get("x-api-key"); key != "" {
		return "x-api-key", key
	}
	if key = r.Header.Get("x-goog-api-key"); key != "" {
		return "x-goog-api-key", key
	}
	if key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return "bearer", key
	}
	if key = r.URL.Query().Get("key"); key != "" {
		return "query", key
	}
	return "", ""
}

// plain answers what is no model call: lists of models and probes.
func (s *Server) plain(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/models"):
		var data []map[string]any
		for _, id := range []string{"scripted-1", "scripted-2"} {
			data = append(data, map[string]any{
				"id": id, "object": "model", "type": "model", "display_name": id, "owned_by": "scripted",
				"created": 0, "created_at": "2026-01-01T00:00:00Z",
			})
		}
		answer(w, http.StatusOK, map[string]any{"object": "list", "data": data, "has_more": false})
	case r.URL.Path == "/":
		answer(w, http.StatusOK, map[string]any{})
	default:
		answer(w, http.StatusNotFound, map[string]any{"error": map[string]any{"message": "no such endpoint: " + r.URL.Path}})
	}
}

func answer(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that left is told by the request's context
}

// play writes one reply and returns how that ended.
func (s *Server) play(w http.ResponseWriter, r *http.Request, d dialect.Dialect, c script.Conversation, reply script.Reply, id int) State {
	ctx := r.Context()
	if reply.Failure != script.FailNone {
		status, body := d.Failure(reply.Failure)
		if status == http.StatusTooManyRequests || status == 529 {
			w.Header().Set("Retry-After", "1")
		}
		if status != http.StatusOK {
			answer(w, status, body)
			return Whole
		}
		if !c.Stream {
			answer(w, status, body)
			return Whole
		}
		newStream(w).send("response.failed", body)
		return Whole
	}
	var out *stream
	var enc dialect.Encoder
	if c.Stream {
		out = newStream(w)
		enc = d.Encode(c, out.send)
		enc.Begin()
	}
	for _, p := range reply.Parts {
		if !pause(ctx, p.Delay) {
			return Abandoned
		}
		if c.Stream {
			enc.Delta(p)
		}
	}
	switch reply.End {
	case script.EndHang:
		s.journal.set(id, Hanging)
		<-ctx.Done()
		return Abandoned
	case script.EndDrop:
		return Cut
	}
	if !c.Stream {
		answer(w, http.StatusOK, d.Whole(c, reply))
	} else {
		enc.End(reply)
		if out.err != nil {
			return Abandoned
		}
	}
	if ctx.Err() != nil {
		return Abandoned
	}
	return Whole
}

// pause waits for d and reports whether the client is still there.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// stream writes server-sent events, each flushed.
type stream struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	err error // the first; later events are not written
}

func newStream(w http.ResponseWriter) *stream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	return &stream{w: w, rc: http.NewResponseController(w)}
}

func (s *stream) send(event string, data any) {
	if s.err != nil {
		return
	}
	var b bytes.Buffer
	if event != "" {
		fmt.Fprintf(&b, "event: %s\n", event)
	}
	b.WriteString("data: ")
	if raw, ok := data.(json.RawMessage); ok {
		b.Write(raw)
	} else {
		var raw []byte
		if raw, s.err = json.Marshal(data); s.err != nil {
			return
		}
		b.Write(raw)
	}
	b.WriteString("\n\n")
	if _, s.err = s.w.Write(b.Bytes()); s.err == nil {
		s.err = s.rc.Flush()
	}
}
