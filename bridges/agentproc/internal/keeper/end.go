package keeper

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

const (
	defaultGrace = 2 * time.Second
	// afterExit is how long the agent's own children may go on without it.
	afterExit = 2 * time.Second
	// killFor is how long killing is tried before the survivors are named.
	killFor = 5 * time.Second
)

// ending is one end of a tree, from the first signal to the receipt.
type ending struct {
	k      *keeper
	seen   map[proctree.ID]proctree.Process
	notes  []string
	hurry  time.Time // no step waits longer than this; zero for none
	killed map[proctree.ID]bool
	over   bool // nobody is left
}

// end ends the tree. The zero Order is for an agent that ended by itself.
func (k *keeper) end(o folder.Order) {
	e := &ending{k: k, seen: map[proctree.ID]proctree.Process{}, killed: map[proctree.ID]bool{}}
	k.ordered = o.Reason
	grace := o.Grace
	if grace <= 0 {
		grace = defaultGrace
	}
	if k.exit == nil && (o.Interrupt || k.spec.Interrupt) {
		e.survey()
		k.tree.interrupt()
		e.await(grace, func() bool { return k.exit != nil })
	}
	if k.exit != nil { // its children see that it is gone and may go by themselves
		e.await(min(grace, afterExit), e.gone)
	}
	if !e.gone() {
		for _, p := range e.survey() {
			k.tree.terminate(p.ID)
		}
		e.await(grace, e.gone)
	}
	if !e.gone() {
		e.killAll()
	}
	var left []proctree.Process
	if !e.gone() {
		left = e.survey()
	}
	e.finish(left)
	// What cannot be killed now (it waits for a disk, it has another user's rights)
	// stays below us, so that it can be named and is killed when that becomes
	// possible.
	for len(left) > 0 {
		e.await(time.Second, e.gone)
		for _, p := range e.survey() {
			_ = proctree.Signal(p.ID, syscall.SIGKILL)
		}
		if now := e.survey(); len(now) < len(left) {
			left = now
			e.finish(left)
		}
	}
}

// survey looks at who is alive and remembers them.
func (e *ending) survey() []proctree.Process {
	alive := e.k.tree.alive()
	for _, p := range alive {
		e.seen[p.ID] = p
	}
	return alive
}

// childless reports whether every child of ours was reaped.
func (e *ending) childless() bool {
	select {
	case <-e.k.tree.none:
		return true
	default:
		return false
	}
}

// gone reports whether nobody is left, and has then recorded the agent's exit.
func (e *ending) gone() bool {
	if e.over || !e.childless() {
		return e.over
	}
	if e.k.exit == nil {
		e.k.leaderExited(<-e.k.tree.exited) // sent before the last child was reaped
	}
	e.over = len(e.survey()) == 0
	return e.over
}

// await waits until done or for d, or for less when an order says so. The agent's
// exit is recorded the moment it happens.
func (e *ending) await(d time.Duration, done func() bool) {
	deadline := time.Now().Add(d)
	poll := time.NewTimer(0)
	defer poll.Stop()
	pause := time.Millisecond
	none := e.k.tree.none
	for {
		if done() {
			return
		}
		until := deadline
		if !e.hurry.IsZero() && e.hurry.Before(until) {
			until = e.hurry
		}
		left := time.Until(until)
		if left <= 0 {
			return
		}
		poll.Reset(min(pause, left))
		pause = min(2*pause, 100*time.Millisecond)
		select {
		case x := <-e.k.tree.exited:
			e.k.leaderExited(x)
		case <-none:
			none = nil
		case o := <-e.k.orders:
			e.more(o)
		case <-e.k.term:
			e.more(folder.Order{Stop: true})
		case <-poll.C:
		}
	}
}

// more takes an order that arrives while another one is carried out: it can only
// make it quicker.
func (e *ending) more(o folder.Order) {
	if o.CloseInput {
		e.k.closeInput()
	}
	if !o.Stop {
		return
	}
	if e.k.ordered == "" {
		e.k.ordered = o.Reason
	}
	grace := o.Grace
	if grace <= 0 {
		grace = defaultGrace
	}
	if at := time.Now().Add(grace); e.hurry.IsZero() || at.Before(e.hurry) {
		e.hurry = at
	}
}

// killAll kills until nobody is left: a process may start another between two
// looks, so one look is never enough.
func (e *ending) killAll() {
	e.hurry = time.Time{}
	deadline := time.Now().Add(killFor)
	pause := time.Millisecond
	for !e.gone() && time.Now().Before(deadline) {
		for _, p := range e.survey() {
			if proctree.Signal(p.ID, syscall.SIGKILL) == nil {
				e.killed[p.ID] = true
			}
		}
		e.await(pause, e.gone)
		pause = min(2*pause, 50*time.Millisecond)
	}
	if n := len(e.killed); n > 0 {
		e.notes = append(e.notes, fmt.Sprintf("%d had to be killed", n))
	}
}

// finish writes the receipt, with those who are left.
func (e *ending) finish(left []proctree.Process) {
	r := proctree.Receipt(e.seen, left)
	r.Exit, r.Notes = e.k.exit, e.notes
	r.Proven = runtime.GOOS == "linux" && len(left) == 0 && e.childless()
	if err := folder.WriteJSON(filepath.Join(e.k.dir, folder.Receipt), r); err != nil {
		fmt.Fprintln(os.Stderr, "writing the receipt:", err)
	}
	folder.Wake(e.k.dir)
}
