package claude

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
	"github.com/subspan-dev/subspan/test/agents"
	"github.com/subspan-dev/subspan/test/modelserver"
)

// These run the pinned Claude Code against a scripted model; see package agents.

const realKey = "sk-ant-of-the-test-0123456789"

func realBench(t *testing.T, mode bridges.Mode) (*bench, *modelserver.Server) {
	t.Helper()
	agents.Find(t)
	srv, err := modelserver.Start(modelserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Errorf("model server: %v", err)
		}
	})
	home := t.TempDir()
	for _, kv := range os.Environ() { // nothing of the test's own environment
		name, _, _ := strings.Cut(kv, "=")
		if name != "PATH" && !strings.HasPrefix(name, "SUBSPAN_") {
			t.Setenv(name, "")
		}
	}
	t.Setenv("HOME", home)
	agent := Agent()
	agent.Command = []string{agents.Claude(t, srv).Program}
	agent.PassEnv = append(agent.PassEnv, "ANTHROPIC_BASE_URL")
	w := setUpAgent(t, mode, agent)
	w.settings.Model = "claude-scripted-1"
	w.settings.Env = []string{"ANTHROPIC_API_KEY=" + realKey, "ANTHROPIC_BASE_URL=" + srv.URL()}
	w.create(nil)
	return w, srv
}

func TestRealAnswer(t *testing.T) {
	w, srv := realBench(t, ceiling.Default)
	w.settings.Instructions = "Always mention the word PERSIMMON."
	r, rec := w.submit("[[think so be it]] [[say hello from claude]]")
	if rec.text() != "hello from claude" || r.Status != bridges.StatusCompleted || r.Model != "claude-scripted-1" {
		t.Errorf("%q %+v", rec.text(), r)
	}
	cost := modelserver.Cost(1)
	if u := r.Usage; u == nil || u.Input != int64(cost.Input) || u.Output != int64(cost.Output) || u.Source != "session_diff" {
		t.Errorf("usage %+v, the model counted %+v", r.Usage, cost)
	}
	if last, ok := srv.Last(); !ok || !strings.Contains(last.System, "PERSIMMON") {
		t.Errorf("the instructions did not arrive")
	}
	if rec.events[0].Session == nil || rec.events[0].Session.Info.Hold.Strength != bridges.HoldKernel {
		t.Errorf("first event %+v", rec.events[0])
	}
	r, _ = w.submit("[[say second]]")
	if u := r.Usage; u == nil || u.Input != int64(cost.Input) || u.Output != int64(cost.Output) {
		t.Errorf("usage of the second turn %+v", r.Usage)
	}
	w.settings.Effort = "low"
	w.say("[[say third]]")
	last, _ := srv.Last()
	if last.Effort != "low" || !strings.Contains(last.System, "PERSIMMON") {
		t.Errorf("effort %q", last.Effort)
	}
	if body := string(last.Body); !strings.Contains(body, "[[say second]]") {
		t.Errorf("the restart for another effort lost the turn before it: %s", body)
	}
	receipt := w.dispose(false)
	if !receipt.Proven || receipt.SurvivedCount != 0 {
		t.Errorf("receipt %+v", receipt)
	}
	if r := w.reconnect(""); r.Status != bridges.ReconnectSame {
		t.Errorf("reconnect: %+v", r)
	}
	w.dispose(true)
	if r := w.reconnect(""); r.Status != bridges.ReconnectGone {
		t.Errorf("reconnect after the deletion: %+v", r)
	}
}

