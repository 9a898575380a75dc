package folder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// ErrLocked says that another process holds the lock.
var ErrLocked = errors.New("locked by another process")

// LockFileAt takes the folder's lock of that name and returns the file that holds
// it. The lock is free when that file is closed.
func LockFileAt(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(f, windows.LOCKFILE_EXCLUSIVE_LOCK); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Locked reports whether somebody holds the folder's lock of that name.
func Locked(dir, name string) bool {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(lock(f, 0), ErrLocked)
}

func lock(f *os.File, flags uint32) error {
	var at windows.Overlapped
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrLocked
	}
	if err != nil {
		return fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return nil
}

// MakeInlet makes a file through which other processes talk to one reader.
func MakeInlet(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// OpenInlet opens an inlet for reading. It is a plain file that grows: at its end
// the reader waits and tries again.
func OpenInlet(path string) (*os.File, error) { return os.Open(path) }

// ErrNoReader says that nobody has the inlet open for reading.
var ErrNoReader = errors.New("nobody reads")

// DialInlet opens an inlet for writing.
func DialInlet(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
}

// AllocatedBytes is the file's size: holes are not made here.
func AllocatedBytes(f *os.File) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
