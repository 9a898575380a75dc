package acp

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// Options make a Bridge.
type Options struct {
	Log     *slog.Logger // nil for none; what agents say is not logged
	Version string       // of this program, told to agents
}

// Bridge drives agents that speak ACP. It is safe for concurrent use. Close frees
// what it holds; agents live on.
type Bridge struct {
	log     *slog.Logger
	version string
	runner  *agentproc.Runner
	broken  error // why there is no runner

	mu       sync.Mutex
	sessions map[string]*session
	busy     map[string]chan struct{} // closed when the session's call returns
	closed   bool

	probing sync.Mutex
	detail  string // of the proven sandbox; empty until then

	limits limits
}

// limits are how long the bridge waits for an agent, and how much it takes at once.
type limits struct {
	start  time.Duration // for initialize and for a session to open
	call   time.Duration // for a setting
	write  time.Duration // for the agent to take a message
	cancel time.Duration // for a turn to end after it was asked to
	quiet  time.Duration // of silence, before a late answer is taken as whole
	settle time.Duration // for that, at most
	frame  int64         // bytes of the longest message
}

var _ bridges.Bridge = (*Bridge)(nil)

// New makes a Bridge. It starts nothing.
func New(o Options) *Bridge {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Bridge{
		log: o.Log, version: o.Version, sessions: map[string]*session{}, busy: map[string]chan struct{}{},
		limits: limits{
			start: time.Minute, call: 30 * time.Second, write: 30 * time.Second, cancel: 10 * time.Second,
			quiet: 50 * time.Millisecond, settle: 150 * time.Millisecond, frame: jsonrpc.DefaultMaxFrame,
		},
	}
	if b.version == "" {
		b.version = "0"
	}
	b.runner, b.broken = agentproc.NewRunner()
	return b
}

// Close forgets all sessions. Calls under way end; agents live on.
func (b *Bridge) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	var calls []chan struct{}
	for _, c := range b.busy {
		calls = append(calls, c)
	}
	b.mu.Unlock()
	if b.runner == nil {
		return nil
	}
	err := b.runner.Close()
	for _, c := range calls {
		<-c
	}
	return err
}

// Describe says what the bridge can do.
func (b *Bridge) Describe(context.Context) (bridges.Description, error) {
	return bridges.Description{
		Name:     "acp",
		Version:  b.version,
		Contract: []int{bridges.ContractVersion},
		Capabilities: []bridges.Capability{
			bridges.CanFork, bridges.CanReconnect, bridges.CanAsk, bridges.CanMCP,
		},
	}, nil
}

// enter begins the one call that a session may have at a time. The caller calls
// leave in the end.
func (b *Bridge) enter(id string) (leave func(), err error) {
	if id == "" {
		return nil, bridges.Errorf(bridges.KindInvalidArgument, "no session id")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, bridges.Errorf(bridges.KindPluginFailed, "the bridge is closed")
	case b.broken != nil:
		return nil, bridges.Errorf(bridges.KindInternal, "the bridge cannot follow agents: %w", b.broken)
	case b.busy[id] != nil:
		return nil, bridges.Errorf(bridges.KindSessionBusy, "session %s has a call under way", id).
			WithNext("wait until it has ended").AsRetryable()
	}
	done := make(chan struct{})
	b.busy[id] = done
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.busy, id)
		close(done)
	}, nil
}

// session returns what is known of a session in this process, or nil.
func (b *Bridge) session(id string) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[id]
}

func (b *Bridge) keep(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old := b.sessions[s.id]; old != nil && old != s {
		old.proc.Release()
	}
	b.sessions[s.id] = s
}

// forget drops what is known in this process; the files know it too.
func (b *Bridge) forget(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.sessions[id]; s != nil {
		s.proc.Release()
		delete(b.sessions, id)
	}
}

// probe proves the sandbox, once for the process.
func (b *Bridge) probe(ctx context.Context) (string, error) {
	b.probing.Lock()
	defer b.probing.Unlock()
	if b.detail != "" {
		return b.detail, nil
	}
	detail, err := agentproc.ProbeSandbox(ctx)
	if err == nil && detail == "" {
		err = errors.New("the sandbox has no name")
	}
	if err != nil {
		return "", err
	}
	b.detail = detail
	return detail, nil
}
