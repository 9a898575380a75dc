//go:build unix && !linux

package keeper

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// becomeSubreaper does nothing: there are none here. Orphans go to init, and are
// found by the marker in their environment.
func becomeSubreaper() error { return nil }

func agentAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func dup2(from, to int) error { return unix.Dup2(from, to) }
