package acp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
)

// Submit runs a turn, or goes on with one.
func (b *Bridge) Submit(ctx context.Context, req bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
	a := ask{req.SessionID, req.Agent, req.Settings, req.Folders, req.Keeping}
	leave, err := b.enter(a.id)
	if err != nil {
		return bridges.Result{}, err
	}
	defer leave()
	if err := a.check(); err != nil {
		return bridges.Result{}, err
	}
	if req.TurnID == "" {
		return bridges.Result{}, bridges.Errorf(bridges.KindInvalidArgument, "no turn id")
	}
	h, err := decodeHandle(req.Handle)
	if err != nil {
		return bridges.Result{}, err
	}
	p, err := parseProfile(a.agent)
	if err != nil {
		return bridges.Result{}, err
	}
	if req.Resume != nil {
		s, err := b.resumable(ctx, a, p, req.TurnID)
		if err != nil {
			return bridges.Result{}, err
		}
		if s != nil {
			s.know(a)
			return s.attach(ctx, a, *req.Resume, turn)
		}
	}
	for again := true; ; again = false {
		s, err := b.ready(ctx, a, p, h)
		if err != nil {
			return bridges.Result{}, err
		}
		res, err := s.submit(ctx, a, h, req, turn)
		if !again || !errors.Is(err, errNotTaken) {
			return res, err
		}
		// It had ended, and nobody knew yet. The task was not given to anybody.
	}
}

// errNotTaken says that the agent had ended before it could take the task.
var errNotTaken = errors.New("the agent had ended before it got the task")

// resumable finds the session of a turn that was submitted before and may have
// reached the agent. It returns nil when the turn has not, and may be sent.
func (b *Bridge) resumable(ctx context.Context, a ask, p *Profile, turnID string) (*session, error) {
	unknown := bridges.Errorf(bridges.KindOutcomeUnknown, "what became of turn %s cannot be known", turnID).
		WithNext("look at what it has done before you submit the task again")
	b.forget(a.id)
	proc, err := b.runner.Attach(ctx, a.folders.Run)
	if errors.Is(err, agentproc.ErrNoProcess) {
		return nil, unknown
	}
	if err != nil {
		return nil, err
	}
	s, err := b.recall(ctx, a.id, p, proc)
	if err != nil {
		proc.Release()
		if errors.Is(err, errNoCheckpoint) {
			return nil, unknown
		}
		return nil, err
	}
	b.keep(s)
	switch s.delivery(turnID) {
	case delivered:
		return s, nil
	case notSent:
		return nil, nil
	case uncertain:
		// The agent may be at work on it, unseen.
		_, err := proc.Stop(ctx, agentproc.StopOptions{Reason: "its task may have arrived in part"})
		return nil, errors.Join(unknown, err)
	}
	return nil, unknown
}

// ready returns the session with an agent that runs as the settings ask for.
func (b *Bridge) ready(ctx context.Context, a ask, p *Profile, h handle) (*session, error) {
	s := b.session(a.id)
	if s == nil {
		proc, err := b.runner.Attach(ctx, a.folders.Run)
		if err != nil && !errors.Is(err, agentproc.ErrNoProcess) {
			return nil, err
		}
		if err == nil {
			if s, err = b.recall(ctx, a.id, p, proc); err != nil {
				proc.Release()
				if !errors.Is(err, errNoCheckpoint) {
					return nil, err
				}
			} else {
				b.keep(s)
			}
		}
	}
	if s != nil {
		s.profile = p
		if _, dead := s.proc.Exit(); !dead {
			plan, err := b.plan(ctx, a, p)
			if err != nil {
				return nil, err
			}
			if plan.Digest == s.digest {
				s.know(a)
				s.warnings = nil
				return s, nil
			}
		}
	}
	s, err := b.revive(ctx, a, h, s, "")
	if err != nil {
		return nil, rejoinFailure(err)
	}
	return s, nil
}

