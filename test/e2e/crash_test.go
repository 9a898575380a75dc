//go:build linux

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// result is the part of --json that these tests look at.
type result struct {
	Session, Turn, Status, Text string
	Warnings                    []string
	Error                       *struct{ Kind, Detail, Next string }
}

// command is a run of the program in the folders of one user.
type command struct {
	*exec.Cmd
	started  time.Time
	out, err bytes.Buffer
}

func start(t testing.TB, dir string, args ...string) *command {
	t.Helper()
	return startWith(t, dir, nil, args...)
}

func startWith(t testing.TB, dir string, stdin io.Reader, args ...string) *command {
	t.Helper()
	c := &command{Cmd: exec.Command(binary, args...)}
	c.Stdin = stdin
	c.Env, c.Dir = environment(dir), filepath.Join(dir, "work")
	c.Stdout, c.Stderr = &c.out, &c.err
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// run runs the program to its end and returns its exit code and JSON.
func run(t testing.TB, dir string, args ...string) (int, result) {
	t.Helper()
	return start(t, dir, args...).finish(t)
}

func (c *command) finish(t testing.TB) (int, result) {
	t.Helper()
	err := c.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var r result
	if c.out.Len() > 0 {
		if err := json.Unmarshal(c.out.Bytes(), &r); err != nil {
			t.Fatalf("not JSON: %v\n%s\n%s", err, c.out.String(), c.err.String())
		}
	}
	return c.ProcessState.ExitCode(), r
}

// await polls until cond holds.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// find waits for the one process of the folder whose command line has the words.
func find(t testing.TB, dir string, words ...string) int {
	t.Helper()
	pid := 0
	await(t, "a process "+strings.Join(words, " "), func() bool {
		for p, cmd := range processesOf(dir) {
			if strings.Contains(cmd, strings.Join(words, " ")) {
				pid = p
				return true
			}
		}
		return false
	})
	return pid
}

func kill9(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// atWork waits until the session's agent has begun a task: its file is there.
func atWork(t testing.TB, dir string) {
	t.Helper()
	await(t, "the agent at work", func() bool {
		_, err := os.Stat(filepath.Join(dir, "work", "begun.txt"))
		return err == nil
	})
}

func TestPluginKilledMidTurn(t *testing.T) {
	dir, _ := home(t)
	c := start(t, dir, "run", "--agent", "demo", "--json", "write begun.txt yes; sleep 3; say the answer")
	atWork(t, dir)
	kill9(t, find(t, dir, "bridge", "acp"))
	code, r := c.finish(t)
	if code != 0 || r.Status != "completed" || !strings.Contains(r.Text, "the answer") {
		t.Errorf("exit %d: %+v\n%s", code, r, c.err.String())
	}
}

func TestCallerKilledMidTurn(t *testing.T) {
	for _, tt := range []struct {
		name  string
		pause time.Duration
	}{{"agent still at work", 0}, {"agent has finished", 4 * time.Second}} {
		t.Run(tt.name, func(t *testing.T) {
			dir, _ := home(t)
			c := start(t, dir, "run", "--agent", "demo", "write begun.txt yes; sleep 2; say the answer")
			atWork(t, dir)
			kill9(t, c.Process.Pid)
			_ = c.Wait()
			id := onlySession(t, dir)
			time.Sleep(tt.pause) // the agent's own pace: nothing of ours is waited for
			code, r := run(t, dir, "wait", "--json", id)
			if code != 0 || r.Status != "completed" || !strings.Contains(r.Text, "the answer") {
				t.Errorf("exit %d: %+v", code, r)
			}
			if code, r := run(t, dir, "submit", "--json", id, "history"); code != 0 || !strings.Contains(r.Text, "begun.txt") {
				t.Errorf("the next turn: exit %d: %+v", code, r)
			}
		})
	}
}

func TestB05HostKilledLeavesNoPlugin(t *testing.T) {
	dir, _ := home(t)
	c := start(t, dir, "run", "--agent", "demo", "write begun.txt yes; sleep 60")
	atWork(t, dir)
	plugin := find(t, dir, "bridge", "acp")
	kill9(t, c.Process.Pid)
	_ = c.Wait()
	await(t, "the end of the plugin", func() bool { return syscall.Kill(plugin, 0) != nil })
	id := onlySession(t, dir)
	if code, _ := run(t, dir, "stop", "--json", id); code != 0 {
		t.Errorf("stop: exit %d", code)
	}
}

func TestB65AgentKilledIsFailedForEveryVerb(t *testing.T) {
	dir, _ := home(t)
	code, r := run(t, dir, "run", "--agent", "demo", "--json", "say partial; kill")
	if code != 5 || r.Status != "failed" || r.Error == nil || r.Error.Kind != "agent_failed" {
		t.Fatalf("exit %d: %+v", code, r)
	}
	again, w := run(t, dir, "wait", "--json", r.Session)
	if again != code || w.Status != r.Status {
		t.Errorf("wait: exit %d, %s", again, w.Status)
	}
	if code, _ := run(t, dir, "stop", "--json", r.Session); code != 0 {
		t.Errorf("stop: exit %d", code)
	}
	if code, r := run(t, dir, "submit", "--json", r.Session, "say alive"); code != 0 || !strings.Contains(r.Text, "alive") {
		t.Errorf("the next turn: exit %d: %+v", code, r)
	}
}

func TestB01B02StopEndsEscapedChildren(t *testing.T) {
	dir, _ := home(t)
	canary := filepath.Join(dir, "work", "canary")
	c := start(t, dir, "run", "--agent", "demo", "--permission", "full", "fork-child "+canary+"; write begun.txt yes; sleep 60")
	atWork(t, dir)
	id := onlySession(t, dir)
	code, r := run(t, dir, "stop", "--json", id)
	if code != 0 {
		t.Errorf("stop: exit %d: %+v", code, r.Error)
	}
	if size := grown(t, canary); size != 0 {
		t.Errorf("the canary grew by %d bytes after the stop", size)
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 130 {
		t.Errorf("the stopped run ended with %d:\n%s", code, c.err.String())
	}
	if all := sessions(t, dir); all[0].Turn != "" {
		t.Errorf("turn %s is still open", all[0].Turn)
	}
}

// grown returns by how much a file grows in half a second.
func grown(t testing.TB, path string) int64 {
	t.Helper()
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	time.Sleep(500 * time.Millisecond)
	return size() - before
}

func TestInterruptStopsTheTurn(t *testing.T) {
	dir, _ := home(t)
	c := start(t, dir, "run", "--agent", "demo", "--json", "write begun.txt yes; sleep 60")
	atWork(t, dir)
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	code, r := c.finish(t)
	if code != 130 || r.Status != "cancelled" {
		t.Errorf("exit %d: %+v\n%s", code, r, c.err.String())
	}
}

func TestTimeoutLeavesTheTurnRunning(t *testing.T) {
	dir, _ := home(t)
	code, r := run(t, dir, "run", "--agent", "demo", "--json", "--timeout", "1s", "sleep 3; say the answer")
	if code != 3 || r.Status != "running" {
		t.Fatalf("exit %d: %+v", code, r)
	}
	code, r = run(t, dir, "wait", "--json", r.Session)
	if code != 0 || !strings.Contains(r.Text, "the answer") {
		t.Errorf("exit %d: %+v", code, r)
	}
}

func TestVolume(t *testing.T) {
	const events, size = 100_000, 64
	dir, _ := home(t)
	c := start(t, dir, "run", "--agent", "demo", "--json", fmt.Sprintf("spam %d %d", events, size))
	peak := watchMemory(t, dir, c)
	code, r := c.finish(t)
	if code != 0 || len(r.Text) < events*size {
		t.Errorf("exit %d, %d bytes of text, want %d", code, len(r.Text), events*size)
	}
	if got := <-peak; got > 64<<10 || got == 0 {
		t.Errorf("the bridge needed %d KiB", got)
	}

	const mib = 32
	c = start(t, dir, "run", "--agent", "demo", "--json", fmt.Sprintf("big %d", mib))
	peak = watchMemory(t, dir, c)
	code, r = c.finish(t)
	if code != 0 || len(r.Text) < mib<<20 {
		t.Errorf("exit %d, %d bytes of text, want %d: %v", code, len(r.Text), mib<<20, r.Error)
	}
	if got := <-peak; got > 64<<10 || got < mib<<10 {
		t.Errorf("the bridge needed %d KiB for one message of %d MiB", got, mib)
	}
}

// watchMemory reports the most memory, in KiB, that the command's bridge had: its
// own, and its share of what it has in common with other processes, which is the
// program's file. The kernel calls the sum Pss and keeps no high-water mark of it.
func watchMemory(t testing.TB, dir string, c *command) <-chan int {
	t.Helper()
	pid := find(t, dir, "bridge", "acp")
	out := make(chan int, 1)
	go func() {
		peak := 0
		for {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
			kib := 0
			if _, rest, ok := strings.Cut(string(b), "\nPss:"); ok {
				fmt.Sscan(rest, &kib)
			}
			peak = max(peak, kib)
			if err != nil || kib == 0 {
				out <- peak
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return out
}

type listed struct {
	Session, Status, Turn string
}

func sessions(t testing.TB, dir string) []listed {
	t.Helper()
	c := start(t, dir, "ls", "--json")
	if err := c.Wait(); err != nil {
		t.Fatalf("ls: %v\n%s", err, c.err.String())
	}
	var all []listed
	if err := json.Unmarshal(c.out.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func onlySession(t testing.TB, dir string) string {
	t.Helper()
	all := sessions(t, dir)
	if len(all) != 1 {
		t.Fatalf("%d sessions: %+v", len(all), all)
	}
	return all[0].Session
}
