package agents_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/test/agents"
	"github.com/subspan-dev/subspan/test/modelserver"
)

func serve(t *testing.T) *modelserver.Server {
	t.Helper()
	s, err := modelserver.Start(modelserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, r := range s.Requests() {
				t.Logf("%s %s errand=%t %q: %s %s", r.Method, r.Path, r.Errand, r.Task, r.Reply, r.State)
			}
		}
	})
	return s
}

// each runs test for each agent, on a server of its own.
func each(t *testing.T, test func(*testing.T, *modelserver.Server, agents.Agent)) {
	agents.Find(t)
	for name, launch := range map[string]func(agents.TB, *modelserver.Server) agents.Agent{
		"claude": agents.Claude, "codex": agents.Codex, "grok": agents.Grok,
		"opencode": agents.OpenCode, "gemini": agents.Gemini, "qwen": agents.Qwen,
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			test(t, s, launch(t, s))
		})
	}
}

// run runs a one-shot command that succeeds, and returns its stdout.
func run(t *testing.T, a agents.Agent, dir, stdin string, args ...string) string {
	t.Helper()
	out, errs, err := try(t, a, dir, stdin, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\nstdout: %s\nstderr: %s", a.Name, args, err, out, errs)
	}
	return out
}

func try(t *testing.T, a agents.Agent, dir, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := a.Command(t, dir, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// script is a task that uses the shell and the write tool of the agent, and what
// the server must have answered to it.
func script(dir string) (task string, replies []string) {
	task = fmt.Sprintf("[[think first]][[say start]][[sh echo from the shell > sh.txt && cat sh.txt]][[write %s from the tool]][[say %s]]",
		filepath.Join(dir, "w.txt"), answer)
	return task, []string{"call", "call", fmt.Sprintf("text %d", len(answer))}
}

const answer = "the scripted end"

// checkScript fails unless the agent did what script says.
func checkScript(t *testing.T, s *modelserver.Server, a agents.Agent, dir, task string, replies []string) {
	t.Helper()
	for name, want := range map[string]string{"sh.txt": "from the shell", "w.txt": "from the tool"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if got := strings.TrimSpace(string(b)); err != nil || got != want {
			t.Errorf("%s holds %q, %v; want %q", name, got, err, want)
		}
	}
	var got []string
	for _, r := range s.Turns() {
		if r.Task != task {
			t.Errorf("%s asks %q, want the task as it was given: %q", a.Name, r.Task, task)
		}
		if r.Auth == "" {
			t.Errorf("%s sends no key", a.Name)
		}
		if !strings.HasSuffix(a.Model, r.Model) {
			t.Errorf("%s asks the model %q, want %q", a.Name, r.Model, a.Model)
		}
		kind, _, _ := strings.Cut(r.Reply, " ")
		if kind != "call" {
			kind = r.Reply
		}
		got = append(got, kind)
	}
	if diff := cmp.Diff(replies, got); diff != "" {
		t.Errorf("answers of the model (-want +got):\n%s", diff)
	}
	if last, ok := s.Last(); ok && (len(last.Results) != 2 || !strings.Contains(last.Results[0], "from the shell")) {
		t.Errorf("tool results %q, want two, the first from the shell", last.Results)
	}
}

func TestRealHeadless(t *testing.T) {
	each(t, func(t *testing.T, s *modelserver.Server, a agents.Agent) {
		dir := t.TempDir()
		task, replies := script(dir)
		args, stdin := a.Headless(task)
		if out := run(t, a, dir, stdin, args...); !strings.Contains(out, answer) {
			t.Errorf("stdout has not the answer %q:\n%s", answer, out)
		}
		checkScript(t, s, a, dir, task, replies)
	})
}

// TestRealFailures shows that the agents take the server's failures for what they
// stand for: each says so in its own words.
func TestRealFailures(t *testing.T) {
	says := map[string]map[string]string{
		"[[status 401]]": {
			"claude": `"api_error_status":401`, "codex": "unexpected status 401 Unauthorized", "grok": "Unauthorized (401)",
			"opencode": `"statusCode":401`, "gemini": "UNAUTHENTICATED", "qwen": "[API Error: 401",
		},
		// The other three try again, for minutes.
		"[[quota]]": {"claude": "Credit balance is too low", "codex": "Quota exceeded.", "grok": "insufficient_quota"},
	}
	each(t, func(t *testing.T, s *modelserver.Server, a agents.Agent) {
		for task, all := range says {
			want, ok := all[a.Name]
			if !ok {
				continue
			}
			args, stdin := a.Headless(task)
			out, errs, err := try(t, a, t.TempDir(), stdin, args...)
			if !strings.Contains(out, want) {
				t.Errorf("%s: %v, stdout has not %q:\n%s\nstderr: %s", task, err, want, out, errs)
			}
		}
	})
}

func TestRealCodexCodeMode(t *testing.T) {
	s := serve(t)
	a := agents.Codex(t, s)
	dir := t.TempDir()
	task, replies := script(dir)
	args, stdin := a.Headless(task)
	out := run(t, a, dir, stdin, append([]string{"-m", a.Models[1]}, args...)...)
	if !strings.Contains(out, answer) {
		t.Errorf("stdout has not the answer %q:\n%s", answer, out)
	}
	a.Model = a.Models[1]
	checkScript(t, s, a, dir, task, replies)
	if last, _ := s.Last(); !strings.Contains(strings.Join(last.Tools, " "), "exec") || strings.Contains(strings.Join(last.Tools, " "), "exec_command") {
		t.Errorf("tools %q, want code mode's exec and no exec_command", last.Tools)
	}
}

// TestRealMCPHeadless covers the agents without an ACP mode; TestRealACP has the others.
func TestRealMCPHeadless(t *testing.T) {
	agents.Find(t)
	server, env := mcpServer(t)
	task := fmt.Sprintf(`[[mcp %s echo {"text":"through MCP"}]][[say %s]]`, mcpName, answer)
	check := func(t *testing.T, s *modelserver.Server, out string) {
		t.Helper()
		last, _ := s.Last()
		if len(last.Results) != 1 || !strings.Contains(last.Results[0], "echo: through MCP") || !strings.Contains(out, answer) {
			t.Errorf("tool results %q, stdout:\n%s", last.Results, out)
		}
	}
	t.Run("claude", func(t *testing.T) {
		s := serve(t)
		a := agents.Claude(t, s)
		config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{mcpName: map[string]any{
			"type": "stdio", "command": server, "args": []string{}, "env": map[string]string{env: "1"},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		args, stdin := a.Headless(task)
		check(t, s, run(t, a, t.TempDir(), stdin, append(args, "--strict-mcp-config", "--mcp-config", string(config))...))
	})
	for i, mode := range []string{"codex", "codex in code mode"} {
		t.Run(mode, func(t *testing.T) {
			s := serve(t)
			a := agents.Codex(t, s)
			args, stdin := a.Headless(task)
			key := "mcp_servers." + mcpName
			args = append([]string{
				"-m", a.Models[i], "-c", fmt.Sprintf("%s.command=%q", key, server), "-c", fmt.Sprintf(`%s.env={%s="1"}`, key, env),
			}, args...)
			check(t, s, run(t, a, t.TempDir(), stdin, args...))
		})
	}
}
