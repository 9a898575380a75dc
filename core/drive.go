package core

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/registry"
)

// begin starts the goroutine of a turn that the log says is open. resume is nil
// for a turn that no bridge has heard of. The caller holds l.op, and l.turn is nil.
func (l *live) begin(f *turnFold, resume *bridges.Resume) (*turn, error) {
	ans, err := newAnswer(filepath.Join(l.sess.Dir(), filepath.FromSlash(registry.TurnFile(f.Accepted.N, resultFile))))
	if err != nil {
		return nil, err
	}
	if resume != nil {
		if err := l.c.readLog(l.id, f.At.Cursor, func(e Entry) error {
			if e.Turn == f.ID && e.Event != nil {
				return ans.add(*e.Event)
			}
			return nil
		}); err != nil {
			return nil, errors.Join(err, ans.close())
		}
	}
	t := &turn{
		l: l, id: f.ID, n: f.Accepted.N, task: f.Accepted.Task,
		mode: f.Accepted.Mode, model: f.Accepted.Model, effort: f.Accepted.Effort,
		started: f.At.At, done: make(chan struct{}), cancelled: make(chan struct{}),
		activity: make(chan struct{}, 1), answer: ans,
	}
	l.c.mu.Lock()
	if l.c.closed {
		l.c.mu.Unlock()
		return nil, errors.Join(errClosing, ans.close())
	}
	l.c.wg.Add(1)
	l.c.mu.Unlock()
	l.mu.Lock()
	l.turn = t
	l.mu.Unlock()
	go t.run(resume)
	return t, nil
}

// resultFile is the name of a turn's final message in its folder.
const resultFile = "result.md"

// run drives the turn to its end, or leaves it to its keeper when the host closes.
func (t *turn) run(resume *bridges.Resume) {
	defer t.l.c.wg.Done()
	watchDone := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		t.watch(t.l.record().Limits, watchDone)
	}()
	ended := t.drive(t.l.c.ctx, resume)
	close(watchDone)
	<-watched
	t.finish(ended)
	t.l.mu.Lock()
	t.l.turn = nil
	t.l.mu.Unlock()
	close(t.done)
}

// finish makes the end durable. A nil ended means that the turn goes on without us.
func (t *turn) finish(ended *Ended) {
	l := t.l
	if err := t.answer.close(); err != nil && ended != nil {
		ended.Warnings = append(ended.Warnings, "the result file is incomplete: "+err.Error())
	}
	if ended == nil {
		return
	}
	if ended.Status == TurnLost || ended.kind() == bridges.KindAgentFailed {
		t.force() // what the dead agent left behind
	}
	l.mu.Lock()
	f := l.folded.turn(t.id)
	ended.Tools, ended.Denied = f.toolCounts(), f.denied
	ended.Warnings = append(ended.Warnings, f.warn...)
	l.mu.Unlock()
	t.mu.Lock()
	ended.Warnings = append(ended.Warnings, t.denied...)
	ended.Receipt = t.receipt
	t.mu.Unlock()
	ended.N, ended.TextBytes = t.n, t.answer.size
	ended.Duration = time.Since(t.started)
	ended.Hold = l.record().Info.Hold
	ended.Warnings = append(ended.Warnings, l.record().Info.Warnings...)
	slices.Sort(ended.Warnings)
	ended.Warnings = slices.Compact(ended.Warnings)
	if err := l.append(Entry{Turn: t.id, At: time.Now(), Ended: ended}, true); err != nil {
		// The turn stays open in the log; whoever takes the session next finds the
		// agent's output again and ends it then.
		l.c.opts.Log.Error("the end of a turn could not be recorded", "session", l.id, "turn", t.id, "err", err)
		return
	}
}

func stateAfter(ended *Ended) (registry.State, string) {
	switch {
	case ended.kind() == bridges.KindSessionGone:
		return registry.StateGone, ended.Error.Message
	case ended.Status == TurnLost:
		return registry.StateLost, ended.Error.Message
	}
	return registry.StateIdle, ""
}

// restarts bounds how often one turn outlives its bridge process. The pool behind
// BridgeSource waits between starts; this keeps a task that kills its bridge from
// doing so for ever.
const restarts = 5

// drive runs the turn, through any number of deaths of its bridge process. It
// returns nil when ctx ended first.
func (t *turn) drive(ctx context.Context, resume *bridges.Resume) *Ended {
	for lives := 0; ; lives++ {
		res, err := t.attempt(ctx, resume)
		if ctx.Err() != nil {
			return nil
		}
		if mark, markErr := os.ReadFile(t.l.c.stopMark(t.l.id)); markErr == nil && string(mark) == t.id {
			t.stop(stopAsked) // by another process, which has ended the agent already
		}
		if err == nil {
			return t.ended(res)
		}
		t.mu.Lock()
		logError := t.logError
		t.mu.Unlock()
		if logError != nil {
			return t.failed(logError)
		}
		if !errors.Is(err, bridges.ErrPluginFailed) || lives >= restarts {
			return t.failed(err)
		}
		t.l.c.opts.Log.Warn("bridge process died, going on in a new one", "session", t.l.id, "turn", t.id, "err", err)
		t.l.mu.Lock()
		t.l.connected = false
		last := t.l.folded.turn(t.id).Last
		t.l.mu.Unlock()
		resume = &bridges.Resume{After: last, Cancel: t.stopping()}
	}
}

