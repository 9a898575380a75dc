package acp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/acp/internal/fold"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

const handleVersion = 1

// handle is what finds a session again: the agent's id of it, and what the agent
// could do about it when it was last seen.
type handle struct {
	NativeID string `json:"native_id"`
	Cwd      string `json:"cwd"`
	// Begun is when the session began, in seconds since 1970; 0 = not known.
	Begun int64 `json:"begun,omitempty"`
	// Ran is set once the session has had a turn. Before that some agents forget it.
	Ran bool `json:"ran,omitempty"`
}

func (h handle) encode() bridges.Handle {
	b, _ := json.Marshal(h) // strings and a bool: it cannot fail
	return bridges.Handle{Version: handleVersion, Data: b}
}

func decodeHandle(h bridges.Handle) (handle, error) {
	var d handle
	if h.Version != handleVersion {
		return d, bridges.Errorf(bridges.KindInvalidArgument, "a handle of version %d; this bridge knows %d", h.Version, handleVersion).
			WithNext("use the version of the bridge that made it")
	}
	if err := json.Unmarshal(h.Data, &d); err != nil || d.NativeID == "" {
		return d, bridges.Errorf(bridges.KindInvalidArgument, "a handle that this bridge did not make: %w", errors.Join(err, errors.New("no session in it")))
	}
	return d, nil
}

func (s *session) handle(cwd string) bridges.Handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	return handle{NativeID: s.state.NativeID, Cwd: cwd, Begun: s.begun, Ran: s.ran}.encode()
}

// ask is what the calls have in common.
type ask struct {
	id       string
	agent    bridges.Agent
	settings bridges.Settings
	folders  bridges.Folders
	keeping  bridges.Keeping
}

// home is the agent's home: one for all its sessions.
func (a ask) home() string { return filepath.Join(a.folders.State, "home") }

func (a ask) check() error {
	for what, path := range map[string]string{"run folder": a.folders.Run, "state folder": a.folders.State, "working folder": a.settings.Cwd} {
		if !filepath.IsAbs(path) {
			return bridges.Errorf(bridges.KindInvalidArgument, "the %s %q is not absolute", what, path)
		}
	}
	if len(a.agent.Command) == 0 || !filepath.IsAbs(a.agent.Command[0]) {
		return bridges.Errorf(bridges.KindInvalidArgument, "the command of agent %s is not resolved", a.agent.Name).
			WithNext("give the absolute path of its program")
	}
	return nil
}

// Create starts an agent and opens a session with it.
func (b *Bridge) Create(ctx context.Context, req bridges.CreateRequest) (bridges.Created, error) {
	a := ask{req.SessionID, req.Agent, req.Settings, req.Folders, req.Keeping}
	leave, err := b.enter(a.id)
	if err != nil {
		return bridges.Created{}, err
	}
	defer leave()
	if err := a.check(); err != nil {
		return bridges.Created{}, err
	}
	if err := b.clean(ctx, a.id, a.folders.Run); err != nil {
		return bridges.Created{}, err
	}
	s, err := b.start(ctx, a, fold.State{NextID: 1}, 0, func(l *link) error {
		if req.ForkFrom != nil {
			return l.fork(ctx, a, *req.ForkFrom)
		}
		return l.begin(ctx, a)
	})
	if err != nil {
		return bridges.Created{}, err
	}
	b.keep(s)
	return bridges.Created{Handle: s.handle(a.settings.Cwd), Info: s.info(s.warnings...)}, nil
}

// clean ends what an earlier call has left in the run folder.
func (b *Bridge) clean(ctx context.Context, id, dir string) error {
	b.forget(id)
	proc, err := b.runner.Attach(ctx, dir)
	if err == nil {
		_, err = proc.Stop(ctx, agentproc.StopOptions{Reason: "its session is started anew"})
		proc.Release()
	}
	if err != nil && !errors.Is(err, agentproc.ErrNoProcess) {
		return fmt.Errorf("ending what an earlier call left: %w", err)
	}
	return agentproc.Remove(dir)
}

