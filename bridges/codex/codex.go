package codex

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
)

var _ bridges.Bridge = (*Bridge)(nil)

// Options make a Bridge.
type Options struct {
	Log     *slog.Logger // nil for none; it never gets what users or agents say
	Version string       // of the program; shown by Describe and told to codex
}

// Bridge drives codex. It is safe for concurrent use; see bridges.Bridge for what
// that means for one session. The caller closes it.
type Bridge struct {
	log     *slog.Logger
	version string
	// stopGrace is how long an interrupted turn may take to end before its tree is
	// ended; codex needs some milliseconds.
	stopGrace time.Duration

	mu       sync.Mutex
	runner   *agentproc.Runner // made at its first use
	closed   bool
	busy     map[string]bool     // sessions with a call in flight
	sessions map[string]*session // those that this process is attached to

	loginMu sync.Mutex // one copy or renewal of the login at a time

	probeMu sync.Mutex
	probes  map[string]error // of codex's own sandbox, by program
	kernel  *probed          // of ours
}

type probed struct {
	detail string
	err    error
}

// New makes a Bridge. It starts nothing.
func New(o Options) *Bridge {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Bridge{
		log: o.Log, version: o.Version, stopGrace: 10 * time.Second, busy: map[string]bool{}, sessions: map[string]*session{}, probes: map[string]error{},
	}
}

// Close lets go of all sessions. Their agents live on, and another Bridge finds them
// by Reconnect. No call may be in flight.
func (b *Bridge) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for id, s := range b.sessions {
		s.proc.Release()
		delete(b.sessions, id)
	}
	if b.runner == nil {
		return nil
	}
	return b.runner.Close()
}

// Describe implements bridges.Bridge.
func (b *Bridge) Describe(context.Context) (bridges.Description, error) {
	return bridges.Description{
		Name: "codex", Version: b.version, Contract: []int{bridges.ContractVersion},
		Capabilities: []bridges.Capability{bridges.CanFork, bridges.CanReconnect, bridges.CanAsk, bridges.CanDelete, bridges.CanMCP},
	}, nil
}

func (b *Bridge) run() (*agentproc.Runner, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errors.New("the bridge is closed")
	}
	if b.runner == nil {
		r, err := agentproc.NewRunner()
		if err != nil {
			return nil, err
		}
		b.runner = r
	}
	return b.runner, nil
}

// claim takes a session for one call. Codex would take a second task as a word in on
// the first.
func (b *Bridge) claim(id string) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy[id] {
		return nil, bridges.Errorf(bridges.KindSessionBusy, "session %s is at work on another call", id).WithNext("wait until it has ended").AsRetryable()
	}
	b.busy[id] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.busy, id)
	}, nil
}

// keep remembers a session for the next call.
func (b *Bridge) keep(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		s.proc.Release()
		return
	}
	b.sessions[s.id] = s
}

// kept takes the remembered session out.
func (b *Bridge) kept(id string) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[id]
	delete(b.sessions, id)
	return s
}

// forget lets go of what is remembered: what is on disk counts.
func (b *Bridge) forget(id string) {
	if s := b.kept(id); s != nil {
		s.proc.Release()
	}
}

// ours proves our own sandbox, once.
func (b *Bridge) ours(ctx context.Context) (string, error) {
	b.probeMu.Lock()
	defer b.probeMu.Unlock()
	if b.kernel == nil {
		detail, err := agentproc.ProbeSandbox(ctx)
		if ctx.Err() != nil {
			return "", ctx.Err() // proves nothing
		}
		b.kernel = &probed{detail, err}
	}
	return b.kernel.detail, b.kernel.err
}

// noteVersion is the layout of note.
const noteVersion = 1

// note is what a handle holds.
type note struct {
	Thread string `json:"thread"`
	// Ran is set once a turn was accepted. Before that codex keeps nothing of a
	// thread on disk, and its loss loses nothing.
	Ran bool `json:"ran,omitempty"`
	// Model is what the thread last ran with. Resumed or forked with another one,
	// codex begins by replacing the whole conversation by a summary.
	Model string `json:"model,omitempty"`
	// Role tells the instructions apart that the thread was made with. They stay.
	Role string `json:"role,omitempty"`
	// Out is where the output of the session's process began.
	Out int64 `json:"out,omitempty"`
}

func (n note) handle() bridges.Handle {
	data, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings, a bool and a number
	}
	return bridges.Handle{Version: noteVersion, Data: data}
}

func readNote(h bridges.Handle) (note, error) {
	var n note
	if h.Version != noteVersion {
		return n, bridges.Errorf(bridges.KindInvalidArgument, "the session's handle has layout %d, this bridge reads %d", h.Version, noteVersion).
			WithNext("use the version of subspan that made the session")
	}
	if err := json.Unmarshal(h.Data, &n); err != nil {
		return n, bridges.Errorf(bridges.KindInvalidArgument, "the session's handle: %w", err).WithNext("create a new session")
	}
	if !threadID.MatchString(n.Thread) {
		return n, bridges.Errorf(bridges.KindInvalidArgument, "the session's handle names no thread: %q", n.Thread).WithNext("create a new session")
	}
	return n, nil
}

func roleOf(s bridges.Settings) string {
	if s.Instructions == "" {
		return ""
	}
	return fingerprint(s.Instructions)
}

func wrongRole(n note, s bridges.Settings) string {
	if n.Role == roleOf(s) {
		return ""
	}
	return "codex keeps the instructions that the session was created with; the ones given now have no effect"
}
