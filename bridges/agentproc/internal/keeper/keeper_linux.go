package keeper

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

func becomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the reaper of the agent's tree: %w", err)
	}
	return nil
}

func agentAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

func dup2(from, to int) error { return unix.Dup3(from, to, 0) }