// attempt runs the turn in one bridge process.
func (t *turn) attempt(ctx context.Context, resume *bridges.Resume) (bridges.Result, error) {
	l := t.l
	if l.entry.Err != nil {
		return bridges.Result{}, l.entry.Err
	}
	b, err := l.c.opts.Bridges.Open(ctx, l.bridgeName())
	if err != nil {
		return bridges.Result{}, err
	}
	turnID := ""
	if resume != nil {
		turnID = t.id
	}
	if err := l.connect(ctx, b, turnID); err != nil {
		return bridges.Result{}, err
	}
	rec := l.record()
	settings := l.settings(rec)
	settings.Mode, settings.Model, settings.Effort = t.mode, t.model, t.effort
	return b.Submit(ctx, bridges.SubmitRequest{
		SessionID: l.id, TurnID: t.id, Agent: l.agent(), Handle: rec.Handle, Settings: settings,
		Folders: l.c.folders(rec), Keeping: l.keeping(), Task: t.task, Resume: resume,
	}, t)
}

// connect makes sure that the bridge process knows the session. turnID is the turn
// that an earlier process may have submitted.
func (l *live) connect(ctx context.Context, b bridges.Bridge, turnID string) error {
	l.mu.Lock()
	connected := l.connected && turnID == ""
	l.mu.Unlock()
	if connected {
		return nil
	}
	rec := l.record()
	re, err := b.Reconnect(ctx, bridges.ReconnectRequest{
		SessionID: l.id, Agent: l.agent(), Handle: rec.Handle, Settings: l.settings(rec),
		Folders: l.c.folders(rec), Keeping: l.keeping(), TurnID: turnID,
	})
	if err != nil {
		return err
	}
	if turnID != "" && re.Turn == bridges.TurnLost {
		reason := re.Reason
		if reason == "" {
			reason = "the agent ended while the turn ran"
		}
		return bridges.Errorf(bridges.KindOutcomeUnknown, "turn %s was lost: %s", turnID, reason).
			WithNext("look at what the agent changed in %s before you give the task again", rec.Cwd)
	}
	switch re.Status {
	case bridges.ReconnectSame:
	case bridges.ReconnectGone:
		return bridges.Errorf(bridges.KindSessionGone, "%s does not know the session any more: %s", rec.Agent, re.Reason).
			WithNext("start a new session: the old one's results stay readable with `subspan read %s`", l.id)
	case bridges.ReconnectRefused:
		return bridges.Errorf(bridges.KindSessionBusy, "%s refuses the session: %s", rec.Agent, re.Reason)
	default:
		return bridges.Errorf(bridges.KindCapabilityUnsupported, "%s cannot continue a conversation: %s", rec.Agent, re.Reason).
			WithNext("start a new session")
	}
	if err := l.update(func(rec *registry.Record) {
		rec.Handle = re.Handle
		rec.Info = mergeInfo(rec.Info, re.Info)
		if rec.State != registry.StateRunning {
			rec.State, rec.Reason = registry.StateIdle, ""
		}
	}); err != nil {
		return err
	}
	l.mu.Lock()
	l.connected = true
	l.mu.Unlock()
	return nil
}

// ended turns the bridge's result into the host's.
func (t *turn) ended(res bridges.Result) *Ended {
	e := &Ended{
		Status: TurnStatus(res.Status), StopReason: res.StopReason, Model: res.Model,
		Usage: res.Usage, Error: res.Error, Warnings: res.Warnings,
	}
	switch e.Status {
	case TurnCompleted, TurnFailed, TurnCancelled, TurnRefused:
	default:
		e.Status = TurnFailed
		e.Error = bridges.Errorf(bridges.KindPluginFailed, "the bridge ended the turn with the unknown status %q", res.Status)
	}
	t.mu.Lock()
	reason := t.reason
	t.mu.Unlock()
	if !t.stopping() {
		return e
	}
	// What came in after the stop is kept, but a stopped turn is a stopped turn,
	// whatever the agent called it in the end.
	if e.Status != TurnCancelled {
		e.Warnings = append(e.Warnings, fmt.Sprintf("the agent ended the turn as %s after it was asked to stop", e.Status))
	}
	e.Status = TurnCancelled
	e.Error = nil
	if reason == stopTimeout || reason == stopIdle {
		e.Status = TurnFailed
		e.Error = bridges.Errorf(bridges.KindTimeout, "the turn was ended by its %s; the text so far is partial", reason).
			WithNext("submit the rest as a new turn, or raise limits in the role")
	}
	return e
}

// failed is the end of a turn whose bridge gave no result.
func (t *turn) failed(err error) *Ended {
	e := &Ended{Status: TurnFailed, Error: bridges.AsError(err)}
	switch {
	case errors.Is(err, bridges.ErrOutcomeUnknown):
		e.Status = TurnLost
	case t.stopping():
		e.Status = TurnCancelled
	}
	return e
}
