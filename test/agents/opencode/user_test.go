//go:build linux

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
