package jsonrpc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// lines reads frames from a stream, as the spool's reader does from a file.
type lines struct {
	r   *bufio.Reader
	off int64
}

func (l *lines) ReadFrame(_ context.Context, limit int64) (Frame, error) {
	b, err := l.r.ReadBytes('\n')
	if len(b) == 0 && err != nil {
		return Frame{}, err
	}
	f := Frame{Offset: l.off, Data: b, Size: int64(len(b))}
	l.off += f.Size
	if f.Size > limit {
		f.Data, f.Oversize = b[:64], true
	}
	return f, nil
}

type writer struct{ w io.Writer }

func (w writer) WriteFrame(_ context.Context, frame []byte) error {
	_, err := w.w.Write(frame)
	return err
}

// log is a handler that notes what it saw.
type log struct {
	mu     sync.Mutex
	seen   []string
	answer func(ctx context.Context, m *Message) (any, error)
}

func (l *log) Observe(m *Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, show(*m))
	if m.Method == "panic" || m.Method == "panic/request" {
		panic("observe")
	}
}

func (l *log) Answer(ctx context.Context, m *Message) (any, error) {
	if l.answer == nil {
		return nil, &Error{Code: CodeNoMethod, Message: "no such method"}
	}
	return l.answer(ctx, m)
}

// peer starts a connection over real pipes and returns the peer's two ends.
func peer(t *testing.T, o Options) (c *Conn, in *bufio.Reader, out *os.File, wait func() error) {
	t.Helper()
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	o.Source, o.Sink = &lines{r: bufio.NewReader(ourIn)}, writer{ourOut}
	c = New(o)
	result := make(chan error, 1)
	go func() { result <- c.Run(t.Context()) }()
	wait = sync.OnceValue(func() error {
		theirOut.Close()
		err := <-result
		for _, f := range []*os.File{ourIn, ourOut, theirIn} {
			f.Close()
		}
		return err
	})
	t.Cleanup(func() { wait() })
	return c, bufio.NewReader(theirIn), theirOut, wait
}

