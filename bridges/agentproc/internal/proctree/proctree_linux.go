package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Lookup returns a living process. For one that is gone, or only waits to be
// reaped, it returns ErrGone.
func Lookup(pid int) (Process, error) {
	data, err := read("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return Process{}, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if err != nil {
		return Process{}, err
	}
	return parseStat(pid, data)
}

// read is os.ReadFile without its care for pollable files and sizes, which makes a
// look at all processes twice as fast.
func read(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	data := make([]byte, 0, 1024)
	for {
		n, err := unix.Read(fd, data[len(data):cap(data)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return data, nil
		default:
			data = slices.Grow(data[:len(data)+n], 1024)
		}
	}
}

// parseStat reads proc_pid_stat(5). The command is in parentheses and may itself
// hold parentheses and spaces.
func parseStat(pid int, data []byte) (Process, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return Process{}, fmt.Errorf("process %d: unknown form of stat", pid)
	}
	fields := bytes.Fields(data[end+1:])
	const state, parent, start = 0, 1, 19 // fields 3, 4 and 22
	if len(fields) <= start {
		return Process{}, fmt.Errorf("process %d: short stat", pid)
	}
	switch fields[state][0] {
	case 'Z', 'X', 'x':
		return Process{}, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	ppid, err := strconv.Atoi(string(fields[parent]))
	if err != nil {
		return Process{}, fmt.Errorf("process %d: parent: %w", pid, err)
	}
	ticks, err := strconv.ParseUint(string(fields[start]), 10, 64)
	if err != nil {
		return Process{}, fmt.Errorf("process %d: start time: %w", pid, err)
	}
	return Process{ID: ID{pid, ticks}, Parent: ppid, Command: string(data[open+1 : end])}, nil
}

// All returns all living processes that can be looked at.
func All() ([]Process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	all := make([]Process, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, err := Lookup(pid); err == nil {
			all = append(all, p)
		}
	}
	return all, nil
}

// MarkOf returns the session that the process's environment names, and nothing
// when there is none or this user may not read it.
func MarkOf(pid int) string {
	data, err := read("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if v, ok := bytes.CutPrefix(entry, []byte(Marker+"=")); ok {
			return string(v)
		}
	}
	return ""
}

// Signal sends the signal to the process, never to one that took its pid over.
func Signal(id ID, sig syscall.Signal) error {
	if id.PID <= 1 {
		return fmt.Errorf("process %d is not ours to signal", id.PID)
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", id.PID, ErrGone)
	}
	if err == nil {
		defer unix.Close(fd)
	}
	// From here on the pidfd stands for one process; see that it is the right one.
	if !Alive(id) {
		return fmt.Errorf("process %d: %w", id.PID, ErrGone)
	}
	if err == nil {
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	} else { // no pidfds in this kernel or container
		err = unix.Kill(id.PID, sig)
	}
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", id.PID, ErrGone)
	}
	if err != nil {
		return fmt.Errorf("signalling process %d: %w", id.PID, err)
	}
	return nil
}

// Cwd returns the process's current folder.
func Cwd(pid int) (string, error) {
	return os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
}

// BootID names the current boot.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
