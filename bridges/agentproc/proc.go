package agentproc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

const (
	// lookEvery is how often a folder is looked at without having been told to: for
	// file systems whose changes are not announced, and for the keeper's death.
	lookEvery = time.Second
	// keeperMargin is how much longer than its three steps (interrupt, terminate, kill)
	// the keeper may take to end a tree, before it is taken to be hung itself.
	keeperMargin = 7 * time.Second
	// punchEvery is how much consumed output is freed at a time.
	punchEvery = 1 << 20
)

// Proc is the process of a session as one process sees it. Several may look at the
// same one; only the first to write may write. It is safe for concurrent use.
// Release frees what it holds here.
type Proc struct {
	r      *Runner
	dir    string
	spec   folder.SpecRecord
	record folder.KeeperRecord
	out    *os.File

	exited   chan struct{}
	released chan struct{}
	relook   chan struct{} // there may be a new record
	watching sync.WaitGroup
	release  sync.Once

	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil when nobody waits
	exit    bridges.Exit  // valid once exited is closed
	punched int64

	readTo atomic.Int64 // the end of what Readers have returned
	input  input
}

// open makes a Proc of a folder whose keeper has written its record.
func (r *Runner) open(dir string) (*Proc, error) {
	p := &Proc{
		r: r, dir: dir, exited: make(chan struct{}), released: make(chan struct{}),
		relook: make(chan struct{}, 1), input: newInput(),
	}
	if err := folder.ReadJSON(p.at(folder.Spec), &p.spec); err != nil {
		return nil, err
	}
	if err := folder.ReadJSON(p.at(folder.Keeper), &p.record); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(p.at(folder.Out), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	p.out = out
	if err := r.follow(p); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	if sent, err := p.Sent(context.Background()); err == nil && len(sent) > 0 {
		p.input.seq = sent[len(sent)-1].Seq
	} else if c, ok, err := p.Checkpointed(); err == nil && ok {
		p.input.seq = c.Sent
	} // a damaged journal is reported by Sent and Write; it can still be stopped
	p.look()
	p.watching.Go(p.watch)
	return p, nil
}

func (p *Proc) at(name string) string { return filepath.Join(p.dir, name) }

// watch waits for the agent's end.
func (p *Proc) watch() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.exited:
			return
		case <-p.released:
			return
		case <-p.relook:
		case <-tick.C:
		}
		p.look()
	}
}

// look reads how the agent ended, if it has, and finds out whether its keeper is
// still there to tell.
func (p *Proc) look() {
	var e bridges.Exit
	err := folder.ReadJSON(p.at(folder.Exit), &e)
	if err != nil && !folder.Locked(p.dir, folder.Lock) {
		// The keeper is dead. It may have written the record just before.
		if err = folder.ReadJSON(p.at(folder.Exit), &e); err != nil {
			_, err = salvage(p.dir)
			if err == nil {
				err = folder.ReadJSON(p.at(folder.Exit), &e)
			}
		}
	}
	if removed(err) && !folder.Exists(p.dir) {
		// Only an ended tree's folder is removed, and on somebody's order.
		e, err = bridges.Exit{Code: -1, At: time.Now(), Ordered: "ended by another process of the host"}, nil
	}
	if err == nil {
		p.setExit(e)
	}
}

// removed reports whether an error means that the folder was removed while we looked.
func removed(err error) bool { return errors.Is(err, ErrNoProcess) || errors.Is(err, fs.ErrNotExist) }

func (p *Proc) setExit(e bridges.Exit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.exited:
		return
	default:
	}
	p.exit = e
	close(p.exited)
	p.input.interrupt()
}

