package codex

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/core/ceiling"
)

func TestMain(m *testing.M) {
	agentproc.Main()
	if os.Getenv(fakeEnv) == "1" {
		fakeMain()
	}
	if os.Getenv(mcpEnv) == "1" {
		mcpMain()
	}
	if spec := os.Getenv(hostEnv); spec != "" {
		hostMain(spec)
	}
	os.Exit(m.Run())
}

// rig is a bridge with a fake codex, and one session's settings.
type rig struct {
	t        *testing.T
	b        *Bridge
	agent    bridges.Agent
	settings bridges.Settings
	folders  bridges.Folders
	id       string
	handle   bridges.Handle
	turns    int
}

func newRig(t *testing.T, mode bridges.Mode) *rig {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(root, "home")
	cwd := filepath.Join(root, "work")
	for _, dir := range []string{home, cwd} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", home)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The race detector sleeps for a second at the exit of the keeper too.
	keeper := filepath.Join(root, "keeper")
	if err := os.WriteFile(keeper, []byte("#!/bin/sh\nGORACE=atexit_sleep_ms=0 exec '"+self+"' \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv(agentproc.KeeperEnv, keeper)
	a := Agent()
	a.Command = []string{self}
	a.Env = map[string]string{fakeEnv: "1", "GORACE": "atexit_sleep_ms=0"} // the race detector sleeps at exit
	a.Options = json.RawMessage(`{"config":{"model_provider":"scripted"}}`)
	r := &rig{t: t, b: New(Options{Version: "test"}), agent: a, id: "s1",
		settings: bridges.Settings{Mode: mode, Cwd: cwd},
		folders:  bridges.Folders{Run: filepath.Join(root, "run"), State: filepath.Join(root, "state")}}
	t.Cleanup(func() {
		r.b.Dispose(context.Background(), bridges.DisposeRequest{SessionID: r.id, Agent: r.agent, Folders: r.folders})
		r.b.Close()
	})
	return r
}

func (r *rig) create() bridges.Created {
	r.t.Helper()
	c, err := r.b.Create(r.t.Context(), bridges.CreateRequest{SessionID: r.id, Agent: r.agent, Settings: r.settings, Folders: r.folders})
	if err != nil {
		r.t.Fatal(err)
	}
	r.handle = c.Handle
	return c
}

func (r *rig) request(task string) bridges.SubmitRequest {
	r.turns++
	return bridges.SubmitRequest{SessionID: r.id, TurnID: turnName(r.turns), Agent: r.agent, Handle: r.handle, Settings: r.settings, Folders: r.folders, Task: task}
}

func turnName(n int) string { return fmt.Sprintf("t%d", n) }

func (r *rig) submit(task string, h *host) bridges.Result {
	r.t.Helper()
	res, err := r.b.Submit(r.t.Context(), r.request(task), h)
	if err != nil {
		r.t.Fatal(err)
	}
	r.learn(h)
	return res
}

func (r *rig) learn(h *host) {
	for _, e := range h.events() {
		if e.Session != nil && e.Session.Handle != nil {
			r.handle = *e.Session.Handle
		}
	}
}

func (r *rig) reconnect(turn string) bridges.Reconnected {
	r.t.Helper()
	out, err := r.b.Reconnect(r.t.Context(), bridges.ReconnectRequest{SessionID: r.id, Agent: r.agent, Handle: r.handle, Settings: r.settings, Folders: r.folders, TurnID: turn})
	if err != nil {
		r.t.Fatal(err)
	}
	r.handle = out.Handle
	return out
}

// restart is a new process of the bridge.
func (r *rig) restart() {
	r.b.Close()
	r.b = New(Options{Version: "test"})
}

// frames are what the fake was sent, of one method.
func (r *rig) frames(method string) []map[string]any {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.folders.State, "frames.jsonl"))
	if err != nil {
		r.t.Fatal(err)
	}
	var out []map[string]any
	for line := range strings.Lines(string(b)) {
		var m struct {
			Method string
			Params map[string]any
		}
		if json.Unmarshal([]byte(line), &m) == nil && m.Method == method {
			out = append(out, m.Params)
		}
	}
	return out
}

// host is the other side of a turn.
type host struct {
	answer func(bridges.Question) bridges.Answer
	cancel chan struct{}

	mu    sync.Mutex
	got   []bridges.Event
	asked []bridges.Question
	fresh chan struct{}
	gone  error
}

func newHost() *host {
	return &host{cancel: make(chan struct{}), fresh: make(chan struct{}, 1)}
}

