package core

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/registry"
)

// SubmitRequest asks for a turn.
type SubmitRequest struct {
	Session string
	Task    string
	// Key makes the call repeatable: the same key on the same session is the same
	// turn, however often it is sent.
	Key    string
	Model  string // for this turn; empty keeps the session's
	Effort string // for this turn; empty keeps the session's
}

// TurnRef names a turn and where its events begin.
type TurnRef struct {
	Session string `json:"session"`
	Turn    string `json:"turn"`
	N       int    `json:"n"`
	Cursor  int64  `json:"cursor"`
}

// MaxTask is the longest task, in bytes. What is longer belongs into a file.
const MaxTask = 8 << 20

// Submit accepts a task and returns when that is durable; the turn runs on in this
// Core. Follow or Wait tells how it goes. A session has one turn at a time: while
// one is open, Submit fails with ErrSessionBusy and names it.
func (c *Core) Submit(ctx context.Context, req SubmitRequest) (TurnRef, error) {
	if req.Task == "" {
		return TurnRef{}, bridges.Errorf(bridges.KindInvalidArgument, "the task is empty")
	}
	if len(req.Task) > MaxTask {
		return TurnRef{}, bridges.Errorf(bridges.KindInvalidArgument, "the task has %d bytes, the limit is %d", len(req.Task), MaxTask).
			WithNext("put the material into a file in the workspace and name it in the task")
	}
	id, err := c.resolve(req.Session)
	if err != nil {
		return TurnRef{}, err
	}
	l, err := c.acquire(ctx, id)
	if err != nil {
		return TurnRef{}, err
	}
	l.op.Lock()
	defer l.op.Unlock()
	if ref, ok := l.byKey(req.Key); ok {
		return ref, nil
	}
	if open, err := l.resume(false); err != nil {
		return TurnRef{}, err
	} else if open != "" {
		return TurnRef{}, bridges.Errorf(bridges.KindSessionBusy, "session %s is still in turn %s", id, open).
			WithNext("wait for it: `subspan wait %s`, or stop it: `subspan stop %s`", id, id).AsRetryable()
	}
	if l.entry.Err != nil {
		return TurnRef{}, l.entry.Err
	}
	rec := l.record()
	if _, err := workspace(rec.Cwd); err != nil {
		return TurnRef{}, fmt.Errorf("session %s: %w", id, err)
	}
	l.mu.Lock()
	n := len(l.folded.turns) + 1
	l.mu.Unlock()
	e := Entry{Turn: fmt.Sprintf("t%d", n), At: time.Now(), Accepted: &Accepted{
		N: n, Task: req.Task, Key: req.Key, Mode: rec.Mode,
		Model: first(req.Model, rec.Model), Effort: first(req.Effort, rec.Effort),
	}}
	if err := l.append(e, true); err != nil {
		return TurnRef{}, err
	}
	l.mu.Lock()
	f := *l.folded.open()
	l.mu.Unlock()
	if _, err := l.begin(&f, nil); err != nil {
		return TurnRef{}, err
	}
	return TurnRef{Session: id, Turn: e.Turn, N: n, Cursor: f.At.Cursor}, nil
}

// byKey returns the turn that was accepted under a key.
func (l *live) byKey(key string) (TurnRef, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, ok := l.folded.keys[key]
	if !ok {
		return TurnRef{}, false
	}
	t := l.folded.turns[i]
	return TurnRef{Session: l.id, Turn: t.ID, N: t.Accepted.N, Cursor: t.At.Cursor}, true
}

// resume goes on with the turn that the log says is open, if there is one and
// nobody drives it, and returns its id. With cancel it goes on only to stop it.
// The caller holds l.op.
func (l *live) resume(cancel bool) (string, error) {
	l.mu.Lock()
	t := l.turn
	var f turnFold
	open := l.folded.open()
	if open != nil {
		f = *open
	}
	l.mu.Unlock()
	if open == nil {
		return "", nil
	}
	if t == nil {
		var err error
		if t, err = l.begin(&f, &bridges.Resume{After: f.Last, Cancel: cancel}); err != nil {
			return "", err
		}
	}
	if cancel {
		t.stop(stopAsked)
	}
	return f.ID, nil
}

