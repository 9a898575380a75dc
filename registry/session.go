package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/subspan-dev/subspan/bridges"
)

// Session is a session that this process drives: it holds the lock until Close or
// Remove, one of which the caller owes. Its methods may be called concurrently.
type Session struct {
	r    *Registry
	id   string
	dir  string
	lock *lock

	mu     sync.Mutex // record, and the order of appends
	rec    Record
	closed bool
	log    *os.File // nil until the first append
	end    int64    // of the log
	buf    []byte   // a frame under way
	// broken is why nothing more is appended. After a failed sync, what the disk
	// has is anyone's guess; only a new Lock reads it again.
	broken error

	syncMu sync.Mutex // held while syncing; taken before mu
	synced int64      // the log is durable up to here
}

// ID returns the session's id.
func (s *Session) ID() string { return s.id }

// Dir returns the session's folder.
func (s *Session) Dir() string { return s.dir }

// LockPath returns the file whose lock this process holds. Others may test it with
// a shared lock that they do not wait for: when they get it, nobody drives the
// session. They must let go at once.
func (s *Session) LockPath() string { return filepath.Join(s.dir, lockFile) }

// Record returns the record as last written. Its maps and slices are shared: put a
// new one in place rather than changing them.
func (s *Session) Record() Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec
}

// takeOver brings a freshly locked session in order and raises its fence.
func (s *Session) takeOver() error {
	rec, err := s.r.read(s.id)
	if err != nil {
		return s.r.unreadable(s.id, err)
	}
	s.sweep()
	if err := s.openLog(rec.Folded); err != nil {
		return failed("open log of session "+s.id, err)
	}
	rec.Fence++
	s.rec = rec
	if err := s.write(rec); err != nil {
		s.log.Close()
		return failed("lock session "+s.id, err)
	}
	return nil
}

// sweep removes the temporary files of a writer that was killed. Whoever made them
// had the lock, which is ours now.
func (s *Session) sweep() {
	for _, name := range namesWith(s.dir, "."+recordFile) {
		os.Remove(filepath.Join(s.dir, name))
	}
}

// Put replaces the record, durably. Version, ID, Fence, Created and Updated are
// set by it, and members that this program does not know are kept. It fails with
// KindSessionBusy, and writes nothing, when somebody with a higher fence has
// written meanwhile: the lock was broken by force, and this process is not the
// one who drives the session any more.
func (s *Session) Put(rec Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed(s.id)
	}
	now, err := s.r.read(s.id)
	if err != nil {
		return s.r.unreadable(s.id, err)
	}
	if now.Fence != s.rec.Fence {
		return bridges.Errorf(bridges.KindSessionBusy, "session %s was taken over: its fence is %d, ours %d", s.id, now.Fence, s.rec.Fence).
			WithNext("let go of the session and read it again")
	}
	rec.ID, rec.Fence, rec.Created, rec.extra = s.id, s.rec.Fence, s.rec.Created, s.rec.extra
	if err := s.write(rec); err != nil {
		return failed("write session "+s.id, err)
	}
	return nil
}

// write makes rec the record on disk and in memory.
func (s *Session) write(rec Record) error {
	rec.Version, rec.Updated = RecordVersion, time.Now().UTC()
	data, err := encodeRecord(rec)
	if err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(s.dir, recordFile), data); err != nil {
		return err
	}
	s.rec = rec // true from the rename on, durable or not
	return syncDir(s.dir)
}

// WriteFile puts a file into the session's folder, as a whole or not at all, and
// returns its path. The name is relative, slash-separated and not one of the
// registry's own. A power cut may undo it.
func (s *Session) WriteFile(name string, data []byte) (string, error) {
	path, err := s.writeFile(name, func(path string) error {
		tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"~")
		if err := os.WriteFile(tmp, data, 0o600); err != nil {
			os.Remove(tmp)
			return err
		}
		return os.Rename(tmp, path)
	})
	if err != nil {
		return "", failed("write "+name+" of session "+s.id, err)
	}
	return path, nil
}

// WriteFileSync is WriteFile, durable on return.
func (s *Session) WriteFileSync(name string, data []byte) (string, error) {
	path, err := s.writeFile(name, func(path string) error {
		if err := replaceFile(path, data); err != nil {
			return err
		}
		// The folders on the way may be new as well.
		for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
			if err := syncDir(dir); err != nil || dir == s.dir {
				return err
			}
		}
	})
	if err != nil {
		return "", failed("write "+name+" of session "+s.id, err)
	}
	return path, nil
}