func (h *host) Emit(e bridges.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone != nil {
		return h.gone
	}
	h.got = append(h.got, e)
	select {
	case h.fresh <- struct{}{}:
	default:
	}
	return nil
}

func (h *host) Ask(ctx context.Context, q bridges.Question) (bridges.Answer, error) {
	h.mu.Lock()
	h.asked = append(h.asked, q)
	h.mu.Unlock()
	select {
	case h.fresh <- struct{}{}:
	default:
	}
	if h.answer == nil {
		<-ctx.Done()
		return bridges.Answer{}, ctx.Err()
	}
	return h.answer(q), nil
}

func (h *host) Cancelled() <-chan struct{} { return h.cancel }

func (h *host) events() []bridges.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.got)
}

func (h *host) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.got)
}

func (h *host) questions() []bridges.Question {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

// until waits for something to be true of what came.
func (h *host) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-h.fresh:
		case <-limit:
			t.Fatalf("waited in vain for %s; got %v", what, h.events())
		}
	}
}

func text(events []bridges.Event) string {
	var b strings.Builder
	for _, e := range events {
		if e.Kind == bridges.KindText {
			b.WriteString(e.Text)
		}
	}
	return b.String()
}

func TestTurn(t *testing.T) {
	r := newRig(t, ceiling.Full)
	c := r.create()
	if c.Info.AgentVersion != "0.171.0" || c.Info.NativeID == "" || c.Info.Model != "m-1" || !slices.Equal(c.Info.Models, []string{"m-1", "m-2"}) {
		t.Errorf("info %+v", c.Info)
	}
	h := newHost()
	res := r.submit("[say hello world][tool output][sub not mine][say bye]", h)
	if got := text(h.events()); got != "hello worldbye" {
		t.Errorf("text %q", got)
	}
	want := bridges.Result{Status: bridges.StatusCompleted, StopReason: "completed", Model: "m-1",
		Usage: &bridges.Usage{Input: 100, Output: 10, Source: "session_diff", ContextUsed: 100}}
	res.Usage.Raw = nil
	if d := cmp.Diff(want, res); d != "" {
		t.Error(d)
	}
	var tools []string
	last := bridges.Position{}
	for _, e := range h.events() {
		if e.Kind == bridges.KindTool {
			tools = append(tools, string(e.Tool.Status)+" "+e.Tool.Output)
		}
		if !e.Pos.IsZero() {
			if !e.Pos.After(last) {
				t.Errorf("%v does not come after %v", e.Pos, last)
			}
			last = e.Pos
		}
	}
	if !slices.Equal(tools, []string{"in_progress ", "completed output"}) {
		t.Errorf("tools %q", tools)
	}
	// The second turn pays for itself alone.
	res = r.submit("[say again]", newHost())
	if res.Usage.Input != 100 {
		t.Errorf("second turn: usage %+v", res.Usage)
	}
	if n, _ := readNote(r.handle); !n.Ran {
		t.Error("the handle does not say that a turn ran")
	}
}

// What comes after the end of a turn is neither the next one's text nor its end.
func TestLateFrames(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	r.submit("[say x][late]", newHost())
	s := r.b.kept(r.id)
	h := newHost()
	l := r.b.dial(s, h, clientID(r.id, "t2"), bridges.Position{})
	// When the answer is there, so is all that was before it.
	if _, err := l.conn.Call(t.Context(), "thread/backgroundTerminals/clean", nil); err != nil {
		t.Error(err)
	}
	if l.look().over {
		t.Error("the end of the turn before ended this one")
	}
	l.close()
	r.b.keep(s)
	if res := r.submit("[say y]", h); res.Status != bridges.StatusCompleted || text(h.events()) != "y" {
		t.Errorf("%+v %q", res, text(h.events()))
	}
}

