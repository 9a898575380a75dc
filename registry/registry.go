package registry

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/subspan-dev/subspan/bridges"
)

// Registry is a folder of sessions. It holds nothing open and is safe for
// concurrent use by any number of goroutines and processes.
type Registry struct {
	sessions string
}

const (
	recordFile     = "session.json"
	logFile        = "events.log"
	lockFile       = "lock"
	holderFile     = "holder.json"
	cutDir         = "cut"
	quarantineDir  = "quarantine"
	unfinishedMark = ".new-"   // a session that Create has not finished
	removedMark    = ".trash-" // a session that Remove has not finished
)

// Problem is a session that cannot be read. Nothing was changed about it.
type Problem struct {
	ID   string
	Path string
	Err  error
	// Damaged says that the content itself is wrong, and Quarantine would help.
	// Otherwise the session was written by a newer program or could not be opened.
	Damaged bool
}

// Open returns the registry in dir, which it makes when missing (0700). It also
// removes what a killed Create or Remove left behind.
func Open(dir string) (*Registry, error) {
	r := &Registry{sessions: filepath.Join(dir, "sessions")}
	err := os.MkdirAll(r.sessions, 0o700)
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return nil, bridges.Errorf(bridges.KindInternal, "open registry: %w", err).
			WithNext("make %s a folder that you can write to", dir)
	}
	entries, err := os.ReadDir(r.sessions)
	if err != nil {
		return nil, bridges.Errorf(bridges.KindInternal, "open registry: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), unfinishedMark) || strings.HasPrefix(e.Name(), removedMark) {
			r.sweep(e)
		}
	}
	return r, nil
}

// sweep removes the folder of a Create or Remove that was killed. One that may
// still be at work is left alone, and so is one that cannot be removed: it costs
// space, nothing else.
func (r *Registry) sweep(e fs.DirEntry) {
	const working = time.Minute
	if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > working {
		os.RemoveAll(filepath.Join(r.sessions, e.Name()))
	}
}

var validID = regexp.MustCompile(`^s_[a-z0-9]{1,32}$`)

// NewID returns a new session id: s_ and ten characters that are easy to type.
func NewID() string {
	var b [7]byte
	rand.Read(b[:])
	return "s_" + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))[:10]
}

// Dir returns the folder of a session.
func (r *Registry) Dir(id string) string { return filepath.Join(r.sessions, id) }

// Create records a new session and returns it locked, with fence 1. An empty
// rec.ID gets a NewID. It fails with KindInvalidArgument when the id is taken or
// malformed. When it returns, the session is durable; when it is killed, there is
// all of it or nothing.
func (r *Registry) Create(rec Record) (*Session, error) {
	if rec.ID == "" {
		rec.ID = NewID()
	}
	if !validID.MatchString(rec.ID) {
		return nil, bridges.Errorf(bridges.KindInvalidArgument, "%q is no session id", rec.ID).
			WithNext("leave the id empty to get one")
	}
	rec.Version, rec.Fence = RecordVersion, 1
	rec.Created = time.Now().UTC()
	rec.Updated = rec.Created
	s, err := r.create(rec)
	if err != nil {
		return nil, failed("create session "+rec.ID, err)
	}
	return s, nil
}

func (r *Registry) create(rec Record) (s *Session, err error) {
	data, err := encodeRecord(rec)
	if err != nil {
		return nil, err
	}
	// Everything is made in a folder of another name, which is then renamed. The
	// target exists already if and only if it is a folder with a session in it,
	// and a folder that is not empty is never replaced.
	tmp, err := os.MkdirTemp(r.sessions, unfinishedMark+rec.ID+"-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	if err := replaceFile(filepath.Join(tmp, recordFile), data); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(tmp, logFile), nil, 0o600); err != nil {
		return nil, err
	}
	if err := syncDir(tmp); err != nil {
		return nil, err
	}
	final := r.Dir(rec.ID)
	var l *lock
	if canRenameOpen {
		// Locked before anybody can see it, so that nobody takes it for abandoned.
		if l, err = tryLock(tmp); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				l.release()
			}
		}()
	}
	if err := os.Rename(tmp, final); err != nil {
		if info, statErr := os.Lstat(final); statErr == nil {
			what := "its id is taken"
			if !info.IsDir() {
				what = final + " is not a folder"
			}
			return nil, bridges.Errorf(bridges.KindInvalidArgument, "%s", what).
				WithNext("choose another session id, or none")
		}
		return nil, err
	}
	tmp = final // what is to be removed on failure
	if !canRenameOpen {
		if l, err = tryLock(final); err != nil {
			return nil, err
		}
	}
	if err := syncDir(r.sessions); err != nil {
		return nil, err
	}
	return &Session{r: r, id: rec.ID, dir: final, lock: l, rec: rec}, nil
}

// List returns every session, oldest first, and those that cannot be read.
func (r *Registry) List() ([]Record, []Problem, error) {
	ids, err := r.ids()
	if err != nil {
		return nil, nil, err
	}
	recs := make([]Record, len(ids))
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	workers := max(2, runtime.GOMAXPROCS(0))
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(ids); i += workers {
				recs[i], errs[i] = r.read(ids[i])
			}
		})
	}
	wg.Wait()
	var problems []Problem
	good := recs[:0]
	for i, id := range ids {
		switch err := errs[i]; {
		case err == nil:
			good = append(good, recs[i])
		case errors.Is(err, errVanished):
		default:
			problems = append(problems, Problem{ID: id, Path: r.Dir(id), Err: err, Damaged: errors.Is(err, errDamaged)})
		}
	}
	slices.SortFunc(good, func(a, b Record) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	return good, problems, nil
}

