package fakeagent

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// stoppers are the signals that a rule may be for.
var stoppers = []os.Signal{os.Interrupt}

func newSession() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

func signalName(os.Signal) string { return "SIGINT" }

// raise can only kill here.
func raise(name string) error {
	if strings.TrimPrefix(name, "SIG") != "KILL" {
		return fmt.Errorf("signal %q does not exist on Windows", name)
	}
	p, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	return p.Kill()
}

func closeFD(f *os.File, _ int) error { return f.Close() }
