//go:build unix

package agentproc

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
)

func TestReadFrameInPieces(t *testing.T) {
	t.Parallel()
	p := start(t, newRunner(t), script(t, `printf 'par'; read x; printf 'tial\n\nthird\r\nla'; read x; printf 'st'`))
	r := p.Reader(0)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := r.ReadFrame(short, 100); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("half a frame: %v, want to wait", err)
	}
	write(t, p, "\n")
	type got struct {
		Data      string
		Off, Size int64
	}
	var all []got
	for i := range 4 {
		if i == 3 {
			write(t, p, "\n")
		}
		f, err := r.ReadFrame(limit(t), 100)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, got{string(f.Data), f.Offset, f.Size})
	}
	want := []got{{"partial", 0, 8}, {"", 8, 1}, {"third\r", 9, 7}, {"last", 16, 4}}
	if d := cmp.Diff(want, all); d != "" {
		t.Error(d)
	}
	if f, err := r.ReadFrame(limit(t), 100); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %q, %v", f.Data, err)
	}
	if got := frame(t, p.Reader(9)); got != "third\r" {
		t.Errorf("from the middle: %q", got)
	}
}

// A line is held once, whatever its length, and not at all when it is too long.
func TestB12LineLongerThanBuffer(t *testing.T) {
	t.Parallel()
	const long = 32 << 20
	p := start(t, newRunner(t), script(t, `head -c 33554432 /dev/zero | tr '\0' x; echo; echo next; head -c 40000 /dev/zero | tr '\0' y`))
	<-p.Exited()
	for _, c := range []struct {
		name         string
		max          int64
		oversize     bool
		allocAtLeast uint64
	}{
		{"fits", long, false, long},
		{"too long by one", long - 1, true, 0},
	} {
		r := p.Reader(0)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f, err := r.ReadFrame(limit(t), c.max)
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if f.Oversize != c.oversize || f.Size != long+1 || f.Oversize != (f.Data == nil) {
			t.Errorf("%s: oversize %v, size %d, data %d", c.name, f.Oversize, f.Size, len(f.Data))
		}
		if !c.oversize && strings.Trim(string(f.Data), "x") != "" {
			t.Errorf("%s: wrong data", c.name)
		}
		// Other tests run beside this one; they need far less than another copy.
		if got := after.TotalAlloc - before.TotalAlloc; got > c.allocAtLeast+long/2 {
			t.Errorf("%s: %d bytes allocated", c.name, got)
		}
		if got := frame(t, r); got != "next" {
			t.Errorf("%s: then %.20q", c.name, got)
		}
		if got := frame(t, r); len(got) != 40000 {
			t.Errorf("%s: last line without newline: %d bytes", c.name, len(got))
		}
	}
}

// Frames of all lengths around the sizes at which the reader changes its ways.
func TestReadFrameSizes(t *testing.T) {
	t.Parallel()
	spec := script(t, "cat frames")
	var want []string
	for _, n := range []int{0, 1, longFrom - 1, longFrom, longFrom + 1, blockSize - 1, blockSize, blockSize + 1, 3 * blockSize, 7, 0} {
		for i := range 3 {
			want = append(want, strings.Repeat(string(rune('a'+i)), n))
		}
	}
	if err := os.WriteFile(filepath.Join(spec.Cwd, "frames"), []byte(strings.Join(want, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, newRunner(t), spec).Reader(0)
	for i, w := range want {
		if got := frame(t, r); got != w {
			t.Fatalf("frame %d has %d bytes, want %d", i, len(got), len(w))
		}
	}
	if _, err := r.ReadFrame(limit(t), 1); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestReaderOfAnOutputThatShrinks(t *testing.T) {
	t.Parallel()
	p := start(t, newRunner(t), script(t, `echo first; read x; exec sleep 1000`))
	r := p.Reader(0)
	frame(t, r)
	if err := os.Truncate(p.at(folder.Out), 0); err != nil {
		t.Fatal(err)
	}
	_, err := r.ReadFrame(limit(t), 100)
	wantKind(t, err, bridges.KindAgentProtocol, "cut its own output")
}

func TestReleaseEndsReaders(t *testing.T) {
	t.Parallel()
	p := start(t, newRunner(t), program(t, "/bin/cat"))
	got := make(chan error)
	go func() {
		_, err := p.Reader(0).ReadFrame(context.Background(), 100)
		got <- err
	}()
	p.Release()
	if err := <-got; !errors.Is(err, fs.ErrClosed) {
		t.Errorf("ReadFrame: %v", err)
	}
	if err := p.Write(limit(t), []byte("x\n")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Write: %v", err)
	}
}

func TestConsumedOutputIsFreed(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	spec := script(t, `head -c 8388607 /dev/zero | tr '\0' x; echo; echo rest`)
	spec.OutOffset = 5 << 30 // as if it went on after an earlier process
	p := start(t, newRunner(t), spec)
	<-p.Exited()
	r := p.Reader(spec.OutOffset)
	f, err := r.ReadFrame(limit(t), 1)
	if err != nil || f.Offset != spec.OutOffset || f.Size != 8<<20 {
		t.Fatalf("%+v, %v", f, err)
	}
	before, err := folder.AllocatedBytes(p.out)
	if err != nil {
		t.Fatal(err)
	}
	p.Consumed(f.End())
	after, err := folder.AllocatedBytes(p.out)
	if err != nil {
		t.Fatal(err)
	}
	if before < 8<<20 || after > 64<<10 {
		t.Errorf("%d bytes on the disk before, %d after", before, after)
	}
	if got := frame(t, r); got != "rest" {
		t.Errorf("then %q", got)
	}
	if size, err := p.Size(); err != nil || size != spec.OutOffset+8<<20+5 {
		t.Errorf("size %d, %v", size, err)
	}
}

func TestSpoolOverItsCapEndsTheAgent(t *testing.T) {
	t.Parallel()
	spec := script(t, `head -c 3000000 /dev/zero; exec sleep 1000`)
	spec.SpoolCap = 2 << 20
	p := start(t, newRunner(t), spec)
	<-p.Exited()
	if e, _ := p.Exit(); !strings.Contains(e.Ordered, "spool over its cap") {
		t.Errorf("exit %+v", e)
	}
}
