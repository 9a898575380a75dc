package keeper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/confine"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

// tree is the agent and everything below it. The keeper puts itself into a job
// object, which everything that it starts inherits, and which ends with it.
type tree struct {
	session string
	leader  proctree.ID
	hold    string
	exited  chan bridges.Exit
	none    chan struct{}

	job   windows.Handle
	stdin io.Closer
	lock  *os.File // kept open: it is the lock
}

func newTree(session string) (*tree, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return nil, fmt.Errorf("making the job object: %w", err)
	}
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{
			LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
		},
	}
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err != nil {
		return nil, fmt.Errorf("setting up the job object: %w", err)
	}
	if err := windows.AssignProcessToJobObject(job, windows.CurrentProcess()); err != nil {
		return nil, fmt.Errorf("entering the job object: %w", err)
	}
	return &tree{session: session, job: job, exited: make(chan bridges.Exit, 1), none: make(chan struct{})}, nil
}

// grown reads a file that others append to, and waits at its end for more.
type grown struct{ f *os.File }

func (g grown) Read(b []byte) (int, error) {
	for {
		n, err := g.f.Read(b)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// listen opens the orders. The folder's lock is taken here: it is not inherited.
func (k *keeper) listen() error {
	lock, err := folder.LockFileAt(k.dir, folder.Lock)
	if err != nil {
		return err
	}
	k.tree.lock = lock
	orders, err := folder.OpenInlet(filepath.Join(k.dir, folder.Orders))
	if err != nil {
		return err
	}
	go k.readOrders(grown{orders})
	return nil
}

// startAgent starts the agent with a pipe as its input, which is fed from In: one
// hop more than where there are FIFOs.
func (k *keeper) startAgent(env []string) error {
	if k.spec.Rules.Mode != confine.Off {
		_, err := confine.Check()
		return bridges.Errorf(bridges.KindSandboxUnavailable, "the agent cannot be confined: %w", err).
			WithNext("accept a weaker hold by name, or run in WSL 2")
	}
	in, err := folder.OpenInlet(filepath.Join(k.dir, folder.In))
	if err != nil {
		return err
	}
	cmd := exec.Command(k.spec.Command[0], k.spec.Command[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = k.spec.Cwd, env, k.out, k.err
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	k.input, k.tree.stdin = stdin, stdin
	if err := cmd.Start(); err != nil {
		return bridges.Errorf(bridges.KindAgentMissing, "%s cannot be run in %s: %w", k.spec.Command[0], k.spec.Cwd, err).
			WithNext("check that the program and the working folder exist")
	}
	k.tree.leader = proctree.ID{PID: cmd.Process.Pid}
	if p, err := proctree.Lookup(cmd.Process.Pid); err == nil {
		k.tree.leader = p.ID
	}
	go func() { _, _ = io.Copy(stdin, grown{in}) }() // ends when the pipe is closed
	go func() {
		_ = cmd.Wait() // its exit code is what counts
		k.tree.exited <- bridges.Exit{Code: cmd.ProcessState.ExitCode(), At: time.Now()}
		close(k.tree.none)
	}()
	return nil
}

// alive returns the job's processes, without ourselves.
func (t *tree) alive() []proctree.Process {
	const most = 4096
	var list struct {
		assigned, listed uint32
		pids             [most]uintptr
	}
	if err := windows.QueryInformationJobObject(t.job, windows.JobObjectBasicProcessIdList,
		uintptr(unsafe.Pointer(&list)), uint32(unsafe.Sizeof(list)), nil); err != nil {
		fmt.Fprintln(os.Stderr, "looking at the job's processes:", err)
	}
	var found []proctree.Process
	for _, pid := range list.pids[:min(list.listed, most)] {
		if int(pid) == os.Getpid() {
			continue
		}
		if p, err := proctree.Lookup(int(pid)); err == nil {
			found = append(found, p)
		}
	}
	return found
}

// interrupt closes the agent's input: there is no signal to ask with.
func (t *tree) interrupt() { _ = t.stdin.Close() }

func (t *tree) terminate(id proctree.ID) { _ = proctree.Signal(id, syscall.SIGKILL) }

func (t *tree) kill() {
	for _, p := range t.alive() {
		_ = proctree.Signal(p.ID, syscall.SIGKILL)
	}
}

// detachStdio lets go of the pipes to whoever started us.
func detachStdio() error { return errors.Join(os.Stdin.Close(), os.Stdout.Close()) }
