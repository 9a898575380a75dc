//go:build unix

package demo

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
)

// shell is a command of its own process group, all of which is killed when ctx ends.
func shell(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// detach starts a child that appends to path: a grandchild in a session of its
// own, whose parent is gone.
func detach(ctx context.Context, path string) error {
	const loop = `while echo . >>"$0"; do sleep 0.1; done </dev/null >/dev/null 2>&1 &`
	cmd := exec.CommandContext(ctx, "sh", "-c", loop, path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("starting the child: %w: %s", err, out)
	}
	return nil
}
