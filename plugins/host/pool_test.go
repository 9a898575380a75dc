//go:build linux

package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
)

func open(t *testing.T, p *Pool, name string) bridges.Bridge {
	t.Helper()
	b, err := p.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func ask(t *testing.T, b bridges.Bridge) probe {
	t.Helper()
	c, err := b.Create(t.Context(), bridges.CreateRequest{SessionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	var p probe
	if err := json.Unmarshal(c.Handle.Data, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestOneProcessPerBridge(t *testing.T) {
	p, _ := newPool(t, nil)
	if pids := withArgs(p.opts.Self, "bridge", "ok"); len(pids) != 0 {
		t.Fatalf("processes %v before the first call", pids)
	}
	a, b := ask(t, open(t, p, "ok")), ask(t, open(t, p, "ok"))
	if a.PID != b.PID || a.PID == os.Getpid() {
		t.Errorf("pids %d and %d", a.PID, b.PID)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if alive(a.PID) {
		t.Error("the plugin lives on after Close")
	}
	if left, _ := os.ReadDir(p.opts.Sockets); len(left) > 0 {
		t.Errorf("Close left %v", left)
	}
	if _, err := p.Open(t.Context(), "ok"); !errors.Is(err, bridges.ErrPluginFailed) {
		t.Errorf("Open after Close: %v", err)
	}
}

func TestUnknownBridge(t *testing.T) {
	p, _ := newPool(t, nil)
	if _, err := p.Open(t.Context(), "nobody"); !errors.Is(err, bridges.ErrInvalidArgument) || !strings.Contains(bridges.AsError(err).Next, "grandchild") {
		t.Errorf("%v", err)
	}
}

func TestPluginSeesOnlyTheAllowedEnvironment(t *testing.T) {
	p, _ := newPool(t, func(o *Options) {
		o.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/home/x", "LC_ALL=C.UTF-8", "XDG_STATE_HOME=/s",
			"ANTHROPIC_API_KEY=canary", "AWS_SECRET_ACCESS_KEY=canary", "CLAUDECODE=1", "FORCE_COLOR=1",
			"PLUGIN_CLIENT_CERT=stale", "PLUGIN_UNIX_SOCKET_DIR=/stale", "LD_PRELOAD=/x.so"}
		o.Set = append(o.Set, "SUBSPAN_STATE_DIR=/state")
	})
	b := open(t, p, "ok")
	turn := newCollectTurn()
	if _, err := b.Submit(t.Context(), bridges.SubmitRequest{Task: "env"}, turn); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(turn.texts[1], "\n")
	slices.Sort(got)
	want := []string{"GORACE=atexit_sleep_ms=0", "HOME=/home/x", "LC_ALL=C.UTF-8", "PATH=" + os.Getenv("PATH"), "SUBSPAN_KEEPER=" + p.opts.Self,
		"SUBSPAN_STATE_DIR=/state", "XDG_STATE_HOME=/s"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("environment of the plugin, as its agents would get it (-want +got):\n%s", d)
	}
}

func TestB09OutputBeforeTheHandshakeIsNamed(t *testing.T) {
	p, _ := newPool(t, nil)
	ok := open(t, p, "ok")
	_, err := p.Open(t.Context(), "banner")
	if !errors.Is(err, bridges.ErrPluginFailed) || !strings.Contains(fmt.Sprint(err), "Loading acme 1.2") {
		t.Errorf("got %v", err)
	}
	if pids := withArgs(p.opts.Self, "bridge", "banner"); len(pids) > 0 {
		t.Errorf("leaked %v", pids)
	}
	if _, err := ok.Describe(t.Context()); err != nil {
		t.Errorf("another plugin suffers: %v", err)
	}
}

func TestLaunchesThatFail(t *testing.T) {
	p, _ := newPool(t, nil)
	for mode, want := range map[string]string{
		"dies":        "exit status 3: panic: cannot find my config",
		"othername":   `"somebody"`,
		"oldcontract": "contract [0]",
	} {
		_, err := p.Open(t.Context(), mode)
		if !errors.Is(err, bridges.ErrPluginFailed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", mode, err)
		}
		if pids := withArgs(p.opts.Self, "bridge", mode); len(pids) > 0 {
			t.Errorf("%s: leaked %v", mode, pids)
		}
	}
	for _, mode := range []string{"silent", "deaf"} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err := p.Open(ctx, mode)
		cancel()
		if !errors.Is(err, bridges.ErrPluginFailed) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got %v", mode, err)
		}
		if pids := withArgs(p.opts.Self, "bridge", mode); len(pids) > 0 {
			t.Errorf("%s: leaked %v", mode, pids)
		}
	}
}

func TestB13LongAndBadLogLines(t *testing.T) {
	p, logs := newPool(t, nil)
	b := open(t, p, "longline")
	if _, err := b.Submit(t.Context(), bridges.SubmitRequest{Task: "print"}, newCollectTurn()); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := logs()
	for _, want := range []string{
		"eee … (63488 bytes cut)", // before the handshake, straight to standard error
		`@level`,                  // kept as text
		`level=WARN msg=hello plugin=longline n=1`,
		"bytes \uFFFD without an end",
		`msg="plugin printed" plugin=longline text=ooo`, // after it, through go-plugin
		"lll … (", // slog, with its quotes
	} {
		if !strings.Contains(got, want) {
			t.Errorf("log lacks %s", want)
		}
	}
	for line := range strings.Lines(got) {
		if len(line) > maxLogLine+500 {
			t.Errorf("a log line of %d bytes", len(line))
		}
	}
}

func TestDeathIsNoticedAndRepairedAtOnce(t *testing.T) {
	p, _ := newPool(t, nil)
	b := open(t, p, "ok")
	first := ask(t, b).PID

	turn := newCollectTurn()
	ended := make(chan error, 1)
	go func() {
		_, err := b.Submit(t.Context(), bridges.SubmitRequest{Task: "wait"}, turn)
		ended <- err
	}()
	<-turn.first
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	err := <-ended
	if !errors.Is(err, bridges.ErrPluginFailed) || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("the turn ended with %v", err)
	}
	begin := time.Now()
	if second := ask(t, b).PID; second == first {
		t.Error("same pid after the kill")
	} else if took := time.Since(begin); took > 900*time.Millisecond {
		t.Errorf("the first restart took %s", took)
	}
	for id, want := range map[string]string{"exit": "exit status 7", "goroutine panic": "panic: on my own"} {
		_, err := b.Create(t.Context(), bridges.CreateRequest{SessionID: id})
		if !errors.Is(err, bridges.ErrPluginFailed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", id, err)
		}
	}
}

func TestBackOffOfRestarts(t *testing.T) {
	p, _ := newPool(t, nil)
	m := newMember(p, "dies")
	for _, tc := range []struct {
		failures int
		age      time.Duration
		waits    bool
	}{
		{0, 0, false}, {1, 0, false}, {2, 0, true}, {2, 1100 * time.Millisecond, false},
		{5, 7 * time.Second, true}, {5, 9 * time.Second, false},
	} {
		m.failures, m.failedAt = tc.failures, time.Now().Add(-tc.age)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := m.backOff(ctx)
		cancel()
		if (err != nil) != tc.waits {
			t.Errorf("%d failures, last %s ago: %v", tc.failures, tc.age, err)
		}
	}
	m.failures, m.failedAt, m.lastErr = 6, time.Now(), errors.New("the last reason")
	if err := m.backOff(t.Context()); err == nil || !strings.Contains(err.Error(), "the last reason") {
		t.Errorf("after six failures: %v", err)
	}
	m.failedAt = time.Now().Add(-healthyAfter)
	if err := m.backOff(t.Context()); err != nil || m.failures != 0 {
		t.Errorf("after the pause: %v, %d failures", err, m.failures)
	}
}

func TestB04GrandchildHoldsTheOutputs(t *testing.T) {
	p, _ := newPool(t, nil)
	b := open(t, p, "grandchild")
	pid := ask(t, b).PID
	children := withArgs("sleep", fmt.Sprint("600.", pid))
	if len(children) != 1 {
		t.Fatalf("grandchildren: %v", children)
	}
	begin := time.Now()
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("Close took %s", took)
	}
	eventually(t, time.Second, "the grandchild is gone", func() bool { return !alive(pid) && !alive(children[0]) })
}

func TestStuckAndStoppedPluginsEnd(t *testing.T) {
	for name, freeze := range map[string]bool{"a handler that never returns": false, "a stopped process": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := newPool(t, nil)
			b := open(t, p, "ok")
			pid := ask(t, b).PID
			turn := newCollectTurn()
			ended := make(chan error, 1)
			go func() {
				_, err := b.Submit(t.Context(), bridges.SubmitRequest{Task: "stuck"}, turn)
				ended <- err
			}()
			<-turn.first
			if freeze {
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			begin := time.Now()
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took > stopLimit+2*time.Second {
				t.Errorf("Close took %s", took)
			}
			if alive(pid) {
				t.Error("it lives on")
			}
			if err := <-ended; !errors.Is(err, bridges.ErrPluginFailed) {
				t.Errorf("the turn ended with %v", err)
			}
		})
	}
}