// wake is called for every change of the spool. records says that a record may have
// changed too.
func (p *Proc) wake(records bool) {
	if records {
		select {
		case p.relook <- struct{}{}:
		default:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// change returns a channel that is closed at the next change of the spool.
func (p *Proc) change() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// Dir is the session's folder.
func (p *Proc) Dir() string { return p.dir }

// Exited is closed when the agent itself has ended, whatever its tree does.
func (p *Proc) Exited() <-chan struct{} { return p.exited }

// Exit returns how the agent ended; false while it runs.
func (p *Proc) Exit() (bridges.Exit, bool) {
	select {
	case <-p.exited:
		return p.exit, true
	default:
		return bridges.Exit{}, false
	}
}

// Stderr returns the end of the agent's stderr, at most 8 KiB. Like the output it may
// hold secrets.
func (p *Proc) Stderr() string { return folder.Tail(p.at(folder.Err), folder.StderrTail) }

// Size is where the agent's output ends now.
func (p *Proc) Size() (int64, error) {
	st, err := p.out.Stat()
	if err != nil {
		return 0, fmt.Errorf("the spool: %w", err)
	}
	return st.Size(), nil
}

// Hold is how the sandbox is held: HoldKernel with its detail, or the zero Hold when
// there is none.
func (p *Proc) Hold() bridges.Hold {
	if p.record.Hold == "" {
		return bridges.Hold{}
	}
	return bridges.Hold{Strength: bridges.HoldKernel, Detail: p.record.Hold}
}

// Processes names the keeper and the agent, whether they still live or not.
func (p *Proc) Processes() (keeper, agent bridges.Process) {
	return proctree.Process{ID: p.record.Keeper}.Contract(), proctree.Process{ID: p.record.Agent}.Contract()
}

// Consumed says that the output before off is not needed any more, by this process
// or by a later one: its space is freed, a piece at a time. Call it after the
// Checkpoint (or the host's record) that makes it so.
func (p *Proc) Consumed(off int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	off &^= 4095
	if off-p.punched < punchEvery {
		return
	}
	// Where it cannot be done the spool grows to its cap, which ends the agent by
	// name.
	if folder.Punch(p.out, p.punched, off) == nil {
		p.punched = off
	}
}

// Release stops following and frees what the Proc holds in this process. The agent
// lives on. Readers end with fs.ErrClosed.
func (p *Proc) Release() {
	p.release.Do(func() {
		close(p.released)
		p.r.unfollow(p)
		p.watching.Wait()
		p.input.close()
		_ = p.out.Close()
	})
}

func (p *Proc) isReleased() bool {
	select {
	case <-p.released:
		return true
	default:
		return false
	}
}

// StopOptions say how to end a tree.
type StopOptions struct {
	Reason    string        // for the record; a long one is cut
	Grace     time.Duration // how long to wait at each step between asking and killing; 0 = 2 s
	Interrupt bool          // begin with SIGINT
}

// Stop ends the agent's whole tree and returns when it is gone, or when what is left
// of it is named in the receipt. It is idempotent, and works after Release too. When
// somebody else ended the tree and removed the folder meanwhile, the receipt says so:
// a folder is removed only after the end of its tree was proven. When ctx ends first,
// the order stands.
func (p *Proc) Stop(ctx context.Context, o StopOptions) (bridges.Receipt, error) {
	if o.Grace <= 0 {
		o.Grace = 2 * time.Second
	}
	order := folder.Order{Stop: true, Reason: o.Reason, Grace: o.Grace, Interrupt: o.Interrupt}
	patience := time.NewTimer(3*o.Grace + keeperMargin)
	defer patience.Stop()
	ordered := false
	pause := time.NewTimer(0)
	defer pause.Stop()
	wait := time.Millisecond
	for {
		change := p.change()
		if !folder.Locked(p.dir, folder.Lock) {
			r, err := salvage(p.dir)
			if removed(err) {
				r, err = bridges.Receipt{Proven: true, Notes: []string{"another process of the host ended it at the same time, and has its receipt"}}, nil
			}
			if !errors.Is(err, folder.ErrLocked) { // else somebody is at it
				p.look()
				return r, err
			}
		} else if r, err := readReceipt(p.dir); err == nil && r.SurvivedCount > 0 {
			return r, nil
		}
		if !ordered {
			err := p.order(ctx, order)
			if err != nil && !errors.Is(err, folder.ErrNoReader) && !errors.Is(err, fs.ErrNotExist) {
				return bridges.Receipt{}, err
			}
			ordered = err == nil
		}
		pause.Reset(wait)
		wait = min(2*wait, 10*time.Millisecond)
		select {
		case <-ctx.Done():
			return bridges.Receipt{}, bridges.Errorf(bridges.KindTimeout, "the agent's tree is being ended: %w", context.Cause(ctx)).
				WithNext("stop it again to get the receipt").AsRetryable()
		case <-patience.C:
			if err := proctree.Signal(p.record.Keeper, syscall.SIGKILL); err != nil && !errors.Is(err, proctree.ErrGone) {
				return bridges.Receipt{}, fmt.Errorf("the keeper neither works nor dies: %w", err)
			}
		case <-change:
		case <-pause.C:
		}
	}
}

// order hands an order to the keeper.
func (p *Proc) order(ctx context.Context, o folder.Order) error {
	line, err := o.Line()
	if err != nil {
		return err
	}
	f, err := folder.DialInlet(p.at(folder.Orders))
	if err != nil {
		return err
	}
	defer f.Close()
	deadline := time.Now().Add(2 * time.Second)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	_ = f.SetWriteDeadline(deadline) // where files have none, a write never waits
	if _, err := f.Write(line); err != nil {
		return fmt.Errorf("the keeper does not take orders: %w", err)
	}
	return nil
}
