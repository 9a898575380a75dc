// Package keeper is the process that keeps one agent: it starts it, confines it,
// records how it ended and ends its whole tree. It reads and writes none of the
// agent's bytes, and nothing depends on whoever started it.
package keeper

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

// Verb and Env are how a process is told that it is a keeper: the verb with the
// folder as arguments, and the folder once more in the environment, so that no
// program's own "keep" is taken for it.
const (
	Verb = "keep"
	Env  = "SUBSPAN_KEEP"
)

const (
	// checkEvery is how often the lease, the spool and the stderr are looked at.
	checkEvery = time.Second
	// keepStderr is what stays of the agent's stderr once it is longer than twice that.
	keepStderr = 256 << 10
)

type keeper struct {
	dir  string
	spec folder.SpecRecord
	tree *tree

	input    io.Closer // our write end of In; nil once closed
	out, err *os.File
	orders   chan folder.Order
	term     chan os.Signal

	lease     *flock.Flock
	leaseFree time.Time // since when; zero while it is held
	punchedTo int64     // of stderr

	ordered string // the first order's reason
	exit    *bridges.Exit
}

// Run keeps the agent that its stdin describes and does not return.
func Run(dir string) {
	// The keeper mostly sleeps, once per session: one processor and a small heap do.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(20)
	k, err := start(dir)
	status := folder.Status{OK: err == nil}
	if err != nil {
		e := bridges.AsError(err)
		status = folder.Status{Kind: string(e.Kind), Detail: e.Message, Next: e.Next}
	}
	// Nobody may be left to read it. The agent runs all the same: whoever comes next
	// finds it by the folder.
	_ = json.NewEncoder(os.Stdout).Encode(status)
	if err != nil {
		os.Exit(1)
	}
	if err := detachStdio(); err != nil {
		fmt.Fprintln(os.Stderr, "detaching:", err)
	}
	debug.FreeOSMemory()
	k.run()
	os.Exit(0)
}

func start(dir string) (*keeper, error) {
	var config folder.Config
	if err := json.NewDecoder(os.Stdin).Decode(&config); err != nil {
		return nil, fmt.Errorf("the keeper was not told what to run: %w", err)
	}
	k := &keeper{dir: dir, spec: config.Spec, orders: make(chan folder.Order), term: make(chan os.Signal, 1)}
	// SIGHUP and SIGINT are for whoever sits at the terminal that we left. They are
	// caught, not ignored: what is ignored here would stay ignored in the agent.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT)
	signal.Notify(k.term, syscall.SIGTERM)
	if k.spec.Lease != "" {
		// Without O_CREATE: a lease that is not there is free, and stays so.
		k.lease = flock.New(k.spec.Lease, flock.SetFlag(os.O_RDONLY))
	}
	var err error
	if k.out, err = openOutput(filepath.Join(dir, folder.Out)); err != nil {
		return nil, err
	}
	if k.err, err = openOutput(filepath.Join(dir, folder.Err)); err != nil {
		return nil, err
	}
	if k.tree, err = newTree(k.spec.SessionID); err != nil {
		return nil, err
	}
	if err := k.listen(); err != nil {
		return nil, err
	}
	if err := k.startAgent(config.Env); err != nil {
		return nil, err
	}
	if err := k.record(); err != nil {
		k.tree.kill()
		return nil, err
	}
	return k, nil
}

// record writes keeper.json, by which every later process finds us.
func (k *keeper) record() error {
	boot, err := proctree.BootID()
	if err != nil {
		return fmt.Errorf("boot id: %w", err)
	}
	self, err := proctree.Lookup(os.Getpid())
	if err != nil {
		return err
	}
	return folder.WriteJSON(filepath.Join(k.dir, folder.Keeper), folder.KeeperRecord{
		Version: folder.Version, SessionID: k.spec.SessionID, Dir: k.dir, Boot: boot,
		Keeper: self.ID, Agent: k.tree.leader, Hold: k.tree.hold, Started: time.Now(),
	})
}

