package plugins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/subspan-dev/subspan/bridges"
	bridgev1 "github.com/subspan-dev/subspan/proto/bridge/v1"
)

// DialOptions are what a connection to a bridge needs.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage))}
}

// Client is a bridge at the other end of a connection. It is safe for concurrent
// use. It does not own the connection.
//
// Its errors are bridges.Error values, equal under errors.Is to those of the bridge.
// KindPluginFailed means that the process went away or broke the protocol, and that
// the outcome of the call is unknown. Client sets no deadlines of its own.
type Client struct {
	rpc bridgev1.BridgeServiceClient
}

var _ bridges.Bridge = (*Client)(nil)

// NewClient returns the bridge that is served at the other end of conn.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{rpc: bridgev1.NewBridgeServiceClient(conn)}
}

// unary makes one call: what is sent is checked, what fails is translated.
func unary[Req proto.Message, Res, Out any](ctx context.Context, verb string, req Req,
	call func(context.Context, Req, ...grpc.CallOption) (Res, error), out func(Res) Out) (Out, error) {
	var none Out
	if err := checkText(req); err != nil {
		return none, err
	}
	res, err := call(ctx, req)
	if err != nil {
		return none, fromStatus(ctx, verb, err)
	}
	return out(res), nil
}

// Describe implements bridges.Bridge.
func (c *Client) Describe(ctx context.Context) (bridges.Description, error) {
	return unary(ctx, "Describe", &bridgev1.DescribeRequest{}, c.rpc.Describe, describeFromWire)
}

// Create implements bridges.Bridge.
func (c *Client) Create(ctx context.Context, req bridges.CreateRequest) (bridges.Created, error) {
	return unary(ctx, "Create", createToWire(req), c.rpc.Create, createdFromWire)
}

// Reconnect implements bridges.Bridge.
func (c *Client) Reconnect(ctx context.Context, req bridges.ReconnectRequest) (bridges.Reconnected, error) {
	r, err := unary(ctx, "Reconnect", reconnectToWire(req), c.rpc.Reconnect, reconnectedFromWire)
	if err == nil && r.Status == "" {
		return bridges.Reconnected{}, bridges.Errorf(bridges.KindPluginFailed,
			"the bridge answered Reconnect with no status that this host knows").
			WithNext("update subspan, or report this to the plugin's author")
	}
	return r, err
}

// Dispose implements bridges.Bridge.
func (c *Client) Dispose(ctx context.Context, req bridges.DisposeRequest) (bridges.Receipt, error) {
	return unary(ctx, "Dispose", disposeToWire(req), c.rpc.Dispose, receiptFromWire)
}

