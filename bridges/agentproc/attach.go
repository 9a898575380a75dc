package agentproc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

// ErrNoProcess says that a folder holds no agent's process, running or ended.
var ErrNoProcess = errors.New("no agent's process")

// Attach finds the process of a folder that an earlier process of ours made. It may
// have ended since, and its keeper too: what it wrote is still there to be read.
// When there never was one, the error is ErrNoProcess.
func (r *Runner) Attach(ctx context.Context, dir string) (*Proc, error) {
	if !folder.Exists(filepath.Join(dir, folder.Spec)) {
		return nil, fmt.Errorf("%w in %s", ErrNoProcess, dir)
	}
	wait := time.NewTimer(0)
	defer wait.Stop()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		// In this order: a keeper that writes its record and dies in between is found.
		alive := folder.Locked(dir, folder.Lock)
		if folder.Exists(filepath.Join(dir, folder.Keeper)) {
			p, err := r.open(dir)
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%w in %s: it was removed", ErrNoProcess, dir)
			}
			return p, err
		}
		if !alive {
			// Its starter or keeper died on the way: nobody was ever told of it.
			_, err := salvage(dir)
			return nil, errors.Join(fmt.Errorf("%w in %s: its start was cut short", ErrNoProcess, dir), err)
		}
		wait.Reset(pause)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the keeper in %s: %w", dir, context.Cause(ctx))
		case <-wait.C:
		}
	}
}

// salvage is what is left to do when the keeper is dead: it ends what can still be
// found of the tree and writes the records that the keeper did not. With them
// written already it returns the receipt. folder.ErrLocked means that somebody else
// is at it, or that the keeper lives.
func salvage(dir string) (bridges.Receipt, error) {
	lock, err := folder.LockFileAt(dir, folder.Lock)
	if errors.Is(err, fs.ErrNotExist) {
		return bridges.Receipt{}, fmt.Errorf("%w in %s: it was removed", ErrNoProcess, dir)
	}
	if err != nil {
		return bridges.Receipt{}, err
	}
	defer lock.Close()
	if r, err := readReceipt(dir); err == nil && r.SurvivedCount == 0 {
		return r, nil
	}
	var spec folder.SpecRecord
	if err := folder.ReadJSON(filepath.Join(dir, folder.Spec), &spec); err != nil {
		return bridges.Receipt{}, err
	}
	var record folder.KeeperRecord
	if err := folder.ReadJSON(filepath.Join(dir, folder.Keeper), &record); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return bridges.Receipt{}, err
	}
	boot, err := proctree.BootID()
	if err != nil {
		return bridges.Receipt{}, fmt.Errorf("boot id: %w", err)
	}
	r, why := bridges.Receipt{}, "the keeper was killed, and the agent with it"
	if record.Boot == "" || record.Boot == boot {
		r = sweep(spec.SessionID, record.Agent)
		r.Notes = []string{"the keeper was killed: only processes with the session's mark could be found"}
	} else {
		why = "the machine was started anew"
		r.Notes = []string{why}
	}
	exitPath := filepath.Join(dir, folder.Exit)
	var exit bridges.Exit
	if err := folder.ReadJSON(exitPath, &exit); err != nil {
		exit = bridges.Exit{
			Code: -1, Signal: syscall.SIGKILL.String(), At: time.Now(), Ordered: why,
			Stderr: folder.Tail(filepath.Join(dir, folder.Err), folder.StderrTail),
		}
		if err := folder.WriteJSON(exitPath, exit); err != nil {
			return bridges.Receipt{}, fmt.Errorf("recording the exit: %w", err)
		}
	}
	r.Exit = &exit
	if err := folder.WriteJSON(filepath.Join(dir, folder.Receipt), r); err != nil {
		return bridges.Receipt{}, fmt.Errorf("writing the receipt: %w", err)
	}
	folder.Wake(dir)
	return r, nil
}

