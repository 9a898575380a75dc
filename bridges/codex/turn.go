package codex

import (
	"context"
	"fmt"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/codex/internal/fold"
)

const (
	// cleanLimit is how long ending the commands of an interrupted turn may take.
	cleanLimit = 5 * time.Second
	// loginTries is how often in a turn the provider may refuse the login. Codex would
	// try for the better part of a minute; the first refusal may be answered by codex
	// with a login that it reads again.
	loginTries = 2
)

// Submit implements bridges.Bridge.
func (b *Bridge) Submit(ctx context.Context, req bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
	release, err := b.claim(req.SessionID)
	if err != nil {
		return bridges.Result{}, err
	}
	defer release()
	n, err := readNote(req.Handle)
	if err != nil {
		return bridges.Result{}, err
	}
	if req.Resume != nil {
		res, followed, err := b.pickUp(ctx, req, n, turn)
		if followed || err != nil {
			return res, err
		}
		// The task never left: it leaves now.
		if req.Resume.Cancel {
			return bridges.Result{Status: bridges.StatusCancelled, Warnings: []string{"stopped before codex heard of the task"}}, nil
		}
	}
	return b.submit(ctx, req, n, turn)
}

// submit sends a task for the first time.
func (b *Bridge) submit(ctx context.Context, req bridges.SubmitRequest, n note, turn bridges.Turn) (bridges.Result, error) {
	l, err := b.prepare(ctx, req.Agent, req.Settings, req.Folders, req.Keeping)
	if err != nil {
		return bridges.Result{}, err
	}
	before := n
	s, n, warnings, err := b.ready(ctx, l, req.SessionID, n)
	if err != nil {
		return bridges.Result{}, err
	}
	warnings = append(warnings, wrongRole(n, req.Settings), l.limits.warning, l.creds.Warning)
	if t := s.fold.Turn; t != nil && t.End == nil && t.Refused == nil {
		b.keep(s)
		return bridges.Result{}, bridges.Errorf(bridges.KindSessionBusy, "codex is still at work on another turn of session %s", req.SessionID).
			WithNext("wait for that turn, or stop it")
	}
	if s.models == nil {
		k := b.dial(s, nil, "", bridges.Position{})
		hello, cancel := context.WithTimeout(ctx, helloLimit)
		s.models = listModels(hello, k)
		cancel()
		k.close()
	}
	model, effort, err := choose(req.Settings, s.fold, s.models)
	if err != nil {
		b.keep(s)
		return bridges.Result{}, err
	}
	if changed := s.fold.Model; changed != model && n.Ran {
		warnings = append(warnings, fmt.Sprintf("the model changes from %s to %s: codex may replace the conversation so far by a summary, and lose its instructions", changed, model))
	}
	if err := s.checkpoint(ctx); err != nil {
		s.proc.Release()
		return bridges.Result{}, err
	}
	n.Ran, n.Model = true, model
	f := following{
		b: b, s: s, turn: turn, launch: l, name: clientID(req.SessionID, req.TurnID), warnings: warnings,
		task: l.turn(s.fold.Thread, clientID(req.SessionID, req.TurnID), req.Task, model, effort),
	}
	if n != before {
		h, info := n.handle(), s.info(l, n, nil)
		info.Model, info.Effort = model, effort
		f.news = &bridges.Event{Kind: bridges.KindSession, Session: &bridges.SessionUpdate{Handle: &h, Info: &info}}
	}
	return f.run(ctx)
}

// pickUp goes on with a turn that was submitted before. followed is false when codex
// never got it.
func (b *Bridge) pickUp(ctx context.Context, req bridges.SubmitRequest, n note, turn bridges.Turn) (_ bridges.Result, followed bool, _ error) {
	name := clientID(req.SessionID, req.TurnID)
	b.forget(req.SessionID)
	s, err := b.attach(ctx, req.SessionID, req.Folders.Run)
	if err != nil {
		return bridges.Result{}, false, err
	}
	if s != nil {
		if t := s.fold.Turn; t != nil && t.ID == name {
			l := &launch{agent: req.Agent, settings: req.Settings}
			f := following{b: b, s: s, turn: turn, launch: l, name: name, after: req.Resume.After, stopping: req.Resume.Cancel}
			res, err := f.run(ctx)
			return res, true, err
		}
		if s.torn == name {
			err = b.end(ctx, s, "the task was cut short on its way")
		} else {
			s.proc.Release()
		}
		if err != nil {
			return bridges.Result{}, false, err
		}
	}
	sent, err := arrived(req.Folders.State, n.Thread, name)
	if err == nil && sent {
		err = bridges.Errorf(bridges.KindOutcomeUnknown, "codex took up the task, and its process is gone").
			WithNext("look at what the task has changed before you submit it again")
	}
	return bridges.Result{}, false, err
}

