//go:build linux

package matrix

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/test/agents"
	"github.com/subspan-dev/subspan/test/modelserver"
)

// persona is what the role says to the agent.
const persona = "Always mention the word PERSIMMON."

// user is somebody with subspan, one agent and folders of their own.
type user struct {
	dir string // holds all of theirs
	s   *modelserver.Server
	env []string
}

// newUser makes a user for the time of the test t.
func newUser(t *testing.T, p product) *user {
	t.Helper()
	bin := filepath.Join(agents.Find(t), ".bin")
	s, err := modelserver.Start(modelserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	dir, err := os.MkdirTemp("", "sm") // short: it becomes part of a socket's path
	if err != nil {
		t.Fatal(err)
	}
	u := &user{dir: dir, s: s}
	t.Cleanup(func() {
		if err := u.leave(); err != nil {
			t.Error(err)
		}
	})
	for _, sub := range []string{"home", "tmp", "config", "config/roles"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	u.env = append(p.env(t, s),
		"PATH="+bin+":/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8",
		"HOME="+filepath.Join(dir, "home"), "TMPDIR="+filepath.Join(dir, "tmp"),
		"SUBSPAN_STATE_DIR="+filepath.Join(dir, "state"), "SUBSPAN_CONFIG_DIR="+filepath.Join(dir, "config"),
		"SUBSPAN_DATA_DIR="+filepath.Join(dir, "data"), "SUBSPAN_RUNTIME_DIR="+filepath.Join(dir, "run"),
	)
	// No built-in role may do everything.
	role := map[string]any{"description": "Anything.", "permissionMode": "full", "instructions": persona}
	if p.standard != "" {
		role["model"] = p.standard
	}
	for path, content := range map[string]any{"roles/free.json": role, "config.json": u.config(p, nil)} {
		if err := writeJSON(filepath.Join(dir, "config", path), content); err != nil {
			t.Fatal(err)
		}
	}
	return u
}

// config is the user's config.json, with more laid over it.
func (u *user) config(p product, more map[string]any) map[string]any {
	c := map[string]any{}
	if p.agent != nil {
		c["agents"] = map[string]any{p.name: p.agent(u.s.URL())}
	}
	maps.Copy(c, more)
	return c
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// leave removes what the user has. Processes are ended, and are an error.
func (u *user) leave() error {
	err := u.rest(context.Background(), 10*time.Second)
	var removed error
	for range 50 { // what was just killed may still write
		if removed = os.RemoveAll(u.dir); removed == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.Join(err, removed)
}

// rest waits until no process of the user is alive. Those that are after the
// patience are killed and named in the error.
func (u *user) rest(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for len(u.processes()) > 0 && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	var left []string
	for _, p := range u.processes() {
		left = append(left, fmt.Sprintf("%d %s", p.pid, p))
		_ = syscall.Kill(p.pid, syscall.SIGKILL) // gone is as good
	}
	if left == nil {
		return nil
	}
	return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
}

// process is one that belongs to the user.
type process struct {
	pid, parent int
	args        []string
}

func (p process) String() string { return strings.Join(p.args, " ") }

// verb reports whether the process is the program at one of its inner verbs.
func (p process) verb(name string) bool {
	return len(p.args) > 1 && filepath.Base(p.args[0]) == filepath.Base(binary) && p.args[1] == name
}

// processes finds what has the user's folder in its command line or environment.
func (u *user) processes() map[int]process {
	found := map[int]process{}
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well formed
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(command) == 0 {
			continue // gone, or a zombie that somebody else has to reap
		}
		env, _ := os.ReadFile(filepath.Join(dir, "environ")) // not ours to read: not ours
		if !bytes.Contains(command, []byte(u.dir)) && !bytes.Contains(env, []byte(u.dir)) {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue
		}
		p := process{pid: pid, args: strings.Split(strings.TrimRight(string(command), "\x00"), "\x00")}
		var state string
		if i := bytes.LastIndexByte(stat, ')'); i < 0 || scan(stat[i+1:], &state, &p.parent) != nil {
			continue
		}
		found[pid] = p
	}
	return found
}

func scan(b []byte, into ...any) error {
	_, err := fmt.Sscan(string(b), into...)
	return err
}

// agent returns the pids of agents at work: the children of keepers.
func (u *user) agent() (pids []int) {
	all := u.processes()
	for pid, p := range all {
		if all[p.parent].verb("keep") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// bridges returns the pids of the plugin processes.
func (u *user) bridges() (pids []int) {
	for pid, p := range u.processes() {
		if p.verb("bridge") {
			pids = append(pids, pid)
		}
	}
	return pids
}
