package core

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
	"github.com/subspan-dev/subspan/registry"
)

// turn is one turn under way in this process. It is the host's side of
// bridges.Turn.
type turn struct {
	l       *live
	id      string
	n       int
	task    string
	mode    ceiling.Mode
	model   string
	effort  string
	started time.Time
	done    chan struct{} // closed when the turn has ended or was left to its keeper

	cancelOnce sync.Once
	cancelled  chan struct{}
	activity   chan struct{} // a token whenever something happened, for the idle clock

	mu       sync.Mutex
	reason   stopReason
	waiting  int // questions in the air: an agent that waits for us is not idle
	denied   []string
	answer   *answer
	receipt  *bridges.Receipt // of a forced end
	logError error            // the disk refused an event; the turn ends by name
}

// stopReason is why a turn was asked to stop.
type stopReason string

const (
	stopAsked   stopReason = "stopped on request"
	stopTimeout stopReason = "turn timeout"
	stopIdle    stopReason = "idle timeout"
)

var _ bridges.Turn = (*turn)(nil)

// stop asks the turn to stop, once; the first reason counts.
func (t *turn) stop(reason stopReason) {
	t.cancelOnce.Do(func() {
		t.mu.Lock()
		t.reason = reason
		t.mu.Unlock()
		close(t.cancelled)
	})
}

// Cancelled implements bridges.Turn.
func (t *turn) Cancelled() <-chan struct{} { return t.cancelled }

// Emit implements bridges.Turn. The event is in the log, in the operating
// system's hands, when it returns.
func (t *turn) Emit(ev bridges.Event) error {
	if err := t.record(ev); err != nil {
		t.mu.Lock()
		t.logError = err
		t.mu.Unlock()
		return err
	}
	select {
	case t.activity <- struct{}{}:
	default:
	}
	return nil
}

func (t *turn) record(ev bridges.Event) error {
	t.l.mu.Lock()
	f := t.l.folded.turn(t.id)
	known := !ev.Pos.IsZero() && !ev.Pos.After(f.Last)
	t.l.mu.Unlock()
	if known {
		return nil // told twice by a bridge process that took over: once is right
	}
	if ev.Session != nil {
		if err := t.l.learn(*ev.Session); err != nil {
			return err
		}
	}
	if err := t.l.append(Entry{Turn: t.id, At: time.Now(), Event: &ev}, false); err != nil {
		return err
	}
	return t.answer.add(ev)
}

// learn stores what a bridge found out about the session, before anybody sees it.
func (l *live) learn(u bridges.SessionUpdate) error {
	if u.Handle == nil && u.Info == nil && u.Title == "" {
		return nil
	}
	return l.update(func(rec *registry.Record) {
		if u.Handle != nil {
			rec.Handle = *u.Handle
		}
		if u.Info != nil {
			rec.Info = mergeInfo(rec.Info, *u.Info)
		}
		if u.Title != "" && rec.Title == "" {
			rec.Title = u.Title
		}
	})
}

// mergeInfo lays what is newly known over what was known.
func mergeInfo(old, now bridges.Info) bridges.Info {
	set := func(dst *string, v string) {
		if v != "" {
			*dst = v
		}
	}
	set(&old.NativeID, now.NativeID)
	set(&old.AgentVersion, now.AgentVersion)
	set(&old.Model, now.Model)
	set(&old.Effort, now.Effort)
	if now.Hold.Strength != "" {
		old.Hold = now.Hold
	}
	if len(now.Models) > 0 {
		old.Models = now.Models
	}
	if len(now.Efforts) > 0 {
		old.Efforts = now.Efforts
	}
	old.Warnings = now.Warnings
	return old
}

// askLimit is how long a person may take to answer before it is a no.
const askLimit = 5 * time.Minute

