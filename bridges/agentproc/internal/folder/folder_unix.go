//go:build unix

package folder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process holds the lock.
var ErrLocked = errors.New("locked by another process")

// LockFileAt takes the folder's lock of that name and returns the file that holds
// it. The lock is the open file's, not the process's: it passes on to a child that
// inherits the file, and is free when the last of them has closed it or died.
func LockFileAt(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
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
	// A shared lock, so that two who look do not take each other for the holder.
	return errors.Is(flock(f, unix.LOCK_SH), ErrLocked)
}

func flock(f *os.File, how int) error {
	for {
		switch err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrLocked
		default:
			return fmt.Errorf("locking %s: %w", f.Name(), err)
		}
	}
}

// MakeInlet makes a file through which other processes talk to one reader.
func MakeInlet(path string) error {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	return nil
}

// OpenInlet opens an inlet for reading. It is opened for writing too, so that its
// reader never sees an end.
func OpenInlet(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
}

// ErrNoReader says that nobody has the inlet open for reading.
var ErrNoReader = errors.New("nobody reads")

// DialInlet opens an inlet for writing, with deadlines.
func DialInlet(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%s: %w", path, ErrNoReader)
	}
	return f, err
}

// AllocatedBytes is what the file takes on the disk: holes do not count.
func AllocatedBytes(f *os.File) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	return int64(st.Blocks) * 512, nil
}
