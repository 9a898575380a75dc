//go:build linux

// Package opencode runs the built program with the real opencode, offline against
// a scripted model.
package opencode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/test/agents"
	"github.com/subspan-dev/subspan/test/modelserver"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if os.Getenv("SUBSPAN_AGENTS") != "1" {
			return m.Run() // to say that everything is skipped
		}
		dir, err := os.MkdirTemp("", "subspan-real")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "subspan")
		build := exec.Command("go", "build", "-o", binary, "github.com/subspan-dev/subspan/cmd/subspan")
		build.Stdout, build.Stderr = os.Stdout, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build subspan:", err)
			return 1
		}
		return m.Run()
	}())
}

// bare names opencode without any of what the bridge knows of it: nothing but the
// kernel keeps it within its permission.
const bare = "bare"

// user is somebody who has subspan and opencode, and folders of their own.
type user struct {
	t    *testing.T
	dir  string // holds all the others
	work string // where the agent works
	s    *modelserver.Server
	env  []string
}

func newUser(t *testing.T) *user {
	t.Helper()
	nodeModules := agents.Find(t)
	s, err := modelserver.Start(modelserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	dir, err := os.MkdirTemp("", "sr") // short: it becomes part of a socket's path
	if err != nil {
		t.Fatal(err)
	}
	u := &user{t: t, dir: dir, work: filepath.Join(dir, "work"), s: s}
	t.Cleanup(u.leave)
	for _, sub := range []string{"home", "work", "tmp", "outside", "config", "config/roles"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	opencode := agents.OpenCode(t, s)
	var pass []string
	for _, kv := range opencode.Env {
		if strings.HasPrefix(kv, "OPENCODE_") {
			name, _, _ := strings.Cut(kv, "=")
			pass, u.env = append(pass, name), append(u.env, kv)
		}
	}
	u.env = append(u.env,
		"PATH="+filepath.Join(nodeModules, ".bin")+":/usr/local/bin:/usr/bin:/bin",
		"HOME="+filepath.Join(dir, "home"), "TMPDIR="+filepath.Join(dir, "tmp"),
		"SUBSPAN_STATE_DIR="+filepath.Join(dir, "state"), "SUBSPAN_CONFIG_DIR="+filepath.Join(dir, "config"),
		"SUBSPAN_DATA_DIR="+filepath.Join(dir, "data"), "SUBSPAN_RUNTIME_DIR="+filepath.Join(dir, "run"),
	)
	config, err := json.Marshal(map[string]any{"agents": map[string]any{bare: map[string]any{
		"command": append([]string{opencode.Program}, opencode.ACP...), "passEnv": pass,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	u.write(filepath.Join(dir, "config", "config.json"), string(config))
	// No built-in role may do everything.
	u.write(filepath.Join(dir, "config", "roles", "free.json"), `{"description": "Anything.", "permissionMode": "full", "instructions": "Do it."}`)
	return u
}

func (u *user) write(path, content string) {
	u.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		u.t.Fatal(err)
	}
}

// leave fails the test when anything of the user's is still alive, and ends it.
func (u *user) leave() {
	deadline := time.Now().Add(10 * time.Second)
	for len(u.processes()) > 0 && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
	}
	for pid, command := range u.processes() {
		u.t.Errorf("left behind: pid %d %s", pid, command)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := os.RemoveAll(u.dir); err != nil {
		u.t.Errorf("clean up: %v", err)
	}
	if u.t.Failed() {
		for _, r := range u.s.Turns() {
			u.t.Logf("the model was asked %q with %q and answered %q (%s)", r.Task, r.Tools, r.Reply, r.State)
		}
	}
}

// processes finds what has the user's folder in its command line or environment.
func (u *user) processes() map[int]string {
	found := map[int]string{}
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well formed
	for _, p := range all {
		var pid int
		if _, err := fmt.Sscan(filepath.Base(p), &pid); err != nil || pid == os.Getpid() {
			continue
		}
		command, err := os.ReadFile(filepath.Join(p, "cmdline"))
		if err != nil || len(command) == 0 {
			continue // gone, or a zombie that somebody else has to reap
		}
		env, _ := os.ReadFile(filepath.Join(p, "environ")) // not ours to read: not ours
		if bytes.Contains(command, []byte(u.dir)) || bytes.Contains(env, []byte(u.dir)) {
			found[pid] = strings.ReplaceAll(string(command), "\x00", " ")
		}
	}
	return found
}

// outcome is the part of --json that these tests look at.
type outcome struct {
	Session, Turn, Status, Text, Permission, Hold string
	Usage                                         *struct{ Input, Output int }
	Error                                         *struct{ Kind, Detail, Next string }

	exit   int
	stderr string
}

func (o outcome) kind() string {
	if o.Error == nil {
		return ""
	}
	return o.Error.Kind
}

func (o outcome) String() string {
	s := fmt.Sprintf("exit %d, status %q, text %q, permission %s held by %s", o.exit, o.Status, o.Text, o.Permission, o.Hold)
	if o.Error != nil {
		s += fmt.Sprintf(", error %+v", *o.Error)
	}
	return s + "\n" + o.stderr
}

// run is the program at work.
type run struct {
	*exec.Cmd
	t        *testing.T
	out, err bytes.Buffer
}

// patience is how long one command may take: opencode needs seconds to start, and
// half a minute on a busy machine.
const patience = 2 * time.Minute

func (u *user) start(args ...string) *run {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	u.t.Cleanup(cancel)
	r := &run{Cmd: exec.CommandContext(ctx, binary, args...), t: u.t}
	r.Env, r.Dir, r.Stdout, r.Stderr = u.env, u.work, &r.out, &r.err
	if err := r.Start(); err != nil {
		u.t.Fatal(err)
	}
	return r
}

func (r *run) finish() outcome {
	r.t.Helper()
	err := r.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	o := outcome{exit: r.ProcessState.ExitCode(), stderr: r.err.String()}
	if r.out.Len() > 0 {
		if err := json.Unmarshal(r.out.Bytes(), &o); err != nil {
			r.t.Fatalf("%q prints no JSON: %v\n%s\n%s", r.Args[1:], err, r.out.String(), r.err.String())
		}
	}
	return o
}

func (u *user) do(args ...string) outcome {
	u.t.Helper()
	return u.start(args...).finish()
}

// waitModel waits until the model has a request that want accepts.
func (u *user) waitModel(want func(modelserver.Request) bool) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := u.s.WaitFor(ctx, want); err != nil {
		u.t.Fatal(err)
	}
}

// waitFile waits until a file is there.
func (u *user) waitFile(path string) {
	u.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if time.Now().After(deadline) {
			u.t.Fatalf("%s never came to be", path)
		}
	}
}

// session returns the id of the user's only session.
func (u *user) session() string {
	u.t.Helper()
	r := u.start("ls", "--json")
	if err := r.Wait(); err != nil {
		u.t.Fatalf("ls: %v\n%s", err, r.err.String())
	}
	var all []struct{ Session string }
	if err := json.Unmarshal(r.out.Bytes(), &all); err != nil || len(all) != 1 {
		u.t.Fatalf("sessions: %s, %v; want one", r.out.String(), err)
	}
	return all[0].Session
}

func TestRealAnswer(t *testing.T) {
	u := newUser(t)
	o := u.do("run", "--agent", "opencode", "--permission", "readonly", "--json", "[[think hm]][[say an answer]]")
	if o.exit != 0 || o.Status != "completed" || o.Text != "an answer" {
		t.Fatal(o)
	}
	cost := modelserver.Cost(1)
	if o.Usage == nil || o.Usage.Output != cost.Output || o.Usage.Input != cost.Input && o.Usage.Input != cost.Input-cost.Cached {
		t.Errorf("usage %+v, want that of one call: %+v", o.Usage, cost)
	}
}

func TestRealToolCalls(t *testing.T) {
	u := newUser(t)
	o := u.do("run", "--agent", "opencode", "--permission", "default", "--json",
		fmt.Sprintf("[[sh echo shell > s.txt]][[write %s tool]][[say done]]", filepath.Join(u.work, "w.txt")))
	if o.exit != 0 || o.Status != "completed" || o.Text != "done" {
		t.Fatal(o)
	}
	u.holds(map[string]string{"work/s.txt": "shell", "work/w.txt": "tool"})
}

// holds fails unless the user's work and outside folders hold these files alone.
func (u *user) holds(want map[string]string) {
	u.t.Helper()
	got := map[string]string{}
	for _, folder := range []string{"work", "outside"} {
		err := filepath.WalkDir(filepath.Join(u.dir, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			name, _ := filepath.Rel(u.dir, path) // path is below u.dir
			got[name] = strings.TrimSpace(string(b))
			return err
		})
		if err != nil {
			u.t.Fatal(err)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		u.t.Errorf("files %v, want %v", got, want)
	}
}

// TestRealPermission has the model write inside and outside the agent's folder, by
// shell and by the write tool, in each mode; with the bridge's knowledge of opencode
// and without it, when the agent asks nobody and the kernel alone stands in the way.
func TestRealPermission(t *testing.T) {
	inside := map[string]string{"work/shell": "x", "work/tool": "x"}
	everywhere := map[string]string{"work/shell": "x", "work/tool": "x", "outside/shell": "x", "outside/tool": "x"}
	for _, tt := range []struct {
		agent, permission string
		want              map[string]string
	}{
		{"opencode", "readonly", nil}, {bare, "readonly", nil},
		{"opencode", "default", inside}, {bare, "default", inside},
		{"opencode", "full", everywhere},
	} {
		t.Run(tt.agent+" "+tt.permission, func(t *testing.T) {
			u := newUser(t)
			u.write(filepath.Join(u.work, "given"), "given")
			var task strings.Builder
			for _, folder := range []string{u.work, filepath.Join(u.dir, "outside")} {
				// By literal names: a tool that is not offered is called all the same.
				fmt.Fprintf(&task, `[[call bash {"command":"echo x > %s/shell","description":"write"}]]`, folder)
				fmt.Fprintf(&task, `[[call write {"filePath":"%s/tool","content":"x"}]]`, folder)
			}
			fmt.Fprintf(&task, "[[read %s/given]][[say tried]]", u.work)
			o := u.do("run", "--agent", tt.agent, "--role", "free", "--permission", tt.permission, "--json", task.String())
			if o.kind() == "sandbox_unavailable" {
				t.Skip("the kernel of this machine cannot hold the mode: " + o.Error.Detail)
			}
			if o.Permission != tt.permission {
				t.Errorf("permission %q, want %q", o.Permission, tt.permission)
			}
			if tt.permission != "full" && !strings.HasPrefix(o.Hold, "kernel") {
				t.Errorf("held by %q, want the kernel", o.Hold)
			}
			want := map[string]string{"work/given": "given"}
			for name, content := range tt.want {
				want[name] = content
			}
			u.holds(want)
			if o.Status != "completed" && tt.permission == "full" {
				t.Error(o)
			}
			if calls := len(u.s.Turns()); calls == 0 {
				t.Errorf("the model was never asked: %v", o)
			}
		})
	}
}

func TestRealCancel(t *testing.T) {
	for _, tt := range []struct{ name, task string }{
		{"model silent", "[[say begun]][[hang]]"},
		{"tool at work", "[[sh touch begun; sleep 300]]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := newUser(t)
			r := u.start("run", "--agent", "opencode", "--permission", "default", "--json", tt.task)
			if tt.name == "model silent" {
				u.waitModel(func(r modelserver.Request) bool { return r.State == modelserver.Hanging })
			} else {
				u.waitFile(filepath.Join(u.work, "begun"))
			}
			if err := r.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			if o := r.finish(); o.exit != 130 || o.Status != "cancelled" {
				t.Error(o)
			}
			// leave fails the test when the agent or its sleep is still there
		})
	}
}

func TestRealReconnect(t *testing.T) {
	u := newUser(t)
	first := u.do("run", "--agent", "opencode", "--permission", "readonly", "--json", "[[say one]]")
	if first.exit != 0 {
		t.Fatal(first)
	}
	if left := u.processes(); len(left) != 0 {
		t.Fatalf("the next turn shall start a new agent, but %v are alive", left)
	}
	second := u.do("submit", "--json", first.Session, "[[say two]]")
	if second.exit != 0 || second.Text != "two" || second.Session != first.Session || second.Turn == first.Turn {
		t.Fatal(second)
	}
	last, _ := u.s.Last()
	if !bytes.Contains(last.Body, []byte("[[say one]]")) {
		t.Errorf("the model does not see the first turn: %s", last.Body)
	}
	if second.Permission != "readonly" || strings.Contains(strings.Join(last.Tools, " "), "bash") {
		t.Errorf("permission %q with the tools %q after the reconnect", second.Permission, last.Tools)
	}
}

// TestRealCallerKilledMidTurn shows that the turn goes on without its caller and is
// read to its end by another process, once.
func TestRealCallerKilledMidTurn(t *testing.T) {
	u := newUser(t)
	const task = "[[slow 50]][[delta 60 x 20]]"
	r := u.start("run", "--agent", "opencode", "--permission", "default", "--json", task)
	u.waitModel(func(r modelserver.Request) bool { return r.IsTurn() })
	if err := r.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.Wait() // it was killed
	o := u.do("wait", "--json", u.session())
	if o.exit != 0 || o.Status != "completed" || o.Text != modelserver.Filler(60*20) {
		t.Error(o)
	}
	if turns := u.s.Turns(); len(turns) != 1 {
		t.Errorf("the model was asked %d times, want once", len(turns))
	}
}

func TestRealSessionGone(t *testing.T) {
	u := newUser(t)
	first := u.do("run", "--agent", "opencode", "--permission", "default", "--json", "[[say one]]")
	if first.exit != 0 {
		t.Fatal(first)
	}
	removed := 0
	err := filepath.WalkDir(filepath.Join(u.dir, "state"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), "opencode.db") {
			removed++
			return os.Remove(path)
		}
		return err
	})
	if err != nil || removed == 0 {
		t.Fatalf("opencode's store: %d files removed, %v", removed, err)
	}
	if o := u.do("submit", "--json", first.Session, "[[say two]]"); o.kind() != "session_gone" || o.exit != 6 {
		t.Error(o)
	}
	if turns := u.s.Turns(); len(turns) != 1 {
		t.Errorf("the model was asked %d times, want only in the first turn", len(turns))
	}
}

func TestRealUnknownSession(t *testing.T) {
	u := newUser(t)
	if o := u.do("submit", "--json", "s_nosuchsession", "[[say x]]"); o.kind() != "unknown_session" || o.exit != 2 {
		t.Error(o)
	}
}

func TestRealUnknownModel(t *testing.T) {
	u := newUser(t)
	o := u.do("run", "--agent", "opencode", "--permission", "readonly", "--model", "scripted/nosuch", "--json", "[[say x]]")
	if o.kind() != "model_unavailable" || o.exit != 2 {
		t.Error(o)
	}
	if turns := u.s.Turns(); len(turns) != 0 {
		t.Errorf("the model was asked %d times for an unknown model", len(turns))
	}
}

func TestRealOtherModel(t *testing.T) {
	u := newUser(t)
	o := u.do("run", "--agent", "opencode", "--permission", "readonly", "--model", "scripted/scripted-2", "--json", "[[say x]]")
	if last, _ := u.s.Last(); o.exit != 0 || last.Model != "scripted-2" {
		t.Errorf("model %q: %v", last.Model, o)
	}
}

func TestRealAuthRequired(t *testing.T) {
	u := newUser(t)
	u.s.SetKey("another key")
	o := u.do("run", "--agent", "opencode", "--permission", "readonly", "--json", "[[say x]]")
	if o.kind() != "auth_required" || o.exit != 69 {
		t.Error(o)
	}
	u.s.SetKey("")
	if o := u.do("submit", "--json", o.Session, "[[say y]]"); o.exit != 0 || o.Text != "y" {
		t.Errorf("with the key: %v", o)
	}
}