func TestModes(t *testing.T) {
	for _, tc := range []struct {
		name            string
		mode            bridges.Mode
		accept          bridges.Strength
		broken          bool
		hold            bridges.Strength
		thread, policy  string
		approval        string
		refused, warned bool
	}{
		{name: "readonly", mode: ceiling.Readonly, hold: bridges.HoldKernel, thread: "danger-full-access", policy: "dangerFullAccess", approval: "never"},
		{name: "default", mode: ceiling.Default, hold: bridges.HoldProductSandbox, thread: "workspace-write", policy: "workspaceWrite", approval: "on-request"},
		{name: "default, kernel wanted", mode: ceiling.Default, accept: bridges.HoldKernel, hold: bridges.HoldKernel, thread: "danger-full-access", policy: "dangerFullAccess", approval: "never", warned: true},
		{name: "default, codex's sandbox broken", mode: ceiling.Default, broken: true, hold: bridges.HoldKernel, thread: "danger-full-access", policy: "dangerFullAccess", approval: "never", warned: true},
		{name: "full", mode: ceiling.Full, hold: bridges.HoldNone, thread: "danger-full-access", policy: "dangerFullAccess", approval: "never"},
		{name: "no mode", mode: bridges.Mode(99), hold: bridges.HoldKernel, thread: "danger-full-access", policy: "dangerFullAccess", approval: "never"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.mode)
			r.settings.Accept = tc.accept
			if tc.broken {
				r.agent.Env["FAKE_SANDBOX"] = "broken"
			}
			c := r.create()
			if c.Info.Hold.Strength != tc.hold {
				t.Errorf("hold %v", c.Info.Hold)
			}
			if warned := len(c.Info.Warnings) > 0; warned != tc.warned {
				t.Errorf("warnings %q", c.Info.Warnings)
			}
			for range 2 {
				r.submit("[say x]", newHost())
			}
			start := r.frames("thread/start")[0]
			if start["sandbox"] != tc.thread || start["approvalPolicy"] != tc.approval || start["approvalsReviewer"] != "user" {
				t.Errorf("thread/start %v", start)
			}
			projects, _ := json.Marshal(start["config"].(map[string]any)["projects"])
			if want := `{"` + r.settings.Cwd + `":{"trust_level":"untrusted"}}`; string(projects) != want {
				t.Errorf("trust %s", projects)
			}
			turns := r.frames("turn/start")
			if len(turns) != 2 {
				t.Fatalf("%d turns", len(turns))
			}
			for _, turn := range turns {
				policy := turn["sandboxPolicy"].(map[string]any)
				if policy["type"] != tc.policy || turn["approvalPolicy"] != tc.approval || turn["model"] != "m-1" || turn["effort"] != "medium" {
					t.Errorf("turn/start %v", turn)
				}
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	r := newRig(t, ceiling.Default)
	r.create()
	yes, no := bridges.Answer{Decision: bridges.Allow, Choice: "B"}, bridges.Answer{}
	for _, tc := range []struct {
		task   string
		answer bridges.Answer
		says   string
		denied int
		status bridges.Status
	}{
		{"[ask rm x]", yes, `decision {"decision":"accept"}`, 0, bridges.StatusCompleted},
		{"[ask rm x]", no, `decision {"decision":"decline"}`, 1, bridges.StatusCompleted},
		{"[ask rm x]", bridges.Answer{Decision: bridges.Cancel}, `decision {"decision":"cancel"}`, 1, bridges.StatusCancelled},
		{"[patch /a/b.txt]", yes, `decision {"decision":"accept"}`, 0, bridges.StatusCompleted},
		{"[patch /a/b.txt]", no, `decision {"decision":"decline"}`, 1, bridges.StatusCompleted},
		{"[elicit]", yes, `action {"action":"accept","content":{}}`, 0, bridges.StatusCompleted},
		{"[elicit]", no, `action {"action":"decline","content":null}`, 1, bridges.StatusCompleted},
		{"[choose]", yes, `answers {"answers":{"q":{"answers":["B"]}}}`, 0, bridges.StatusCompleted},
		{"[choose]", no, `answers {"answers":{}}`, 1, bridges.StatusCompleted},
	} {
		t.Run(tc.task+string(tc.answer.Decision), func(t *testing.T) {
			r.t = t
			h := newHost()
			h.answer = func(bridges.Question) bridges.Answer { return tc.answer }
			res := r.submit(tc.task, h)
			if got := text(h.events()); got != tc.says {
				t.Errorf("codex heard %q, not %q", got, tc.says)
			}
			if res.Denied != tc.denied || res.Status != tc.status {
				t.Errorf("result %+v", res)
			}
			q := h.questions()
			if len(q) != 1 || q[0].Title == "" || q[0].Tool.Name == "" || q[0].Pos.IsZero() {
				t.Errorf("questions %+v", q)
			}
			if tc.task == "[patch /a/b.txt]" && !slices.Equal(q[0].Tool.Locations, []string{"/a/b.txt"}) {
				t.Errorf("the question does not name the file: %+v", q[0].Tool)
			}
		})
	}
}

// An unknown request must not hang codex, nor look like the user's refusal.
func TestB50UnknownRequest(t *testing.T) {
	r := newRig(t, ceiling.Default)
	r.create()
	h := newHost()
	if r.submit("[odd]", h); !strings.Contains(text(h.events()), "-32601") || len(h.questions()) != 0 {
		t.Errorf("codex heard %q", text(h.events()))
	}
}

func TestB53TaskStaysText(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	for _, task := range []string{"--help", "/compact", "\n-x \"q\" %PATH% @file", "!ls", "ünï\u2028\U0001F600\x00"} {
		h := newHost()
		r.turns = 0
		res, err := r.b.Submit(t.Context(), bridges.SubmitRequest{SessionID: r.id, TurnID: task, Agent: r.agent, Handle: r.handle, Settings: r.settings, Folders: r.folders, Task: task + "[echo]"}, h)
		if err != nil || res.Status != bridges.StatusCompleted {
			t.Fatal(res, err)
		}
		if got := text(h.events()); got != task+"[echo]" {
			t.Errorf("%q arrived as %q", task, got)
		}
	}
}

func TestB55OnlyNamedVariables(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "canary")
	t.Setenv("OPENAI_API_KEY", "canary")
	t.Setenv("CLAUDECODE", "canary")
	r := newRig(t, ceiling.Full)
	r.settings.Env = []string{"OPENAI_API_KEY=theirs", "GITHUB_TOKEN=canary"}
	r.create()
	h := newHost()
	r.submit("[env]", h)
	env := text(h.events())
	if strings.Contains(env, "canary") || !strings.Contains(env, "OPENAI_API_KEY=theirs") {
		t.Error(env)
	}
	for _, want := range []string{"CODEX_HOME=" + r.folders.State, "TMPDIR=" + filepath.Join(r.folders.Run, "tmp"), "TERM=dumb"} {
		if !slices.Contains(strings.Split(env, "\n"), want) {
			t.Errorf("no %s in %s", want, env)
		}
	}
}

func TestCancel(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	h := newHost()
	go func() {
		h.until(t, "text", func() bool { return text(h.events()) != "" })
		close(h.cancel)
	}()
	res := r.submit("[say x][hang]", h)
	if res.Status != bridges.StatusCancelled || res.StopReason != "interrupted" {
		t.Errorf("%+v", res)
	}
	if len(r.frames("turn/interrupt")) != 1 || len(r.frames("thread/backgroundTerminals/clean")) != 1 {
		t.Error("not interrupted and cleaned once each")
	}
	if res := r.submit("[say y]", newHost()); res.Status != bridges.StatusCompleted {
		t.Errorf("after it: %+v", res)
	}
}

func TestCancelOfAQuestion(t *testing.T) {
	r := newRig(t, ceiling.Default)
	r.create()
	h := newHost() // never answers
	go func() {
		h.until(t, "a question", func() bool { return len(h.questions()) == 1 })
		close(h.cancel)
	}()
	if res := r.submit("[ask rm][hang]", h); res.Status != bridges.StatusCancelled {
		t.Errorf("%+v", res)
	}
}

func TestCancelOfTheDeaf(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.b.stopGrace = 100 * time.Millisecond
	r.create()
	h := newHost()
	close(h.cancel)
	res := r.submit("[deaf]", h)
	if res.Status != bridges.StatusCancelled || len(res.Warnings) != 1 {
		t.Errorf("%+v", res)
	}
	if res := r.submit("[say y]", newHost()); res.Status != bridges.StatusCompleted {
		t.Errorf("after it: %+v", res)
	}
}

func TestDeath(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	h := newHost()
	res := r.submit("[say x][die 7]", h)
	if res.Status != bridges.StatusFailed || res.Error.Kind != bridges.KindAgentFailed || !strings.Contains(res.Error.Message, "worst time") || !strings.Contains(res.Error.Message, "code 7") {
		t.Errorf("%+v", res.Error)
	}
	if text(h.events()) != "x" {
		t.Errorf("text %q", text(h.events()))
	}
	before, _ := readNote(r.handle)
	if res := r.submit("[say y]", newHost()); res.Status != bridges.StatusCompleted {
		t.Errorf("after it: %+v", res)
	}
	after, _ := readNote(r.handle)
	if before.Thread != after.Thread || len(r.frames("thread/resume")) != 1 {
		t.Error("not the same conversation")
	}
}

func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		task   string
		kind   bridges.ErrorKind
		status bridges.Status
	}{
		{`[fail {"message":"Quota exceeded. Check your plan and billing details.","codexErrorInfo":"usageLimitExceeded"}]`, bridges.KindQuotaExhausted, bridges.StatusFailed},
		{`[retry {"message":"Reconnecting... 1/5","codexErrorInfo":{"responseStreamDisconnected":{"httpStatusCode":401}}}][retry {"message":"Reconnecting... 2/5","codexErrorInfo":{"responseStreamDisconnected":{"httpStatusCode":401}}}][hang]`, bridges.KindAuthRequired, bridges.StatusFailed},
		{`[fail {"message":"no","codexErrorInfo":"cyberPolicy"}]`, bridges.KindAgentFailed, bridges.StatusRefused},
		{`[retry {"message":"Reconnecting... 1/5","codexErrorInfo":{"responseStreamDisconnected":{"httpStatusCode":null}}}][say x]`, "", bridges.StatusCompleted},
	} {
		r := newRig(t, ceiling.Full)
		r.create()
		h := newHost()
		res := r.submit(tc.task, h)
		kind := bridges.ErrorKind("")
		if res.Error != nil {
			kind = res.Error.Kind
			if res.Error.Next == "" {
				t.Errorf("%s: no next step", kind)
			}
		}
		if res.Status != tc.status || kind != tc.kind {
			t.Errorf("%s: %s %s", tc.task, res.Status, kind)
		}
	}
}

