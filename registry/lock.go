package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/subspan-dev/subspan/bridges"
)

// lock is the kernel's lock on a session's lock file. Only the kernel's word
// counts: it ends with the process that holds it, however that dies.
type lock struct{ f *flock.Flock }

func (l *lock) release() { l.f.Close() }

var errHeld = errors.New("held by another process")

// tryLock locks the session in dir and leaves a note of who holds it.
func tryLock(dir string) (*lock, error) {
	f := flock.New(filepath.Join(dir, lockFile))
	ok, err := f.TryLock()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errHeld
	}
	l := &lock{f}
	// The folder may have been moved away between opening the file and locking it.
	mine, err := f.Stat()
	if err == nil {
		var now os.FileInfo
		if now, err = os.Stat(f.Path()); err == nil && !os.SameFile(mine, now) {
			err = errHeld
		}
	}
	if err != nil {
		l.release()
		return nil, err
	}
	noteHolder(dir)
	return l, nil
}

// acquire is tryLock with patience: a keeper tests the lock for a moment now and
// then, which must not look like a session in use.
func acquire(ctx context.Context, dir string) (*lock, error) {
	const patience, pause = 300 * time.Millisecond, 10 * time.Millisecond
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		l, err := tryLock(dir)
		if !errors.Is(err, errHeld) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-deadline.C:
			return nil, err
		case <-time.After(pause):
		}
	}
}

// holder tells people who drives a session.
type holder struct {
	PID   int       `json:"pid"`
	Start uint64    `json:"start,omitempty"`
	Boot  string    `json:"boot,omitempty"`
	Since time.Time `json:"since"`
}

// noteHolder is a courtesy to the next process that finds the session busy.
// Failing to write it changes nothing about the lock.
func noteHolder(dir string) {
	pid := os.Getpid()
	data, err := json.Marshal(holder{PID: pid, Start: startTime(pid), Boot: bootID(), Since: time.Now().UTC()})
	if err != nil {
		return
	}
	tmp := filepath.Join(dir, "."+holderFile)
	if os.WriteFile(tmp, data, 0o600) == nil {
		os.Rename(tmp, filepath.Join(dir, holderFile))
	}
}

// busy names the holder, when the note is of a process that still lives.
func busy(id, dir string) error {
	e := bridges.Errorf(bridges.KindSessionBusy, "session %s is driven by %s", id, holderOf(dir))
	return e.WithNext("use the running host, or wait for that process to end").AsRetryable()
}

func holderOf(dir string) string {
	var h holder
	data, err := os.ReadFile(filepath.Join(dir, holderFile))
	if err != nil || json.Unmarshal(data, &h) != nil || h.PID <= 0 {
		return "another process"
	}
	if h.Boot != bootID() || h.Start != startTime(h.PID) {
		return "another process" // the note is of an earlier holder
	}
	return fmt.Sprintf("process %d since %s", h.PID, h.Since.Local().Format(time.DateTime))
}

// Lock makes the caller the one who drives the session. It waits up to 300 ms for
// a lock that somebody is only testing, then fails with KindSessionBusy and names
// the holder. The record's fence is higher by one afterwards, durably; the log's
// torn end, if there is one, is cut off.
func (r *Registry) Lock(ctx context.Context, id string) (*Session, error) {
	id, err := r.resolve(id)
	if err != nil {
		return nil, err
	}
	dir := r.Dir(id)
	// Look before locking: the lock file must not appear in what is no session.
	if _, err := r.read(id); err != nil {
		return nil, r.unreadable(id, err)
	}
	l, err := acquire(ctx, dir)
	switch {
	case errors.Is(err, errHeld):
		return nil, busy(id, dir)
	case errors.Is(err, fs.ErrNotExist):
		return nil, r.unreadable(id, errVanished)
	case err != nil:
		return nil, failed("lock session "+id, err)
	}
	s := &Session{r: r, id: id, dir: dir, lock: l}
	if err := s.takeOver(); err != nil {
		l.release()
		return nil, err
	}
	return s, nil
}
