package acp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/acp/internal/fold"
	"github.com/subspan-dev/subspan/bridges/agentproc"
)

// Reconnect finds a session again: in the agent's process when that lives, else in
// what the agent has stored, by resume or load. There is no third way: a session
// that is gone is reported as gone.
func (b *Bridge) Reconnect(ctx context.Context, req bridges.ReconnectRequest) (bridges.Reconnected, error) {
	a := ask{req.SessionID, req.Agent, req.Settings, req.Folders, req.Keeping}
	leave, err := b.enter(a.id)
	if err != nil {
		return bridges.Reconnected{}, err
	}
	defer leave()
	if err := a.check(); err != nil {
		return bridges.Reconnected{}, err
	}
	h, err := decodeHandle(req.Handle)
	if err != nil {
		return bridges.Reconnected{}, err
	}
	p, err := parseProfile(a.agent)
	if err != nil {
		return bridges.Reconnected{}, err
	}
	s, turn, err := b.find(ctx, a, p, req.TurnID)
	if err != nil {
		return bridges.Reconnected{}, err
	}
	if s != nil && turn != bridges.TurnAttachable {
		if s, err = b.current(ctx, a, p, s); err != nil {
			return bridges.Reconnected{}, err
		}
	}
	lost := ""
	if turn == bridges.TurnLost {
		lost = req.TurnID
	}
	if s == nil || !s.live(turn) {
		s, err = b.revive(ctx, a, h, s, lost)
		var no *rejoinError
		if errors.As(err, &no) {
			return bridges.Reconnected{Status: no.status, Reason: no.Error(), Handle: req.Handle, Turn: turn}, nil
		}
		if err != nil {
			return bridges.Reconnected{}, err
		}
	}
	return bridges.Reconnected{
		Status: bridges.ReconnectSame, Handle: s.handle(a.settings.Cwd), Info: s.info(s.warnings...), Turn: turn,
	}, nil
}

// find looks at what the session's folder holds, and at what became of a turn.
func (b *Bridge) find(ctx context.Context, a ask, p *Profile, turnID string) (*session, bridges.TurnState, error) {
	none := bridges.TurnState("")
	if turnID != "" {
		none = bridges.TurnLost
	}
	b.forget(a.id)
	proc, err := b.runner.Attach(ctx, a.folders.Run)
	if errors.Is(err, agentproc.ErrNoProcess) {
		return nil, none, nil
	}
	if err != nil {
		return nil, none, err
	}
	s, err := b.recall(ctx, a.id, p, proc)
	if errors.Is(err, errNoCheckpoint) {
		proc.Release()
		return nil, none, nil
	}
	if err != nil {
		proc.Release()
		return nil, none, err
	}
	b.keep(s)
	s.know(a)
	if turnID == "" {
		return s, "", nil
	}
	switch s.delivery(turnID) {
	case delivered:
		return s, bridges.TurnAttachable, nil
	case notSent:
		return s, bridges.TurnNotSent, nil
	case uncertain:
		_, err := proc.Stop(ctx, agentproc.StopOptions{Reason: "its task may have arrived in part"})
		return s, bridges.TurnLost, err
	}
	return s, bridges.TurnLost, nil
}

// current ends an agent that runs under other settings than those asked for.
func (b *Bridge) current(ctx context.Context, a ask, p *Profile, s *session) (*session, error) {
	if _, dead := s.proc.Exit(); dead {
		return s, nil
	}
	plan, err := b.plan(ctx, a, p)
	if err != nil {
		return nil, err
	}
	if plan.Digest != s.digest {
		_, err = s.proc.Stop(ctx, agentproc.StopOptions{Reason: "the session's settings changed"})
	}
	return s, err
}

// live reports whether a session can be used as it is. For a turn to attach to, the
// output is enough.
func (s *session) live(turn bridges.TurnState) bool {
	_, dead := s.proc.Exit()
	return !dead || turn == bridges.TurnAttachable
}

// rejoinError says why an agent does not go on with a session.
type rejoinError struct {
	status bridges.ReconnectStatus
	cause  error
}

