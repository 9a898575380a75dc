package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/config"
	"github.com/subspan-dev/subspan/registry"
	"github.com/subspan-dev/subspan/roles"
)

// BridgeSource gives the bridge of a name, starting its process when there is
// none. A Bridge whose process died answers ErrPluginFailed; Open then gives the
// next one, after a backoff.
type BridgeSource interface {
	Open(ctx context.Context, name string) (bridges.Bridge, error)
}

// AgentSource knows which agents there are.
type AgentSource interface {
	// Resolve finds the agent on this machine without running it: Command[0] of the
	// answer is absolute. ErrAgentMissing says how to install it.
	Resolve(name string) (AgentEntry, error)
	// List gives every known agent, sorted by name.
	List() []AgentEntry
	// Default is the agent to use when nobody named one.
	Default() (AgentEntry, error)
}

// AgentEntry is an agent and the bridge that drives it.
type AgentEntry struct {
	Agent  bridges.Agent
	Bridge string // the name to Open
	Source string // built-in, config, or the plugin's folder
	Path   string // where its executable is; empty when it was not found
	Note   string // what whoever gets this agent should be told
	Err    error  // why it cannot be used; nil when it can
}

// Options are what a Core is made of. All fields but Ask and Log are needed.
type Options struct {
	Registry *registry.Registry
	Config   config.Config
	Dirs     config.Dirs
	Bridges  BridgeSource
	Agents   AgentSource
	// Roles loads the roles that hold in a folder.
	Roles func(cwd string) (*roles.Set, error)
	// Getenv looks up the caller's environment, for the variables that an agent may have.
	Getenv func(string) (string, bool)
	// Ask answers what policy leaves open; nil means nobody does, and it is denied.
	Ask Asker
	Log *slog.Logger
}

// Core runs sessions. Its methods are safe for concurrent use. Close it.
type Core struct {
	opts Options
	ctx  context.Context // ends at Close; parent of every turn
	stop context.CancelFunc
	wg   sync.WaitGroup // turns

	mu     sync.Mutex
	closed bool
	live   map[string]*live
}

// New returns a Core. It starts nothing.
func New(opts Options) *Core {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Core{opts: opts, ctx: ctx, stop: stop, live: map[string]*live{}}
}

