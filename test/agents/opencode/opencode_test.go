//go:build linux

// Package opencode runs the built program with the real opencode, offline against
// a scripted model.
package opencode

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
