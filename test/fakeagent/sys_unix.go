//go:build unix

package fakeagent

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stoppers are the signals that a rule may be for.
var stoppers = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}

func newSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func signalName(s os.Signal) string {
	switch s {
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGINT:
		return "SIGINT"
	case syscall.SIGHUP:
		return "SIGHUP"
	}
	return s.String()
}

// raise sends a signal to this process.
func raise(name string) error {
	signals := map[string]syscall.Signal{
		"KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP, "TERM": syscall.SIGTERM, "INT": syscall.SIGINT,
		"HUP": syscall.SIGHUP, "ABRT": syscall.SIGABRT, "SEGV": syscall.SIGSEGV,
	}
	s, ok := signals[strings.TrimPrefix(name, "SIG")]
	if !ok {
		return fmt.Errorf("signal %q is not known here", name)
	}
	return syscall.Kill(os.Getpid(), s)
}

// closeFD lets go of a standard stream. It puts /dev/null in its place: what is
// opened next must not get its number.
func closeFD(_ *os.File, fd int) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	return unix.Dup2(int(null.Fd()), fd)
}