func TestCallsAreMatchedAndOrdered(t *testing.T) {
	h := &log{}
	c, in, out, _ := peer(t, Options{Handler: h, NextID: 5})
	call, err := c.Start(t.Context(), "first", map[string]any{"a": "<b>"})
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Start(t.Context(), "second", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"id":5,"jsonrpc":"2.0","method":"first","params":{"a":"<b>"}}`,
		`{"id":6,"jsonrpc":"2.0","method":"second"}`,
	} {
		if got, _ := in.ReadString('\n'); got != want+"\n" {
			t.Errorf("sent %q, want %q", got, want)
		}
	}
	// The second answer first, ids as text, an answer twice, an answer to nothing.
	fmt.Fprint(out, `{"method":"n"}`+"\n"+`{"id":"6","result":{"x":1}}`+"\n"+`{"id":"6","result":2}`+"\n"+`{"id":99,"result":2}`+"\n"+`{"id":5,"error":{"code":-32601,"message":"no"}}`+"\n")
	r, err := second.Wait(t.Context())
	if err != nil || string(r.Result) != `{"x":1}` {
		t.Errorf("second: %v, %v", r, err)
	}
	var fault *Error
	if _, err := call.Wait(t.Context()); !errors.As(err, &fault) || fault.Code != CodeNoMethod {
		t.Errorf("first: %v", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen[0] != `0 note n ` || h.seen[1] != `15 result "6" {"x":1}` {
		t.Errorf("observed %q", h.seen)
	}
}

func TestRequestsAreAnsweredExactlyOnce(t *testing.T) {
	h := &log{answer: func(ctx context.Context, m *Message) (any, error) {
		switch m.Method {
		case "ok":
			return map[string]int{"n": 1}, nil
		case "empty":
			return nil, nil
		case "wrong":
			return nil, errors.New("went wrong")
		case "panic/answer":
			panic("answer")
		case "leave":
			return nil, ErrLeaveOpen
		}
		return nil, &Error{Code: CodeNoMethod, Message: "no such method"}
	}}
	_, in, out, wait := peer(t, Options{Handler: h, OmitVersion: true})
	ask := func(id, method string) {
		fmt.Fprintf(out, `{"id":%s,"method":%q}`+"\n", id, method)
	}
	tests := []struct{ id, method, want string }{
		{`1`, "ok", `{"id":1,"result":{"n":1}}`},
		{`"a\u0062"`, "empty", `{"id":"a\u0062","result":{}}`},
		{`null`, "wrong", `{"error":{"code":-32603,"message":"went wrong"},"id":null}`},
		{`1.50`, "nothing", `{"error":{"code":-32601,"message":"no such method"},"id":1.50}`},
		{`4`, "panic/answer", `{"error":{"code":-32603,"message":"the client failed on this request"},"id":4}`},
		{`5`, "panic/request", `{"error":{"code":-32603,"message":"the client failed on this request"},"id":5}`},
	}
	for _, tt := range tests {
		ask(tt.id, tt.method)
		if got, _ := in.ReadString('\n'); got != tt.want+"\n" {
			t.Errorf("%s: answered %q, want %q", tt.method, got, tt.want)
		}
	}
	ask(`8`, "leave")
	fmt.Fprint(out, `{"method":"panic"}`+"\n") // a notification that fails ends nothing
	ask(`9`, "ok")
	if got, _ := in.ReadString('\n'); !strings.HasPrefix(got, `{"id":9,`) {
		t.Errorf("after a request left open: %q", got)
	}
	if err := wait(); !errors.Is(err, io.EOF) {
		t.Errorf("Run = %v", err)
	}
}

func TestEndFailsOpenCalls(t *testing.T) {
	c, _, out, wait := peer(t, Options{Handler: &log{}})
	call, err := c.Start(t.Context(), "m", nil)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(out, `{"method":"last without newline"}`)
	wait()
	if _, err := call.Wait(t.Context()); !IsEnd(err) {
		t.Errorf("open call: %v", err)
	}
	if _, err := c.Call(t.Context(), "m", nil); !IsEnd(err) {
		t.Errorf("later call: %v", err)
	}
	select {
	case <-c.Done():
	default:
		t.Error("Done is open after Run returned")
	}
}

func TestAdoptedCallsAndOpenRequests(t *testing.T) {
	ourIn, theirOut := io.Pipe()
	var sent strings.Builder
	c := New(Options{Source: &lines{r: bufio.NewReader(ourIn)}, Sink: writer{&sent}, Handler: &log{}})
	call := c.Adopt(41)
	go func() { c.Run(t.Context()) }()
	if err := c.Reply(t.Context(), ID(`"q"`), map[string]bool{"ok": true}, nil); err != nil {
		t.Fatal(err)
	}
	next, err := c.Start(t.Context(), "next", nil)
	if err != nil || next.ID != 42 {
		t.Errorf("next call has id %d, %v", next.ID, err)
	}
	fmt.Fprintln(theirOut, `{"id":41,"result":"done"}`)
	if r, err := call.Wait(t.Context()); err != nil || string(r.Result) != `"done"` || r.Offset != 0 {
		t.Errorf("adopted: %v, %v", r, err)
	}
	theirOut.Close()
	<-c.Done()
	if want := `{"id":"q","jsonrpc":"2.0","result":{"ok":true}}`; !strings.HasPrefix(sent.String(), want) {
		t.Errorf("sent %s", sent.String())
	}
}

func TestB12OversizeFrameFailsAlone(t *testing.T) {
	h := &log{}
	c, in, out, _ := peer(t, Options{Handler: h, MaxFrame: 1000})
	call, err := c.Start(t.Context(), "m", nil)
	if err != nil {
		t.Fatal(err)
	}
	in.ReadString('\n')
	fmt.Fprintf(out, `{"id":1,"result":"%s"}`+"\n", strings.Repeat("x", 2000))
	var fault *Error
	if _, err := call.Wait(t.Context()); !errors.As(err, &fault) || fault.Code != CodeParse {
		t.Errorf("call: %v", err)
	}
	fmt.Fprintf(out, `{"id":7,"method":"m","params":"%s"}`+"\n", strings.Repeat("x", 2000))
	if got, _ := in.ReadString('\n'); !strings.Contains(got, `-32700`) || !strings.Contains(got, `"id":7`) {
		t.Errorf("request over the limit answered %q", got)
	}
	go fmt.Fprint(out, `{"id":2,"result":"next"}`+"\n")
	if r, err := c.Call(t.Context(), "m", nil); err != nil || string(r.Result) != `"next"` {
		t.Errorf("after it: %v, %v", r, err)
	}
}

func TestB16NoiseIsCountedAndKept(t *testing.T) {
	h := &log{}
	c, _, out, wait := peer(t, Options{Handler: h})
	fmt.Fprint(out, "Loaded cached credentials.\n\nhook says hi"+`{"method":"n"}`+"\nbye")
	wait()
	n, sample := c.Noise()
	if n != 3 || sample != "Loaded cached credentials." {
		t.Errorf("noise %d, %q", n, sample)
	}
	want := []string{`0 noise "Loaded cached credentials."`, `28 noise "hook says hi"`, `40 note n `, `55 noise "bye"`}
	if d := cmp.Diff(want, h.seen); d != "" {
		t.Errorf("observed (-want +got):\n%s", d)
	}
}

// stuck is a peer that does not read: a write lasts as long as its ctx.
type stuck struct{}

func (stuck) WriteFrame(ctx context.Context, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}

func (stuck) ReadFrame(ctx context.Context, _ int64) (Frame, error) {
	<-ctx.Done()
	return Frame{}, ctx.Err()
}

func TestPeerThatStopsReadingFailsTheCallOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		c := New(Options{Source: stuck{}, Sink: stuck{}, Handler: &log{}, WriteLimit: 10 * time.Second})
		go c.Run(ctx)
		start := time.Now()
		first := make(chan error)
		go func() {
			_, err := c.Call(ctx, "m", nil)
			first <- err
		}()
		synctest.Wait()
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := c.Notify(short, "n", nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("waiting for the writer: %v after %v", err, time.Since(start))
		}
		if err := <-first; !errors.Is(err, errNotReading) || time.Since(start) != 10*time.Second {
			t.Errorf("call: %v after %v", err, time.Since(start))
		}
		stop()
		<-c.Done()
	})
}

func TestTooManyOpenRequestsAreRefusedAtOnce(t *testing.T) {
	h := &log{answer: func(ctx context.Context, m *Message) (any, error) {
		<-ctx.Done()
		return nil, ErrLeaveOpen
	}}
	_, in, out, wait := peer(t, Options{Handler: h})
	for i := range maxOpen + 1 {
		fmt.Fprintf(out, `{"id":%d,"method":"m"}`+"\n", i)
	}
	got, _ := in.ReadString('\n')
	var m struct {
		ID    int
		Error Error
	}
	if err := json.Unmarshal([]byte(got), &m); err != nil || m.ID != maxOpen || m.Error.Code != CodeInternal {
		t.Errorf("answered %q", got)
	}
	wait()
}
