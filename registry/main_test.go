package registry

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
)

// helpers are what the test binary does instead of testing, in a process of its
// own, when the environment names one. Each gets the registry's folder.
var helpers = map[string]func(dir string) error{
	"create": createUntilKilled,
	"hold":   holdUntilKilled,
	"append": appendUntilKilled,
}

const helperVariable = "REGISTRY_TEST_HELPER"

func TestMain(m *testing.M) {
	if name, dir, ok := strings.Cut(os.Getenv(helperVariable), ":"); ok {
		help := helpers[name]
		if help == nil {
			help = diskHelpers[name]
		}
		if err := help(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// process is a helper under way; lines is what it prints.
type process struct {
	*exec.Cmd
	lines *bufio.Scanner
}

func startHelper(t *testing.T, name, dir string, change ...func(*exec.Cmd)) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0])}
	p.Env = append(os.Environ(), helperVariable+"="+name+":"+dir)
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(out)
	for _, f := range change {
		f(p.Cmd)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

// kill is SIGKILL, and waits for the end.
func (p *process) kill() {
	p.Process.Kill()
	p.Wait()
}

// line returns the next line that the helper prints, "" at its end.
func (p *process) line() string {
	p.lines.Scan()
	return p.lines.Text()
}

func open(t testing.TB) *Registry {
	t.Helper()
	r, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sample is a record with something in most of its members.
func sample() Record {
	return Record{
		Parent: "s_parent", Root: "s_root", Depth: 2, Title: "Find the leak", Role: "explore",
		Agent: "codex", Bridge: "codex",
		AgentDef: bridges.Agent{Name: "codex", Command: []string{"/usr/bin/codex", "app-server"}, PassEnv: []string{"OPENAI_API_KEY"}},
		Mode:     1, Cwd: "/home/u/project", Model: "gpt-5", Effort: "high", State: StateIdle,
		Limits:   Limits{TurnTimeout: time.Minute, MaxDepth: 3},
		Handle:   bridges.Handle{Version: 1, Data: []byte(`{"thread":"t-1"}`)},
		EnvNames: []string{"OPENAI_API_KEY"},
		Info:     bridges.Info{NativeID: "t-1", Hold: bridges.Hold{Strength: bridges.HoldKernel, Detail: "landlock-7"}},
		Warnings: []string{"one <warning> & \"more\""},
	}
}

func create(t testing.TB, r *Registry, id string) *Session {
	t.Helper()
	rec := sample()
	rec.ID = id
	s, err := r.Create(rec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func lockSession(t testing.TB, r *Registry, id string) *Session {
	t.Helper()
	s, err := r.Lock(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

var sameRecord = cmp.AllowUnexported(Record{})

func wantKind(t *testing.T, err error, kind bridges.ErrorKind) {
	t.Helper()
	if bridges.KindOf(err) != kind {
		t.Errorf("error %v is of kind %q, want %q", err, bridges.KindOf(err), kind)
	}
}