// following is one Submit at work.
type following struct {
	b        *Bridge
	s        *session
	turn     bridges.Turn
	launch   *launch
	name     string
	task     map[string]any // nil when it was sent before
	news     *bridges.Event // to be told once codex has accepted the task
	after    bridges.Position
	thread   string
	asked    bool // an interrupt was sent, by this process or an earlier one
	stopping bool
	forced   bool
	warnings []string
}

// run sends the task, if that is due, and follows the turn to its end.
//
// It keeps the session for the next call when the turn came to its end. When the
// host is gone it lets go of everything and leaves codex at work: the next process
// folds what is on disk.
func (f *following) run(ctx context.Context) (bridges.Result, error) {
	// From here on the fold is the link's.
	f.thread = f.s.fold.Thread
	f.asked = f.task == nil && f.s.fold.Turn.Interrupted
	k := f.b.dial(f.s, f.turn, f.name, f.after)
	defer k.close()
	if f.task != nil {
		if _, err := k.conn.Start(ctx, "turn/start", f.task); err != nil {
			k.close()
			f.s.proc.Release()
			return bridges.Result{}, f.unsent(err)
		}
	}
	if err := f.wait(ctx, k); err != nil {
		k.close()
		f.s.proc.Release()
		return bridges.Result{}, err
	}
	select {
	case <-k.done:
	default:
		f.clean(ctx, k)
	}
	k.close()
	if k.refusal != nil { // with the last event
		f.s.proc.Release()
		return bridges.Result{}, fmt.Errorf("the host is gone: %w", k.refusal)
	}
	return f.result()
}

// unsent says what a task is whose frame could not be written.
func (f *following) unsent(err error) error {
	if kind := bridges.KindOf(err); kind == bridges.KindAgentFailed {
		return err // codex has ended
	}
	return bridges.Errorf(bridges.KindOutcomeUnknown, "the task may not have reached codex: %w", err).WithNext("stop the session, or submit again with the turn resumed")
}

