package demo

import (
	"context"
	"errors"
	"os/exec"
)

// shell runs a line with sh where there is one (Git for Windows brings it), else
// with cmd. Without process groups only the shell itself ends with ctx.
func shell(ctx context.Context, line string) *exec.Cmd {
	if sh, err := exec.LookPath("sh"); err == nil {
		return exec.CommandContext(ctx, sh, "-c", line)
	}
	return exec.CommandContext(ctx, "cmd", "/d", "/s", "/c", line)
}

func detach(context.Context, string) error {
	return errors.New("fork-child is not supported on Windows: there is no fork to detach with")
}