func TestSubstitutedModel(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	h := newHost()
	if res := r.submit("[reroute m-9][say x]", h); res.Model != "m-9" {
		t.Errorf("model %q", res.Model)
	}
}

func TestModelAndEffort(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.agent.Env["FAKE_PROVIDER"] = "openai"
	try := func(model, effort string) bridges.ErrorKind {
		s := r.settings
		s.Model, s.Effort = model, effort
		_, err := r.b.Create(t.Context(), bridges.CreateRequest{SessionID: r.id, Agent: r.agent, Settings: s, Folders: r.folders})
		return bridges.KindOf(err)
	}
	if k := try("m-7", ""); k != bridges.KindModelUnavailable {
		t.Errorf("unknown model: %s", k)
	}
	if k := try("m-1", "high"); k != bridges.KindEffortUnsupported {
		t.Errorf("unknown effort: %s", k)
	}
	if k := try("m-hidden", "ultra"); k != "" {
		t.Errorf("hidden model: %s", k)
	}
	r.create()
	r.settings.Model = "m-2"
	res := r.submit("[say x]", newHost())
	if res.Model != "m-2" {
		t.Errorf("model %q", res.Model)
	}
	turn := r.frames("turn/start")[0]
	if turn["model"] != "m-2" || turn["effort"] != "high" {
		t.Errorf("turn/start %v", turn)
	}
	// A new process resumes with what ran last: another model would make codex
	// replace the conversation.
	r.settings.Mode = ceiling.Default
	r.submit("[say x]", newHost())
	if resume := r.frames("thread/resume"); len(resume) != 1 || resume[0]["model"] != "m-2" {
		t.Errorf("thread/resume %v", resume)
	}
}

