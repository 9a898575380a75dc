package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// createUntilKilled creates sessions and rewrites each, and prints what it may
// claim to have done.
func createUntilKilled(dir string) error {
	r, err := Open(dir)
	if err != nil {
		return err
	}
	for {
		s, err := r.Create(sample())
		if err != nil {
			return err
		}
		fmt.Println("created", s.ID())
		rec := s.Record()
		rec.Title, rec.Turns = "rewritten", 1
		if err := s.Put(rec); err != nil {
			return err
		}
		if _, err := s.AppendSync('x', []byte(s.ID())); err != nil {
			return err
		}
		fmt.Println("rewrote", s.ID())
		if err := s.Close(); err != nil {
			return err
		}
	}
}

// Two processes create 200 sessions each and are killed again and again, at
// instants that fall between write and rename as they do elsewhere.
func TestB63CreatesUnderKills(t *testing.T) {
	each := 200
	if testing.Short() {
		each = 40 // every one of them syncs six times
	}
	dir := t.TempDir()
	claims := make([]map[string]string, 2)
	var wg sync.WaitGroup
	for i := range claims {
		claims[i] = map[string]string{}
		random := rand.New(rand.NewPCG(uint64(i), 1))
		wg.Go(func() {
			for len(claims[i]) < each && !t.Failed() {
				p := startHelper(t, "create", dir)
				// Killed a moment after one of its claims, which one is chance.
				last, moment := 1+random.IntN(60), time.Duration(random.IntN(4000))*time.Microsecond
				n := 0
				for p.lines.Scan() {
					what, id, _ := strings.Cut(p.lines.Text(), " ")
					claims[i][id] = what
					if n++; n == last {
						time.AfterFunc(moment, func() { p.Process.Kill() })
					}
				}
				p.kill()
				if n == 0 {
					t.Error("the helper claims nothing")
				}
			}
		})
	}
	wg.Wait()

	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	recs, problems, err := r.List()
	if err != nil || len(problems) > 0 {
		t.Fatalf("after the kills: %+v, %v", problems, err)
	}
	have := map[string]Record{}
	for _, rec := range recs {
		have[rec.ID] = rec
	}
	for _, claimed := range claims {
		for id, what := range claimed {
			rec, ok := have[id]
			switch {
			case !ok:
				t.Errorf("session %s was reported as %s and is lost", id, what)
			case what == "rewrote" && rec.Title != "rewritten":
				t.Errorf("session %s: its new record was reported and is lost", id)
			}
			if what == "rewrote" {
				if es := entries(t, r, id); len(es) != 1 || string(es[0].Payload) != id {
					t.Errorf("session %s: its log has %v", id, es)
				}
			}
		}
	}
	// Whatever was cut short, the next owner can go on with.
	for id := range have {
		if claims[0][id] == "rewrote" || claims[1][id] == "rewrote" {
			continue
		}
		s, err := r.Lock(context.Background(), id)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Put(s.Record()), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d sessions, %d cut short before they existed", len(recs), len(namesWith(r.sessions, unfinishedMark)))
}

// appendUntilKilled appends numbered entries of all sizes.
func appendUntilKilled(dir string) error {
	r, err := Open(dir)
	if err != nil {
		return err
	}
	s, err := r.Lock(context.Background(), "s_log")
	if err != nil {
		return err
	}
	n := 0
	for e, err := range r.Read("s_log", 0) {
		if err != nil || e.Damage != "" {
			return fmt.Errorf("%v %+v", err, e)
		}
		n++
	}
	for {
		if _, err := s.Append('n', numbered(n)); err != nil {
			return err
		}
		n++
	}
}

// numbered is the payload of entry n: its number, and up to 40 KiB around it.
func numbered(n int) []byte {
	size := n * 7919 % 100
	if n%50 == 0 {
		size = n * 7919 % (40 << 10)
	}
	return fmt.Appendf(nil, "%d %s", n, strings.Repeat("é", size))
}

// A follower reads beside a writer that is killed in the middle of it, three
// times over, and sees every entry once and in order.
func TestFollowBesideWriterThatIsKilled(t *testing.T) {
	r := open(t)
	create(t, r, "s_log").Close()
	const rounds, perRound = 3, 2000
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := startHelper(t, "append", filepath.Dir(r.sessions))
	n := 0
	for e, err := range r.Follow(ctx, "s_log", 0) {
		if err != nil || e.Damage != "" {
			t.Fatalf("after %d entries: %v %+v", n, err, e)
		}
		if string(e.Payload) != string(numbered(n)) || e.Type != 'n' {
			t.Fatalf("entry %d has %.20q", n, e.Payload)
		}
		n++
		if n == rounds*perRound {
			break
		}
		if n%perRound == 0 {
			p.kill()
			p = startHelper(t, "append", filepath.Dir(r.sessions))
		}
	}
	if n != rounds*perRound {
		t.Errorf("followed %d entries", n)
	}
}

func TestFollowEnds(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_log")
	if _, err := s.Append('a', []byte("first")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for e, err := range r.Follow(ctx, "s_log", 0) {
		if err != nil || string(e.Payload) != "first" {
			t.Errorf("followed %v, %v", e, err)
		}
		cancel()
	}
	n := 0
	var last error
	for _, err := range r.Follow(t.Context(), "s_log", 0) {
		if n++; n == 1 {
			if err := s.Remove(); err != nil {
				t.Fatal(err)
			}
		}
		last = err
	}
	if n != 2 {
		t.Errorf("%d yields", n)
	}
	wantKind(t, last, "unknown_session")
	for _, err := range r.Follow(t.Context(), "s_log", 0) {
		wantKind(t, err, "unknown_session")
	}
	if _, err := os.Stat(s.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func entries(t testing.TB, r *Registry, id string) []Entry {
	t.Helper()
	var es []Entry
	for e, err := range r.Read(id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		es = append(es, e)
	}
	return es
}