// TestRealB53 sends what would be commands, flags and files to the front end.
func TestRealB53TaskIsText(t *testing.T) {
	w, srv := realBench(t, ceiling.Default)
	if err := os.WriteFile(filepath.Join(w.settings.Cwd, "secret.txt"), []byte("FILECONTENT"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, task := range []string{"/compact", "/nosuch x", "--help", "-m x", "@secret.txt", "!ls", "#note", "  /x", "żółć \u2028 🧪 \x00 \"%PATH%\""} {
		w.say(task)
		last, ok := srv.Last()
		if !ok || !strings.HasSuffix(last.UserText, task) || strings.Contains(last.UserText, "FILECONTENT") {
			t.Errorf("%q arrived as %q", task, last.UserText)
		}
	}
}

// TestRealModes makes the agent try to write, by its shell and by its own tool.
func TestRealModes(t *testing.T) {
	for _, mode := range ceiling.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			w, _ := realBench(t, mode)
			out := filepath.Dir(w.settings.Cwd)
			in := w.settings.Cwd
			for _, task := range []string{
				fmt.Sprintf("[[sh touch %s/sh]] [[sh sh -c 'echo x > %s/sh2']] [[say end]]", in, in),
				fmt.Sprintf("[[write %s/tool x]] [[say end]]", in),
				fmt.Sprintf("[[sh touch %s/sh]] [[say end]]", out),
				fmt.Sprintf("[[write %s/tool x]] [[say end]]", out),
			} {
				rec := newRecorder(w)
				rec.answer = func(bridges.Question) bridges.Answer { return bridges.Answer{Decision: bridges.Allow} } // the worst host
				if _, err := w.bridge.Submit(ctx(t), w.request(task), rec); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range []string{"sh", "sh2", "tool"} {
				if _, err := os.Stat(filepath.Join(in, name)); (err == nil) != (mode != ceiling.Readonly) {
					t.Errorf("in the workspace: %s: %v", name, err)
				}
				if _, err := os.Stat(filepath.Join(out, name)); (err == nil) != (mode == ceiling.Full) && name != "sh2" {
					t.Errorf("outside: %s: %v", name, err)
				}
			}
			if mode == ceiling.Readonly { // what is of use stays possible
				if err := os.WriteFile(filepath.Join(in, "f"), []byte("CONTENT"), 0o600); err != nil {
					t.Fatal(err)
				}
				if got := w.say("[[sh cat f]]"); !strings.Contains(got, "CONTENT") {
					t.Errorf("cat: %q", got)
				}
			}
		})
	}
}