// B05 and B07: SIGKILL of the host, while the plugin is idle in a turn and while it
// logs into the pipe that the host no longer reads.
func TestB05B07HostKilled(t *testing.T) {
	for _, task := range []string{"wait", "log"} {
		t.Run(task, func(t *testing.T) {
			t.Parallel()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			dir, err := os.MkdirTemp("", "hk")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			witness := filepath.Join(t.TempDir(), "witness")
			cmd := exec.Command(self, "host", dir)
			cmd.Stdin = strings.NewReader(task + " " + witness + "\n")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var pid int
			if _, err := fmt.Fscan(out, &pid); err != nil {
				t.Fatal(err)
			}
			if !alive(pid) {
				t.Fatal("no plugin to watch")
			}
			cmd.Process.Kill()
			cmd.Wait()
			eventually(t, 2*time.Second, "the plugin is gone", func() bool { return !alive(pid) })
			if b, err := os.ReadFile(witness); err != nil || string(b) != "ended" {
				t.Errorf("the handler did not come to its end: %v", err)
			}
			// The dead host's folder is left, without a socket in it, and the next pool
			// there removes it.
			if socks, _ := filepath.Glob(filepath.Join(dir, "p*", "plugin-dir*", "plugin*")); len(socks) > 0 {
				t.Errorf("sockets left: %v", socks)
			}
			removeStale(dir)
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left after the sweep: %v", left)
			}
		})
	}
}

