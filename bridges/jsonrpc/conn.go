package jsonrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// ErrClosed is what calls end with when the connection is over. The error that they
// return wraps what ended it, io.EOF for a peer that has gone.
var ErrClosed = errors.New("the connection is closed")

// ErrLeaveOpen, returned by Handler.Answer, leaves a request without an answer for
// whoever serves the peer next. It is the only way not to answer.
var ErrLeaveOpen = errors.New("left open for the next process")

// maxOpen is how many requests of the peer may wait for their answers at a time.
const maxOpen = 256

// Handler is what a bridge makes of its peer's messages.
type Handler interface {
	// Observe gets every message in the order of the peer's output, responses
	// included, before anything else is done with it: when a call returns, all that
	// the peer sent before its answer has been observed. It is called from Run;
	// while it blocks nothing is read, which is the back-pressure.
	Observe(m *Message)
	// Answer answers a request that has been observed, on a goroutine of its own.
	// An *Error goes to the peer as it is, any other error as an internal one. The
	// request's slices are the callee's. ctx ends with Run.
	Answer(ctx context.Context, request *Message) (result any, err error)
}

// Options make a connection.
type Options struct {
	Source  Source
	Sink    Sink
	Handler Handler
	Log     *slog.Logger // nil for none; contents of frames are never logged
	// MaxFrame is the longest frame to read, in bytes; 0 means DefaultMaxFrame.
	MaxFrame int64
	// WriteLimit is how long one frame may take to write; 0 means 30 s.
	WriteLimit time.Duration
	// NextID is the id of the first call; ids count upwards from it. 0 means 1.
	NextID int64
	// OmitVersion leaves "jsonrpc" out of what is sent.
	OmitVersion bool
}

// Conn is a connection to one peer. All methods are safe for concurrent use; Run is
// called once. A Conn owns neither its Source nor its Sink.
type Conn struct {
	o       Options
	writing chan struct{} // holds one token while nobody writes
	done    chan struct{}

	mu      sync.Mutex
	nextID  int64
	calls   map[int64]*Call
	open    int // requests being answered
	noise   int64
	sample  string
	closing error // why no more calls are taken

	answers sync.WaitGroup
}

// New makes a connection. Nothing is read before Run.
func New(o Options) *Conn {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxFrame == 0 {
		o.MaxFrame = DefaultMaxFrame
	}
	if o.WriteLimit == 0 {
		o.WriteLimit = 30 * time.Second
	}
	c := &Conn{o: o, writing: make(chan struct{}, 1), done: make(chan struct{}), nextID: max(o.NextID, 1), calls: map[int64]*Call{}}
	c.writing <- struct{}{}
	return c
}

// Run reads until the peer has ended (io.EOF), the source fails or ctx ends, and
// returns after every answer under way has come to its end.
func (c *Conn) Run(ctx context.Context) error {
	answering, stop := context.WithCancel(ctx)
	err := c.read(answering)
	c.mu.Lock()
	c.closing = fmt.Errorf("%w: %w", ErrClosed, err)
	for id, call := range c.calls {
		call.finish(nil, c.closing)
		delete(c.calls, id)
	}
	c.mu.Unlock()
	stop()
	c.answers.Wait()
	close(c.done)
	return err
}

// Done is closed when Run has returned.
func (c *Conn) Done() <-chan struct{} { return c.done }

func (c *Conn) read(ctx context.Context) error {
	for {
		f, err := c.o.Source.ReadFrame(ctx, c.o.MaxFrame)
		if err != nil {
			return err
		}
		for m := range Messages(f) {
			c.handle(ctx, &m)
		}
	}
}

