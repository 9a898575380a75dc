package codex

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
)

func TestResolve(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	triple, platform := target(runtime.GOOS, runtime.GOARCH)
	file := func(path, content string) string {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(to, name string) string {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	launcher := func(dir, name string) string {
		file(dir+"/package.json", `{"name":"`+name+`"}`)
		return file(dir+"/bin/codex.js", "#!/usr/bin/env node\n")
	}
	beside := launcher("a/node_modules/@openai/codex", "@openai/codex")
	besideBin := file("a/node_modules/@openai/codex-"+platform+"/vendor/"+triple+"/bin/codex", "")
	nested := launcher("b/lib/node_modules/@openai/codex", "@openai/codex")
	nestedBin := file("b/lib/node_modules/@openai/codex/node_modules/@openai/codex-"+platform+"/vendor/"+triple+"/bin/codex", "")
	inside := launcher("c/@openai/codex", "@openai/codex")
	insideBin := file("c/@openai/codex/vendor/"+triple+"/codex/codex", "")
	half := launcher("d/@openai/codex", "@openai/codex")
	foreign := launcher("e/codex", "somebody-elses")
	file("e/codex/vendor/"+triple+"/bin/codex", "")
	native := file("f/bin/codex", "\x7fELF")
	for found, want := range map[string]string{
		link(beside, "a/bin/codex"): besideBin,
		link(nested, "b/bin/codex"): nestedBin,
		link(inside, "c/bin/codex"): insideBin,
		half:                        half,
		foreign:                     foreign,
		native:                      native,
	} {
		a, err := Resolve(bridges.Agent{Command: []string{"codex", "--flag"}}, func(name string) (string, error) {
			if name != "codex" {
				t.Errorf("looked for %q", name)
			}
			return found, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{want, "--flag"}, a.Command); d != "" {
			t.Errorf("%s: %s", found, d)
		}
	}
	_, err = Resolve(Agent(), func(string) (string, error) { return "", errors.New("not in PATH") })
	if bridges.KindOf(err) != bridges.KindAgentMissing || !strings.Contains(bridges.AsError(err).Next, "npm install") {
		t.Error(err)
	}
}

func TestTOML(t *testing.T) {
	var over map[string]any
	d := json.NewDecoder(strings.NewReader(`{"a":{"x":1.5,"new \"key\"":["q\"\\\n\u007f",true,null,{}]},"b":"ü"}`))
	d.UseNumber()
	if err := d.Decode(&over); err != nil {
		t.Fatal(err)
	}
	got := encodeTOML(overlay(map[string]any{"a": map[string]any{"x": false, "y": false}, "c": "kept"}, over))
	want := `a = {"new \"key\"" = ["q\"\\\u000A\u007F", true, {}, {}], x = 1.5, y = false}
b = "ü"
c = "kept"
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestOptions(t *testing.T) {
	for raw, ok := range map[string]bool{``: true, `{}`: true, `{"config":{"model":"x"}}`: true, `{"confg":{}}`: false, `[]`: false} {
		_, err := optionsOf(bridges.Agent{Name: "codex", Options: json.RawMessage(raw)})
		if (err == nil) != ok || err != nil && bridges.KindOf(err) != bridges.KindInvalidArgument {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// Without our sandbox codex's holds; without both nothing runs, unless that was
// accepted by name.
func TestWithoutOurSandbox(t *testing.T) {
	for _, tc := range []struct {
		mode   bridges.Mode
		accept bridges.Strength
		broken bool
		hold   bridges.Strength // "" = refused
		own    string
	}{
		{ceiling.Readonly, "", false, bridges.HoldProductSandbox, "read-only"},
		{ceiling.Readonly, bridges.HoldKernel, false, "", ""},
		{ceiling.Readonly, "", true, "", ""},
		{ceiling.Readonly, bridges.HoldProductPolicy, true, bridges.HoldProductPolicy, "read-only"},
		{ceiling.Default, "", false, bridges.HoldProductSandbox, "workspace-write"},
		{ceiling.Default, bridges.HoldKernel, false, "", ""},
		{ceiling.Default, "", true, "", ""},
		{ceiling.Default, bridges.HoldProductPolicy, true, bridges.HoldProductPolicy, "workspace-write"},
		{ceiling.Full, "", true, bridges.HoldNone, "danger-full-access"},
	} {
		r := newRig(t, tc.mode)
		r.b.kernel = &probed{err: errors.New("no Landlock here")}
		r.settings.Accept = tc.accept
		if tc.broken {
			r.agent.Env["FAKE_SANDBOX"] = "broken"
		}
		l, err := r.b.prepare(t.Context(), r.agent, r.settings, r.folders, bridges.Keeping{})
		if tc.hold == "" {
			if bridges.KindOf(err) != bridges.KindSandboxUnavailable {
				t.Errorf("%s, accepting %q: %v", tc.mode, tc.accept, err)
			}
			continue
		}
		if err != nil || l.limits.strength != tc.hold || l.limits.Own != tc.own {
			t.Errorf("%s, accepting %q: %+v %v", tc.mode, tc.accept, l, err)
		}
	}
}

func TestRecord(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, "sessions", "2026", "01", "02")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "rollout-2026-01-02T00-00-00-01a22e65-fe2b.jsonl")
	// The name lies across the border of two reads.
	content := strings.Repeat("x", 256<<10-5) + `{"client_id":"s1/t1"}` + "\n"
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	rec, found := recordOf(home, "01a22e65-fe2b")
	if !found {
		t.Fatal("not found")
	}
	for name, want := range map[string]bool{"s1/t1": true, "s1/t": false, "1/t1": false} {
		if got, err := rec.holds(name); got != want || err != nil {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	for _, thread := range []string{"01a22e65-0000", "*", "../../x", ""} {
		if _, found := recordOf(home, thread); found {
			t.Errorf("%q found", thread)
		}
	}
}

func TestNotes(t *testing.T) {
	good := note{Thread: "01a22e65-fe2b", Ran: true, Model: "m", Role: "r", Out: 7}
	if got, err := readNote(good.handle()); err != nil || got != good {
		t.Errorf("%+v %v", got, err)
	}
	for _, h := range []bridges.Handle{{}, {Version: 2, Data: json.RawMessage(`{}`)}, {Version: 1, Data: json.RawMessage(`{`)}, {Version: 1, Data: json.RawMessage(`{"thread":"../x"}`)}} {
		if _, err := readNote(h); bridges.KindOf(err) != bridges.KindInvalidArgument {
			t.Errorf("%+v: %v", h, err)
		}
	}
}

func TestNothingIsLeftOpen(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("counts /proc/self/fd")
	}
	r := newRig(t, ceiling.Full)
	count := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(e)
	}
	cycle := func() {
		r.create()
		r.submit("[say x]", newHost())
		if _, err := r.b.Dispose(t.Context(), bridges.DisposeRequest{SessionID: r.id, Agent: r.agent, Folders: r.folders}); err != nil {
			t.Fatal(err)
		}
	}
	cycle() // makes the runner
	fds, routines := count(), runtime.NumGoroutine()
	for range 4 {
		cycle()
	}
	for limit := time.Now().Add(5 * time.Second); count() > fds || runtime.NumGoroutine() > routines; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d files and %d goroutines became %d and %d", fds, routines, count(), runtime.NumGoroutine())
		}
	}
}