// wait returns when the turn or its process has ended. An error means that nobody
// listens any more.
func (f *following) wait(ctx context.Context, k *link) error {
	cancelled := f.turn.Cancelled()
	var overdue <-chan time.Time
	var timer *time.Timer
	asked := f.asked
	for {
		v := k.look()
		if v.codex != "" && f.news != nil {
			if err := f.turn.Emit(*f.news); err != nil {
				return fmt.Errorf("the host is gone: %w", err)
			}
			f.news = nil
		}
		if v.over {
			return nil
		}
		if f.stopping && timer == nil {
			timer = time.NewTimer(f.b.stopGrace)
			defer timer.Stop()
			overdue = timer.C
		}
		if (f.stopping || v.unauthed >= loginTries) && !asked && v.codex != "" {
			asked = true
			// What became of it is seen by the end of the turn, or by its absence.
			if _, err := k.conn.Start(ctx, "turn/interrupt", map[string]any{"threadId": f.thread, "turnId": v.codex}); err != nil && ctx.Err() != nil {
				return ctx.Err()
			}
		}
		select {
		case <-k.changed:
		case <-cancelled:
			cancelled, f.stopping = nil, true
		case <-overdue:
			overdue, f.forced = nil, true
			// Its end is seen as the end of the output.
			if _, err := f.s.proc.Stop(ctx, agentproc.StopOptions{Reason: "the turn was to stop and did not"}); err != nil && ctx.Err() == nil {
				return fmt.Errorf("ending codex: %w", err)
			}
		case <-k.refused:
			return fmt.Errorf("the host is gone: %w", k.refusal)
		case <-k.done:
			return k.failure()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// clean ends what an interrupted turn left running: codex itself leaves the commands
// of a stopped turn alone.
func (f *following) clean(ctx context.Context, k *link) {
	if !f.stopping {
		return
	}
	limit, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	if _, err := k.conn.Call(limit, "thread/backgroundTerminals/clean", map[string]any{"threadId": f.thread}); err == nil || ctx.Err() != nil {
		return
	}
	// Never left behind: the conversation is on disk, its process is not needed.
	f.forced = true
	if _, err := f.s.proc.Stop(ctx, agentproc.StopOptions{Reason: "the stopped turn's commands could not be ended"}); err != nil {
		f.b.log.Warn("a stopped turn's commands may still run", "session", f.s.id, "error", err)
	}
}

// result makes the Result of the fold. The link is closed.
func (f *following) result() (bridges.Result, error) {
	t := f.s.fold.Turn
	exit, ended := f.s.proc.Exit()
	stderr := ""
	if ended {
		stderr = f.s.proc.Stderr()
	}
	if t == nil || t.ID != f.name {
		f.s.proc.Release()
		return bridges.Result{}, bridges.Errorf(bridges.KindInternal, "the turn is not in the session's journal")
	}
	if ended {
		f.s.proc.Release()
	} else {
		f.b.keep(f.s)
	}
	if t.Refused != nil {
		return bridges.Result{}, fold.CallError("turn/start", t.Refused)
	}
	res := bridges.Result{Usage: t.Usage, Model: t.Model, Denied: t.Denied}
	for _, w := range f.warnings {
		if w != "" {
			res.Warnings = append(res.Warnings, w)
		}
	}
	if f.forced {
		res.Warnings = append(res.Warnings, "codex did not stop by itself and was ended; its next task starts it again")
	}
	switch {
	case t.Tools > 1 && t.Failed == t.Tools:
		res.Warnings = append(res.Warnings, fmt.Sprintf("all %d tool calls of this turn failed", t.Tools))
	case t.Tools == 1 && t.Failed == 1:
		res.Warnings = append(res.Warnings, "the only tool call of this turn failed")
	}
	stopped := f.stopping || t.Interrupted && t.Unauthed < loginTries
	switch {
	case t.End == nil && (stopped || exit.Ordered != ""):
		res.Status = bridges.StatusCancelled
		if !stopped {
			res.Warnings = append(res.Warnings, died(exit, "").Message)
		}
	case t.End == nil:
		res.Status, res.Error = bridges.StatusFailed, died(exit, stderr)
	default:
		f.end(&res, t, stopped)
	}
	return res, nil
}

// end reads the agent's own word on how the turn ended.
func (f *following) end(res *bridges.Result, t *fold.Turn, stopped bool) {
	res.StopReason = t.End.Status
	why := t.End.Fault
	switch {
	case stopped:
		res.Status = bridges.StatusCancelled
		if t.End.Status == "completed" {
			res.Warnings = append(res.Warnings, "codex had finished the turn when the stop reached it")
		}
	case t.Unauthed >= loginTries && t.End.Status != "completed":
		res.Status = bridges.StatusFailed
		res.Error = (&fold.Fault{Code: "unauthorized", Message: t.Last}).AsError(f.launch.agent, t.Model)
	case t.End.Status == "completed":
		res.Status = bridges.StatusCompleted
	case t.End.Status == "interrupted":
		res.Status = bridges.StatusCancelled
	default:
		if why == nil {
			res.Status = bridges.StatusFailed
			res.Error = bridges.Errorf(bridges.KindAgentProtocol, "codex ended the turn as %q and gave no reason", t.End.Status)
			break
		}
		res.Status, res.Error = bridges.StatusFailed, why.AsError(f.launch.agent, t.Model)
		if why.Refused() {
			res.Status = bridges.StatusRefused
		}
	}
}

// clientID is how a turn is named to codex, which keeps it with the message. A fork
// takes its parent's messages along, so the session is part of the name.
func clientID(session, turn string) string { return session + "/" + turn }
