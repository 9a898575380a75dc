//go:build unix

package agentproc

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A line there and back: through the session's folder, and through pipes to the same
// program for comparison.
func BenchmarkRoundTrip(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	line := []byte(strings.Repeat("x", 100) + "\n")
	b.Run("folder", func(b *testing.B) {
		spec := program(b, self)
		spec.Env = append(spec.Env, "TEST_ROLE=pipe-echo")
		p := start(b, newRunner(b), spec)
		r := p.Reader(0)
		b.ReportAllocs()
		for b.Loop() {
			if err := p.Write(b.Context(), line); err != nil {
				b.Fatal(err)
			}
			f, err := r.ReadFrame(b.Context(), 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			p.Consumed(f.End())
		}
	})
	b.Run("pipe", func(b *testing.B) {
		cmd := exec.Command(self)
		cmd.Env = []string{"TEST_ROLE=pipe-echo"}
		in, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		lines := bufio.NewReader(out)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := in.Write(line); err != nil {
				b.Fatal(err)
			}
			if _, err := lines.ReadSlice('\n'); err != nil {
				b.Fatal(err)
			}
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
	})
}

// Half a million small lines, read as they come.
func BenchmarkStream(b *testing.B) {
	const text = `yes '{"jsonrpc":"2.0","method":"session/update","params":{"text":"a piece of an answer"}}' | head -n 500000`
	b.Run("folder", func(b *testing.B) {
		runner := newRunner(b)
		for b.Loop() {
			p := start(b, runner, script(b, text))
			r := p.Reader(0)
			n := 0
			for {
				f, err := r.ReadFrame(b.Context(), 1<<20)
				if err == io.EOF {
					break
				}
				if err != nil {
					b.Fatal(err)
				}
				p.Consumed(f.End())
				n++
			}
			if n != 500000 {
				b.Fatal(n)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/500000, "ns/frame")
	})
	b.Run("pipe", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command("/bin/sh", "-c", text)
			out, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			lines := bufio.NewReaderSize(out, blockSize)
			for {
				if _, err := lines.ReadSlice('\n'); err != nil {
					break
				}
			}
			if err := cmd.Wait(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/500000, "ns/frame")
	})
}
