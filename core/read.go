package core

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/registry"
)

// resolve returns the full id of a session from an id or a unique prefix of one.
func (c *Core) resolve(session string) (string, error) {
	c.mu.Lock()
	_, ok := c.live[session]
	c.mu.Unlock()
	if ok {
		return session, nil
	}
	rec, err := c.opts.Registry.Get(session)
	return rec.ID, err
}

// peek returns the record of a session as its log has it now.
func (c *Core) peek(id string) (registry.Record, error) {
	c.mu.Lock()
	l, ok := c.live[id]
	c.mu.Unlock()
	if ok && l.isReady() {
		l.mu.Lock()
		defer l.mu.Unlock()
		rec := l.rec
		l.folded.into(&rec)
		return rec, nil
	}
	rec, err := c.opts.Registry.Get(id)
	if err != nil {
		return rec, err
	}
	return rec, c.advance(&rec)
}

func (l *live) isReady() bool {
	select {
	case <-l.ready:
		return l.openErr == nil
	default:
		return false
	}
}

// advance brings a record up to date with what its log has beyond the checkpoint.
func (c *Core) advance(rec *registry.Record) error {
	return c.readLog(rec.ID, rec.Folded, func(e Entry) error {
		rec.Folded = e.Cursor
		switch {
		case e.Accepted != nil:
			rec.Turns = e.Accepted.N
			begun(rec, e.Turn)
		case e.Ended != nil:
			ended(rec, e.Ended)
		}
		return nil
	})
}

// records returns every session's record, up to date.
func (c *Core) records() ([]registry.Record, []registry.Problem, error) {
	all, problems, err := c.opts.Registry.List()
	if err != nil {
		return nil, nil, err
	}
	for i := range all {
		if err := c.advance(&all[i]); err != nil && !errors.Is(err, bridges.ErrUnknownSession) {
			problems = append(problems, registry.Problem{ID: all[i].ID, Err: err})
		}
	}
	return all, problems, nil
}

// List returns every session, oldest first, and what could not be read.
func (c *Core) List(context.Context) ([]Session, []registry.Problem, error) {
	all, problems, err := c.records()
	if err != nil {
		return nil, nil, err
	}
	out := make([]Session, len(all))
	for i, rec := range all {
		out[i] = c.session(rec, rec.Turn != "" && c.driven(rec.ID))
	}
	return out, problems, nil
}

func (c *Core) driven(id string) bool {
	c.mu.Lock()
	_, ours := c.live[id]
	c.mu.Unlock()
	return ours || c.opts.Registry.Driven(id)
}

// Show returns a session with its turns, oldest first. A turn that nobody drives
// is taken over first, so that what Show says of it is true.
func (c *Core) Show(ctx context.Context, session string) (Session, []Turn, error) {
	rec, err := c.opts.Registry.Get(session)
	if err != nil {
		return Session{}, nil, err
	}
	if rec, err = c.peek(rec.ID); err != nil {
		return Session{}, nil, err
	}
	if rec.Turn != "" && !c.driven(rec.ID) {
		if err := c.settle(ctx, rec); err != nil {
			return Session{}, nil, err
		}
		if rec, err = c.peek(rec.ID); err != nil {
			return Session{}, nil, err
		}
	}
	turns, err := c.turns(rec.ID)
	return c.session(rec, rec.Turn == "" || c.driven(rec.ID)), turns, err
}

// settleTime is how long looking at a session may wait for a taken-over turn to
// turn out finished or lost. One that goes on is reported as running.
const settleTime = 5 * time.Second

