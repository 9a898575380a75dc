//go:build unix

package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/confine"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

// LockFD is where the keeper inherits the folder's lock from its starter.
const LockFD = 3

// tree is the agent and everything below it. On Linux the keeper is the subreaper,
// so whoever loses its parent becomes our child, and "no child is left" proves that
// the tree is gone. Elsewhere the marker in the environment has to do.
type tree struct {
	session string
	leader  proctree.ID
	hold    string
	exited  chan bridges.Exit // gets the leader's exit, once

	none   chan struct{} // closed when wait said that there is no child
	parted chan struct{} // closed when the leader was reaped: its starting thread may end
}

func newTree(session string) (*tree, error) {
	if err := becomeSubreaper(); err != nil {
		return nil, err
	}
	return &tree{
		session: session, exited: make(chan bridges.Exit, 1),
		none: make(chan struct{}), parted: make(chan struct{}),
	}, nil
}

// closeInherited closes the files that were open in whoever started our starter and
// leaked to us. An open file is a right, which no sandbox takes back, and a pipe
// that we hold open never ends for its reader. Files of our own runtime are marked
// to be closed on exec; leaked ones are not.
func closeInherited() error {
	unix.CloseOnExec(LockFD) // or the agent would hold the lock
	files, err := os.ReadDir("/dev/fd")
	if err != nil {
		return fmt.Errorf("looking for inherited files: %w", err)
	}
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		if err != nil || fd <= LockFD {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// listen opens the orders and the agent's input. Both stay open for writing, so
// that neither the agent nor we see an end because a bridge came or went.
func (k *keeper) listen() error {
	if err := closeInherited(); err != nil {
		return err
	}
	orders, err := folder.OpenInlet(filepath.Join(k.dir, folder.Orders))
	if err != nil {
		return err
	}
	input, err := folder.OpenInlet(filepath.Join(k.dir, folder.In))
	if err != nil {
		return err
	}
	k.input = input
	go k.readOrders(orders)
	return nil
}

// startAgent starts the agent on a thread of its own, which the sandbox is put on
// and which lives as long as the agent: the agent dies with its starting thread
// (PDEATHSIG), that is, with the keeper.
func (k *keeper) startAgent(env []string) error {
	command := k.spec.Command
	var sandbox *confine.Confinement
	if k.spec.Rules.Mode != confine.Off {
		detail, err := confine.Check()
		if err == nil {
			sandbox, err = confine.Prepare(k.spec.Rules)
		}
		if err != nil {
			return sandboxError(err)
		}
		defer sandbox.Close()
		k.tree.hold = detail
		command = sandbox.Wrap(command)
	}
	// Not shared with our own end of it: the agent may set flags on it as it likes,
	// and it is not open for writing, so that CloseInput can end it.
	stdin, err := unix.Open(filepath.Join(k.dir, folder.In), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the agent's input: %w", err)
	}
	defer unix.Close(stdin)
	attr := &syscall.ProcAttr{
		Dir: k.spec.Cwd, Env: env, Sys: agentAttr(),
		Files: []uintptr{uintptr(stdin), k.out.Fd(), k.err.Fd()},
	}
	type started struct {
		pid int
		err error
	}
	done := make(chan started, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not serve anything else
		if sandbox != nil {
			if err := sandbox.Enter(); err != nil {
				done <- started{err: sandboxError(err)}
				return
			}
		}
		pid, _, err := syscall.StartProcess(command[0], command, attr)
		if err != nil {
			done <- started{err: k.execError(err)}
			return
		}
		done <- started{pid: pid}
		<-k.tree.parted
	}()
	s := <-done
	if s.err != nil {
		return s.err
	}
	leader, err := proctree.Lookup(s.pid)
	if errors.Is(err, proctree.ErrGone) { // it has ended already, and waits to be reaped
		leader.ID, err = proctree.ID{PID: s.pid}, nil
	}
	if err != nil {
		return errors.Join(err, unix.Kill(s.pid, unix.SIGKILL))
	}
	k.tree.leader = leader.ID
	go k.tree.reap()
	return nil
}

// execError says what a failed start means. A missing folder and a missing program
// have the same errno, so the folder is asked after.
func (k *keeper) execError(err error) error {
	if st, cwdErr := os.Stat(k.spec.Cwd); cwdErr != nil || !st.IsDir() || unix.Access(k.spec.Cwd, unix.X_OK) != nil {
		return bridges.Errorf(bridges.KindInvalidArgument, "the working folder %s cannot be entered: %w", k.spec.Cwd, err).
			WithNext("give a working folder that exists and may be entered")
	}
	if errors.Is(err, unix.E2BIG) {
		return bridges.Errorf(bridges.KindInvalidArgument, "arguments and environment are too long: %w", err).
			WithNext("hand over long texts as input, not as arguments")
	}
	return bridges.Errorf(bridges.KindAgentMissing, "%s cannot be run: %w", k.spec.Command[0], err).
		WithNext("check that it is an executable for this machine; a script's interpreter may be missing")
}

func sandboxError(err error) error {
	return bridges.Errorf(bridges.KindSandboxUnavailable, "the agent cannot be confined: %w", err).
		WithNext("accept a weaker hold by name, or use a system with Landlock (Linux 6.2 and later)")
}

// reap waits for every child that there is or will be, until there is none.
func (t *tree) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // ECHILD
			close(t.none)
			return
		case pid == t.leader.PID && !status.Stopped() && !status.Continued():
			close(t.parted)
			t.exited <- exitOf(status)
		}
	}
}

func exitOf(status unix.WaitStatus) bridges.Exit {
	e := bridges.Exit{Code: status.ExitStatus(), At: time.Now()}
	if status.Signaled() {
		e.Code = -1
		e.Signal = status.Signal().String()
	}
	return e
}

// alive returns the living processes of the session.
func (t *tree) alive() []proctree.Process {
	found, err := proctree.Session(t.session, os.Getpid())
	if err != nil {
		fmt.Fprintln(os.Stderr, "looking at processes:", err)
	}
	return found
}

func (t *tree) interrupt() { _ = proctree.Signal(t.leader, syscall.SIGINT) }

func (t *tree) terminate(id proctree.ID) { _ = proctree.Signal(id, syscall.SIGTERM) }

func (t *tree) kill() {
	for _, p := range t.alive() {
		_ = proctree.Signal(p.ID, syscall.SIGKILL)
	}
}

// detachStdio lets go of the pipes to whoever started us.
func detachStdio() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	return errors.Join(dup2(int(null.Fd()), 0), dup2(int(null.Fd()), 1))
}