// takeOver makes sure that an open turn is driven by this process. It fails with
// ErrSessionBusy while another one does that.
func (c *Core) takeOver(ctx context.Context, id, turn string) error {
	l, err := c.acquire(ctx, id)
	if err != nil {
		return err
	}
	l.op.Lock()
	defer l.op.Unlock()
	l.mu.Lock()
	known := l.folded.turn(turn) != nil
	l.mu.Unlock()
	if !known {
		return bridges.Errorf(bridges.KindInvalidArgument, "session %s has no turn %s", id, turn)
	}
	_, err = l.resume(false)
	return err
}

// Stopped says what a Stop did.
type Stopped struct {
	Session string          `json:"session"`
	Turn    string          `json:"turn,omitempty"` // the turn that was ended by it
	Receipt bridges.Receipt `json:"receipt"`
}

// Stop ends the session's turn, if there is one, and every process of the session,
// and returns the proof. The conversation stays where the agent keeps it: a later
// Submit goes on with it.
func (c *Core) Stop(ctx context.Context, session string) (Stopped, error) {
	id, err := c.resolve(session)
	if err != nil {
		return Stopped{}, err
	}
	l, err := c.acquire(ctx, id)
	if errors.Is(err, bridges.ErrSessionBusy) {
		return c.stopElsewhere(ctx, id)
	}
	if err != nil {
		return Stopped{}, err
	}
	l.op.Lock()
	defer l.op.Unlock()
	out := Stopped{Session: id}
	if out.Turn, err = l.resume(true); err != nil {
		return out, err
	}
	l.mu.Lock()
	t := l.turn
	l.mu.Unlock()
	if t != nil {
		select {
		case <-t.done:
		case <-ctx.Done():
			return out, context.Cause(ctx)
		}
	}
	if out.Receipt, err = l.dispose(ctx, false); err != nil {
		return out, err
	}
	return out, l.update(func(rec *registry.Record) {
		rec.Survivors = out.Receipt.SurvivedCount
		if rec.State == registry.StateIdle || rec.State == registry.StateNew {
			rec.State, rec.Reason = registry.StateDisposed, "stopped on request"
		}
	})
}

// stopElsewhere ends the processes of a session that another process drives. That
// process sees its agent end, and by the mark left for it that it was stopped.
func (c *Core) stopElsewhere(ctx context.Context, id string) (Stopped, error) {
	rec, err := c.peek(id)
	if err != nil {
		return Stopped{}, err
	}
	b, err := c.opts.Bridges.Open(ctx, rec.Bridge)
	if err != nil {
		return Stopped{}, err
	}
	if rec.Turn != "" {
		if err := os.WriteFile(c.stopMark(id), []byte(rec.Turn), 0o600); err != nil {
			return Stopped{}, fmt.Errorf("mark session %s as stopped: %w", id, err)
		}
	}
	receipt, err := b.Dispose(ctx, bridges.DisposeRequest{
		SessionID: id, Agent: rec.AgentDef, Handle: rec.Handle, Folders: c.folders(rec), Grace: disposeGrace,
		Settings: bridges.Settings{Mode: rec.Mode, Accept: rec.Accept, Cwd: rec.Cwd},
	})
	return Stopped{Session: id, Turn: rec.Turn, Receipt: receipt}, err
}

// stopMark is the file by which a process that does not drive a session says which
// turn of it is to stop. It is a hint about an end, and never a reason for one.
func (c *Core) stopMark(id string) string { return filepath.Join(c.opts.Registry.Dir(id), "stop") }

// Remove deletes a session: its record, its results, and the agent's own copy of
// the conversation where the bridge can do that. A session in a turn is refused.
func (c *Core) Remove(ctx context.Context, session string) error {
	id, err := c.resolve(session)
	if err != nil {
		return err
	}
	l, err := c.acquire(ctx, id)
	if err != nil {
		return err
	}
	l.op.Lock()
	defer l.op.Unlock()
	l.mu.Lock()
	open := l.folded.open() != nil
	l.mu.Unlock()
	if open {
		return bridges.Errorf(bridges.KindSessionBusy, "session %s is in a turn", id).WithNext("stop it first: `subspan stop %s`", id)
	}
	receipt, err := l.dispose(ctx, true)
	if err != nil && l.entry.Err == nil {
		return err
	}
	if receipt.SurvivedCount > 0 {
		return bridges.Errorf(bridges.KindAgentFailed, "%d processes of session %s are still alive, such as pid %d (%s)",
			receipt.SurvivedCount, id, receipt.Survived[0].PID, receipt.Survived[0].Command).
			WithNext("end them, then remove the session again")
	}
	c.drop(l)
	return l.sess.Remove()
}