func (s *Session) writeFile(name string, write func(path string) error) (string, error) {
	if !isOwnName(name) {
		return "", bridges.Errorf(bridges.KindInvalidArgument, "%q is no name for a session's file", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", errClosed(s.id)
	}
	path := filepath.Join(s.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return path, write(path)
}

// isOwnName reports whether a file of a session may have this name.
func isOwnName(name string) bool {
	if !filepath.IsLocal(filepath.FromSlash(name)) || strings.HasSuffix(name, "/") {
		return false
	}
	first, _, _ := strings.Cut(name, "/")
	switch first {
	case recordFile, logFile, lockFile, holderFile, cutDir:
		return false
	}
	return !strings.HasPrefix(first, ".")
}

// TurnFile returns the name, for WriteFile and ReadFile, of a turn's file.
func TurnFile(turn int, name string) string {
	return "turns/" + strconv.Itoa(turn) + "/" + name
}

// ReadFile returns what WriteFile put. A file that is not there is fs.ErrNotExist.
func (r *Registry) ReadFile(id, name string) ([]byte, error) {
	id, err := r.resolve(id)
	if err != nil {
		return nil, err
	}
	if !isOwnName(name) {
		return nil, bridges.Errorf(bridges.KindInvalidArgument, "%q is no name for a session's file", name)
	}
	data, err := os.ReadFile(filepath.Join(r.Dir(id), filepath.FromSlash(name)))
	if err != nil {
		return nil, failed("read "+name+" of session "+id, err)
	}
	return data, nil
}

// Close lets go of the session. It does not sync; see Sync. Further calls do nothing.
func (s *Session) Close() error {
	s.syncMu.Lock() // a sync under way needs the file
	defer s.syncMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.close()
}

func (s *Session) close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	defer s.lock.release()
	if s.log != nil {
		return s.log.Close()
	}
	return nil
}

// Remove deletes the session with everything in its folder and lets go of it.
func (s *Session) Remove() error {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed(s.id)
	}
	if !canRenameOpen {
		s.close()
	}
	// Out of sight in one step: a kill from here on leaves a folder that the next
	// Open removes, never half a session.
	trash := filepath.Join(s.r.sessions, removedMark+s.id+"-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	if err := os.Rename(s.dir, trash); err != nil {
		return failed("remove session "+s.id, err)
	}
	s.close()
	err := errors.Join(syncDir(s.r.sessions), os.RemoveAll(trash))
	if err != nil {
		return failed("remove session "+s.id, err)
	}
	return nil
}

const reasonFile = "reason.txt"

// Quarantine sets a damaged session aside, whole and with the reason, and returns
// the folder it is in now. It refuses a session that can be read, that is of a
// newer version, or that somebody drives.
func (r *Registry) Quarantine(id string) (string, error) {
	if !validID.MatchString(id) {
		return "", badID(id)
	}
	dir := r.Dir(id)
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		l, err := tryLock(dir)
		if errors.Is(err, errHeld) {
			return "", busy(id, dir)
		}
		if err != nil {
			return "", failed("quarantine session "+id, err)
		}
		defer l.release()
	}
	_, reason := r.read(id)
	if reason == nil {
		return "", bridges.Errorf(bridges.KindInvalidArgument, "session %s is not damaged", id)
	}
	if !errors.Is(reason, errDamaged) {
		return "", r.unreadable(id, reason)
	}
	parent := filepath.Join(r.sessions, quarantineDir)
	aside := filepath.Join(parent, id+"-"+time.Now().UTC().Format("20060102T150405.000000000"))
	text := fmt.Sprintf("session %s, set aside %s: %s\n", id, time.Now().UTC().Format(time.RFC3339), reason)
	err := os.MkdirAll(aside, 0o700)
	if err == nil {
		err = replaceFile(filepath.Join(aside, reasonFile), []byte(text))
	}
	if err == nil {
		err = os.Rename(dir, filepath.Join(aside, id))
	}
	if err != nil {
		return "", failed("quarantine session "+id, err)
	}
	for _, d := range []string{aside, parent, r.sessions} {
		if err := syncDir(d); err != nil {
			return "", failed("quarantine session "+id, err)
		}
	}
	return aside, nil
}

func errClosed(id string) error {
	return bridges.Errorf(bridges.KindInternal, "session %s: %w", id, fs.ErrClosed)
}

func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
