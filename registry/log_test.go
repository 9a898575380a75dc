package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
)

// scan reads a log in memory to its end.
func scan(t testing.TB, data []byte) (es []Entry, incomplete bool) {
	t.Helper()
	f := frames{r: bytes.NewReader(data)}
	for {
		e, err := f.next()
		switch {
		case err == io.EOF:
			return es, false
		case errors.Is(err, errIncomplete):
			return es, true
		case err != nil:
			t.Fatal(err)
		}
		es = append(es, e)
	}
}

// log3 is a log of three entries; starts are where they begin and where it ends.
func log3() (data []byte, starts []int64) {
	for i, text := range []string{"accepted", strings.Repeat("the answer é ", 9), "ended"} {
		starts = append(starts, int64(len(data)))
		data = appendFrame(data, "AEZ"[i], []byte(text))
	}
	return data, append(starts, int64(len(data)))
}

func TestAppendRead(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_log")
	var want []Entry
	offset := int64(0)
	for i, size := range []int{0, 1, 100, 64 << 10, 64<<10 + 1, 3 << 20, 5} {
		payload := bytes.Repeat([]byte{byte('a' + i)}, size)
		append := s.Append
		if i%2 == 1 {
			append = s.AppendSync
		}
		end, err := append(byte(i), payload)
		if err != nil {
			t.Fatal(err)
		}
		want = slices.Concat(want, []Entry{{Offset: offset, End: end, Type: byte(i), Payload: payload}})
		offset = end
	}
	for i := range want {
		var have []Entry
		for e, err := range r.Read("s_log", want[i].Offset) {
			if err != nil {
				t.Fatal(err)
			}
			have = append(have, e)
		}
		if !slices.EqualFunc(want[i:], have, func(a, b Entry) bool {
			same := bytes.Equal(a.Payload, b.Payload)
			a.Payload, b.Payload = nil, nil
			return same && cmp.Equal(a, b)
		}) {
			t.Errorf("from entry %d: %d entries, not what was appended", i, len(have))
		}
	}
	for range r.Read("s_log", offset) {
		t.Error("something at the end")
	}
	if _, err := s.Append('x', make([]byte, MaxEntry+1)); bridges.KindOf(err) != bridges.KindInvalidArgument {
		t.Errorf("an entry over the limit: %v", err)
	}
	if _, err := s.Append('x', make([]byte, MaxEntry)); err != nil {
		t.Errorf("an entry at the limit: %v", err)
	}
	if es := entries(t, r, "s_log"); len(es) != len(want)+1 {
		t.Errorf("%d entries", len(es))
	}
	if err := s.Sync(); err != nil {
		t.Error(err)
	}
}

