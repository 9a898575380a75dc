//go:build unix

package agentproc

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// detach makes the command outlive us: its own session, and the folder's lock.
func detach(cmd *exec.Cmd, lock *os.File) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.ExtraFiles = []*os.File{lock} // keeper.LockFD
}

// keeperEnv is what the keeper itself needs of our environment.
func keeperEnv() []string { return nil }

// adopt remembers a keeper as our child, to be reaped when it ends.
func (r *Runner) adopt(process *os.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept[process.Pid] = process
}

// waitFor reaps a keeper that is about to end.
func (r *Runner) waitFor(process *os.Process) {
	r.mu.Lock()
	_, ours := r.kept[process.Pid]
	delete(r.kept, process.Pid)
	r.mu.Unlock()
	if ours {
		_, _ = process.Wait()
	}
}

// reap collects keepers that end. Waiting for each of them would take a thread per
// session.
func (r *Runner) reap() {
	child := make(chan os.Signal, 1)
	signal.Notify(child, syscall.SIGCHLD)
	defer signal.Stop(child)
	for {
		select {
		case <-r.stop:
			return
		case <-child:
		}
		r.mu.Lock()
		for pid, process := range r.kept {
			got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
			if got == pid || err != nil && !errors.Is(err, unix.EINTR) {
				delete(r.kept, pid)
				_ = process.Release()
			}
		}
		r.mu.Unlock()
	}
}
