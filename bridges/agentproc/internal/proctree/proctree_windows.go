package proctree

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Lookup returns a living process, or ErrGone.
func Lookup(pid int) (Process, error) {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err != nil {
		return Process{}, fmt.Errorf("process %d: %w", pid, errors.Join(ErrGone, err))
	}
	defer windows.CloseHandle(h)
	return lookup(h, pid)
}

func lookup(h windows.Handle, pid int) (Process, error) {
	const running = 259 // STILL_ACTIVE
	var code uint32
	if err := windows.GetExitCodeProcess(h, &code); err != nil || code != running {
		return Process{}, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil {
		return Process{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return Process{ID: ID{pid, uint64(created.Nanoseconds())}}, nil
}

// All returns all living processes that this user may look at.
func All() ([]Process, error) {
	snap, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	defer windows.CloseHandle(snap)
	var all []Process
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snap, &entry); err == nil; err = windows.Process32Next(snap, &entry) {
		p, err := Lookup(int(entry.ProcessID))
		if err != nil {
			continue
		}
		p.Parent = int(entry.ParentProcessID)
		p.Command = windows.UTF16ToString(entry.ExeFile[:])
		all = append(all, p)
	}
	return all, nil
}

// MarkOf returns nothing: another process's environment is not readable here.
func MarkOf(int) string { return "" }

// Signal ends the process, whatever the signal: there is no other one here.
func Signal(id ID, _ syscall.Signal) error {
	h, err := windows.OpenProcess(windows.PROCESS_TERMINATE|windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(id.PID))
	if err != nil {
		return fmt.Errorf("process %d: %w", id.PID, errors.Join(ErrGone, err))
	}
	defer windows.CloseHandle(h)
	if p, err := lookup(h, id.PID); err != nil || p.ID != id {
		return fmt.Errorf("process %d: %w", id.PID, ErrGone)
	}
	if err := windows.TerminateProcess(h, 1); err != nil {
		return fmt.Errorf("ending process %d: %w", id.PID, err)
	}
	return nil
}

// Cwd is not told here.
func Cwd(int) (string, error) { return "", errors.ErrUnsupported }

// BootID names the current boot by the moment it began, to the second: the clock
// may be set between two calls, which then counts as another boot.
func BootID() (string, error) {
	now, err := Lookup(4) // the System process starts with the boot
	if err == nil {
		return fmt.Sprint(now.Start), nil
	}
	return "unknown", nil
}