func TestAppendSyncTogether(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_log")
	const writers, each = 16, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if _, err := s.AppendSync(byte(w), []byte(strconv.Itoa(i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	next := map[byte]int{}
	for _, e := range entries(t, r, "s_log") {
		if string(e.Payload) != strconv.Itoa(next[e.Type]) {
			t.Fatalf("writer %d: entry %s, want %d", e.Type, e.Payload, next[e.Type])
		}
		next[e.Type]++
	}
	for w := range writers {
		if next[byte(w)] != each {
			t.Errorf("writer %d: %d entries", w, next[byte(w)])
		}
	}
}

// The last write is cut short at every byte there is.
func TestB63TornEnd(t *testing.T) {
	data, starts := log3()
	r := open(t)
	create(t, r, "s_torn").Close()
	path := filepath.Join(r.Dir("s_torn"), logFile)
	begin := starts[2]
	for cut := begin; cut < int64(len(data)); cut++ {
		if err := os.WriteFile(path, data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if es := entries(t, r, "s_torn"); len(es) != 2 || es[1].End != begin || es[1].Damage != "" {
			t.Fatalf("cut at %d, a reader sees %v", cut, es)
		}
		s, err := r.Lock(t.Context(), "s_torn")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Append('Z', []byte("again")); err != nil {
			t.Fatal(err)
		}
		es := entries(t, r, "s_torn")
		if len(es) != 3 || es[2].Offset != begin || string(es[2].Payload) != "again" {
			t.Fatalf("cut at %d, after the next append: %v", cut, es)
		}
		s.Close()
		aside := filepath.Join(s.Dir(), cutDir)
		names := namesWith(aside, fmt.Sprintf("%d-", begin))
		if cut == begin {
			if len(names) > 0 {
				t.Fatalf("a clean end was cut: %v", names)
			}
			continue
		}
		if len(names) != 1 {
			t.Fatalf("cut at %d: set aside are %v", cut, names)
		}
		kept, err := os.ReadFile(filepath.Join(aside, names[0]))
		if err != nil || !bytes.Equal(kept, data[begin:cut]) {
			t.Fatalf("cut at %d: kept %q, %v", cut, kept, err)
		}
		if err := os.RemoveAll(aside); err != nil {
			t.Fatal(err)
		}
	}
}

// Every flipped bit is found; the entries beside it are all there.
func TestB63FlippedBitsInLog(t *testing.T) {
	data, starts := log3()
	whole, _ := scan(t, data)
	for i := range len(data) * 8 {
		bad := bytes.Clone(data)
		bad[i/8] ^= 1 << (i % 8)
		es, incomplete := scan(t, bad)
		hit := 0
		for int64(i/8) >= starts[hit+1] {
			hit++
		}
		var good []Entry
		damaged := 0
		for _, e := range es {
			if e.Damage == "" {
				good = append(good, e)
				continue
			}
			damaged++
			if e.Offset != starts[hit] || e.End != starts[hit+1] {
				t.Fatalf("bit %d: damage %+v is not entry %d", i, e, hit)
			}
		}
		want := slices.Delete(slices.Clone(whole), hit, hit+1)
		if diff := cmp.Diff(want, good); diff != "" {
			t.Fatalf("bit %d of byte %d in entry %d (-want +have):\n%s", i%8, i/8, hit, diff)
		}
		// A length that points beyond the end looks like a write under way.
		if lastTorn := incomplete && hit == 2; damaged != 1 && !lastTorn || incomplete && !lastTorn {
			t.Fatalf("bit %d of entry %d: %d damaged, incomplete %v", i, hit, damaged, incomplete)
		}
	}
}

// Damage stays in the file and in the way of nobody: it is reported each time, and
// appending goes on after it.
func TestB63DamageIsKept(t *testing.T) {
	data, starts := log3()
	for name, spoil := range map[string]func([]byte) []byte{
		"middle":          func(b []byte) []byte { b[starts[1]+20] ^= 4; return b },
		"last":            func(b []byte) []byte { b[starts[2]+frameHeader] ^= 4; return b },
		"zeros at end":    func(b []byte) []byte { return append(b, make([]byte, 100)...) },
		"text at end":     func(b []byte) []byte { return append(b, "hello"...) },
		"first is zeroed": func(b []byte) []byte { clear(b[:starts[1]]); return b },
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			s := create(t, r, "s_bad")
			rec := s.Record()
			rec.Folded = starts[1]
			if err := errors.Join(s.Put(rec), s.Close()); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(r.Dir("s_bad"), logFile)
			bad := spoil(bytes.Clone(data))
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			before := entries(t, r, "s_bad")
			s = lockSession(t, r, "s_bad")
			if _, err := s.Append('N', []byte("new")); err != nil {
				t.Fatal(err)
			}
			after := entries(t, r, "s_bad")
			if diff := cmp.Diff(before, after[:len(after)-1]); diff != "" {
				t.Errorf("the entries before changed (-before +after):\n%s", diff)
			}
			if last := after[len(after)-1]; last.Type != 'N' || string(last.Payload) != "new" {
				t.Errorf("the new entry is %+v", last)
			}
			if !slices.ContainsFunc(after, func(e Entry) bool { return e.Damage != "" }) {
				t.Errorf("no damage is reported: %v", after)
			}
			if have, err := os.ReadFile(path); err != nil || !bytes.HasPrefix(have, bad) {
				t.Errorf("damaged bytes were changed: %v", err)
			}
		})
	}
}

// A payload that looks like a frame is none, as long as it is text.
func TestPayloadCannotForgeAnEntry(t *testing.T) {
	forged := string(appendFrame(nil, 'Z', []byte("completed")))
	data := appendFrame(nil, 'E', []byte(strings.ToValidUTF8(forged, "?")))
	data = appendFrame(data, 'E', []byte("next"))
	data[2] ^= 1
	es, _ := scan(t, data)
	if len(es) != 2 || es[0].Damage == "" || string(es[1].Payload) != "next" {
		t.Errorf("entries %+v", es)
	}
}

// A checkpoint that says nonsense about the log costs a longer look, nothing else.
func TestFoldedIsNotTrusted(t *testing.T) {
	data, starts := log3()
	r := open(t)
	s := create(t, r, "s_fold")
	s.Close()
	if err := os.WriteFile(filepath.Join(s.Dir(), logFile), data[:len(data)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, folded := range []int64{-1, 1, starts[1], starts[1] + 5, int64(len(data)), 1 << 60} {
		s = lockSession(t, r, "s_fold")
		rec := s.Record()
		rec.Folded = folded
		if err := errors.Join(s.Put(rec), s.Close()); err != nil {
			t.Fatal(err)
		}
		s = lockSession(t, r, "s_fold")
		if es := entries(t, r, "s_fold"); len(es) != 2 || es[1].End != starts[2] || s.end != starts[2] {
			t.Errorf("folded %d: entries %v, end %d", folded, es, s.end)
		}
		s.Close()
	}
}

func TestLogIsAFolder(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_dir")
	s.Close()
	path := filepath.Join(s.Dir(), logFile)
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	_, err := r.Lock(t.Context(), "s_dir")
	wantKind(t, err, bridges.KindInternal)
	n := 0
	for _, err := range r.Read("s_dir", 0) {
		n++
		wantKind(t, err, bridges.KindInternal)
	}
	if n != 1 {
		t.Errorf("Read yields %d times", n)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	lockSession(t, r, "s_dir") // nothing was left locked
}

func FuzzLog(f *testing.F) {
	data, starts := log3()
	f.Add(data)
	f.Add(data[:starts[2]+3])
	f.Add(slices.Concat(data[:starts[1]], []byte("\xf5S\xf5S"), data))
	f.Add([]byte{0xf5})
	f.Fuzz(func(t *testing.T, data []byte) {
		es, incomplete := scan(t, data)
		at := int64(0)
		for _, e := range es {
			if e.Offset != at || e.End <= at {
				t.Fatalf("entry %+v does not follow %d", e, at)
			}
			at = e.End
			if e.Damage == "" && !bytes.Equal(appendFrame(nil, e.Type, e.Payload), data[e.Offset:e.End]) && data[e.Offset+3] == 0 {
				t.Fatalf("entry %+v is not what was written", e)
			}
		}
		if end := int64(len(data)); at > end || !incomplete && at != end {
			t.Fatalf("read to %d of %d, incomplete %v", at, end, incomplete)
		}
		end, torn, err := tail(bytes.NewReader(data), 0, int64(len(data)))
		if err != nil || end != at || incomplete != (len(torn) > 0) {
			t.Fatalf("tail %d %q %v, read to %d", end, torn, err, at)
		}
		// Cut where tail says, and another entry can be read after all the others.
		next := appendFrame(bytes.Clone(data[:end]), 'N', []byte("next"))
		more, _ := scan(t, next)
		if len(more) == 0 || string(more[len(more)-1].Payload) != "next" || more[len(more)-1].Damage != "" {
			t.Fatalf("after an append: %+v", more)
		}
	})
}