// TestRealPolicy is readonly and default where the kernel does not hold.
func TestRealPolicy(t *testing.T) {
	w, srv := realBench(t, ceiling.Readonly)
	w.bridge.detail, w.bridge.noHold = "", errors.New("no landlock here")
	w.settings.Accept = bridges.HoldProductPolicy
	rec := newRecorder(w)
	rec.answer = func(bridges.Question) bridges.Answer { return bridges.Answer{Decision: bridges.Allow} }
	file := filepath.Join(w.settings.Cwd, "x")
	for _, task := range []string{`[[call Bash {"command":"touch ` + file + `"}]]`, `[[call Write {"file_path":"` + file + `","content":"x"}]]`} {
		if _, err := w.bridge.Submit(ctx(t), w.request(task), rec); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("readonly wrote: %v", err)
	}
	if last, _ := srv.Last(); len(last.Tools) == 0 || strings.Contains(strings.Join(last.Tools, " "), "Bash") {
		t.Errorf("tools offered: %v", last.Tools)
	}
	w.settings.Mode = ceiling.Default
	rec = newRecorder(w)
	rec.answer = func(bridges.Question) bridges.Answer { return bridges.Answer{Decision: bridges.Deny, Reason: "no"} }
	r, err := w.bridge.Submit(ctx(t), w.request("[[sh touch "+file+"]]"), rec)
	if err != nil || r.Denied != 1 || len(rec.questions) != 1 {
		t.Errorf("default: %+v, asked %+v, %v", r, rec.questions, err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused call wrote: %v", err)
	}
}

func TestRealQuestions(t *testing.T) {
	w, _ := realBench(t, ceiling.Default)
	rec := newRecorder(w)
	rec.answer = func(q bridges.Question) bridges.Answer {
		if len(q.Choices) > 0 {
			return bridges.Answer{Decision: bridges.Allow, Choice: q.Choices[1]}
		}
		return bridges.Answer{Decision: bridges.Deny, Reason: "not today"}
	}
	r, err := w.bridge.Submit(ctx(t), w.request(`[[sh python3 -c "print(1)"]] [[call AskUserQuestion {"questions":[{"question":"Which?","header":"Q","multiSelect":false,"options":[{"label":"A","description":"a"},{"label":"B","description":"b"}]}]}]]`), rec)
	if err != nil || len(rec.questions) != 2 || r.Denied != 1 || !strings.Contains(rec.text(), `"Which?"="B"`) {
		t.Errorf("%+v %v asked %+v answer %q", r, err, rec.questions, rec.text())
	}
}

func TestRealCancel(t *testing.T) {
	w, srv := realBench(t, ceiling.Full)
	pid := filepath.Join(w.settings.Cwd, "pid")
	for _, task := range []string{"[[say before]] [[hang]]", "[[say before]] [[sh echo $$ > " + pid + "; exec sleep 1000]]"} {
		rec := newRecorder(w)
		done := w.start(w.request(task), rec)
		rec.awaitText(t, "before")
		if strings.Contains(task, "sleep") {
			for _, err := os.Stat(pid); err != nil; _, err = os.Stat(pid) {
			}
		}
		close(rec.cancelled)
		if r, err := (<-done)(); err != nil || r.Status != bridges.StatusCancelled {
			t.Errorf("%q: %+v %v", task, r, err)
		}
	}
	w.say("[[say alive]]") // the conversation goes on
	if n := len(srv.Turns()); n != 3 {
		t.Errorf("%d requests to the model, want one for each answer", n)
	}
}

// TestRealKilled kills the agent in the middle of a turn, then the bridge.
func TestRealKilled(t *testing.T) {
	w, srv := realBench(t, ceiling.Full)
	rec := newRecorder(w)
	done := w.start(w.request("[[say partial]] [[hang]]"), rec)
	rec.awaitText(t, "partial")
	killAgents(t, w)
	if r, err := (<-done)(); err != nil || r.Status != bridges.StatusFailed || !errors.Is(r.Error, bridges.ErrAgentFailed) {
		t.Errorf("%+v %v", r, err)
	}
	before := len(srv.Turns())
	if got := w.say("[[say again]]"); got != "again" {
		t.Errorf("after the kill: %q", got)
	}
	if n := len(srv.Turns()) - before; n != 1 {
		t.Errorf("%d requests for one task", n)
	}

	req := w.request("[[slow 200]] [[say one]] [[sh sleep 1]] [[say two]]")
	if err := w.bridge.Close(); err != nil {
		t.Fatal(err)
	}
	events := w.killWorker(req, func(events []bridges.Event) bool { return strings.Contains(textOf(events), "one") })
	w.bridge = newBridge(t)
	if r := w.reconnect(req.TurnID); r.Status != bridges.ReconnectSame || r.Turn != bridges.TurnAttachable {
		t.Fatalf("reconnect: %+v", r)
	}
	req.Resume = &bridges.Resume{After: events[len(events)-1].Pos}
	rec = newRecorder(w)
	r, err := w.bridge.Submit(ctx(t), req, rec)
	if err != nil || r.Status != bridges.StatusCompleted {
		t.Fatalf("%+v %v", r, err)
	}
	if got := textOf(events) + rec.text(); got != "onetwo" {
		t.Errorf("the answer in two parts: %q", got)
	}
}

func TestRealFork(t *testing.T) {
	w, srv := realBench(t, ceiling.Default)
	w.say("[[say ALPHA]]")
	parent := w.handle
	fork := w.other("fork")
	fork.create(&parent)
	w.say("[[say BETA]]")
	if !strings.Contains(string(w.handle.Data), `"begun":true`) {
		t.Errorf("after a turn the handle is %s", w.handle.Data)
	}
	if got := fork.say("[[say GAMMA]]"); got != "GAMMA" {
		t.Errorf("the fork says %q", got)
	}
	last, _ := srv.Last()
	if body := string(last.Body); !strings.Contains(body, "ALPHA") || strings.Contains(body, "BETA") {
		t.Errorf("the fork's history: %s", body)
	}
}

func TestRealFailures(t *testing.T) {
	w, srv := realBench(t, ceiling.Default)
	w.settings.Env = append(w.settings.Env, "CLAUDE_CODE_MAX_RETRIES=1")
	for i, tt := range []struct {
		task  string
		model string
		env   []string
		want  *bridges.Error
	}{
		{"[[status 401]]", "", w.settings.Env, bridges.ErrAuthRequired},
		{"[[status 429]]", "", w.settings.Env, bridges.ErrRateLimited},
		{"[[quota]]", "", w.settings.Env, bridges.ErrQuotaExhausted},
		{"[[status 529]]", "", w.settings.Env, bridges.ErrAgentFailed},
		{"hello", "missing-model", w.settings.Env, bridges.ErrModelUnavailable},
		{"hello", "", w.settings.Env[1:], bridges.ErrAuthRequired}, // no login at all
	} {
		o := w.other(fmt.Sprint("f", i))
		if o.settings.Env = tt.env; tt.model != "" {
			o.settings.Model = tt.model
		}
		o.create(nil)
		before := len(srv.Turns())
		r, _ := o.submit(tt.task)
		if r.Status != bridges.StatusFailed || !errors.Is(r.Error, tt.want) || r.Error.Next == "" {
			t.Errorf("%s: %+v %v", tt.task, r, r.Error)
		}
		if n := len(srv.Turns()) - before; n > 2 {
			t.Errorf("%s: %d requests to the model", tt.task, n)
		}
		o.dispose(false)
	}
	unknown := w.other("u")
	unknown.handle = handle{NativeID: nativeID("nobody"), Cwd: w.settings.Cwd, Begun: true}.encode()
	if r := unknown.reconnect(""); r.Status != bridges.ReconnectGone {
		t.Errorf("unknown: %+v", r)
	}
	// The agent itself is asked about a conversation that only looks like one.
	dir := filepath.Join(homeOf(w.folders, nativeID("nobody")).dir, "projects", "-elsewhere")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, nativeID("nobody")+".jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := unknown.bridge.Submit(ctx(t), unknown.request("hello"), newRecorder(unknown)); !errors.Is(err, bridges.ErrSessionGone) {
		t.Errorf("a conversation without a message: %v", err)
	}
}

