package claude

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// Options make a Bridge.
type Options struct {
	Log     *slog.Logger // nil for none; it never gets what users or agents say
	Version string       // of the program; shown by Describe
}

// Bridge drives Claude Code. It is safe for concurrent use; see bridges.Bridge for
// what that means for one session. The caller closes it.
type Bridge struct {
	log     *slog.Logger
	version string
	waits   waits

	mu       sync.Mutex
	runner   *agentproc.Runner // made at its first use
	closed   bool
	sessions map[string]*session

	probeMu sync.Mutex
	probed  bool
	detail  string // how the kernel holds; empty when it does not
	noHold  error  // why it does not
}

// waits are how long the bridge waits for an agent.
type waits struct {
	start  time.Duration // for the handshake
	write  time.Duration // for the agent to read
	cancel time.Duration // for a turn to end after it was interrupted
	silent time.Duration // before silence is worth a notice
}

var _ bridges.Bridge = (*Bridge)(nil)

// New makes a Bridge. It starts nothing.
func New(o Options) *Bridge {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Bridge{
		log: o.Log, version: o.Version, sessions: map[string]*session{},
		waits: waits{start: time.Minute, write: 30 * time.Second, cancel: 10 * time.Second, silent: 2 * time.Minute},
	}
}

// Close lets go of all sessions. Calls under way end with an error; the agents
// live on, and another Bridge finds them by Reconnect.
func (b *Bridge) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	sessions, runner := b.sessions, b.runner
	b.sessions = nil
	b.mu.Unlock()
	for _, s := range sessions {
		s.evict(errClosed)
		s.token <- struct{}{} // held for good
		s.drop()
	}
	if runner == nil {
		return nil
	}
	return runner.Close()
}

var errClosed = errors.New("the bridge is closed")

// Describe implements bridges.Bridge.
func (b *Bridge) Describe(context.Context) (bridges.Description, error) {
	return bridges.Description{
		Name: "claude", Version: b.version, Contract: []int{bridges.ContractVersion},
		Capabilities: []bridges.Capability{bridges.CanFork, bridges.CanReconnect, bridges.CanAsk, bridges.CanDelete, bridges.CanMCP},
	}, nil
}

// Create implements bridges.Bridge. It starts no process: Claude Code keeps
// nothing of a session without a task.
func (b *Bridge) Create(ctx context.Context, req bridges.CreateRequest) (bridges.Created, error) {
	ctx, s, leave, err := b.enter(ctx, req.SessionID)
	if err != nil {
		return bridges.Created{}, err
	}
	defer leave()
	l := launch{
		session: req.SessionID, agent: req.Agent, settings: req.Settings, folders: req.Folders, keeping: req.Keeping,
		handle: handle{NativeID: nativeID(req.SessionID), Cwd: req.Settings.Cwd},
	}
	if err := b.check(ctx, &l); err != nil {
		return bridges.Created{}, err
	}
	for _, dir := range []string{req.Folders.Run, req.Folders.State} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return bridges.Created{}, fmt.Errorf("make the folders of the session: %w", err)
		}
	}
	l.handle.Begun = l.home().transcript() != ""
	if req.ForkFrom != nil && !l.handle.Begun {
		parent, err := decodeHandle(*req.ForkFrom)
		if err != nil {
			return bridges.Created{}, err
		}
		if parent.Cwd != l.handle.Cwd {
			return bridges.Created{}, bridges.Errorf(bridges.KindCapabilityUnsupported,
				"claude finds a conversation only in the folder it began in, %s", parent.Cwd).WithNext("fork with that working folder")
		}
		if err := l.home().copyFrom(ctx, homeOf(req.Folders, parent.NativeID)); err != nil {
			return bridges.Created{}, err
		}
		l.handle.ForkOf = parent.NativeID
	}
	s.drop()
	return bridges.Created{Handle: l.handle.encode(), Info: l.info()}, nil
}

// Reconnect implements bridges.Bridge. It starts no process either: the next task
// does.
func (b *Bridge) Reconnect(ctx context.Context, req bridges.ReconnectRequest) (bridges.Reconnected, error) {
	ctx, s, leave, err := b.enter(ctx, req.SessionID)
	if err != nil {
		return bridges.Reconnected{}, err
	}
	defer leave()
	h, err := decodeHandle(req.Handle)
	if err != nil {
		return bridges.Reconnected{}, err
	}
	l := launch{session: req.SessionID, agent: req.Agent, settings: req.Settings, folders: req.Folders, keeping: req.Keeping, handle: h}
	if err := b.check(ctx, &l); err != nil {
		return bridges.Reconnected{}, err
	}
	answer := bridges.Reconnected{Status: bridges.ReconnectSame, Info: l.info(), Turn: ""}
	if l.settings.Cwd != h.Cwd {
		answer.Status, answer.Reason = bridges.ReconnectRefused, "the session belongs to the folder "+h.Cwd
		return answer, nil
	}
	alive, err := s.attach(ctx, l)
	if err != nil {
		return bridges.Reconnected{}, err
	}
	if alive {
		if err := s.settle(ctx); err != nil {
			return bridges.Reconnected{}, err
		}
	}
	if req.TurnID != "" {
		if answer.Turn, err = s.fate(l, messageID(req.SessionID, req.TurnID)); err != nil {
			return bridges.Reconnected{}, err
		}
	}
	if answer.Turn == bridges.TurnAttachable && s.running() && ceiling.Exceeds(s.note.Mode, l.limit.mode) {
		answer.Status = bridges.ReconnectRefused
		answer.Reason = fmt.Sprintf("its task runs in mode %s, which is more than %s", s.note.Mode, l.limit.mode)
		return answer, nil
	}
	known := l.home().transcript() != "" || alive && s.lives()
	switch {
	case h.Begun && !known:
		answer.Status, answer.Reason = bridges.ReconnectGone, "claude has no conversation "+h.NativeID+" any more"
	case !h.Begun && !known && h.ForkOf != "" && l.home().transcriptOf(h.ForkOf) == "":
		answer.Status, answer.Reason = bridges.ReconnectGone, "the copy of the conversation to fork is gone"
	}
	h.Begun = h.Begun || l.home().transcript() != ""
	l.handle, answer.Handle = h, h.encode()
	s.describe(&answer.Info)
	return answer, nil
}

