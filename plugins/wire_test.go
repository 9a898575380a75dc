package plugins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/subspan-dev/subspan/bridges"
	bridgev1 "github.com/subspan-dev/subspan/proto/bridge/v1"
)

// funcs is a bridge made of functions; what is not set succeeds with nothing.
type funcs struct {
	create  func(context.Context, bridges.CreateRequest) (bridges.Created, error)
	submit  func(context.Context, bridges.SubmitRequest, bridges.Turn) (bridges.Result, error)
	dispose func(context.Context, bridges.DisposeRequest) (bridges.Receipt, error)
}

func (f funcs) Describe(context.Context) (bridges.Description, error) {
	return bridges.Description{Name: "funcs", Contract: []int{1}}, nil
}

func (f funcs) Create(ctx context.Context, r bridges.CreateRequest) (bridges.Created, error) {
	return f.create(ctx, r)
}

func (f funcs) Submit(ctx context.Context, r bridges.SubmitRequest, t bridges.Turn) (bridges.Result, error) {
	return f.submit(ctx, r, t)
}

func (f funcs) Reconnect(context.Context, bridges.ReconnectRequest) (bridges.Reconnected, error) {
	return bridges.Reconnected{}, nil
}

func (f funcs) Dispose(ctx context.Context, r bridges.DisposeRequest) (bridges.Receipt, error) {
	return f.dispose(ctx, r)
}

// wire serves what register registers and returns a connection to it.
func wire(t *testing.T, register func(*grpc.Server)) (*grpc.ClientConn, *grpc.Server) {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer(ServerOptions()...)
	register(s)
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:test", append(DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); s.Stop(); <-served })
	return conn, s
}

func overWire(t *testing.T, b bridges.Bridge) *Client {
	conn, _ := wire(t, func(s *grpc.Server) { Register(s, b, slog.New(slog.DiscardHandler)) })
	return NewClient(conn)
}

// hostTurn is the host's side of a turn in these tests.
type hostTurn struct {
	mu        sync.Mutex
	events    []bridges.Event
	cancelled chan struct{}
	emit      func(bridges.Event) error
	ask       func(context.Context, bridges.Question) (bridges.Answer, error)
}

func newHostTurn() *hostTurn { return &hostTurn{cancelled: make(chan struct{})} }

func (h *hostTurn) Emit(e bridges.Event) error {
	h.mu.Lock()
	h.events = append(h.events, e)
	h.mu.Unlock()
	if h.emit != nil {
		return h.emit(e)
	}
	return nil
}

func (h *hostTurn) Ask(ctx context.Context, q bridges.Question) (bridges.Answer, error) {
	return h.ask(ctx, q)
}

func (h *hostTurn) Cancelled() <-chan struct{} { return h.cancelled }

var done = bridges.Result{Status: bridges.StatusCompleted}

func textEvent(i int) bridges.Event {
	return bridges.Event{Kind: bridges.KindText, ID: "m", Text: fmt.Sprint(i), Pos: bridges.Position{Offset: int64(i), Part: 1}}
}