func (r *Registry) ids() ([]string, error) {
	entries, err := os.ReadDir(r.sessions)
	if err != nil {
		return nil, failed("list sessions", err)
	}
	var ids []string
	for _, e := range entries {
		if validID.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// errVanished says that the session's folder is not there.
var errVanished = errors.New("no such session")

func (r *Registry) read(id string) (Record, error) {
	dir := r.Dir(id)
	path := filepath.Join(dir, recordFile)
	data, err := os.ReadFile(path)
	if err == nil {
		return decodeRecord(data, id)
	}
	info, statErr := os.Lstat(dir)
	switch {
	case errors.Is(statErr, fs.ErrNotExist):
		return Record{}, errVanished
	case statErr == nil && !info.IsDir():
		return Record{}, fmt.Errorf("%w: not a folder", errDamaged)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, fmt.Errorf("%w: no %s", errDamaged, recordFile)
	}
	if info, statErr := os.Lstat(path); statErr == nil && !info.Mode().IsRegular() {
		return Record{}, fmt.Errorf("%w: %s is not a regular file", errDamaged, recordFile)
	}
	return Record{}, err
}

// Get returns the record of a session by its id or by a prefix of at least four
// characters that no other session has. Its errors: KindUnknownSession;
// KindInvalidArgument for an ambiguous prefix; KindInternal for a session that is
// damaged or of a newer version, which is left as it is.
func (r *Registry) Get(id string) (Record, error) {
	id, err := r.resolve(id)
	if err != nil {
		return Record{}, err
	}
	rec, err := r.read(id)
	if err != nil {
		return Record{}, r.unreadable(id, err)
	}
	return rec, nil
}

// resolve finds the full id of a prefix.
func (r *Registry) resolve(id string) (string, error) {
	const shortest = 4
	if !validID.MatchString(id) {
		return "", badID(id)
	}
	if _, err := os.Lstat(r.Dir(id)); err == nil {
		return id, nil
	}
	ids, err := r.ids()
	if err != nil {
		return "", err
	}
	var found []string
	for _, have := range ids {
		if strings.HasPrefix(have, id) && len(id) >= shortest {
			found = append(found, have)
		}
	}
	switch len(found) {
	case 0:
		return "", r.unreadable(id, errVanished)
	case 1:
		return found[0], nil
	}
	return "", bridges.Errorf(bridges.KindInvalidArgument, "session id %q is the beginning of %s", id, someOf(found)).
		WithNext("write more characters of the id")
}

func someOf(ids []string) string {
	if len(ids) > 5 {
		return strings.Join(ids[:5], ", ") + fmt.Sprintf(" and %d more", len(ids)-5)
	}
	return strings.Join(ids, ", ")
}

func badID(id string) error {
	return bridges.Errorf(bridges.KindUnknownSession, "%q is no session id", id).
		WithNext("session ids look like s_k3jq2m7xab; list the sessions to see them")
}

// unreadable makes the error for callers out of one of read.
func (r *Registry) unreadable(id string, err error) error {
	var newer *newerError
	switch {
	case errors.Is(err, errVanished):
		aside := filepath.Join(r.sessions, quarantineDir)
		if names := namesWith(aside, id+"-"); len(names) > 0 {
			return bridges.Errorf(bridges.KindUnknownSession, "session %s was damaged and is set aside", id).
				WithNext("see %s", filepath.Join(aside, names[len(names)-1], reasonFile))
		}
		return bridges.Errorf(bridges.KindUnknownSession, "no session %s", id).
			WithNext("list the sessions to see which there are")
	case errors.As(err, &newer):
		return bridges.Errorf(bridges.KindInternal, "session %s: %w", id, err).
			WithNext("use the newer program, which wrote it")
	case errors.Is(err, errDamaged):
		return bridges.Errorf(bridges.KindInternal, "session %s: %w", id, err).
			WithNext("repair %s by hand, or let the next start of the host set it aside", filepath.Join(r.Dir(id), recordFile))
	}
	return failed("read session "+id, err)
}

// namesWith returns the names in a folder that begin with prefix, sorted; none for
// a folder that cannot be read.
func namesWith(dir, prefix string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names
}

// failed wraps what the file system said.
func failed(what string, err error) error {
	if e := new(bridges.Error); errors.As(err, &e) {
		return bridges.Errorf(e.Kind, "%s: %w", what, err).WithNext("%s", e.Next)
	}
	e := bridges.Errorf(bridges.KindInternal, "%s: %w", what, err)
	switch {
	case errors.Is(err, context.Canceled):
		return bridges.Errorf(bridges.KindCancelled, "%s: %w", what, err)
	case errors.Is(err, context.DeadlineExceeded):
		return bridges.Errorf(bridges.KindTimeout, "%s: %w", what, err)
	case isDiskFull(err):
		return e.WithNext("free space on the disk, then try again").AsRetryable()
	case errors.Is(err, fs.ErrPermission):
		return e.WithNext("check owner and mode of the folder")
	}
	return e
}
