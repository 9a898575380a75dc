package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/subspan-dev/subspan/bridges"
)

// openLog opens the log for appending. What follows its last whole entry is the
// rest of a write that a kill cut short: nobody was told that it happened. It is
// copied to cut/ and removed, so that the next entry begins at a clean end.
func (s *Session) openLog(from int64) error {
	f, err := os.OpenFile(filepath.Join(s.dir, logFile), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := s.adoptLog(f, from); err != nil {
		f.Close()
		return err
	}
	return nil
}

func (s *Session) adoptLog(f *os.File, from int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	// A checkpoint from which no entry begins is not to be trusted.
	probe := frames{r: f}
	if _, why, err := probe.at(from); from < 0 || from > info.Size() || why != "" || errors.Is(err, errIncomplete) {
		from = 0
	}
	end, torn, err := tail(f, from, info.Size())
	if err != nil {
		return err
	}
	if len(torn) > 0 {
		dir := filepath.Join(s.dir, cutDir)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		name := strconv.FormatInt(end, 10) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
		if err := replaceFile(filepath.Join(dir, name), torn); err != nil {
			return err
		}
		if err := errors.Join(syncDir(dir), syncDir(s.dir), os.Truncate(f.Name(), end)); err != nil {
			return err
		}
	}
	s.log, s.end = f, end
	return nil
}

// Append adds an entry to the log and returns where the next one will begin. It
// survives the death of this process, but not a power cut; see AppendSync. Payload
// is at most MaxEntry bytes. When it fails, the log is as it was before.
func (s *Session) Append(typ byte, payload []byte) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.append(typ, payload)
}

func (s *Session) append(typ byte, payload []byte) (int64, error) {
	switch {
	case s.closed:
		return 0, errClosed(s.id)
	case s.broken != nil:
		return 0, failed("append to session "+s.id, s.broken)
	case len(payload) > MaxEntry:
		return 0, bridges.Errorf(bridges.KindInvalidArgument, "log entry of %d bytes: at most %d fit", len(payload), MaxEntry)
	}
	if s.log == nil {
		if err := s.openLog(s.rec.Folded); err != nil {
			return 0, failed("open log of session "+s.id, err)
		}
	}
	s.buf = appendFrame(s.buf[:0], typ, payload)
	n, err := s.log.Write(s.buf)
	if cap(s.buf) > 1<<20 {
		s.buf = nil // one huge entry shall not be remembered for ever
	}
	if err != nil {
		if n > 0 {
			if cutErr := os.Truncate(s.log.Name(), s.end); cutErr != nil {
				s.broken = fmt.Errorf("log ends in half an entry: %w", errors.Join(err, cutErr))
			}
		}
		return 0, failed("append to session "+s.id, err)
	}
	s.end += int64(n)
	return s.end, nil
}

// AppendSync is Append, durable on return, with everything appended before. Calls
// at the same time share one sync.
func (s *Session) AppendSync(typ byte, payload []byte) (int64, error) {
	end, err := s.Append(typ, payload)
	if err != nil {
		return 0, err
	}
	return end, s.syncTo(end)
}

// Sync makes everything appended so far durable.
func (s *Session) Sync() error {
	s.mu.Lock()
	end := s.end
	s.mu.Unlock()
	return s.syncTo(end)
}

func (s *Session) syncTo(end int64) error {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	if s.synced >= end {
		return nil
	}
	s.mu.Lock()
	log, upTo, closed, broken := s.log, s.end, s.closed, s.broken
	s.mu.Unlock()
	switch {
	case closed:
		return errClosed(s.id)
	case broken != nil:
		return failed("sync log of session "+s.id, broken)
	case log == nil:
		return nil
	}
	if err := datasync(log); err != nil {
		s.mu.Lock()
		s.broken = err
		s.mu.Unlock()
		return failed("sync log of session "+s.id, err)
	}
	s.synced = upTo
	return nil
}

// Read yields the entries of a session's log that begin at from or later, and
// stops at the end of the log or before an incomplete entry. From is 0 or an
// Entry.End. Damage is yielded as an entry, so that a reader neither misses it nor
// stops at it. It takes no lock and may run beside a writer. An error is the last
// thing yielded.
func (r *Registry) Read(id string, from int64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f, err := r.openLog(id)
		if err != nil {
			yield(Entry{}, err)
			return
		}
		defer f.Close()
		readAll(f, id, from, yield)
	}
}

// Follow is Read that waits for more at the end, until ctx ends, which it does not
// yield as an error, or the session is removed, which is KindUnknownSession. It
// looks at the file every 5 to 100 ms, which works on every file system.
func (r *Registry) Follow(ctx context.Context, id string, from int64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f, err := r.openLog(id)
		if err != nil {
			yield(Entry{}, err)
			return
		}
		defer f.Close()
		const shortest, longest = 5 * time.Millisecond, 100 * time.Millisecond
		pause := shortest
		for {
			next, ok := readAll(f, id, from, yield)
			if !ok {
				return
			}
			if next > from {
				from, pause = next, shortest
			} else if r.replaced(f) {
				yield(Entry{}, r.unreadable(id, errVanished))
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
				pause = min(2*pause, longest)
			}
		}
	}
}

// replaced reports whether f is not the log at its path any more.
func (r *Registry) replaced(f *os.File) bool {
	mine, err := f.Stat()
	if err != nil {
		return true
	}
	now, err := os.Stat(f.Name())
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(mine, now)
}

func (r *Registry) openLog(id string) (*os.File, error) {
	id, err := r.resolve(id)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(r.Dir(id), logFile))
	if err != nil {
		return nil, failed("open log of session "+id, err)
	}
	return f, nil
}

// readAll yields what there is from an offset on and returns the offset after it,
// and false when nothing more shall be yielded.
func readAll(f *os.File, id string, from int64, yield func(Entry, error) bool) (int64, bool) {
	fr := frames{r: f, off: from}
	for {
		e, err := fr.next()
		switch {
		case err == nil:
			if !yield(e, nil) {
				return fr.off, false
			}
		case err == io.EOF, errors.Is(err, errIncomplete):
			return fr.off, true
		default:
			yield(Entry{}, failed("read log of session "+id, err))
			return fr.off, false
		}
	}
}
