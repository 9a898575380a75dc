package host

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup keeps a Ctrl-C on the host's console from the plugin.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// killGroup ends the plugin alone. A job object that kills its members would take
// the keepers along, which must outlive the plugin; the lifeline ends what it holds.
func killGroup(leader *os.Process) {
	_ = leader.Kill()
}