func TestErrorsMeanTheSameOnBothSides(t *testing.T) {
	var next error
	c := overWire(t, funcs{create: func(context.Context, bridges.CreateRequest) (bridges.Created, error) {
		return bridges.Created{}, next
	}})
	for _, kind := range bridges.Kinds() {
		next = fmt.Errorf("while starting: %w", bridges.Errorf(kind, "it %s", "broke").WithNext("mend it").AsRetryable())
		_, err := c.Create(t.Context(), bridges.CreateRequest{})
		want := &bridges.Error{Kind: kind, Message: "while starting: it broke", Next: "mend it", Retryable: true}
		if d := cmp.Diff(want, err, cmpopts.IgnoreUnexported(bridges.Error{})); d != "" {
			t.Errorf("%s: %s", kind, d)
		}
		if !errors.Is(err, &bridges.Error{Kind: kind}) {
			t.Errorf("%s: errors.Is fails for %v", kind, err)
		}
	}
	for name, tc := range map[string]struct {
		err  error
		want error
	}{
		"bare sentinel": {bridges.ErrSessionGone, bridges.ErrSessionGone},
		"plain error":   {errors.New("boom"), bridges.ErrInternal},
		"deadline":      {fmt.Errorf("ask: %w", context.DeadlineExceeded), bridges.ErrTimeout},
		"canceled":      {context.Canceled, bridges.ErrCancelled},
		"bad text":      {errors.New("a\xffb"), bridges.ErrInternal},
		"huge text":     {errors.New(strings.Repeat("ü", 1<<20)), bridges.ErrInternal},
		"own status":    {status.Error(codes.Unavailable, "x"), bridges.ErrInternal},
	} {
		next = tc.err
		if _, err := c.Create(t.Context(), bridges.CreateRequest{}); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v (%s)", name, err, bridges.KindOf(err))
		}
	}
}

func TestPanicFailsOneCallOnly(t *testing.T) {
	c := overWire(t, funcs{
		create: func(context.Context, bridges.CreateRequest) (bridges.Created, error) { panic("boom") },
		submit: func(_ context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
			turn.Emit(textEvent(1))
			panic("boom in a turn")
		},
	})
	if _, err := c.Create(t.Context(), bridges.CreateRequest{}); !errors.Is(err, bridges.ErrInternal) || !strings.Contains(err.Error(), "boom") {
		t.Errorf("create: %v", err)
	}
	h := newHostTurn()
	if _, err := c.Submit(t.Context(), bridges.SubmitRequest{}, h); !errors.Is(err, bridges.ErrInternal) {
		t.Errorf("submit: %v", err)
	}
	if len(h.events) != 1 {
		t.Errorf("%d events arrived before the panic, want 1", len(h.events))
	}
	if _, err := c.Describe(t.Context()); err != nil {
		t.Errorf("the bridge is gone after a panic: %v", err)
	}
}

func TestEventsArriveAllAndInOrder(t *testing.T) {
	const n = 20_000
	c := overWire(t, funcs{submit: func(_ context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
		for i := range n {
			if err := turn.Emit(textEvent(i)); err != nil {
				return bridges.Result{}, err
			}
		}
		return bridges.Result{Status: bridges.StatusCompleted, StopReason: "end_turn"}, nil
	}})
	h := newHostTurn()
	res, err := c.Submit(t.Context(), bridges.SubmitRequest{}, h)
	if err != nil || res.StopReason != "end_turn" {
		t.Fatalf("%+v, %v", res, err)
	}
	if len(h.events) != n {
		t.Fatalf("%d events, want %d", len(h.events), n)
	}
	for i, e := range h.events {
		if e.Text != fmt.Sprint(i) {
			t.Fatalf("event %d is %q", i, e.Text)
		}
	}
}

func TestSlowHostBlocksEmit(t *testing.T) {
	var emitted atomic.Int64
	gate := make(chan struct{})
	c := overWire(t, funcs{submit: func(_ context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
		for range 200 {
			e := textEvent(1)
			e.Text = strings.Repeat("x", 200<<10)
			if err := turn.Emit(e); err != nil {
				return bridges.Result{}, err
			}
			emitted.Add(1)
		}
		return done, nil
	}})
	h := newHostTurn()
	h.emit = func(bridges.Event) error { <-gate; return nil }
	ended := make(chan error, 1)
	go func() { _, err := c.Submit(t.Context(), bridges.SubmitRequest{}, h); ended <- err }()

	// 40 MiB are on offer. Wait until the count stands still, then see that it does
	// so far below that: queue, one message each way and the windows between.
	still := waitStill(t, &emitted)
	if still >= 60 {
		t.Errorf("%d events of 200 KiB were taken while the host was not reading", still)
	}
	close(gate)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if len(h.events) != 200 {
		t.Errorf("%d events, want 200", len(h.events))
	}
}