func TestNewSettingsNewProcess(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	h := newHost()
	r.submit("[say x]", h)
	first := h.events()[len(h.events())-1].Pos
	r.settings.Mode = ceiling.Readonly
	h = newHost()
	r.submit("[say x]", h)
	if r.settings.Instructions = "other"; len(r.frames("thread/resume")) != 1 {
		t.Error("the sandbox was not put on")
	}
	for _, e := range h.events() {
		if !e.Pos.IsZero() && !e.Pos.After(first) {
			t.Errorf("position %v of the second process is not after %v", e.Pos, first)
		}
	}
	res := r.submit("[say x]", newHost())
	if len(res.Warnings) != 1 || len(r.frames("thread/resume")) != 1 {
		t.Errorf("new instructions: %q", res.Warnings)
	}
}

func TestB45OneTurnAtATime(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	h := newHost()
	done := make(chan bridges.Result)
	go func() {
		res, _ := r.b.Submit(context.WithoutCancel(t.Context()), r.request("[say x][hang]"), h)
		done <- res
	}()
	h.until(t, "text", func() bool { return text(h.events()) != "" })
	if _, err := r.b.Submit(t.Context(), r.request("[say y]"), newHost()); bridges.KindOf(err) != bridges.KindSessionBusy {
		t.Errorf("a second task: %v", err)
	}
	close(h.cancel)
	if res := <-done; res.Status != bridges.StatusCancelled || text(h.events()) != "x" {
		t.Errorf("%+v", res)
	}
}

