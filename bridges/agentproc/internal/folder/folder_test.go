//go:build unix

package folder

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if got := Tail(path, 4); got != "" {
		t.Errorf("no file: %q", got)
	}
	for content, want := range map[string]string{"": "", "abc": "abc", "abcd": "abcd", "abcdef": "cdef"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Tail(path, 4); got != want {
			t.Errorf("%q ends with %q", content, got)
		}
	}
}

func TestRecords(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.json")
	var o Order
	if err := ReadJSON(path, &o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for _, reason := range []string{"a longer one", "b"} {
		if err := WriteJSON(path, Order{Reason: reason}); err != nil {
			t.Fatal(err)
		}
		if err := ReadJSON(path, &o); err != nil || o.Reason != reason {
			t.Errorf("%+v, %v", o, err)
		}
	}
	if err := os.WriteFile(path, []byte(`{"reason":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ReadJSON(path, &o); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged file: %v", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	if Locked(dir, Lock) {
		t.Error("a lock that is not there is held")
	}
	f, err := LockFileAt(dir, Lock)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockFileAt(dir, Lock); !errors.Is(err, ErrLocked) || !Locked(dir, Lock) {
		t.Errorf("held, and taken again: %v", err)
	}
	f.Close()
	if Locked(dir, Lock) {
		t.Error("still held")
	}
}

func TestInletNeedsAReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in")
	if err := MakeInlet(path); err != nil {
		t.Fatal(err)
	}
	if _, err := DialInlet(path); !errors.Is(err, ErrNoReader) {
		t.Errorf("nobody reads: %v", err)
	}
	r, err := OpenInlet(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w, err := DialInlet(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if n, err := r.Read(make([]byte, 9)); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	// The last writer is gone, and still there is no end.
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 9)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the last writer: %v", err)
	}
}

func TestOrderIsShort(t *testing.T) {
	for _, reason := range []string{"", "plain", strings.Repeat("long ", 1000), strings.Repeat("\x01", 5000), strings.Repeat("ü€", 2000)} {
		o := Order{Stop: true, Reason: reason, Grace: 1 << 62, Interrupt: true, CloseInput: true}
		line, err := o.Line()
		if err != nil || len(line) > 512 || line[len(line)-1] != '\n' {
			t.Errorf("%.20q: %d bytes, %v", reason, len(line), err)
		}
		var got Order
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(reason, got.Reason) || len(reason) < 60 && got.Reason != reason {
			t.Errorf("%.20q became %q", reason, got.Reason)
		}
	}
}
