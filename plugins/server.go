package plugins

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/subspan-dev/subspan/bridges"
	bridgev1 "github.com/subspan-dev/subspan/proto/bridge/v1"
)

// Register puts a bridge on a gRPC server, which must take messages of MaxMessage
// bytes (see ServerOptions). It is what Serve does in a process of its own; tests
// use it to put the wire between a bridge and a Client without one.
func Register(s grpc.ServiceRegistrar, b bridges.Bridge, log *slog.Logger) {
	register(s, b, log)
}

// ServerOptions are what a gRPC server with a bridge on it needs.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(MaxMessage)}
}

func register(s grpc.ServiceRegistrar, b bridges.Bridge, log *slog.Logger) *server {
	srv := &server{bridge: b, log: log}
	bridgev1.RegisterBridgeServiceServer(s, srv)
	return srv
}

// server is the plugin's end of the wire.
type server struct {
	bridgev1.UnimplementedBridgeServiceServer
	bridge bridges.Bridge
	log    *slog.Logger
	// running is held for reading by every handler, so that drain can wait for them.
	running sync.RWMutex
}

// drain waits until no handler runs any more, or for the given time. Handlers that
// come later wait for ever: the process is about to end.
func (s *server) drain(limit time.Duration) {
	idle := make(chan struct{})
	go func() {
		s.running.Lock()
		close(idle)
	}()
	select {
	case <-idle:
	case <-time.After(limit):
	}
}

// guard runs one handler: a panic fails the call it happened in and no other, and
// errors get their detail.
func guard[R any](s *server, verb string, handler func() (R, error)) (res R, err error) {
	s.running.RLock()
	defer s.running.RUnlock()
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in the bridge", "verb", verb, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = toStatus(bridges.Errorf(bridges.KindInternal, "the bridge panicked in %s: %v", verb, p).
				WithNext("report this to the bridge's author with the stack in the host's log"))
		}
	}()
	res, err = handler()
	return res, toStatus(err)
}

func (s *server) Describe(ctx context.Context, _ *bridgev1.DescribeRequest) (*bridgev1.DescribeResponse, error) {
	return guard(s, "Describe", func() (*bridgev1.DescribeResponse, error) {
		d, err := s.bridge.Describe(ctx)
		return describeToWire(d), err
	})
}

func (s *server) Create(ctx context.Context, m *bridgev1.CreateRequest) (*bridgev1.CreateResponse, error) {
	return guard(s, "Create", func() (*bridgev1.CreateResponse, error) {
		c, err := s.bridge.Create(ctx, createFromWire(m))
		return createdToWire(c), err
	})
}

func (s *server) Reconnect(ctx context.Context, m *bridgev1.ReconnectRequest) (*bridgev1.ReconnectResponse, error) {
	return guard(s, "Reconnect", func() (*bridgev1.ReconnectResponse, error) {
		r, err := s.bridge.Reconnect(ctx, reconnectFromWire(m))
		return reconnectedToWire(r), err
	})
}

func (s *server) Dispose(ctx context.Context, m *bridgev1.DisposeRequest) (*bridgev1.DisposeResponse, error) {
	return guard(s, "Dispose", func() (*bridgev1.DisposeResponse, error) {
		r, err := s.bridge.Dispose(ctx, disposeFromWire(m))
		return receiptToWire(r), err
	})
}

func (s *server) Submit(stream grpc.BidiStreamingServer[bridgev1.SubmitRequest, bridgev1.SubmitResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return toStatus(bridges.Errorf(bridges.KindInvalidArgument, "the first message of Submit is %T, not start", first.GetMessage()))
	}
	// The turn's own goroutines end with this context, at the latest when the
	// handler returns; nothing the bridge does is stopped by a dropped stream other
	// than through it.
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	t := newTurn(ctx)
	go t.receive(stream)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		t.send(stream)
	}()

	res, err := guard(s, "Submit", func() (bridges.Result, error) {
		return s.bridge.Submit(ctx, startFromWire(start), t)
	})
	t.close() // what was emitted before an error is delivered too
	<-sent
	if err != nil {
		return err
	}
	if err := t.failure(); err != nil {
		return toStatus(err)
	}
	if number[bridgev1.ResultStatus](statuses, res.Status) == bridgev1.ResultStatus_RESULT_STATUS_UNSPECIFIED {
		return toStatus(bridges.Errorf(bridges.KindInternal, "the bridge ended the turn with status %q", res.Status).
			WithNext("a Result has one of the statuses completed, failed, cancelled, refused"))
	}
	return stream.Send(&bridgev1.SubmitResponse{Message: &bridgev1.SubmitResponse_Final{Final: resultToWire(res)}})
}
