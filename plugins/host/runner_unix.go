//go:build unix

package host

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup gives the plugin a process group: a Ctrl-C on the host's terminal is not
// for it, and its end takes its children along. Keepers have sessions of their own.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// killGroup kills the group. The leader's pid names the group for as long as a
// member lives, reaped leader or not, and nothing when there is none; only a reuse
// of the number as a group between Wait and here could hit another.
func killGroup(leader *os.Process) {
	_ = syscall.Kill(-leader.Pid, syscall.SIGKILL)
}