// start starts an agent, initializes it, opens the session by open, applies the
// settings and stores the first checkpoint. On error nothing is left running.
func (b *Bridge) start(ctx context.Context, a ask, state fold.State, outOffset int64, open func(*link) error) (*session, error) {
	p, err := parseProfile(a.agent)
	if err != nil {
		return nil, err
	}
	plan, err := b.plan(ctx, a, p)
	if err != nil {
		return nil, err
	}
	if err := writeFiles(p.Files, a.home()); err != nil {
		return nil, err
	}
	plan.Spec.OutOffset = outOffset
	proc, err := b.runner.Start(ctx, plan.Spec)
	if err != nil {
		return nil, err
	}
	state.SessionTotals = p.Usage == "session"
	s := &session{
		b: b, id: a.id, proc: proc, profile: p, hold: plan.Hold, digest: plan.Digest,
		disposing: make(chan struct{}), state: state, next: outOffset,
	}
	s.know(a)
	err = s.opened(ctx, a, open)
	if err == nil {
		return s, nil
	}
	err = agentError(err)
	if _, stopErr := proc.Stop(context.WithoutCancel(ctx), agentproc.StopOptions{Reason: "its session could not be opened"}); stopErr != nil {
		b.log.Warn("an agent that could not be used may still run", "session", a.id, "error", stopErr)
	}
	proc.Release()
	if rmErr := agentproc.Remove(a.folders.Run); rmErr != nil {
		b.log.Warn("run folder not removed", "session", a.id, "error", rmErr)
	}
	return nil, err
}

func (s *session) opened(ctx context.Context, a ask, open func(*link) error) error {
	l, err := s.connect(ctx, nil)
	if err != nil {
		return err
	}
	err = l.initialize(ctx)
	if err == nil {
		err = open(l)
	}
	if err == nil {
		err = l.apply(ctx, a.settings)
	}
	l.close()
	if err != nil {
		return err
	}
	return s.checkpoint(ctx)
}

// begin opens a new session.
func (l *link) begin(ctx context.Context, a ask) error {
	params, p := l.paramsOf("", a.settings), l.s.profile
	if p.IDMeta != "" {
		params.Meta[p.IDMeta] = newUUID()
	}
	if p.InstructionsMeta != "" && a.settings.Instructions != "" {
		params.Meta[p.InstructionsMeta] = a.settings.Instructions
	}
	r, err := l.open(ctx, a.agent, "session/new", params)
	if err == nil {
		err = l.checkNative(r, "session/new")
	}
	if err != nil {
		return err
	}
	l.s.begun = time.Now().Unix()
	if p.InstructionsMeta != "" {
		l.s.mu.Lock()
		l.s.state.Instructed = instructionsDigest(a.settings.Instructions)
		l.s.mu.Unlock()
	}
	return nil
}

// newUUID returns a random UUID (version 4).
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func (l *link) checkNative(r *jsonrpc.Reply, method string) error {
	if jsonrpc.GetString(r.Result, "sessionId") == "" {
		return bridges.Errorf(bridges.KindAgentProtocol, "the agent answered %s without a session id", method)
	}
	return nil
}

// fork opens a session with the history of another one.
func (l *link) fork(ctx context.Context, a ask, from bridges.Handle) error {
	origin, err := decodeHandle(from)
	if err != nil {
		return err
	}
	unable := bridges.Errorf(bridges.KindCapabilityUnsupported, "agent %s cannot fork a session", a.agent.Name).
		WithNext("start a new session and put what it has to know into the task")
	if !l.agent().Fork {
		return unable
	}
	r, err := l.open(ctx, a.agent, "session/fork", l.paramsOf(origin.NativeID, a.settings))
	switch {
	case isMissingMethod(err):
		return unable
	case isGone(err, l.s.profile):
		return bridges.Errorf(bridges.KindSessionGone, "the agent does not have the session to fork any more: %w", err)
	case err != nil:
		return err
	}
	l.s.ran, l.s.begun = true, time.Now().Unix() // it has a history
	return l.checkNative(r, "session/fork")
}

// know takes what a call tells about the environment: which keys the agent has, and
// what must not be shown.
func (s *session) know(a ask) {
	s.env, s.secrets, s.hasKey, s.home = map[string]bool{}, nil, false, a.home()
	for _, kv := range a.settings.Env {
		name, value, _ := strings.Cut(kv, "=")
		s.env[name] = true
		s.hasKey = s.hasKey || strings.HasSuffix(name, "_KEY") || strings.HasSuffix(name, "_TOKEN")
		if len(value) >= minSecret {
			s.secrets = append(s.secrets, value)
		}
	}
	for name := range a.agent.Env {
		s.env[name] = true
	}
}

func (s *session) hasEnv(name string) bool { return s.env[name] }