func (c *Core) settle(ctx context.Context, rec registry.Record) error {
	if err := c.takeOver(ctx, rec.ID, rec.Turn); err != nil && !errors.Is(err, bridges.ErrSessionBusy) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	_, err := c.Wait(ctx, rec.ID, rec.Turn)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

func (c *Core) turns(id string) ([]Turn, error) {
	var f fold
	if err := c.readLog(id, 0, func(e Entry) error {
		f.add(e)
		return nil
	}); err != nil {
		return nil, err
	}
	out := make([]Turn, len(f.turns))
	for i := range f.turns {
		out[i] = turnView(id, c.opts.Registry.Dir(id), &f.turns[i])
	}
	return out, nil
}

func resultPath(dir string, n int) string {
	return filepath.Join(dir, filepath.FromSlash(registry.TurnFile(n, resultFile)))
}

// Follow calls fn for every entry of a turn from a cursor on, as they come, until
// the turn has ended. The turn may be driven by another process; when that process
// dies, or none drives it to begin with, this one takes the turn over. It ends
// early with ctx or with an error of fn.
func (c *Core) Follow(ctx context.Context, session, turn string, from int64, fn func(Entry) error) error {
	id, err := c.resolve(session)
	if err != nil {
		return err
	}
	ended := false
	read := func() error {
		return c.readLog(id, from, func(e Entry) error {
			from = e.Cursor
			if e.Turn != turn || ended {
				return nil
			}
			ended = e.Ended != nil
			return fn(e)
		})
	}
	for {
		if err := read(); err != nil || ended {
			return err
		}
		switch err := c.takeOver(ctx, id, turn); {
		case err == nil:
			if err := c.followOwn(ctx, id, read, &ended); err != nil || ended {
				return err
			}
		case !errors.Is(err, bridges.ErrSessionBusy):
			return err
		default:
			if err := c.followOther(ctx, read, &ended); err != nil || ended {
				return err
			}
		}
	}
}

// followOwn reads whenever this process has written, until the turn has ended.
func (c *Core) followOwn(ctx context.Context, id string, read func() error, ended *bool) error {
	c.mu.Lock()
	l, ours := c.live[id]
	c.mu.Unlock()
	if !ours || !l.isReady() {
		return nil
	}
	wake, end := l.follow()
	defer end()
	for {
		if err := read(); err != nil || *ended {
			return err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.ctx.Done():
			return errClosing
		}
	}
}

// followOther reads what another process writes, for as long as it is sure to
// live: the caller looks at the lock again after that.
func (c *Core) followOther(ctx context.Context, read func() error, ended *bool) error {
	for range 10 {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := read(); err != nil || *ended {
			return err
		}
	}
	return nil
}

// Wait returns the turn once it has ended; an empty turn is the session's last.
func (c *Core) Wait(ctx context.Context, session, turn string) (Turn, error) {
	id, err := c.resolve(session)
	if err != nil {
		return Turn{}, err
	}
	t, err := c.Turn(id, turn)
	if err != nil || t.Ended != nil {
		return t, err
	}
	if err := c.Follow(ctx, id, t.ID, t.Cursor, func(Entry) error { return nil }); err != nil {
		return t, err
	}
	return c.Turn(id, t.ID)
}

// Turn returns one turn as it stands; an empty turn is the session's last.
func (c *Core) Turn(session, turn string) (Turn, error) {
	id, err := c.resolve(session)
	if err != nil {
		return Turn{}, err
	}
	all, err := c.turns(id)
	if err != nil {
		return Turn{}, err
	}
	for i := len(all) - 1; i >= 0; i-- {
		if turn == "" || all[i].ID == turn {
			return all[i], nil
		}
	}
	if turn == "" {
		return Turn{}, bridges.Errorf(bridges.KindInvalidArgument, "session %s has had no turn yet", id).
			WithNext("give it a task: `subspan submit %s TASK`", id)
	}
	return Turn{}, bridges.Errorf(bridges.KindInvalidArgument, "session %s has no turn %s; its turns are t1 to t%d", id, turn, len(all))
}

// Look returns a session as its log has it, and touches nothing.
func (c *Core) Look(session string) (Session, error) {
	id, err := c.resolve(session)
	if err != nil {
		return Session{}, err
	}
	rec, err := c.peek(id)
	if err != nil {
		return Session{}, err
	}
	return c.session(rec, rec.Turn != "" && c.driven(id)), nil
}

// Entries calls fn for what the log holds of a turn so far.
func (c *Core) Entries(session, turn string, fn func(Entry) error) error {
	id, err := c.resolve(session)
	if err != nil {
		return err
	}
	return c.readLog(id, 0, func(e Entry) error {
		if e.Turn != turn {
			return nil
		}
		return fn(e)
	})
}

// Agents returns every agent that is known, with where it is or why it cannot be used.
func (c *Core) Agents() []AgentEntry { return c.opts.Agents.List() }