// Dispose implements bridges.Bridge.
func (b *Bridge) Dispose(ctx context.Context, req bridges.DisposeRequest) (bridges.Receipt, error) {
	s, err := b.session(req.SessionID)
	if err != nil {
		return bridges.Receipt{}, err
	}
	s.evict(errDisposed)
	select {
	case s.token <- struct{}{}:
	case <-ctx.Done():
		return bridges.Receipt{}, context.Cause(ctx)
	}
	defer func() { <-s.token }()
	s.readmit()
	defer b.forget(req.SessionID, s)
	defer s.drop()
	receipt, err := s.end(ctx, req.Folders.Run, req.Grace)
	if err != nil {
		return receipt, err
	}
	if req.Delete {
		native := nativeID(req.SessionID)
		if h, err := decodeHandle(req.Handle); err == nil {
			native = h.NativeID
		}
		if err := os.RemoveAll(homeOf(req.Folders, native).dir); err != nil {
			return receipt, fmt.Errorf("delete the conversation: %w", err)
		}
	}
	return receipt, nil
}

// check validates what a launch asks for, before anything is done for it, and
// chooses how its mode is held.
func (b *Bridge) check(ctx context.Context, l *launch) error {
	if len(l.agent.Command) == 0 {
		return bridges.Errorf(bridges.KindInvalidArgument, "the agent has no command").WithNext("resolve the agent first")
	}
	if _, err := exec.LookPath(l.agent.Command[0]); err != nil {
		return bridges.Errorf(bridges.KindAgentMissing, "Claude Code is not where it was: %w", err).
			WithNext("npm install -g @anthropic-ai/claude-code, or correct the path")
	}
	if e := l.settings.Effort; e != "" && !slices.Contains(efforts[:], e) {
		return bridges.Errorf(bridges.KindEffortUnsupported, "claude has no effort %q", e).
			WithNext("choose one of %s", strings.Join(efforts[:], ", "))
	}
	detail, failed, err := b.probe(ctx)
	if err != nil {
		return err
	}
	l.limit, err = limitFor(l.settings, detail, failed)
	return err
}

// probe finds out once whether the kernel can hold an agent here. err is set when
// that could not be found out.
func (b *Bridge) probe(ctx context.Context) (detail string, failed, err error) {
	b.probeMu.Lock()
	defer b.probeMu.Unlock()
	if !b.probed {
		b.detail, b.noHold = agentproc.ProbeSandbox(ctx)
		if b.noHold != nil && ctx.Err() != nil {
			return "", nil, fmt.Errorf("find out how to hold the agent: %w", context.Cause(ctx))
		}
		b.probed = true
	}
	return b.detail, b.noHold, nil
}

// session returns the entry of a session, made when there is none.
func (b *Bridge) session(id string) (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, bridges.Errorf(bridges.KindPluginFailed, "%w", errClosed)
	}
	if id == "" {
		return nil, bridges.Errorf(bridges.KindInvalidArgument, "the request names no session")
	}
	if b.runner == nil {
		r, err := agentproc.NewRunner()
		if err != nil {
			return nil, fmt.Errorf("follow agents: %w", err)
		}
		b.runner = r
	}
	s := b.sessions[id]
	if s == nil {
		s = newSession(b.runner, b.waits, b.log.With("session", id))
		b.sessions[id] = s
	}
	return s, nil
}

func (b *Bridge) forget(id string, s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sessions[id] == s {
		delete(b.sessions, id)
	}
}

// enter begins the one call that a session may have at a time. The returned
// context also ends when the session is disposed of or the bridge closes.
func (b *Bridge) enter(ctx context.Context, id string) (context.Context, *session, func(), error) {
	s, err := b.session(id)
	if err != nil {
		return nil, nil, nil, err
	}
	select {
	case s.token <- struct{}{}:
	default:
		return nil, nil, nil, bridges.Errorf(bridges.KindSessionBusy, "session %s is at work on another call", id).
			WithNext("wait until it has ended").AsRetryable()
	}
	ctx, stop := s.admit(ctx)
	return ctx, s, func() { stop(nil); <-s.token }, nil
}
