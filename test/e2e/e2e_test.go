// Package e2e drives the built binary the way a person or a script does: real
// plugin processes, real keepers, real agents, real files.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/tidwall/gjson"

	"github.com/subspan-dev/subspan/test/fakeagent"
)

// binary is the program under test, built once for all tests of this package.
var binary string

func TestMain(m *testing.M) {
	fakeagent.Main()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "subspan-e2e")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "subspan")
		if runtime.GOOS == "windows" {
			binary += ".exe"
		}
		build := exec.Command("go", "build", "-o", binary, "github.com/subspan-dev/subspan/cmd/subspan")
		build.Stdout, build.Stderr = os.Stdout, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build subspan:", err)
			return 1
		}
		return m.Run()
	}())
}

// home makes folders for one user of the program and returns its environment. The
// runtime folder is short, as a socket's path has to be.
func home(t testing.TB) (dir string, env []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ss")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		endAll(t, dir)
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	for _, sub := range []string{"home", "work", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir, environment(dir)
}

func environment(dir string) []string {
	return []string{
		"PATH=" + filepath.Dir(binary) + ":/usr/local/bin:/usr/bin:/bin",
		"HOME=" + filepath.Join(dir, "home"),
		"TMPDIR=" + filepath.Join(dir, "tmp"),
		"SUBSPAN_STATE_DIR=" + filepath.Join(dir, "state"),
		"SUBSPAN_CONFIG_DIR=" + filepath.Join(dir, "config"),
		"SUBSPAN_DATA_DIR=" + filepath.Join(dir, "data"),
		"SUBSPAN_RUNTIME_DIR=" + filepath.Join(dir, "run"),
	}
}

// endAll fails the test when anything that belongs to the folder is still alive at
// the end, and ends it.
func endAll(t testing.TB, dir string) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		left := processesOf(dir)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for pid, cmd := range left {
				t.Errorf("left behind: pid %d %s", pid, cmd)
				if p, err := os.FindProcess(pid); err == nil {
					p.Kill()
				}
			}
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// processesOf finds processes that have the folder in their command line or
// environment.
func processesOf(dir string) map[int]string {
	found := map[int]string{}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		var pid int
		if _, err := fmt.Sscan(filepath.Base(p), &pid); err != nil || pid == os.Getpid() {
			continue
		}
		cmd, err := os.ReadFile(filepath.Join(p, "cmdline"))
		if err != nil || len(cmd) == 0 {
			continue // gone, or a zombie that somebody else has to reap
		}
		env, _ := os.ReadFile(filepath.Join(p, "environ"))
		if strings.Contains(string(cmd), dir) || strings.Contains(string(env), dir) {
			found[pid] = strings.ReplaceAll(string(cmd), "\x00", " ")
		}
	}
	return found
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			dir, vars := home(env.T().(testing.TB))
			env.Vars = append(env.Vars, vars...)
			env.Vars = append(env.Vars, "DIR="+dir)
			env.Cd = filepath.Join(env.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"json": jsonCmd, "setid": setidCmd,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// jsonCmd is `json FILE PATH WANT`: the value at a gjson path equals, or with the
// prefix ~ contains, the text.
func jsonCmd(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: json FILE PATH WANT")
	}
	got := gjson.Get(ts.ReadFile(args[0]), args[1]).String()
	want, contains := strings.CutPrefix(args[2], "~")
	match := got == want
	if contains {
		match = strings.Contains(got, want)
	}
	if match == neg {
		ts.Fatalf("%s is %q", args[1], got)
	}
}

// setidCmd is `setid NAME FILE PATH`: a variable gets a value of a JSON file.
func setidCmd(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: setid NAME FILE PATH")
	}
	v := gjson.Get(ts.ReadFile(args[1]), args[2]).String()
	if v == "" {
		ts.Fatalf("nothing at %s", args[2])
	}
	ts.Setenv(args[0], v)
}
