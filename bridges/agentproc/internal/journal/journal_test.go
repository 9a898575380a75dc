package journal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func open(t *testing.T, path string, floor uint64) *Journal {
	t.Helper()
	j, err := Open(path, floor)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func add(t *testing.T, j *Journal, frame string, off int64, commit bool) uint64 {
	t.Helper()
	seq, err := j.Append([]byte(frame), off)
	if err == nil && commit {
		err = j.Commit(seq)
	}
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// three is a journal with a committed, a void and an uncommitted frame.
func three(t *testing.T) (path string, want []Record) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "sent")
	j := open(t, path, 0)
	add(t, j, "one\n", 0, true)
	if err := j.Void(add(t, j, "never\n", 5, false)); err != nil {
		t.Fatal(err)
	}
	add(t, j, "three\n", 9, false)
	return path, []Record{{1, 0, []byte("one\n"), true}, {3, 9, []byte("three\n"), false}}
}

func TestReadBack(t *testing.T) {
	path, want := three(t)
	got, err := Read(path, 0)
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	if got, err := Read(path, 1); len(got) != 1 || err != nil {
		t.Errorf("after the first: %v, %v", got, err)
	}
	if got, err := Read(path+"-not-there", 0); got != nil || err != nil {
		t.Errorf("no file: %v, %v", got, err)
	}
	if j := open(t, path, 0); j.Last() != 3 {
		t.Errorf("last is %d", j.Last())
	}
	if j := open(t, path, 7); j.Last() != 7 {
		t.Errorf("last is %d, below the floor", j.Last())
	}
}

// Whatever instant the writer died at: what was whole before it is there, and the
// next writer goes on.
func TestEveryTornEnd(t *testing.T) {
	path, want := three(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		before, err := Read(path, 0)
		if err != nil {
			t.Fatalf("cut to %d: %v", n, err)
		}
		for i, r := range before {
			if !bytes.Equal(r.Frame, want[0].Frame) && i == 0 {
				t.Fatalf("cut to %d: %v", n, before)
			}
		}
		j := open(t, path, 3)
		seq := add(t, j, "next\n", 1, true)
		after, err := Read(path, 0)
		if d := cmp.Diff(append(before, Record{seq, 1, []byte("next\n"), true}), after); d != "" || err != nil {
			t.Fatalf("cut to %d, then written: %v %s", n, err, d)
		}
	}
}

// Damage is told, and nothing is cut off because of it.
func TestEveryDamagedByte(t *testing.T) {
	path, _ := three(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		bad := bytes.Clone(whole)
		bad[i] ^= 0x55
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path, 0); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d: %v, %v", i, got, err)
		}
		if _, err := Open(path, 0); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d: Open: %v", i, err)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
			t.Fatalf("byte %d: the file was changed: %v", i, err)
		}
	}
}

func TestDropFreesSpace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sent")
	j := open(t, path, 0)
	big := string(bytes.Repeat([]byte("x"), rewriteFrom))
	add(t, j, big, 0, true)
	kept := add(t, j, "kept\n", 1, true)
	add(t, j, "open\n", 2, false)
	if err := j.Drop(kept - 1); err != nil {
		t.Fatal(err)
	}
	last := add(t, j, "later\n", 3, true)
	want := []Record{{2, 1, []byte("kept\n"), true}, {3, 2, []byte("open\n"), false}, {last, 3, []byte("later\n"), true}}
	got, err := Read(path, 0)
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	if st, err := os.Stat(path); err != nil || st.Size() > 1000 {
		t.Errorf("size %d, %v", st.Size(), err)
	}
	// Nothing is left in the file: the numbers go on all the same.
	add(t, j, big, 4, true)
	if err := j.Drop(j.Last()); err != nil {
		t.Fatal(err)
	}
	if seq := add(t, j, "x\n", 5, true); seq != last+2 {
		t.Errorf("the next is %d", seq)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(encode(frameKind, 1, 0, []byte("a\n")))
	f.Add(append(encode(frameKind, 1, 0, []byte("a\n")), encode(commitKind, 1, 0, nil)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "sent")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path, 0); err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
	})
}