// submit runs a turn that the agent has not heard of.
func (s *session) submit(ctx context.Context, a ask, h handle, req bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
	late, err := s.prepare(ctx, a)
	if err != nil {
		return bridges.Result{}, s.notTaken(err)
	}
	select {
	case <-turn.Cancelled():
		return bridges.Result{Status: bridges.StatusCancelled, Warnings: []string{"stopped before the agent was given the task"}}, nil
	default:
	}
	news := !s.ran || s.native() != h.NativeID
	s.mu.Lock()
	s.state.Begin(req.TurnID)
	s.state.Turn.Tail = s.profile.LateUpdates
	s.ran = true
	s.mu.Unlock()
	if err := s.checkpoint(ctx); err != nil {
		return bridges.Result{}, err
	}
	r := s.newRun(turn, bridges.Position{})
	if news {
		now, info := s.handle(a.settings.Cwd), s.info(s.warnings...)
		r.push(bridges.Event{Kind: bridges.KindSession, Session: &bridges.SessionUpdate{Handle: &now, Info: &info}})
	}
	r.warnings = append(r.warnings, s.warnings...)
	if late > 0 {
		r.push(lateNotice(late))
	}
	// The host has the handle before the agent has the task.
	if err := r.out.Flush(); err != nil {
		r.out.Close()
		return bridges.Result{}, err
	}
	l, err := s.connect(ctx, r)
	if err != nil {
		r.out.Close()
		return bridges.Result{}, err
	}
	params, told := s.prompt(a.settings.Instructions, req.Task)
	if err := l.send(ctx, params); err != nil {
		return bridges.Result{}, err
	}
	s.mu.Lock()
	s.state.Instructed = told
	s.mu.Unlock()
	again := func() error { return l.loginAndRepeat(ctx, a.agent, params) }
	return l.await(ctx, a.agent, again, false)
}

func (s *session) native() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.NativeID
}

