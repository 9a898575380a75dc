package agentproc

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// detach makes the command outlive us. It takes the folder's lock itself, so ours
// is let go.
func detach(cmd *exec.Cmd, lock *os.File) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		CreationFlags: windows.DETACHED_PROCESS | windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_BREAKAWAY_FROM_JOB,
	}
	lock.Close()
}

// keeperEnv is what the keeper itself needs of our environment.
func keeperEnv() []string { return []string{"SYSTEMROOT=" + os.Getenv("SYSTEMROOT")} }

// adopt does nothing: there are no zombies here.
func (r *Runner) adopt(*os.Process) {}

func (r *Runner) waitFor(process *os.Process) { _, _ = process.Wait() }

func (r *Runner) reap() { <-r.stop }
