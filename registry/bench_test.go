package registry

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The floor of anything durable: append 500 bytes to a file and sync it.
func BenchmarkFloor(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	payload := bytes.Repeat([]byte("x"), 500)
	for b.Loop() {
		if _, err := f.Write(payload); err != nil {
			b.Fatal(err)
		}
		if err := datasync(f); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendSync(b *testing.B) {
	s := create(b, open(b), "s_bench")
	payload := bytes.Repeat([]byte("x"), 500)
	for b.Loop() {
		if _, err := s.AppendSync('x', payload); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	s := create(b, open(b), "s_bench")
	payload := bytes.Repeat([]byte("x"), 500)
	for b.Loop() {
		if _, err := s.Append('x', payload); err != nil {
			b.Fatal(err)
		}
	}
}

// The cost of an update must not grow with the number of sessions.
func BenchmarkPut(b *testing.B) {
	for _, n := range []int{1, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := open(b)
			fill(b, r, n)
			s := create(b, r, "s_bench")
			for b.Loop() {
				if err := s.Put(s.Record()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkList10k(b *testing.B) {
	r := open(b)
	fill(b, r, 10000)
	for b.Loop() {
		recs, problems, err := r.List()
		if err != nil || len(problems) > 0 || len(recs) != 10000 {
			b.Fatal(len(recs), problems, err)
		}
	}
}

// fill makes sessions without syncing, which is not what is measured.
func fill(b *testing.B, r *Registry, n int) {
	b.Helper()
	for i := range n {
		rec := sample()
		rec.Version, rec.ID = 1, fmt.Sprintf("s_%06d", i)
		data, err := encodeRecord(rec)
		if err != nil {
			b.Fatal(err)
		}
		dir := r.Dir(rec.ID)
		if err := os.Mkdir(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, recordFile), data, 0o600); err != nil {
			b.Fatal(err)
		}
	}
}
