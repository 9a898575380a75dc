package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// writeSize is how many bytes go to stdout at once while frames are streamed.
const writeSize = 64 << 10

// The error codes of JSON-RPC and of ACP that this agent uses.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeNoMethod       = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeNotFound       = -32002
)

// rpcError is an error as it goes over the wire.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func (e *rpcError) Error() string { return e.Message }

func errf(code int, format string, args ...any) *rpcError {
	return &rpcError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// message is any frame. ID stays raw, so that it is echoed byte for byte.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

// conn is one JSON-RPC connection, a frame a line. One goroutine may read; all
// other methods may be called from any.
type conn struct {
	in *bufio.Reader

	wmu  sync.Mutex // guards out
	out  *bufio.Writer
	dead atomic.Bool // after silence: nothing goes out any more

	pmu     sync.Mutex // guards next and pending
	next    int64
	pending map[string]chan message
}

func newConn(in io.Reader, out io.Writer) *conn {
	return &conn{
		in:      bufio.NewReaderSize(in, writeSize),
		out:     bufio.NewWriterSize(out, writeSize),
		pending: make(map[string]chan message),
	}
}

// errBadFrame is a line that is not a JSON-RPC frame; the connection goes on.
var errBadFrame = errors.New("not a JSON-RPC message")

// read returns the next frame, of any length. Empty lines are skipped, and the
// last line need not end with a newline. It returns io.EOF at the end.
func (c *conn) read() (message, error) {
	for {
		line, err := c.in.ReadBytes('\n')
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			if err != nil {
				return message{}, err
			}
			continue
		}
		var m message
		if jerr := json.Unmarshal(line, &m); jerr != nil {
			return message{}, fmt.Errorf("%w: %w", errBadFrame, jerr)
		}
		return m, nil
	}
}

// deliver hands a reply to the call that waits for it. Replies that nobody waits
// for (the turn was cancelled meanwhile) are dropped.
func (c *conn) deliver(m message) {
	c.pmu.Lock()
	key := strings.Trim(string(m.ID), `"`) // some clients echo ids as strings
	ch := c.pending[key]
	delete(c.pending, key)
	c.pmu.Unlock()
	if ch != nil {
		ch <- m
	}
}

// call sends a request to the client and waits for its reply or for ctx.
func (c *conn) call(ctx context.Context, method string, params, result any) error {
	ch := make(chan message, 1)
	c.pmu.Lock()
	c.next++
	id := strconv.FormatInt(c.next, 10)
	c.pending[id] = ch
	c.pmu.Unlock()
	defer func() {
		c.pmu.Lock()
		delete(c.pending, id)
		c.pmu.Unlock()
	}()
	if err := c.send(map[string]any{"jsonrpc": "2.0", "id": json.RawMessage(id), "method": method, "params": params}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case m := <-ch:
		if m.Error != nil {
			return m.Error
		}
		if err := json.Unmarshal(m.Result, result); err != nil {
			return fmt.Errorf("reading the reply to %s: %w", method, err)
		}
		return nil
	}
}

// notify sends a notification.
func (c *conn) notify(method string, params any) error {
	return c.send(map[string]any{"jsonrpc": "2.0", "method": method, "params": params})
}

// reply answers a request, with result or, when err is not nil, with the error.
func (c *conn) reply(id json.RawMessage, result any, err error) error {
	if len(id) == 0 {
		return nil // a notification has no reply
	}
	if err == nil {
		return c.send(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
	}
	var re *rpcError
	if !errors.As(err, &re) {
		re = &rpcError{Code: codeInternal, Message: err.Error()}
	}
	return c.send(map[string]any{"jsonrpc": "2.0", "id": id, "error": re})
}

// send writes one frame and everything that was streamed before it.
func (c *conn) send(v any) error {
	frame, err := encode(v)
	if err != nil {
		return err
	}
	return c.write(frame, true)
}

// write writes a whole frame, newline included. Without flush it may stay in the
// buffer until the next frame, which makes a burst a few large writes.
func (c *conn) write(frame []byte, flush bool) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.dead.Load() {
		return io.ErrClosedPipe
	}
	if _, err := c.out.Write(frame); err != nil {
		return fmt.Errorf("writing to the client: %w", err)
	}
	if !flush {
		return nil
	}
	if err := c.out.Flush(); err != nil {
		return fmt.Errorf("writing to the client: %w", err)
	}
	return nil
}

// silence makes every later write fail: what a process that died would do.
func (c *conn) silence() { c.dead.Store(true) }

// encode is JSON with a newline. Text is not escaped for HTML, which would make
// code three times as long.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encoding a frame: %w", err)
	}
	return b.Bytes(), nil
}
