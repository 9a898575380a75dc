package agentproc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/keeper"
)

// Main runs the keeper when this process was started as one, and then does not
// return; otherwise it returns at once. Every executable that may be a keeper calls
// it first thing in main: the program itself, plugins, test binaries (in TestMain).
func Main() {
	if len(os.Args) == 3 && os.Args[1] == canaryVerb && os.Getenv(canaryVerb) == os.Args[2] {
		canary(os.Args[2])
	}
	if len(os.Args) == 3 && os.Args[1] == keeper.Verb && os.Getenv(keeper.Env) == os.Args[2] {
		keeper.Run(os.Args[2])
	}
}

// KeeperEnv names the environment variable that holds the absolute path of the
// executable to run as keeper, for processes that cannot be one themselves.
const KeeperEnv = "SUBSPAN_KEEPER"

const (
	defaultGrace    = 10 * time.Second
	defaultSpoolCap = 1 << 30
)

// Spec says what to run and how to keep it.
type Spec struct {
	// SessionID marks every process of the session, in its environment.
	SessionID string
	// Dir is the session's folder. It is made when missing (0700) and must not hold
	// an earlier process: Remove that first.
	Dir string
	// Command is the executable, absolute, and its arguments.
	Command []string
	// Env is the agent's whole environment. Values are handed to the keeper over a
	// pipe and never stored.
	Env []string
	Cwd string
	// Sandbox confines the agent; the zero value does not.
	Sandbox Sandbox
	// Lease is a file whose lock somebody holds while the agent is wanted; empty for
	// none. Once it has been free for Grace (0 = 10 s), the tree is ended.
	Lease string
	Grace time.Duration
	// SpoolCap is how many bytes of output may wait to be read (0 = 1 GiB). An agent
	// that goes over it is ended.
	SpoolCap int64
	// OutOffset is the offset that the agent's first byte of output gets. A new
	// process of an old session goes on where the last one's Size was, so that
	// positions stay in order.
	OutOffset int64
	// Interrupt sends SIGINT before SIGTERM, and waits in between.
	Interrupt bool
	// Keeper is the command that becomes the keeper. Empty: what KeeperEnv names,
	// else this process's own executable.
	Keeper []string
}

// Sandbox says what the agent may write to. Besides its folders the agent has its
// own TMPDIR, which is removed with the session.
type Sandbox struct {
	Mode SandboxMode
	// Writable are folders (or files) that the agent may write to, such as its
	// state. They exist already, and do not contain Spec.Dir.
	Writable []string
	// Workspace is writable in SandboxWorkspace; it does not contain Spec.Dir.
	Workspace string
	// Read are the folders and files that may be read and executed; nil = everything.
	Read []string
}

// SandboxMode is what a sandbox is for.
type SandboxMode int

const (
	SandboxOff       SandboxMode = iota // none
	SandboxReadOnly                     // writes to Writable and TMPDIR alone
	SandboxWorkspace                    // and to Workspace
)

// Runner starts and follows agents. One watcher serves all sessions of a process,
// because the system has few of them. It is safe for concurrent use.
type Runner struct {
	watcher *fsnotify.Watcher
	done    sync.WaitGroup
	stop    chan struct{}

	mu     sync.Mutex
	procs  map[string]map[*Proc]struct{} // by the path of their spool
	kept   map[int]*os.Process           // keepers that are our children, not yet reaped
	closed bool
}

// NewRunner returns a Runner that is ready to use. The caller closes it.
func NewRunner() (*Runner, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching files (inotify instances may be used up; see fs.inotify.max_user_instances): %w", err)
	}
	r := &Runner{watcher: w, stop: make(chan struct{}), procs: map[string]map[*Proc]struct{}{}, kept: map[int]*os.Process{}}
	r.done.Go(r.dispatch)
	r.done.Go(r.reap)
	return r, nil
}

// Close releases every Proc and stops following. Agents live on. A keeper that ends
// later stays a zombie until this process ends.
func (r *Runner) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	var procs []*Proc
	for _, set := range r.procs {
		for p := range set {
			procs = append(procs, p)
		}
	}
	r.mu.Unlock()
	for _, p := range procs {
		p.Release()
	}
	close(r.stop)
	err := r.watcher.Close()
	r.done.Wait()
	return err
}

// dispatch wakes those whose spool changed.
func (r *Runner) dispatch() {
	for {
		select {
		case e, ok := <-r.watcher.Events:
			if !ok {
				return
			}
			r.mu.Lock()
			for p := range r.procs[e.Name] {
				p.wake(e.Has(fsnotify.Chmod))
			}
			r.mu.Unlock()
		case _, ok := <-r.watcher.Errors:
			if !ok {
				return
			}
			// Events were lost. Everybody looks for himself.
			r.mu.Lock()
			for _, set := range r.procs {
				for p := range set {
					p.wake(true)
				}
			}
			r.mu.Unlock()
		}
	}
}

// follow makes p hear of its spool.
func (r *Runner) follow(p *Proc) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errors.New("the runner is closed")
	}
	path := filepath.Join(p.dir, folder.Out)
	if r.procs[path] == nil {
		if err := r.watcher.Add(path); err != nil {
			return fmt.Errorf("watching the spool: %w", err)
		}
		r.procs[path] = map[*Proc]struct{}{}
	}
	r.procs[path][p] = struct{}{}
	return nil
}

func (r *Runner) unfollow(p *Proc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := filepath.Join(p.dir, folder.Out)
	delete(r.procs[path], p)
	if len(r.procs[path]) == 0 && r.procs[path] != nil {
		delete(r.procs, path)
		// It fails when the file is gone, and then there is nothing to remove.
		_ = r.watcher.Remove(path)
	}
}