// waitStill waits until n is above zero and has not changed for 200 ms.
func waitStill(t *testing.T, n *atomic.Int64) int64 {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	last, since := n.Load(), time.Now()
	for time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
		if now := n.Load(); now != last {
			last, since = now, time.Now()
		} else if last > 0 && time.Since(since) > 200*time.Millisecond {
			return last
		}
	}
	t.Fatal("the count never stood still")
	return 0
}

func TestBatchesAreBounded(t *testing.T) {
	turn := newTurn(t.Context())
	for i := range 600 {
		turn.Emit(textEvent(i))
	}
	big := textEvent(0)
	big.Text = strings.Repeat("x", 450<<10)
	turn.Emit(big)
	turn.Emit(big)
	turn.close()
	var sizes []int
	for m := turn.next(); m != nil; m = turn.next() {
		sizes = append(sizes, len(m.GetEvents().GetEvents()))
	}
	if d := cmp.Diff([]int{256, 256, 89, 1}, sizes); d != "" {
		t.Error(d)
	}
	if err := turn.Emit(textEvent(1)); !errors.Is(err, errTurnOver) {
		t.Errorf("emit after the end: %v", err)
	}
}

func TestOversizedEventIsRefusedAndTheTurnGoesOn(t *testing.T) {
	c := overWire(t, funcs{submit: func(_ context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
		e := textEvent(1)
		e.Text = strings.Repeat("x", maxEvent+1)
		if err := turn.Emit(e); !errors.Is(err, bridges.ErrInvalidArgument) {
			return bridges.Result{}, fmt.Errorf("emit of an oversized event: %v", err)
		}
		e.Text = strings.Repeat("y", 7<<20)
		return done, turn.Emit(e)
	}})
	h := newHostTurn()
	if _, err := c.Submit(t.Context(), bridges.SubmitRequest{}, h); err != nil {
		t.Fatal(err)
	}
	if len(h.events) != 1 || len(h.events[0].Text) != 7<<20 {
		t.Errorf("the 7 MiB event did not arrive")
	}
}

func TestAskComesAfterEarlierEvents(t *testing.T) {
	c := overWire(t, funcs{submit: func(ctx context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
		for i := range 300 {
			turn.Emit(textEvent(i))
		}
		var wg sync.WaitGroup
		answers := make([]bridges.Answer, 3)
		for i := range answers {
			wg.Go(func() { answers[i], _ = turn.Ask(ctx, bridges.Question{ID: fmt.Sprint("q", i), Title: "may I?"}) })
		}
		wg.Wait()
		for i, a := range answers {
			turn.Emit(bridges.Event{Kind: bridges.KindText, Text: fmt.Sprintf("%d %s %s", i, a.Decision, a.Choice)})
		}
		return done, nil
	}})
	h := newHostTurn()
	h.ask = func(_ context.Context, q bridges.Question) (bridges.Answer, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.events) != 300 {
			return bridges.Answer{}, fmt.Errorf("question with %d events recorded", len(h.events))
		}
		switch q.ID {
		case "q0":
			return bridges.Answer{Decision: bridges.Allow, Choice: "c"}, nil
		case "q1":
			return bridges.Answer{}, nil // the zero answer denies
		}
		return bridges.Answer{}, errors.New("nobody there")
	}
	if _, err := c.Submit(t.Context(), bridges.SubmitRequest{}, h); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range h.events[300:] {
		got = append(got, e.Text)
	}
	if d := cmp.Diff([]string{"0 allow c", "1 deny ", "2 deny "}, got); d != "" {
		t.Error(d)
	}
}