func (e *rejoinError) Error() string { return e.cause.Error() }
func (e *rejoinError) Unwrap() error { return e.cause }

// rejoinFailure is a rejoinError for a caller who wanted to submit.
func rejoinFailure(err error) error {
	var no *rejoinError
	if !errors.As(err, &no) {
		return err
	}
	switch no.status {
	case bridges.ReconnectGone:
		return bridges.Errorf(bridges.KindSessionGone, "%w", no.cause).
			WithNext("start a new session, and tell it what it has to know")
	case bridges.ReconnectRefused:
		return bridges.Errorf(bridges.KindSessionBusy, "%w", no.cause).
			WithNext("end what else uses the session").AsRetryable()
	}
	return bridges.Errorf(bridges.KindCapabilityUnsupported, "%w", no.cause).
		WithNext("start a new session")
}

// revive starts a new process of the agent and has it go on with the session. old
// is what is known of the process before, or nil; lost is a turn that died with it.
func (b *Bridge) revive(ctx context.Context, a ask, h handle, old *session, lost string) (*session, error) {
	state, offset := fold.State{NextID: 1}, int64(0)
	if old != nil {
		old.mu.Lock()
		state = old.state.Fresh()
		h.Ran = h.Ran || old.ran
		h.Begun = max(h.Begun, old.begun)
		if old.state.NativeID != "" {
			h.NativeID = old.state.NativeID
		}
		old.mu.Unlock()
		size, err := old.proc.Size()
		if err != nil {
			return nil, err
		}
		offset = size
	}
	state.Forget(lost)
	if err := b.clean(ctx, a.id, a.folders.Run); err != nil {
		return nil, err
	}
	s, err := b.start(ctx, a, state, offset, func(l *link) error { return l.rejoin(ctx, a, h) })
	if err != nil {
		return nil, err
	}
	s.ran = s.ran || h.Ran && s.native() == h.NativeID
	if err := s.checkpoint(ctx); err != nil {
		return nil, err
	}
	b.keep(s)
	return s, nil
}

// rejoin has the agent go on with a session that it has stored.
func (l *link) rejoin(ctx context.Context, a ask, h handle) error {
	err := l.resumeOrLoad(ctx, a, h)
	var no *rejoinError
	if errors.As(err, &no) && !h.Ran && no.status != bridges.ReconnectRefused {
		// It never had a turn. Many agents keep nothing of such a session, and there
		// is nothing to lose.
		l.s.warnings = append(l.s.warnings, "the session had not had a turn and was started afresh: "+no.Error())
		l.s.mu.Lock()
		l.s.state.NativeID = ""
		l.s.mu.Unlock()
		return l.begin(ctx, a)
	}
	return err
}

func (l *link) resumeOrLoad(ctx context.Context, a ask, h handle) error {
	about := l.agent()
	l.s.begun = h.Begun
	if l.s.profile.LoadNextMinute {
		if err := nextMinute(ctx, h.Begun); err != nil {
			return err
		}
	}
	params := l.paramsOf(h.NativeID, a.settings)
	if about.Resume && !l.s.profile.VerifyLoad {
		_, err := l.open(ctx, a.agent, "session/resume", params)
		if !isMissingMethod(err) { // else it is advertised and not there
			return l.lost(h, err)
		}
	}
	if !about.Load {
		return &rejoinError{bridges.ReconnectCannot, fmt.Errorf("agent %s cannot go on with a session in a new process", a.agent.Name)}
	}
	_, err := l.open(ctx, a.agent, "session/load", params)
	if isMissingMethod(err) {
		return &rejoinError{bridges.ReconnectCannot, fmt.Errorf("agent %s cannot go on with a session in a new process: %w", a.agent.Name, err)}
	}
	if err == nil && l.s.profile.VerifyLoad && h.Ran && !l.replayed() {
		return &rejoinError{bridges.ReconnectGone, errors.New("the agent loaded the session without its history")}
	}
	return l.lost(h, err)
}

