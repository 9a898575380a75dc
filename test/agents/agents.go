// Package agents lets tests run the real agents: the pinned versions that
// install.sh puts into a cache folder, each with an environment of its own in which
// it knows one model provider, a scripted one on the loopback interface.
//
// The programs are large, so these tests run only on request: with SUBSPAN_AGENTS=1
// in the environment. Without it they are skipped; with it, a program that is not
// there is a failure.
package agents

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// TB is what this package needs of a testing.TB.
type TB interface {
	Helper()
	Context() context.Context
	Cleanup(func())
	Logf(format string, args ...any)
	Skip(args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

//go:embed package-lock.json
var lock []byte

// Find returns the folder node_modules of the installed agents. It skips the test
// when real agents are not asked for, and fails it when they are missing.
func Find(t TB) string {
	t.Helper()
	if os.Getenv("SUBSPAN_AGENTS") != "1" {
		t.Skip("real agents run only with SUBSPAN_AGENTS=1; make test-agents sets it")
	}
	if runtime.GOOS == "windows" {
		t.Skip("the pinned agents are installed on Linux and macOS only")
	}
	root := os.Getenv("SUBSPAN_AGENTS_DIR")
	if root == "" {
		cache := os.Getenv("XDG_CACHE_HOME")
		if cache == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				t.Fatal(err)
			}
			cache = filepath.Join(home, ".cache")
		}
		root = filepath.Join(cache, "subspan", "agents")
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(root, hex.EncodeToString(sum[:])[:16], "node_modules") // as in install.sh
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("the pinned agents are not installed: %v; run test/agents/install.sh", err)
	}
	return dir
}

// Agent is one real agent, ready to be started any number of times. All starts
// share its home and with it its stored conversations.
type Agent struct {
	Name string
	// Program is the absolute path of what to start: where the package has a native
	// binary behind a launcher script, the binary.
	Program string
	// Env is the whole environment, not an addition to the test's own.
	Env []string
	// Home is the scratch HOME. It is removed when the test ends.
	Home string
	// Model is the model that Env and configuration make the default; Models are all
	// that the agent accepts, the default first.
	Model  string
	Models []string
	// ACP holds the arguments that start its ACP mode on stdin and stdout; nil when
	// the program has none.
	ACP []string
	// headless makes the arguments, and the standard input, for one task without limits.
	headless func(task string) (args []string, stdin string)
}

// Headless returns the plain one-shot command for a task, with everything allowed.
// The caller sets the folder, and the outputs, and starts it.
func (a Agent) Headless(task string) (args []string, stdin string) { return a.headless(task) }

// Command returns the command that starts the agent in folder dir.
func (a Agent) Command(t TB, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), a.Program, args...)
	cmd.Env = a.Env
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// launch is what all agents have in common: a home, a path, no telemetry.
func launch(t TB, name, program string, env ...string) Agent {
	t.Helper()
	home := scratch(t, name)
	tmp := filepath.Join(home, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("%v: install Node.js 20 or newer", err)
	}
	list := string(os.PathListSeparator)
	a := Agent{Name: name, Program: program, Home: home}
	a.Env = append([]string{
		"HOME=" + home,
		"TMPDIR=" + tmp,
		"PATH=" + filepath.Dir(node) + list + "/usr/local/bin" + list + "/usr/bin" + list + "/bin",
		"LANG=C.UTF-8",
		"TERM=dumb",
		"NO_COLOR=1",
		"DO_NOT_TRACK=1",
	}, env...)
	return a
}

// scratch makes a folder for the time of the test. Agents leave processes behind
// that still write while it is removed, which t.TempDir does not forgive.
func scratch(t TB, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 50 {
			if err = os.RemoveAll(dir); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("scratch folder is left behind: %v", err)
	})
	return dir
}

// file writes a configuration file below the agent's home.
func (a Agent) file(t TB, path, content string) {
	t.Helper()
	path = filepath.Join(a.Home, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