func TestSweepSparesLivePools(t *testing.T) {
	p, _ := newPool(t, nil)
	q, _ := newPool(t, func(o *Options) { os.RemoveAll(o.Sockets); o.Sockets = p.opts.Sockets })
	ask(t, open(t, p, "ok"))
	ask(t, open(t, q, "ok"))
	if p.sockets == q.sockets {
		t.Error("two pools share a folder")
	}
}

func TestSocketFolderTooLong(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 60))
	_, err := NewPool(Options{Self: "/x", Sockets: dir})
	if !errors.Is(err, bridges.ErrInvalidArgument) || !strings.Contains(err.Error(), fmt.Sprint(maxSocketPath())) {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestNothingIsLeftAfterManyLives(t *testing.T) {
	fds := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(d)
	}
	cycle := func() {
		p, _ := newPool(t, nil)
		ask(t, open(t, p, "ok"))
		_, _ = p.Open(t.Context(), "banner")
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cycle()
	before, files := runtime.NumGoroutine(), fds()
	for range 5 {
		cycle()
	}
	// newPool's log files stay open until the test ends, one a cycle.
	eventually(t, 5*time.Second, "goroutines and files are as before", func() bool {
		return runtime.NumGoroutine() <= before && fds() <= files+5
	})
	if pids := withArgs(os.Args[0], "bridge"); len(pids) > 0 {
		t.Errorf("processes left: %v", pids)
	}
}

func TestDropinIsCheckedAgainstItsManifest(t *testing.T) {
	version := "1"
	p, _ := newPool(t, func(o *Options) {
		self := o.Self
		o.Builtin = nil
		o.Env = append(os.Environ(), "ACME_KEY=k", "OTHER_KEY=o")
		o.Dropins = func(name string) (Dropin, error) {
			if name != "acme" {
				return Dropin{}, bridges.Errorf(bridges.KindInvalidArgument, "not trusted")
			}
			return Dropin{Command: []string{self, "bridge", "acme"}, Env: []string{"ACME_KEY"}, Version: version}, nil
		}
	})
	env := ask(t, open(t, p, "acme")).Env
	if !slices.Contains(env, "ACME_KEY=k") || slices.Contains(env, "OTHER_KEY=o") {
		t.Errorf("environment: %v", env)
	}
	if _, err := p.Open(t.Context(), "other"); err == nil || err.Error() != "not trusted" {
		t.Errorf("got %v", err)
	}
	version = "2"
	p2, _ := newPool(t, func(o *Options) { o.Builtin = nil; o.Dropins = p.opts.Dropins })
	if _, err := p2.Open(t.Context(), "acme"); !errors.Is(err, bridges.ErrPluginFailed) || !strings.Contains(err.Error(), `"2"`) {
		t.Errorf("got %v", err)
	}
}

// BenchmarkLaunch is from fork to an answered Describe, and the end. Compare it with
// BenchmarkSpawn, the floor: the same program started and ended without a word.
func BenchmarkLaunch(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "hb")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for b.Loop() {
		in, err := Launch(b.Context(), Program{
			Name: "ok", Command: []string{self, "bridge", "ok"}, Env: os.Environ(), Sockets: dir,
		}, slog.New(slog.DiscardHandler))
		if err != nil {
			b.Fatal(err)
		}
		in.Stop(b.Context())
	}
}

func BenchmarkSpawn(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := exec.Command(self, "bridge", "silent").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