func TestCancelIsAMessage(t *testing.T) {
	c := overWire(t, funcs{submit: func(ctx context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
		turn.Emit(textEvent(1))
		select {
		case <-turn.Cancelled():
			return bridges.Result{Status: bridges.StatusCancelled}, ctx.Err()
		case <-ctx.Done():
			return bridges.Result{}, ctx.Err()
		}
	}})
	h := newHostTurn()
	h.emit = func(bridges.Event) error { close(h.cancelled); return nil }
	res, err := c.Submit(t.Context(), bridges.SubmitRequest{}, h)
	if err != nil || res.Status != bridges.StatusCancelled {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestDroppedStreamEndsTheContextAndDoesNotCancel(t *testing.T) {
	seen := make(chan string, 1)
	c := overWire(t, funcs{submit: func(ctx context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
		turn.Emit(textEvent(1))
		select {
		case <-turn.Cancelled():
			seen <- "cancelled"
		case <-ctx.Done():
			err := turn.Emit(textEvent(2))
			_, askErr := turn.Ask(context.Background(), bridges.Question{ID: "q"})
			if err == nil || askErr == nil {
				seen <- fmt.Sprintf("emit: %v, ask: %v after the end", err, askErr)
			} else {
				seen <- "dropped"
			}
		}
		return bridges.Result{}, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	h := newHostTurn()
	h.emit = func(bridges.Event) error { cancel(); return nil }
	if _, err := c.Submit(ctx, bridges.SubmitRequest{}, h); !errors.Is(err, bridges.ErrCancelled) || !errors.Is(err, context.Canceled) {
		t.Errorf("the caller got %v", err)
	}
	if got := <-seen; got != "dropped" {
		t.Errorf("the bridge saw: %s", got)
	}
}

func TestHostThatCannotRecordEndsTheTurn(t *testing.T) {
	full := errors.New("disk full")
	c := overWire(t, funcs{submit: func(ctx context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
		for {
			if err := turn.Emit(textEvent(1)); err != nil {
				return bridges.Result{}, err
			}
		}
	}})
	h := newHostTurn()
	h.emit = func(bridges.Event) error { return full }
	if _, err := c.Submit(t.Context(), bridges.SubmitRequest{}, h); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if len(h.events) != 1 {
		t.Errorf("%d events were handed over after the first failed", len(h.events)-1)
	}
}

func TestRecordedFollowsTheHost(t *testing.T) {
	c := overWire(t, funcs{submit: func(ctx context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
		rec := turn.(interface{ Recorded() bridges.Position })
		if p := rec.Recorded(); !p.IsZero() {
			return bridges.Result{}, fmt.Errorf("recorded %v before anything was", p)
		}
		for i := 1; i <= 1000; i++ {
			turn.Emit(textEvent(i))
		}
		for rec.Recorded() != (bridges.Position{Offset: 1000, Part: 1}) {
			if ctx.Err() != nil {
				return bridges.Result{}, fmt.Errorf("recorded stays at %v", rec.Recorded())
			}
			time.Sleep(time.Millisecond)
		}
		return done, nil
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.Submit(ctx, bridges.SubmitRequest{}, newHostTurn()); err != nil {
		t.Fatal(err)
	}
}

// raw is a plugin in another language: it may answer with anything.
type raw struct {
	bridgev1.UnimplementedBridgeServiceServer
	submit func(grpc.BidiStreamingServer[bridgev1.SubmitRequest, bridgev1.SubmitResponse]) error
}

func (r raw) Submit(s grpc.BidiStreamingServer[bridgev1.SubmitRequest, bridgev1.SubmitResponse]) error {
	return r.submit(s)
}

func TestForeignPluginsThatBreakTheProtocol(t *testing.T) {
	final := func(s bridgev1.ResultStatus) *bridgev1.SubmitResponse {
		return &bridgev1.SubmitResponse{Message: &bridgev1.SubmitResponse_Final{Final: &bridgev1.Result{Status: s}}}
	}
	type stream = grpc.BidiStreamingServer[bridgev1.SubmitRequest, bridgev1.SubmitResponse]
	for name, tc := range map[string]struct {
		submit func(stream) error
		want   error
	}{
		"no final":          {func(stream) error { return nil }, bridges.ErrPluginFailed},
		"status, no detail": {func(stream) error { return status.Error(codes.Internal, "boom") }, bridges.ErrPluginFailed},
		"unknown status":    {func(s stream) error { return s.Send(final(77)) }, bridges.ErrPluginFailed},
		"empty final":       {func(s stream) error { return s.Send(final(0)) }, bridges.ErrPluginFailed},
		"too large": {func(s stream) error {
			return s.Send(&bridgev1.SubmitResponse{Message: &bridgev1.SubmitResponse_Events{Events: &bridgev1.SubmitResponse_EventBatch{
				Events: []*bridgev1.Event{{Text: strings.Repeat("x", MaxMessage)}}}}})
		}, bridges.ErrPluginFailed},
		"empty messages first": {func(s stream) error {
			s.Send(&bridgev1.SubmitResponse{})
			s.Send(&bridgev1.SubmitResponse{Message: &bridgev1.SubmitResponse_Events{}})
			return s.Send(final(bridgev1.ResultStatus_RESULT_STATUS_COMPLETED))
		}, nil},
		"a second after final": {func(s stream) error {
			s.Send(final(bridgev1.ResultStatus_RESULT_STATUS_COMPLETED))
			return s.Send(final(bridgev1.ResultStatus_RESULT_STATUS_FAILED))
		}, nil},
		"never ends after final": {func(s stream) error {
			s.Send(final(bridgev1.ResultStatus_RESULT_STATUS_COMPLETED))
			<-s.Context().Done()
			return nil
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			conn, _ := wire(t, func(s *grpc.Server) { bridgev1.RegisterBridgeServiceServer(s, raw{submit: tc.submit}) })
			res, err := NewClient(conn).Submit(t.Context(), bridges.SubmitRequest{}, newHostTurn())
			if warned := len(res.Warnings) > 0 && strings.HasPrefix(res.Warnings[0], AfterFinal); warned != strings.Contains(name, "after final") {
				t.Errorf("warnings: %q", res.Warnings)
			}
			if tc.want == nil && err != nil || tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("got %v (%s)", err, bridges.KindOf(err))
			}
		})
	}
	conn, _ := wire(t, func(s *grpc.Server) { bridgev1.RegisterBridgeServiceServer(s, raw{}) })
	if _, err := NewClient(conn).Dispose(t.Context(), bridges.DisposeRequest{}); !errors.Is(err, bridges.ErrCapabilityUnsupported) {
		t.Errorf("an unimplemented verb: %v", err)
	}
	if _, err := NewClient(conn).Reconnect(t.Context(), bridges.ReconnectRequest{}); err == nil {
		t.Error("reconnect without a status passed")
	}
}

func TestDeathOfTheProcessIsPluginFailed(t *testing.T) {
	started := make(chan struct{})
	conn, s := wire(t, func(s *grpc.Server) {
		Register(s, funcs{submit: func(ctx context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
			close(started)
			<-ctx.Done()
			return bridges.Result{}, ctx.Err()
		}}, slog.New(slog.DiscardHandler))
	})
	c := NewClient(conn)
	go func() { <-started; s.Stop() }()
	if _, err := c.Submit(t.Context(), bridges.SubmitRequest{}, newHostTurn()); !errors.Is(err, bridges.ErrPluginFailed) {
		t.Errorf("got %v (%s)", err, bridges.KindOf(err))
	}
}

func TestDescribeFlagPrintsJSON(t *testing.T) {
	var out, errs strings.Builder
	if code := describe(funcs{}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	if want := "{\n  \"name\": \"funcs\",\n  \"version\": \"\",\n  \"contract\": [\n    1\n  ]\n}\n"; out.String() != want {
		t.Errorf("got %s", out.String())
	}
	if code := describe(funcs{}, failingWriter{}, &errs); code != 1 {
		t.Errorf("exit %d with a closed output", code)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