// Submit implements bridges.Bridge. When ctx ends, the stream is dropped without a
// cancel message: the agent goes on. It returns when every call of turn has.
func (c *Client) Submit(ctx context.Context, req bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
	start := startToWire(req)
	if err := checkText(start); err != nil {
		return bridges.Result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait() // after cancel
	defer cancel()

	stream, err := c.rpc.Submit(ctx)
	if err != nil {
		return bridges.Result{}, fromStatus(ctx, "Submit", err)
	}
	// A failed Send says only EOF; the reason comes from Recv below.
	if err := stream.Send(&bridgev1.SubmitRequest{Message: &bridgev1.SubmitRequest_Start_{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return bridges.Result{}, fromStatus(ctx, "Submit", err)
	}
	down := newDownlink(ctx)
	running.Go(func() { down.run(stream.Send) })
	running.Go(func() {
		select {
		case <-turn.Cancelled():
			down.put(&bridgev1.SubmitRequest{Message: &bridgev1.SubmitRequest_Cancel_{Cancel: &bridgev1.SubmitRequest_Cancel{}}})
		case <-ctx.Done():
		}
	})

	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return bridges.Result{}, bridges.Errorf(bridges.KindPluginFailed, "the bridge ended the turn without a final event").
				WithNext("reconnect to the session to learn what became of the turn")
		}
		if err != nil {
			return bridges.Result{}, fromStatus(ctx, "Submit", err)
		}
		switch m := m.GetMessage().(type) {
		case *bridgev1.SubmitResponse_Events:
			if err := emit(m.Events.GetEvents(), turn, down); err != nil {
				return bridges.Result{}, err
			}
		case *bridgev1.SubmitResponse_Question:
			running.Go(func() { ask(ctx, questionFromWire(m.Question), turn, down) })
		case *bridgev1.SubmitResponse_Final:
			res := resultFromWire(m.Final)
			if res.Status == "" {
				return res, bridges.Errorf(bridges.KindPluginFailed, "the bridge ended the turn with no status that this host knows").
					WithNext("update subspan, or report this to the plugin's author")
			}
			if w := afterFinal(stream, cancel); w != "" {
				res.Warnings = append(res.Warnings, w)
			}
			return res, nil
		}
	}
}

// AfterFinal begins the warning in a Result of a bridge that broke the rule of one
// final event as the last one.
const AfterFinal = "the bridge went on after its final event"

// finalWait is how long a stream may stay open after its final event. The end of a
// stream follows at once where the rule is kept.
const finalWait = 250 * time.Millisecond

// afterFinal reads the end of the stream and says what else it read.
func afterFinal(stream grpc.BidiStreamingClient[bridgev1.SubmitRequest, bridgev1.SubmitResponse], cancel context.CancelFunc) string {
	var late atomic.Bool
	timer := time.AfterFunc(finalWait, func() { late.Store(true); cancel() })
	defer timer.Stop()
	m, err := stream.Recv()
	switch {
	case err == nil:
		return fmt.Sprintf("%s: it sent %T", AfterFinal, m.GetMessage())
	case late.Load():
		return AfterFinal + ": it kept the stream open"
	}
	return ""
}

// emit hands one batch to the host and tells the bridge how far it got.
func emit(events []*bridgev1.Event, turn bridges.Turn, down *downlink) error {
	var last *bridgev1.Position
	for _, e := range events {
		if err := turn.Emit(eventFromWire(e)); err != nil {
			return fmt.Errorf("record an event of the turn: %w", err)
		}
		if e.GetPos() != nil {
			last = e.GetPos()
		}
	}
	if last != nil {
		down.ack(last)
	}
	return nil
}

// ask puts a question to the host. Whatever goes wrong there is a denial here,
// because an agent that waits for an answer waits for ever.
func ask(ctx context.Context, q bridges.Question, turn bridges.Turn, down *downlink) {
	a, err := turn.Ask(ctx, q)
	if err != nil {
		a = bridges.Answer{Decision: bridges.Deny, Reason: err.Error(), By: "nobody"}
	}
	down.put(&bridgev1.SubmitRequest{Message: &bridgev1.SubmitRequest_Answer{
		Answer: &bridgev1.SubmitRequest_QuestionAnswer{QuestionId: q.ID, Answer: answerToWire(a)},
	}})
}

// downlink writes what goes down during a turn, so that a bridge which does not read
// cannot block the reading of its events. Acknowledgements are coalesced.
type downlink struct {
	ctx   context.Context
	mu    sync.Mutex
	queue []*bridgev1.SubmitRequest
	acked *bridgev1.Position // not yet sent
	wake  chan struct{}
}

func newDownlink(ctx context.Context) *downlink {
	return &downlink{ctx: ctx, wake: make(chan struct{}, 1)}
}

func (d *downlink) put(m *bridgev1.SubmitRequest) {
	d.mu.Lock()
	d.queue = append(d.queue, m)
	d.mu.Unlock()
	d.poke()
}

func (d *downlink) ack(p *bridgev1.Position) {
	d.mu.Lock()
	d.acked = p
	d.mu.Unlock()
	d.poke()
}

func (d *downlink) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run sends until the context ends or the stream does.
func (d *downlink) run(send func(*bridgev1.SubmitRequest) error) {
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-d.wake:
		}
		d.mu.Lock()
		out := d.queue
		d.queue = nil
		if d.acked != nil {
			out = append(out, &bridgev1.SubmitRequest{Message: &bridgev1.SubmitRequest_Ack_{
				Ack: &bridgev1.SubmitRequest_Ack{Recorded: d.acked}}})
			d.acked = nil
		}
		d.mu.Unlock()
		for _, m := range out {
			if send(m) != nil {
				return // Recv tells why
			}
		}
	}
}
