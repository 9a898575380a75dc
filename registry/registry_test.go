package registry

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
)

func TestCreateGetList(t *testing.T) {
	r := open(t)
	var want []Record
	for range 3 {
		s := create(t, r, "")
		if !validID.MatchString(s.ID()) || len(s.ID()) != 12 {
			t.Errorf("generated id %q", s.ID())
		}
		if s.Record().Fence != 1 || s.Record().Created.IsZero() {
			t.Errorf("record %+v", s.Record())
		}
		want = append(want, s.Record())
	}
	have, problems, err := r.List()
	if err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	if diff := cmp.Diff(want, have, sameRecord); diff != "" {
		t.Errorf("List (-want +have):\n%s", diff)
	}
	one, err := r.Get(want[1].ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[1], one, sameRecord); diff != "" {
		t.Errorf("Get (-want +have):\n%s", diff)
	}
	for _, name := range []string{recordFile, logFile, lockFile, holderFile} {
		info, err := os.Stat(filepath.Join(r.Dir(one.ID), name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", name, info.Mode(), err)
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	r := open(t)
	create(t, r, "s_taken")
	if err := os.WriteFile(r.Dir("s_file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"s_taken", "s_file", "s_", "x", "s_../up", "s_UPPER", "s_a b", "s_" + strings.Repeat("a", 33)} {
		rec := sample()
		rec.ID = id
		_, err := r.Create(rec)
		wantKind(t, err, bridges.KindInvalidArgument)
	}
	if left := namesWith(r.sessions, unfinishedMark); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	have, err := r.Get("s_taken")
	if err != nil || have.Fence != 1 {
		t.Errorf("the session that was there: %+v, %v", have, err)
	}
}

func TestGetByPrefix(t *testing.T) {
	r := open(t)
	for _, id := range []string{"s_abcdef", "s_abxyz", "s_ab"} {
		create(t, r, id)
	}
	for _, c := range []struct {
		ask, want string
		kind      bridges.ErrorKind
	}{
		{"s_abcdef", "s_abcdef", ""},
		{"s_abc", "s_abcdef", ""},
		{"s_ab", "s_ab", ""}, // exact, although others begin with it
		{"s_a", "", bridges.KindUnknownSession},
		{"s_abz", "", bridges.KindUnknownSession},
		{"", "", bridges.KindUnknownSession},
		{"../sessions/s_ab", "", bridges.KindUnknownSession},
		{"S_AB", "", bridges.KindUnknownSession},
	} {
		rec, err := r.Get(c.ask)
		if rec.ID != c.want || bridges.KindOf(err) != c.kind {
			t.Errorf("Get(%q) = %q, %v; want %q, kind %q", c.ask, rec.ID, err, c.want, c.kind)
		}
	}
	create(t, r, "s_abcd")
	create(t, r, "s_abce")
	_, err := r.Get("s_abc")
	wantKind(t, err, bridges.KindInvalidArgument)
	if !strings.Contains(err.Error(), "s_abcd, s_abcdef, s_abce") {
		t.Errorf("ambiguity does not name the sessions: %v", err)
	}
	if !errors.Is(err, bridges.ErrInvalidArgument) {
		t.Errorf("errors.Is fails for %v", err)
	}
}

func TestRemove(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_gone")
	if _, err := s.WriteFile(TurnFile(1, "result.md"), []byte("done")); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
	_, err := r.Get("s_gone")
	wantKind(t, err, bridges.KindUnknownSession)
	if entries, err := os.ReadDir(r.sessions); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close after Remove: %v", err)
	}
	if err := s.Remove(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("second Remove: %v", err)
	}
	create(t, r, "s_gone") // the id is free again
}

func TestOpenSweepsWhatKillsLeft(t *testing.T) {
	r := open(t)
	old := time.Now().Add(-time.Hour)
	for name, at := range map[string]time.Time{
		".new-s_a-1": old, ".trash-s_b-1": old, ".new-s_c-2": time.Now(), "keep": old,
	} {
		dir := filepath.Join(r.sessions, name)
		if err := os.MkdirAll(filepath.Join(dir, "turns"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(filepath.Dir(r.sessions)); err != nil {
		t.Fatal(err)
	}
	// What may be of a Create at work stays, and so does what is not ours.
	if diff := cmp.Diff([]string{".new-s_c-2", "keep"}, namesWith(r.sessions, "")); diff != "" {
		t.Errorf("after Open (-want +have):\n%s", diff)
	}
}

func TestWriteFile(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_files")
	for _, name := range []string{"turns/1/result.md", InstructionsFile, "turns/1/deep/er.txt"} {
		for i, write := range []func(string, []byte) (string, error){s.WriteFile, s.WriteFileSync} {
			want := strings.Repeat("x", 10*(2-i)) // the second is shorter: replaced, not overwritten
			path, err := write(name, []byte(want))
			if err != nil {
				t.Fatal(err)
			}
			direct, err := os.ReadFile(path)
			if err != nil || string(direct) != want {
				t.Errorf("%s has %q, %v", path, direct, err)
			}
			if have, err := r.ReadFile("s_files", name); err != nil || string(have) != want {
				t.Errorf("ReadFile(%s) = %q, %v", name, have, err)
			}
		}
	}
	for _, name := range []string{
		"", ".", "..", "../x", "/etc/x", "turns/../../x", recordFile, logFile, lockFile, holderFile, "cut/1", ".hidden", "turns/",
	} {
		if _, err := s.WriteFile(name, nil); bridges.KindOf(err) != bridges.KindInvalidArgument {
			t.Errorf("WriteFile(%q): %v", name, err)
		}
		if _, err := r.ReadFile("s_files", name); bridges.KindOf(err) != bridges.KindInvalidArgument {
			t.Errorf("ReadFile(%q): %v", name, err)
		}
	}
	if _, err := r.ReadFile("s_files", "turns/2/result.md"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if names := namesWith(filepath.Join(s.Dir(), "turns", "1"), "."); len(names) > 0 {
		t.Errorf("temporary files left: %v", names)
	}
}

func TestClosedSessionRefuses(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_closed")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, appendErr := s.Append('x', nil)
	_, syncErr := s.AppendSync('x', nil)
	_, fileErr := s.WriteFile("a", nil)
	for what, err := range map[string]error{
		"Append": appendErr, "AppendSync": syncErr, "WriteFile": fileErr, "Put": s.Put(s.Record()), "Remove": s.Remove(),
	} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
