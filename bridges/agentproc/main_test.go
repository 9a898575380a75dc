//go:build unix

package agentproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

func TestMain(m *testing.M) {
	Main()
	if role := os.Getenv("TEST_ROLE"); role != "" {
		play(role)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// noSleep keeps the race detector from waiting a second at every exit.
const noSleep = "GORACE=atexit_sleep_ms=0"

// play is what the test binary does as another program.
func play(role string) {
	switch role {
	case "starter": // starts an agent, says so, and waits to be killed
		r, err := NewRunner()
		if err != nil {
			panic(err)
		}
		p, err := r.Start(context.Background(), Spec{
			SessionID: os.Getenv("TEST_SESSION"), Dir: os.Getenv("TEST_DIR"), Cwd: "/",
			Command: []string{"/bin/cat"}, Keeper: keeperCommand(),
		})
		if err != nil {
			panic(err)
		}
		if err := p.Write(context.Background(), []byte("one\n")); err != nil {
			panic(err)
		}
		fmt.Println("started")
		select {}
	case "attempts":
		attempts()
	case "pipe-echo": // the other end of the benchmark
		buf := make([]byte, 4096)
		for {
			n, err := os.Stdin.Read(buf)
			if err != nil {
				return
			}
			if _, err := os.Stdout.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

func keeperCommand() []string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return []string{"/usr/bin/env", noSleep, self}
}

// limit bounds everything that a test waits for.
func limit(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func newRunner(t testing.TB) *Runner {
	t.Helper()
	r, err := NewRunner()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// script is the spec of a shell script as an agent.
func script(t testing.TB, text string) Spec {
	return program(t, "/bin/sh", "-c", text)
}

func program(t testing.TB, command ...string) Spec {
	t.Helper()
	return Spec{
		SessionID: "s_" + strings.ReplaceAll(t.Name(), "/", "_") + fmt.Sprint(time.Now().UnixNano()),
		Dir:       filepath.Join(t.TempDir(), "run"), Cwd: t.TempDir(), Keeper: keeperCommand(),
		Command: command, Env: []string{"PATH=/usr/bin:/bin", noSleep},
	}
}

// start starts an agent which is ended with the test.
func start(t testing.TB, r *Runner, spec Spec) *Proc {
	t.Helper()
	p, err := r.Start(limit(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := p.Stop(limit(t), StopOptions{Reason: "end of the test", Grace: 50 * time.Millisecond}); err != nil && !errors.Is(err, ErrNoProcess) {
			t.Errorf("stopping: %v", err)
		}
		if left := session(t, p.spec.SessionID); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return p
}

// session lists the living processes of a session.
func session(t testing.TB, id string) []proctree.Process {
	t.Helper()
	found, err := proctree.Session(id, -1)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// frame reads one frame, which must be a whole one.
func frame(t testing.TB, r *Reader) string {
	t.Helper()
	f, err := r.ReadFrame(limit(t), 64<<20)
	if err != nil {
		t.Fatalf("reading a frame: %v\nstderr: %s", err, r.p.Stderr())
	}
	return string(f.Data)
}

func write(t testing.TB, p *Proc, text string) {
	t.Helper()
	if err := p.Write(limit(t), []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// eventually polls until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came to this: %s", what)
		}
	}
}

func wantKind(t testing.TB, err error, kind bridges.ErrorKind, words ...string) {
	t.Helper()
	if bridges.KindOf(err) != kind {
		t.Fatalf("error is %v (%s), want %s", err, bridges.KindOf(err), kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not tell %q", err, w)
		}
	}
}

func linuxOnly(t testing.TB) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux")
	}
}