// prepare reads what the agent said since the last turn, answers what it asked
// meanwhile and applies the settings. It returns how much came too late.
func (s *session) prepare(ctx context.Context, a ask) (late int, err error) {
	l, err := s.connect(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer l.close()
	if err := l.drained(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	running := s.state.Running()
	late = s.state.Late
	s.mu.Unlock()
	if running {
		return 0, bridges.Errorf(bridges.KindSessionBusy, "the agent is still at work on the turn before").
			WithNext("wait for that turn, or stop it").AsRetryable()
	}
	return late, l.apply(ctx, a.settings)
}

// send gives the agent the task. On failure it did not get it, and the turn is over.
func (l *link) send(ctx context.Context, params promptParams) error {
	_, err := l.conn.Start(ctx, "session/prompt", params)
	if err == nil {
		return nil
	}
	l.run.out.Abort(err)
	l.close()
	l.run.out.Close()
	s := l.s
	// A part of the task may be with the agent: it must not wait for the rest.
	err = s.notTaken(err)
	_, stopErr := s.proc.Stop(context.WithoutCancel(ctx), agentproc.StopOptions{Reason: "it did not take its task"})
	if errors.As(err, new(*bridges.Error)) {
		return errors.Join(err, stopErr)
	}
	return errors.Join(bridges.Errorf(bridges.KindAgentFailed, "the agent did not take the task: %w%s", err, l.heard()), stopErr)
}

// notTaken marks an error whose reason is that the agent has ended.
func (s *session) notTaken(err error) error {
	select {
	case <-s.proc.Exited():
		return fmt.Errorf("%w: %w", errNotTaken, err)
	default:
		return err
	}
}

// loginAndRepeat is for agents that ask for a login only when they get a task.
func (l *link) loginAndRepeat(ctx context.Context, agent bridges.Agent, params promptParams) error {
	l.s.mu.Lock()
	fault := l.s.state.Turn.Error
	l.s.mu.Unlock()
	if err := l.authenticate(ctx, agent, fault); err != nil {
		return err
	}
	_, err := l.conn.Start(ctx, "session/prompt", params)
	return err
}

// attach goes on with a turn that the agent was given before.
func (s *session) attach(ctx context.Context, a ask, resume bridges.Resume, turn bridges.Turn) (bridges.Result, error) {
	r := s.newRun(turn, resume.After)
	s.mu.Lock()
	prompted := s.state.Turn.Prompt != 0
	gap := prompted && s.last.After(resume.After)
	s.mu.Unlock()
	if gap {
		const text = "a part of the turn's events is lost: the output before it was freed already"
		r.warn(text)
		r.push(bridges.Event{Kind: bridges.KindNotice, Text: text, Notice: &bridges.Notice{Level: "warning", Code: "events_lost"}})
	}
	l, err := s.connect(ctx, r)
	if err != nil {
		r.out.Close()
		return bridges.Result{}, err
	}
	return l.await(ctx, a.agent, nil, resume.Cancel)
}

// await waits for the turn's end. again is what to do, once, when the agent asks for
// a login; nil for nothing.
func (l *link) await(ctx context.Context, agent bridges.Agent, again func() error, cancel bool) (bridges.Result, error) {
	r, s := l.run, l.s
	caught, cancelled, disposing := (<-chan struct{})(l.caught), (<-chan struct{})(nil), (<-chan struct{})(nil)
	var grace <-chan time.Time
	stop := func() {
		cancelled, disposing = nil, nil
		r.stopOnce.Do(func() {
			l.cancel(ctx)
			close(r.stopping)
			grace = time.After(s.b.limits.cancel)
		})
	}
	for {
		select {
		case <-r.ended:
			if again != nil && l.asksLogin() {
				err := again()
				again = nil
				if err == nil {
					continue
				}
				r.fault = err
			}
			return l.finish(ctx, agent)
		case <-l.done:
			select {
			case <-r.ended:
				return l.finish(ctx, agent)
			default:
			}
			return l.died(ctx)
		case <-r.out.Failed():
			err := r.out.Flush()
			l.detach(err)
			return bridges.Result{}, bridges.Errorf(bridges.KindPluginFailed, "the host took no more events: %w", err)
		case <-ctx.Done():
			l.detach(context.Cause(ctx))
			return bridges.Result{}, context.Cause(ctx)
		case <-caught:
			// Only now is it known what the agent was told before.
			caught, cancelled, disposing = nil, r.turn.Cancelled(), s.disposing
			if cancel {
				stop()
			}
		case <-cancelled:
			stop()
		case <-disposing:
			stop()
		case <-grace:
			grace = nil
			r.warn("the agent did not stop when it was asked to, and was ended")
			if _, err := s.proc.Stop(ctx, agentproc.StopOptions{Reason: "it did not end its turn when it was asked to"}); err != nil {
				r.warn(err.Error())
			}
		}
	}
}

// detach leaves everything as it is for the process that comes next.
func (l *link) detach(err error) {
	l.run.out.Abort(err)
	l.abandon()
	l.run.asks.Wait()
	l.run.out.Close()
	l.s.b.forget(l.s.id)
}

// cancel asks the agent to stop the turn: once, and only while one is under way,
// because some agents keep it for the next.
func (l *link) cancel(ctx context.Context) {
	l.s.mu.Lock()
	due := l.s.state.Running() && !l.s.state.Turn.Cancel
	native := l.s.state.NativeID
	l.s.mu.Unlock()
	if !due {
		return
	}
	if err := l.conn.Notify(ctx, "session/cancel", idParams{native}); err != nil {
		l.s.b.log.Warn("the agent could not be asked to stop", "session", l.s.id, "error", err)
	}
}

func (l *link) asksLogin() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	t := l.s.state.Turn
	return t.Error != nil && t.Error.Code == codeAuthRequired && !t.Cancel
}