// run waits for the end, of the agent or by order, and carries it out.
func (k *keeper) run() {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case e := <-k.tree.exited:
			k.leaderExited(e)
			k.end(folder.Order{})
			return
		case o := <-k.orders:
			if o.CloseInput {
				k.closeInput()
			}
			if o.Stop {
				k.end(o)
				return
			}
		case s := <-k.term:
			k.end(folder.Order{Reason: "the keeper was asked to end: " + s.String()})
			return
		case <-tick.C:
			if o, due := k.check(time.Now()); due {
				k.end(o)
				return
			}
		}
	}
}

// check is what is looked at from time to time. It returns an order when the agent
// has to end.
func (k *keeper) check(now time.Time) (folder.Order, bool) {
	k.boundStderr()
	if used, err := folder.AllocatedBytes(k.out); err == nil && used > k.spec.SpoolCap {
		return folder.Order{Reason: fmt.Sprintf("spool over its cap: %d bytes unread, %d allowed", used, k.spec.SpoolCap)}, true
	}
	if k.lease == nil || k.leaseHeld() {
		k.leaseFree = time.Time{}
		return folder.Order{}, false
	}
	if k.leaseFree.IsZero() {
		k.leaseFree = now
	}
	if now.Sub(k.leaseFree) < k.spec.Grace {
		return folder.Order{}, false
	}
	return folder.Order{Reason: fmt.Sprintf("the host has been gone for longer than %v", k.spec.Grace)}, true
}

// leaseHeld tries the lock. It has it for an instant when it is free: hosts try
// more than once when they start.
func (k *keeper) leaseHeld() bool {
	free, err := k.lease.TryRLock()
	if free {
		err = k.lease.Unlock()
	}
	// Held, or not to be told: an unreadable lease is no reason to kill. A missing
	// one is: a host keeps its lease where it said.
	return !free && !errors.Is(err, fs.ErrNotExist)
}

// boundStderr keeps the end of the agent's stderr and frees the rest, without ever
// making the agent wait.
func (k *keeper) boundStderr() {
	st, err := k.err.Stat()
	if err != nil {
		return
	}
	k.punchedTo = min(k.punchedTo, st.Size()) // the agent may have cut its file
	if st.Size()-k.punchedTo < 2*keepStderr {
		return
	}
	to := (st.Size() - keepStderr) &^ 4095
	if err := folder.Punch(k.err, k.punchedTo, to); err != nil {
		// No holes here. Every writer appends, so the file may start over.
		_ = k.err.Truncate(0)
		to = 0
	}
	k.punchedTo = to
}

func (k *keeper) closeInput() {
	if k.input != nil {
		_ = k.input.Close()
		k.input = nil
	}
}

// leaderExited records the agent's end at once: what is left of its tree, which may
// hold its output open, is nobody's business but ours.
func (k *keeper) leaderExited(e bridges.Exit) {
	e.Ordered = k.ordered
	e.Stderr = folder.Tail(filepath.Join(k.dir, folder.Err), folder.StderrTail)
	k.exit = &e
	k.closeInput() // who writes now must not wait for a reader
	if err := folder.WriteJSON(filepath.Join(k.dir, folder.Exit), e); err != nil {
		fmt.Fprintln(os.Stderr, "recording the exit:", err)
	}
	folder.Wake(k.dir)
}

// readOrders hands on one order per line. It ends with the process: its source
// never does. Lines that are no orders are noted and passed over.
func (k *keeper) readOrders(source io.Reader) {
	lines := bufio.NewReader(source)
	skip := false
	for {
		line, err := lines.ReadSlice('\n')
		whole := !skip && err == nil
		skip = errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !skip {
			fmt.Fprintln(os.Stderr, "no more orders:", err)
			return
		}
		if !whole {
			continue
		}
		var o folder.Order
		if err := json.Unmarshal(line, &o); err != nil {
			fmt.Fprintln(os.Stderr, "an order that is none:", err)
			continue
		}
		k.orders <- o
	}
}

func openOutput(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
}
