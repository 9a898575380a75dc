package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/subspan-dev/subspan/bridges"
)

// holdUntilKilled locks the one session there is and says so.
func holdUntilKilled(dir string) error {
	r, err := Open(dir)
	if err != nil {
		return err
	}
	s, err := r.Lock(context.Background(), "s_held")
	if err != nil {
		return err
	}
	fmt.Println("locked", s.Record().Fence)
	select {}
}

func TestLockNamesHolderAndFollowsItsDeath(t *testing.T) {
	r := open(t)
	create(t, r, "s_held").Close()
	holder := startHelper(t, "hold", filepath.Dir(r.sessions))
	if line := holder.line(); line != "locked 2" {
		t.Fatalf("holder says %q", line)
	}
	_, err := r.Lock(t.Context(), "s_held")
	if !errors.Is(err, bridges.ErrSessionBusy) || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", holder.Process.Pid)) {
		t.Errorf("busy error is %v", err)
	}
	if rec, err := r.Get("s_held"); err != nil || rec.Fence != 2 {
		t.Errorf("reading beside the holder: %+v, %v", rec, err)
	}
	holder.kill()
	s := lockSession(t, r, "s_held")
	if s.Record().Fence != 3 {
		t.Errorf("fence %d after two earlier locks", s.Record().Fence)
	}
	if rec, err := r.Get("s_held"); err != nil || rec.Fence != 3 {
		t.Errorf("on disk: %+v, %v", rec, err)
	}
}

func TestBusyDoesNotNameTheDead(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_note")
	for _, note := range []string{"", "{", `{"pid": 1, "start": 7, "boot": "other"}`, `{"pid": -1}`} {
		if err := os.WriteFile(filepath.Join(s.Dir(), holderFile), []byte(note), 0o600); err != nil {
			t.Fatal(err)
		}
		if have := holderOf(s.Dir()); have != "another process" {
			t.Errorf("for note %q the holder is %q", note, have)
		}
	}
}

// A keeper that tests the lock holds it for a moment, which is not "in use".
func TestLockOutlastsATest(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_tested")
	s.Close()
	tester := flock.New(s.LockPath())
	if ok, err := tester.TryRLock(); err != nil || !ok {
		t.Fatal(ok, err)
	}
	released := time.AfterFunc(50*time.Millisecond, func() { tester.Close() })
	defer released.Stop()
	lockSession(t, r, "s_tested")
}

func TestLockGivesUp(t *testing.T) {
	r := open(t)
	create(t, r, "s_mine")
	begin := time.Now()
	_, err := r.Lock(t.Context(), "s_mine")
	wantKind(t, err, bridges.KindSessionBusy)
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Errorf("gave up after %s", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.Lock(ctx, "s_mine")
	wantKind(t, err, bridges.KindCancelled)
	_, err = r.Lock(t.Context(), "s_other")
	wantKind(t, err, bridges.KindUnknownSession)
	if _, err := os.Lstat(r.Dir("s_other")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("locking made something of a session that is not there: %v", err)
	}
}

// Somebody deletes the lock file. The kernel then lets two in, and the number
// tells them apart.
func TestB63StaleOwnerIsFenced(t *testing.T) {
	r := open(t)
	stale := create(t, r, "s_fence")
	if err := os.Remove(stale.LockPath()); err != nil {
		t.Fatal(err)
	}
	owner := lockSession(t, r, "s_fence")
	rec := stale.Record()
	rec.Mode = 2
	err := stale.Put(rec)
	wantKind(t, err, bridges.KindSessionBusy)
	if have, err := r.Get("s_fence"); err != nil || have.Fence != 2 || have.Mode != sample().Mode {
		t.Errorf("the stale owner's write shows: %+v, %v", have, err)
	}
	if err := owner.Put(owner.Record()); err != nil {
		t.Errorf("the owner is refused: %v", err)
	}
}

func TestLockSweepsTemporaryFiles(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_temp")
	s.Close()
	left := filepath.Join(s.Dir(), "."+recordFile+"123456")
	if err := os.WriteFile(left, []byte(`{"version": 1`), 0o600); err != nil {
		t.Fatal(err)
	}
	lockSession(t, r, "s_temp")
	if _, err := os.Lstat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a killed writer's file is still there: %v", err)
	}
}