// nextMinute waits until the minute of the clock is over in which a session began.
func nextMinute(ctx context.Context, begun int64) error {
	wait := time.Until(time.Unix(begun-begun%60+60, 0))
	if begun == 0 || wait <= 0 || wait > time.Minute { // a clock that was set back
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lost tells from an agent's error what became of the session.
func (l *link) lost(h handle, err error) error {
	switch {
	case err == nil:
		return nil
	case isGone(err, l.s.profile):
		return &rejoinError{bridges.ReconnectGone, fmt.Errorf("the agent does not have session %s any more: %w", h.NativeID, err)}
	case isRefused(err):
		return &rejoinError{bridges.ReconnectRefused, fmt.Errorf("the agent does not give session %s: %w", h.NativeID, err)}
	}
	return err
}

// replayed reports whether a load brought any history. It comes before the answer.
func (l *link) replayed() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.s.state.Replayed > 0
}

// Dispose ends a session's processes and frees its run folder.
func (b *Bridge) Dispose(ctx context.Context, req bridges.DisposeRequest) (bridges.Receipt, error) {
	grace := req.Grace
	if grace <= 0 {
		grace = 2 * time.Second
	}
	b.interrupt(ctx, req.SessionID, grace)
	proc, err := b.runner.Attach(ctx, req.Folders.Run)
	if errors.Is(err, agentproc.ErrNoProcess) {
		b.forget(req.SessionID)
		return bridges.Receipt{Proven: true}, agentproc.Remove(req.Folders.Run)
	}
	if err != nil {
		return bridges.Receipt{}, err
	}
	defer proc.Release()
	var notes []string
	if req.Delete {
		notes = append(notes, "the conversation stays in the agent's own store: ACP agents are not asked to delete")
	}
	if _, dead := proc.Exit(); !dead {
		notes = append(notes, b.farewell(ctx, req, proc, grace)...)
	}
	receipt, err := proc.Stop(ctx, agentproc.StopOptions{Reason: "disposed", Grace: grace})
	if err != nil {
		return receipt, err
	}
	b.forget(req.SessionID)
	receipt.Notes = append(notes, receipt.Notes...)
	if receipt.SurvivedCount > 0 {
		return receipt, nil // its folder is the only place that still names it
	}
	return receipt, agentproc.Remove(req.Folders.Run)
}

// interrupt stops the call that the session has under way, and waits for its end.
func (b *Bridge) interrupt(ctx context.Context, id string, grace time.Duration) {
	b.mu.Lock()
	s, call := b.sessions[id], b.busy[id]
	b.mu.Unlock()
	if call == nil {
		return
	}
	if s != nil {
		s.dispose.Do(func() { close(s.disposing) })
	}
	wait := time.NewTimer(grace)
	defer wait.Stop()
	select {
	case <-call:
	case <-ctx.Done():
	case <-wait.C: // ending the agent will end it
	}
}

// farewell asks an agent to close the session and to end by itself.
func (b *Bridge) farewell(ctx context.Context, req bridges.DisposeRequest, proc *agentproc.Proc, grace time.Duration) (notes []string) {
	leave, err := b.enter(req.SessionID)
	if err != nil {
		return []string{"a call of the session was still under way"}
	}
	defer leave()
	// This process may have the session's state already; reading all of the last turn
	// again would cost as much as the turn.
	b.mu.Lock()
	s := b.sessions[req.SessionID]
	b.mu.Unlock()
	if s == nil {
		s, err = b.recall(ctx, req.SessionID, &Profile{}, proc)
	}
	if err == nil && s.state.Agent.Close {
		if l, err := s.connect(ctx, nil); err == nil {
			if err = l.drained(ctx); err == nil {
				_, err = l.call(ctx, grace, "session/close", idParams{l.native()})
			}
			l.close()
			if err != nil {
				notes = append(notes, "session/close: "+err.Error())
			}
		}
	}
	b.forget(req.SessionID)
	if err := proc.CloseInput(ctx); err != nil {
		return append(notes, "closing its input: "+err.Error())
	}
	wait := time.NewTimer(grace)
	defer wait.Stop()
	select {
	case <-proc.Exited():
		notes = append(notes, "it ended by itself when its input was closed")
	case <-wait.C:
	case <-ctx.Done():
	}
	return notes
}