// TestRealLogin logs in by the user's file, and has the login refused.
func TestRealLogin(t *testing.T) {
	w, srv := realBench(t, ceiling.Default)
	w.settings.Env = w.settings.Env[1:]
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(home, ".claude", ".credentials.json")
	login := fmt.Sprintf(`{"claudeAiOauth":{"accessToken":"sk-ant-oat01-of-the-test","refreshToken":"sk-ant-ort01-of-the-test","expiresAt":%d,"scopes":["user:inference"],"subscriptionType":"max"}}`,
		time.Now().Add(time.Hour).UnixMilli())
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(login), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := w.say("[[say in]]"); got != "in" {
		t.Errorf("answer %q", got)
	}
	if last, _ := srv.Last(); last.Auth != "bearer" {
		t.Errorf("logged in by %q", last.Auth)
	}
	if r, _ := w.submit("[[status 401]]"); !errors.Is(r.Error, bridges.ErrAuthRequired) {
		t.Errorf("%+v %v", r, r.Error)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != login {
		t.Errorf("the user's login was changed: %s, %v", got, err)
	}
}

func TestRealMCP(t *testing.T) {
	w, srv := realBench(t, ceiling.Default)
	w.settings.MCPServers = []bridges.MCPServer{{Name: "nowhere", Command: "/nowhere/server", Env: map[string]string{"X": "1"}}}
	r, _ := w.submit("[[say x]]")
	if r.Status != bridges.StatusCompleted || !strings.Contains(strings.Join(r.Warnings, ";"), "MCP server nowhere did not start") {
		t.Errorf("%+v", r)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w.settings.MCPServers = []bridges.MCPServer{{Name: "lab", Command: self, Args: []string{"mcp-server"}}}
	rec := newRecorder(w)
	rec.answer = func(bridges.Question) bridges.Answer { return bridges.Answer{Decision: bridges.Allow} }
	if _, err := w.bridge.Submit(ctx(t), w.request(`[[mcp lab echo {"text":"PING"}]]`), rec); err != nil {
		t.Fatal(err)
	}
	last, _ := srv.Last()
	if !strings.Contains(rec.text(), "PING") || len(rec.questions) != 1 {
		t.Errorf("answer %q, asked %+v, tools %v", rec.text(), rec.questions, last.Tools)
	}
}

// TestRealBackground leaves a command running; the agent's own turn about its end
// is nobody's answer.
func TestRealBackground(t *testing.T) {
	w, _ := realBench(t, ceiling.Full)
	file := filepath.Join(w.settings.Cwd, "go")
	if got := w.say(`[[call Bash {"command":"until test -e ` + file + `; do sleep 0.05; done","run_in_background":true}]] [[say left running]]`); got != "left running" {
		t.Errorf("answer %q", got)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := w.say("[[sh sleep 1]] [[say mine]]"); !strings.HasSuffix(got, "mine") {
		t.Errorf("answer %q", got)
	}
	if got := w.say("[[say next]]"); got != "next" {
		t.Errorf("the turn after: %q", got)
	}
}