// Ask implements bridges.Turn: by the record when this question was answered
// before, by policy where policy is clear, by a person where one can be asked.
func (t *turn) Ask(ctx context.Context, q bridges.Question) (bridges.Answer, error) {
	t.l.mu.Lock()
	prior, answered := t.l.folded.turn(t.id).answers[q.ID]
	t.l.mu.Unlock()
	if answered && prior.Decision != bridges.Cancel {
		return prior, nil
	}
	if err := t.Emit(bridges.Event{Kind: bridges.KindQuestion, ID: q.ID, Question: &q}); err != nil {
		return bridges.Answer{}, err
	}
	t.mu.Lock()
	t.waiting++
	t.mu.Unlock()
	a := t.decide(ctx, q)
	t.mu.Lock()
	t.waiting--
	if a.Decision == bridges.Deny {
		t.denied = append(t.denied, fmt.Sprintf("%s: refused, %s", describe(q), a.Reason))
	}
	t.mu.Unlock()
	if ctx.Err() != nil {
		// The bridge is gone and will ask again; what was not decided stays open.
		return bridges.Answer{}, context.Cause(ctx)
	}
	return a, t.Emit(bridges.Event{Kind: bridges.KindAnswer, ID: q.ID, Answer: &a})
}

func (t *turn) decide(ctx context.Context, q bridges.Question) bridges.Answer {
	rec := t.l.record()
	v := judge(t.mode, rec.Info.Hold.Strength, rec.Cwd, t.l.c.opts.Config.Policy, q)
	select {
	case <-t.cancelled:
		return bridges.Answer{Decision: bridges.Cancel, By: "policy", Reason: "the turn is being stopped"}
	default:
	}
	if !v.ask {
		return bridges.Answer{Decision: v.decision, By: "policy", Reason: v.reason}
	}
	if t.l.c.opts.Ask == nil {
		return bridges.Answer{Decision: bridges.Deny, By: "nobody", Reason: v.reason + ", and nobody could be asked"}
	}
	askCtx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	go func() { // ends with askCtx, which this function ends
		select {
		case <-t.cancelled:
			cancel()
		case <-askCtx.Done():
		}
	}()
	a, err := t.l.c.opts.Ask.Ask(askCtx, t.l.id, q)
	switch {
	case t.stopping():
		return bridges.Answer{Decision: bridges.Cancel, By: "policy", Reason: "the turn is being stopped"}
	case err != nil && errors.Is(askCtx.Err(), context.DeadlineExceeded):
		return bridges.Answer{Decision: bridges.Deny, By: "timeout", Reason: v.reason + ", and nobody answered in time"}
	case err != nil:
		return bridges.Answer{Decision: bridges.Deny, By: "nobody", Reason: v.reason + ", and nobody answered"}
	case a.Decision != bridges.Allow && a.Decision != bridges.Cancel:
		a.Decision = bridges.Deny
	}
	if a.By == "" {
		a.By = "user"
	}
	if a.Reason == "" {
		a.Reason = v.reason
	}
	return a
}

func (t *turn) stopping() bool {
	select {
	case <-t.cancelled:
		return true
	default:
		return false
	}
}

// hardStop is how long a bridge may take to end a turn after it was asked to,
// before the session's processes are ended around it. A bridge itself waits 10 s
// for its agent.
const hardStop = 20 * time.Second

// watch enforces the turn's limits until done is closed.
func (t *turn) watch(limits registry.Limits, done <-chan struct{}) {
	var turnC, idleC, hardC <-chan time.Time
	if d := limits.TurnTimeout; d > 0 {
		timer := time.NewTimer(time.Until(t.started.Add(d)))
		defer timer.Stop()
		turnC = timer.C
	}
	idle := time.NewTimer(time.Hour)
	defer idle.Stop()
	if limits.IdleTimeout > 0 {
		idle.Reset(limits.IdleTimeout)
		idleC = idle.C
	}
	cancelled := (<-chan struct{})(t.cancelled)
	for {
		select {
		case <-done:
			return
		case <-t.activity:
			if limits.IdleTimeout > 0 {
				idle.Reset(limits.IdleTimeout)
			}
		case <-turnC:
			t.stop(stopTimeout)
		case <-idleC:
			t.mu.Lock()
			waiting := t.waiting
			t.mu.Unlock()
			if waiting > 0 {
				idle.Reset(limits.IdleTimeout)
				continue
			}
			t.stop(stopIdle)
		case <-cancelled:
			cancelled = nil
			timer := time.NewTimer(hardStop)
			defer timer.Stop()
			hardC = timer.C
		case <-hardC:
			t.force()
		}
	}
}

// force ends the session's processes around a bridge that did not stop its turn.
func (t *turn) force() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.l.c.ctx), hardStop)
	defer cancel()
	receipt, err := t.l.dispose(ctx, false)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.receipt = &receipt
		return
	}
	t.l.c.opts.Log.Error("could not end a turn by force", "session", t.l.id, "turn", t.id, "err", err)
}