func TestFork(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	r.submit("[say x]", newHost())
	child := *r
	child.id, child.turns = "s2", 0
	child.folders.Run = r.folders.Run + "2"
	t.Cleanup(func() {
		r.b.Dispose(context.Background(), bridges.DisposeRequest{SessionID: "s2", Agent: r.agent, Folders: child.folders})
	})
	c, err := r.b.Create(t.Context(), bridges.CreateRequest{SessionID: "s2", Agent: r.agent, Settings: r.settings, Folders: child.folders, ForkFrom: &r.handle})
	if err != nil {
		t.Fatal(err)
	}
	child.handle = c.Handle
	if res := child.submit("[say y]", newHost()); res.Status != bridges.StatusCompleted || res.Usage.Input != 100 {
		t.Errorf("%+v", res)
	}
	// The parent's turns are in the child's record, and are not the child's.
	n, _ := readNote(c.Handle)
	for name, want := range map[string]bool{"s1/t1": true, "s2/t1": true, "s2/t2": false} {
		if got, err := arrived(r.folders.State, n.Thread, name); got != want || err != nil {
			t.Errorf("%s in the record: %v %v", name, got, err)
		}
	}
}

func TestDispose(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	r.submit("[say x]", newHost())
	n, _ := readNote(r.handle)
	req := bridges.DisposeRequest{SessionID: r.id, Agent: r.agent, Handle: r.handle, Folders: r.folders}
	receipt, err := r.b.Dispose(t.Context(), req)
	if err != nil || !receipt.Proven || receipt.EndedCount == 0 {
		t.Errorf("%+v %v", receipt, err)
	}
	if _, err := os.Stat(r.folders.Run); !os.IsNotExist(err) {
		t.Error("the run folder is still there")
	}
	if _, found := recordOf(r.folders.State, n.Thread); !found {
		t.Fatal("the conversation is gone without having been asked")
	}
	req.Delete = true
	if receipt, err = r.b.Dispose(t.Context(), req); err != nil || !receipt.Proven {
		t.Errorf("again: %+v %v", receipt, err)
	}
	if _, found := recordOf(r.folders.State, n.Thread); found {
		t.Error("the conversation is still there")
	}
	if out := r.reconnect(""); out.Status != bridges.ReconnectGone {
		t.Errorf("after that: %+v", out)
	}
	_, err = r.b.Submit(t.Context(), r.request("[say x]"), newHost())
	if bridges.KindOf(err) != bridges.KindSessionGone {
		t.Errorf("a task for it: %v", err)
	}
	if receipt, err = r.b.Dispose(t.Context(), bridges.DisposeRequest{SessionID: "unknown", Folders: bridges.Folders{Run: filepath.Join(t.TempDir(), "none")}}); err != nil || !receipt.Proven {
		t.Errorf("unknown: %+v %v", receipt, err)
	}
}

func TestDisposeInATurn(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	h := newHost()
	done := make(chan bridges.Result)
	go func() {
		res, err := r.b.Submit(context.WithoutCancel(t.Context()), r.request("[say x][hang]"), h)
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	h.until(t, "text", func() bool { return text(h.events()) != "" })
	if _, err := r.b.Dispose(t.Context(), bridges.DisposeRequest{SessionID: r.id, Agent: r.agent, Handle: r.handle, Folders: r.folders}); err != nil {
		t.Error(err)
	}
	if res := <-done; res.Status != bridges.StatusCancelled {
		t.Errorf("%+v", res)
	}
}

func TestBadStart(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.agent.Env["FAKE_START"] = "dies"
	_, err := r.b.Create(t.Context(), bridges.CreateRequest{SessionID: r.id, Agent: r.agent, Settings: r.settings, Folders: r.folders})
	if bridges.KindOf(err) != bridges.KindAgentFailed || !strings.Contains(err.Error(), "bad configuration") {
		t.Error(err)
	}
	if _, err := os.Stat(r.folders.Run); !os.IsNotExist(err) {
		t.Error("something is left of it")
	}
	r.settings.Cwd += "/nowhere"
	if _, err := r.b.Create(t.Context(), bridges.CreateRequest{SessionID: r.id, Agent: r.agent, Settings: r.settings, Folders: r.folders}); bridges.KindOf(err) != bridges.KindInvalidArgument {
		t.Error(err)
	}
}