func (c *Conn) handle(ctx context.Context, m *Message) {
	failed := c.observe(m)
	switch m.Kind {
	case Request:
		if failed != nil {
			c.reply(ctx, m.ID, nil, failed)
			return
		}
		c.serve(ctx, m)
	case Response:
		c.settle(m)
	case Oversize:
		c.o.Log.Warn("frame over the limit skipped", "bytes", m.Size, "limit", c.o.MaxFrame, "offset", m.Offset)
		fault := &Error{Code: CodeParse, Message: fmt.Sprintf("a frame of %d bytes is over the limit of %d", m.Size, c.o.MaxFrame)}
		switch {
		case m.ID == nil:
		case m.Method != "":
			c.reply(ctx, m.ID, nil, fault)
		default:
			c.settle(&Message{Kind: Response, Offset: m.Offset, ID: m.ID, Error: fault})
		}
	case Noise:
		c.mu.Lock()
		if c.noise++; c.noise == 1 {
			c.sample = string(bytes.ToValidUTF8(m.Raw[:min(len(m.Raw), 160)], nil))
		}
		c.mu.Unlock()
		c.o.Log.Debug("output that is no message", "bytes", m.Size, "offset", m.Offset)
	}
}

// observe calls the handler and turns a panic into an error for the peer.
func (c *Conn) observe(m *Message) (failed error) {
	defer func() {
		if r := recover(); r != nil {
			c.o.Log.Error("panic while reading a message", "method", m.Method, "offset", m.Offset, "panic", r, "stack", string(debug.Stack()))
			failed = &Error{Code: CodeInternal, Message: "the client failed on this request"}
		}
	}()
	c.o.Handler.Observe(m)
	return nil
}

func (c *Conn) serve(ctx context.Context, m *Message) {
	c.mu.Lock()
	full := c.open >= maxOpen
	if !full {
		c.open++
	}
	c.mu.Unlock()
	if full {
		c.reply(ctx, m.ID, nil, &Error{Code: CodeInternal, Message: "too many requests wait for an answer"})
		return
	}
	raw := bytes.Clone(m.Raw)
	own, n := envelope(raw)
	if n == 0 { // cannot be: the same bytes were a message before
		own = Message{Kind: Request, Method: m.Method, ID: bytes.Clone(m.ID)}
	}
	own.Offset, own.Size = m.Offset, m.Size
	c.answers.Go(func() {
		defer func() {
			c.mu.Lock()
			c.open--
			c.mu.Unlock()
		}()
		result, err := c.answer(ctx, &own)
		if errors.Is(err, ErrLeaveOpen) {
			return
		}
		c.reply(ctx, own.ID, result, err)
	})
}

func (c *Conn) answer(ctx context.Context, m *Message) (result any, err error) {
	defer func() {
		if r := recover(); r != nil {
			c.o.Log.Error("panic while answering a request", "method", m.Method, "offset", m.Offset, "panic", r, "stack", string(debug.Stack()))
			result, err = nil, &Error{Code: CodeInternal, Message: "the client failed on this request"}
		}
	}()
	return c.o.Handler.Answer(ctx, m)
}

// reply sends the one answer of a request. The answer is due even when ctx has
// ended since; only the write's own limit holds.
func (c *Conn) reply(ctx context.Context, id ID, result any, err error) {
	if werr := c.Reply(context.WithoutCancel(ctx), id, result, err); werr != nil {
		c.o.Log.Warn("an answer did not reach the peer", "id", id.String(), "error", werr)
	}
}

// Reply answers a request by its id, byte for byte as the peer wrote it. It is for
// requests that an earlier process left open; those that Answer is called for are
// answered with what it returns.
func (c *Conn) Reply(ctx context.Context, id ID, result any, err error) error {
	msg := map[string]any{"id": json.RawMessage(id)}
	switch {
	case err != nil:
		var fault *Error
		if !errors.As(err, &fault) {
			fault = &Error{Code: CodeInternal, Message: err.Error()}
		}
		msg["error"] = fault
	case result == nil:
		msg["result"] = struct{}{}
	default:
		msg["result"] = result
	}
	return c.send(ctx, msg)
}