// Close leaves running turns to their keepers, ends the processes of idle
// sessions (their conversations stay), and waits for everything of this Core. It
// gives up on ending processes when ctx is over.
func (c *Core) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	sessions := make([]*live, 0, len(c.live))
	for _, l := range c.live {
		sessions = append(sessions, l)
	}
	c.mu.Unlock()
	c.stop()
	c.wg.Wait()

	errs := make([]error, len(sessions))
	var wg sync.WaitGroup
	for i, l := range sessions {
		wg.Go(func() { errs[i] = l.release(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// live is a session that this process holds the lock of.
type live struct {
	c       *Core
	id      string
	ready   chan struct{} // closed when the lock was taken, or openErr says why not
	openErr error
	entry   AgentEntry

	// op serialises what the contract wants serialised: create, connect, submit,
	// dispose. Holders may take mu; never the other way round.
	op sync.Mutex

	mu        sync.Mutex
	sess      *registry.Session
	rec       registry.Record
	folded    fold
	turn      *turn // under way in this process, or nil
	connected bool  // the bridge process we talk to knows the session
	followers map[chan struct{}]struct{}
}

// record returns a copy of the session's record.
func (l *live) record() registry.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rec
}

// update changes the record and stores it durably. On error the old record holds.
func (l *live) update(change func(*registry.Record)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	rec := l.rec
	l.folded.into(&rec)
	change(&rec)
	if err := l.sess.Put(rec); err != nil {
		return fmt.Errorf("store session %s: %w", l.id, err)
	}
	l.rec = l.sess.Record()
	return nil
}

// append adds an entry to the log, durably or not, and folds it.
func (l *live) append(e Entry, durable bool) error {
	typ, payload, err := encodeEntry(e)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if durable {
		e.Cursor, err = l.sess.AppendSync(typ, payload)
	} else {
		e.Cursor, err = l.sess.Append(typ, payload)
	}
	if err != nil {
		return fmt.Errorf("session %s: log: %w", l.id, err)
	}
	l.folded.add(e)
	for f := range l.followers {
		select {
		case f <- struct{}{}:
		default: // it has been told already
		}
	}
	return nil
}

// follow returns a channel that gets a token whenever the log grew, and the
// function that ends it.
func (l *live) follow() (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followers[ch] = struct{}{}
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.followers, ch)
	}
}

// acquire returns the live session, taking its lock when this process does not
// hold it yet. A session that another process drives is ErrSessionBusy.
func (c *Core) acquire(ctx context.Context, id string) (*live, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, errClosing
		}
		l, found := c.live[id]
		if !found {
			l = &live{c: c, id: id, ready: make(chan struct{}), followers: map[chan struct{}]struct{}{}}
			c.live[id] = l
		}
		c.mu.Unlock()
		if !found {
			return l, l.open(ctx, func() (*registry.Session, error) { return c.opts.Registry.Lock(ctx, id) })
		}
		select {
		case <-l.ready:
			if l.openErr == nil {
				return l, nil
			}
			// Whoever was first could not have it; that says nothing about this call.
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

var errClosing = bridges.Errorf(bridges.KindInternal, "the host is closing")

// open takes the session's lock and folds its log. It closes l.ready; on error the
// session is not live.
func (l *live) open(ctx context.Context, lock func() (*registry.Session, error)) (err error) {
	defer func() {
		if err != nil {
			l.openErr = err
			l.c.drop(l)
		}
		close(l.ready)
	}()
	l.sess, err = lock()
	if err != nil {
		return err
	}
	l.rec = l.sess.Record()
	l.entry, err = l.c.opts.Agents.Resolve(l.rec.Agent)
	if err != nil {
		// The record knows what the agent was; that it is not to be found now is an
		// error of the next start, not of looking at the session.
		l.entry = AgentEntry{Agent: l.rec.AgentDef, Bridge: l.rec.Bridge, Err: err}
	}
	if err := l.refold(); err != nil {
		return errors.Join(err, l.sess.Close())
	}
	return nil
}

// drop forgets a session.
func (c *Core) drop(l *live) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live[l.id] == l {
		delete(c.live, l.id)
	}
}

// refold reads the whole log again.
func (l *live) refold() error {
	l.folded = fold{}
	return l.c.readLog(l.id, 0, func(e Entry) error {
		l.folded.add(e)
		return nil
	})
}

// readLog calls fn for every entry from a cursor on that this version knows.
// Damaged pieces are stepped over; `subspan show` tells of them.
func (c *Core) readLog(id string, from int64, fn func(Entry) error) error {
	for raw, err := range c.opts.Registry.Read(id, from) {
		if err != nil {
			return err
		}
		if raw.Damage != "" {
			c.opts.Log.Warn("damaged piece of a session's log", "session", id, "offset", raw.Offset, "damage", raw.Damage)
			continue
		}
		e, ok, err := decodeEntry(raw.Type, raw.Payload)
		if err != nil {
			c.opts.Log.Warn("unreadable entry in a session's log", "session", id, "offset", raw.Offset, "err", err)
			continue
		}
		if !ok {
			continue
		}
		e.Cursor = raw.End
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// release gives the session back: its processes are ended when it is idle, and
// left to the keeper when a turn is under way.
func (l *live) release(ctx context.Context) error {
	l.op.Lock()
	defer l.op.Unlock()
	rec := l.record()
	var err error
	l.mu.Lock()
	idle, end := l.connected && l.folded.open() == nil, l.folded.end
	l.mu.Unlock()
	if idle {
		_, err = l.dispose(ctx, false)
	}
	if rec.Folded != end { // a checkpoint: the next one to look need not read the log
		err = errors.Join(err, l.update(func(*registry.Record) {}))
	}
	l.c.drop(l)
	return errors.Join(err, l.sess.Close())
}

// disposeGrace is how long an agent may take at each step of its end. The two
// slowest known, codex and grok, need 2.1 s to end after their input is closed.
const disposeGrace = 3 * time.Second

func (l *live) dispose(ctx context.Context, del bool) (bridges.Receipt, error) {
	b, err := l.c.opts.Bridges.Open(ctx, l.bridgeName())
	if err != nil {
		return bridges.Receipt{}, err
	}
	rec := l.record()
	receipt, err := b.Dispose(ctx, bridges.DisposeRequest{
		SessionID: l.id, Agent: l.agent(), Handle: rec.Handle, Settings: l.settings(rec),
		Folders: l.c.folders(rec), Delete: del, Grace: disposeGrace,
	})
	if err != nil {
		return receipt, fmt.Errorf("end session %s: %w", l.id, err)
	}
	l.mu.Lock()
	l.connected = false
	l.mu.Unlock()
	return receipt, nil
}