// sweep kills the agent and what carries the session's mark, until nobody is found.
func sweep(session string, agent proctree.ID) bridges.Receipt {
	seen := map[proctree.ID]proctree.Process{}
	find := func() []proctree.Process {
		root := -1
		var found []proctree.Process
		if proctree.Alive(agent) {
			root = agent.PID
			found = append(found, proctree.Process{ID: agent})
		}
		more, _ := proctree.Session(session, root) // what cannot be looked at cannot be ended
		found = append(found, more...)
		for _, p := range found {
			if old, ok := seen[p.ID]; !ok || old.Command == "" {
				seen[p.ID] = p
			}
		}
		return found
	}
	deadline := time.Now().Add(5 * time.Second)
	left := find()
	for pause := time.Millisecond; len(left) > 0 && time.Now().Before(deadline); pause = min(2*pause, 50*time.Millisecond) {
		for _, p := range left {
			_ = proctree.Signal(p.ID, syscall.SIGKILL)
		}
		time.Sleep(pause)
		left = find()
	}
	return proctree.Receipt(seen, left)
}

func readReceipt(dir string) (bridges.Receipt, error) {
	var r bridges.Receipt
	err := folder.ReadJSON(filepath.Join(dir, folder.Receipt), &r)
	return r, err
}

// Remove removes the folder of a session whose process has ended, with all that is
// in it. It refuses while a keeper lives. A folder that is not there is no error.
func Remove(dir string) error {
	if !filepath.IsAbs(dir) {
		return bridges.Errorf(bridges.KindInvalidArgument, "session folder %q is not absolute", dir)
	}
	lock, err := folder.LockFileAt(dir, folder.Lock)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, folder.ErrLocked):
		return bridges.Errorf(bridges.KindSessionBusy, "the process in %s has not ended", dir).WithNext("stop it first")
	case err != nil:
		return err
	}
	defer lock.Close()
	// Whoever looks at the lock meanwhile may make its file anew, hence not once only.
	for range 5 {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
	}
	// The agent's TMPDIR may hold folders without the right to remove from them, such
	// as a module cache.
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing the session's folder: %w", err)
	}
	return nil
}

// clear removes what Start has made and leaves what others keep in the folder. The
// lock stays: its holder is still at work.
func clear(dir string) error {
	var errs []error
	for _, name := range []string{
		folder.In, folder.Out, folder.Err, folder.Sent, folder.Checkpoint, folder.Orders, folder.Keeper,
		folder.Exit, folder.Receipt, folder.WriterLock, folder.Log, folder.Temp,
		folder.Spec, // last: it is what makes the folder a session's
	} {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

// Ancestor finds the session that a process belongs to: it walks up to the nearest
// keeper that known vouches for. What a process says of itself counts for nothing,
// so known must compare the folder with the one that it gave to that session itself:
// anybody can make a folder that looks like a session's.
//
// When no keeper is found but the process or a parent carries the mark of a session,
// the session's id is returned with ok false: its keeper is dead, and the process
// must not be taken for a stranger. Linux only; elsewhere ok is never true.
func Ancestor(pid int, known func(sessionID, dir string) bool) (sessionID, dir string, ok bool) {
	boot, err := proctree.BootID()
	if err != nil {
		return "", "", false
	}
	mark := ""
	for range 4096 { // a chain of parents has an end; a race may make it look otherwise
		p, err := proctree.Lookup(pid)
		if err != nil || pid <= 1 {
			break
		}
		if mark == "" {
			mark = proctree.MarkOf(pid)
		}
		if cwd, err := proctree.Cwd(pid); err == nil {
			var record folder.KeeperRecord
			err := folder.ReadJSON(filepath.Join(cwd, folder.Keeper), &record)
			if err == nil && record.Keeper == p.ID && record.Boot == boot && same(cwd, record.Dir) && known(record.SessionID, record.Dir) {
				return record.SessionID, record.Dir, true
			}
		}
		pid = p.Parent
	}
	return mark, "", false
}

// same reports whether both paths lead to the same folder.
func same(a, b string) bool {
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(x, y)
}
