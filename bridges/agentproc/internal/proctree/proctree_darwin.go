package proctree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

const zombie = 5 // SZOMB of sys/proc.h

// Lookup returns a living process. For one that is gone, or only waits to be
// reaped, it returns ErrGone.
func Lookup(pid int) (Process, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		// The call has no error of its own for a pid that is not there.
		return Process{}, fmt.Errorf("process %d: %w", pid, errors.Join(ErrGone, err))
	}
	if int(k.Proc.P_pid) != pid || k.Proc.P_stat == zombie {
		return Process{}, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	return process(k), nil
}

func process(k *unix.KinfoProc) Process {
	t := k.Proc.P_starttime
	return Process{
		ID:      ID{int(k.Proc.P_pid), uint64(t.Sec)*1e6 + uint64(t.Usec)},
		Parent:  int(k.Eproc.Ppid),
		Command: unix.ByteSliceToString(k.Proc.P_comm[:]),
	}
}

// All returns all living processes.
func All() ([]Process, error) {
	list, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	all := make([]Process, 0, len(list))
	for i := range list {
		if list[i].Proc.P_stat != zombie {
			all = append(all, process(&list[i]))
		}
	}
	return all, nil
}

// MarkOf returns the session that the process's environment names, and nothing
// when there is none or this user may not read it.
func MarkOf(pid int) string {
	// argc, the executable's path, padding, argc arguments, the environment.
	data, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil || len(data) < 4 {
		return ""
	}
	skip := int(binary.NativeEndian.Uint32(data)) // arguments still to skip
	_, data, _ = bytes.Cut(data[4:], []byte{0})
	data = bytes.TrimLeft(data, "\x00")
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if skip > 0 {
			skip--
			continue
		}
		if v, ok := bytes.CutPrefix(entry, []byte(Marker+"=")); ok {
			return string(v)
		}
	}
	return ""
}

// Signal sends the signal to the process if it is still the one.
func Signal(id ID, sig syscall.Signal) error {
	if id.PID <= 1 {
		return fmt.Errorf("process %d is not ours to signal", id.PID)
	}
	if !Alive(id) {
		return fmt.Errorf("process %d: %w", id.PID, ErrGone)
	}
	err := unix.Kill(id.PID, sig)
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", id.PID, ErrGone)
	}
	if err != nil {
		return fmt.Errorf("signalling process %d: %w", id.PID, err)
	}
	return nil
}

// Cwd is not told here.
func Cwd(int) (string, error) { return "", errors.ErrUnsupported }

// BootID names the current boot.
func BootID() (string, error) { return unix.Sysctl("kern.bootsessionuuid") }