func (c *Conn) settle(m *Message) {
	id, ok := m.ID.Int()
	c.mu.Lock()
	call := c.calls[id]
	if ok && call != nil {
		delete(c.calls, id)
	}
	c.mu.Unlock()
	if !ok || call == nil {
		c.o.Log.Warn("an answer to no open call dropped", "id", m.ID.String(), "offset", m.Offset)
		return
	}
	var fault error
	if m.Error != nil {
		fault = m.Error
	}
	call.finish(&Reply{Offset: m.Offset, Result: bytes.Clone(m.Result)}, fault)
}

// Reply is the answer to a call.
type Reply struct {
	Offset int64           // where the answer begins in the peer's output
	Result json.RawMessage // raw; nil when absent
}

// Call is one request to the peer on its way.
type Call struct {
	ID    int64
	conn  *Conn
	done  chan struct{}
	reply *Reply
	err   error
}

func (k *Call) finish(r *Reply, err error) {
	k.reply, k.err = r, err
	close(k.done)
}

// Done is closed when the answer is there or cannot come any more.
func (k *Call) Done() <-chan struct{} { return k.done }

// Wait returns the answer. The error is an *Error when the peer sent one, wraps
// ErrClosed when the connection ended first, or is the ctx's own; then the call is
// forgotten, and an answer that comes after all is dropped.
func (k *Call) Wait(ctx context.Context) (*Reply, error) {
	select {
	case <-k.done:
		return k.reply, k.err
	default:
	}
	select {
	case <-k.done:
		return k.reply, k.err
	case <-ctx.Done():
		k.conn.mu.Lock()
		delete(k.conn.calls, k.ID)
		k.conn.mu.Unlock()
		return nil, context.Cause(ctx)
	}
}

// Start sends a request and returns without waiting for the answer.
func (c *Conn) Start(ctx context.Context, method string, params any) (*Call, error) {
	c.mu.Lock()
	if c.closing != nil {
		defer c.mu.Unlock()
		return nil, c.closing
	}
	call := c.adopt(c.nextID)
	c.mu.Unlock()
	if err := c.send(ctx, map[string]any{"id": call.ID, "method": method, "params": params}); err != nil {
		c.mu.Lock()
		delete(c.calls, call.ID)
		c.mu.Unlock()
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return call, nil
}

// Adopt registers a call that an earlier process sent, so that its answer is found.
// It belongs before Run.
func (c *Conn) Adopt(id int64) *Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.adopt(id)
}

func (c *Conn) adopt(id int64) *Call {
	call := &Call{ID: id, conn: c, done: make(chan struct{})}
	c.calls[id] = call
	c.nextID = max(c.nextID, id+1)
	return call
}

// Call sends a request and waits for its answer; see Call.Wait for the errors.
func (c *Conn) Call(ctx context.Context, method string, params any) (*Reply, error) {
	call, err := c.Start(ctx, method, params)
	if err != nil {
		return nil, err
	}
	r, err := call.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return r, nil
}

// Notify sends a notification.
func (c *Conn) Notify(ctx context.Context, method string, params any) error {
	if err := c.send(ctx, map[string]any{"method": method, "params": params}); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}

// Noise returns how many pieces of output were no messages, and the first of them,
// shortened.
func (c *Conn) Noise() (count int64, sample string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.noise, c.sample
}

func (c *Conn) send(ctx context.Context, msg map[string]any) error {
	if msg["params"] == nil {
		delete(msg, "params")
	}
	if !c.o.OmitVersion {
		msg["jsonrpc"] = "2.0"
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b) // ends the frame with its newline
	enc.SetEscapeHTML(false)
	if err := enc.Encode(msg); err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.o.WriteLimit, errNotReading)
	defer cancel()
	select {
	case <-c.writing:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { c.writing <- struct{}{} }()
	if err := c.o.Sink.WriteFrame(ctx, b.Bytes()); err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return err
	}
	return nil
}

var errNotReading = fmt.Errorf("the peer does not read its input: %w", context.DeadlineExceeded)

// IsEnd reports whether an error says that the peer ended.
func IsEnd(err error) bool { return errors.Is(err, ErrClosed) && errors.Is(err, io.EOF) }
