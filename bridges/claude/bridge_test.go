package claude

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// bench is one session's surroundings.
type bench struct {
	t        testing.TB
	bridge   *Bridge
	agent    bridges.Agent
	settings bridges.Settings
	folders  bridges.Folders
	id       string
	handle   bridges.Handle
	turns    int
}

// probeOnce spares every test the two processes of a probe.
var probeOnce = sync.OnceValues(func() (string, error) { return agentproc.ProbeSandbox(context.Background()) })

func newBridge(t testing.TB) *Bridge {
	t.Helper()
	b := New(Options{Version: "test"})
	b.waits.cancel = 500 * time.Millisecond
	b.detail, b.noHold = probeOnce()
	b.probed = true
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

func setUp(t testing.TB, mode bridges.Mode) *bench {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return setUpAgent(t, mode, bridges.Agent{
		Name: "claude", Command: []string{self, "fake-claude"}, PassEnv: Agent().PassEnv, LoginHint: "log in, please",
	})
}

func setUpAgent(t testing.TB, mode bridges.Mode, agent bridges.Agent) *bench {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	run, err := os.MkdirTemp("", "claude-run-") // short enough, and not below the working folder
	if err != nil {
		t.Fatal(err)
	}
	w := &bench{
		t: t, bridge: newBridge(t), agent: agent, id: "s_" + filepath.Base(run),
		settings: bridges.Settings{Mode: mode, Cwd: filepath.Join(base, "work")},
		folders:  bridges.Folders{Run: filepath.Join(run, "s"), State: filepath.Join(base, "state")},
	}
	if err := os.Mkdir(w.settings.Cwd, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.bridge = New(Options{}) // the last one is closed by now
		w.dispose(false)
		if err := w.bridge.Close(); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(run)
	})
	return w
}

func ctx(t testing.TB) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return c
}

func (w *bench) create(fork *bridges.Handle) bridges.Created {
	w.t.Helper()
	c, err := w.bridge.Create(ctx(w.t), bridges.CreateRequest{
		SessionID: w.id, Agent: w.agent, Settings: w.settings, Folders: w.folders, ForkFrom: fork,
	})
	if err != nil {
		w.t.Fatalf("create: %v", err)
	}
	w.handle = c.Handle
	return c
}

func (w *bench) request(task string) bridges.SubmitRequest {
	w.turns++
	return bridges.SubmitRequest{
		SessionID: w.id, TurnID: fmt.Sprint("t", w.turns), Agent: w.agent, Handle: w.handle, Settings: w.settings, Folders: w.folders, Task: task,
	}
}

func (w *bench) submit(task string) (bridges.Result, *recorder) {
	w.t.Helper()
	rec := newRecorder(w)
	r, err := w.bridge.Submit(ctx(w.t), w.request(task), rec)
	if err != nil {
		w.t.Fatalf("submit %q: %v", task, err)
	}
	return r, rec
}

// say submits a task that must be completed and returns the answer.
func (w *bench) say(task string) string {
	w.t.Helper()
	r, rec := w.submit(task)
	if r.Status != bridges.StatusCompleted {
		w.t.Fatalf("submit %q: %+v (%v)", task, r, r.Error)
	}
	return rec.text()
}

func (w *bench) reconnect(turn string) bridges.Reconnected {
	w.t.Helper()
	r, err := w.bridge.Reconnect(ctx(w.t), bridges.ReconnectRequest{
		SessionID: w.id, Agent: w.agent, Handle: w.handle, Settings: w.settings, Folders: w.folders, TurnID: turn,
	})
	if err != nil {
		w.t.Fatalf("reconnect: %v", err)
	}
	return r
}

func (w *bench) dispose(all bool) bridges.Receipt {
	w.t.Helper()
	r, err := w.bridge.Dispose(ctx(w.t), bridges.DisposeRequest{
		SessionID: w.id, Agent: w.agent, Handle: w.handle, Settings: w.settings, Folders: w.folders, Delete: all,
	})
	if err != nil {
		w.t.Errorf("dispose: %v", err)
	}
	return r
}

// restart stands for a new bridge process.
func (w *bench) restart() {
	w.t.Helper()
	if err := w.bridge.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.bridge = newBridge(w.t)
}

// other returns another session with the same surroundings.
func (w *bench) other(name string) *bench {
	o := *w
	o.id, o.folders.Run, o.turns = w.id+name, filepath.Join(filepath.Dir(w.folders.Run), name), 0
	w.t.Cleanup(func() { o.dispose(false) })
	return &o
}

// recorder is the host's side of a turn.
type recorder struct {
	w         *bench
	mu        sync.Mutex
	events    []bridges.Event
	questions []bridges.Question
	answer    func(bridges.Question) bridges.Answer
	cancelled chan struct{}
	more      chan struct{} // a value for every event
}

func newRecorder(w *bench) *recorder {
	return &recorder{w: w, cancelled: make(chan struct{}), more: make(chan struct{}, 1<<20)}
}

func (r *recorder) Emit(ev bridges.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, ev)
	if ev.Session != nil && ev.Session.Handle != nil && r.w != nil {
		r.w.handle = *ev.Session.Handle
	}
	r.more <- struct{}{}
	return nil
}

func (r *recorder) Ask(ctx context.Context, q bridges.Question) (bridges.Answer, error) {
	r.mu.Lock()
	r.questions = append(r.questions, q)
	answer := r.answer
	r.mu.Unlock()
	r.more <- struct{}{}
	if answer == nil {
		<-ctx.Done()
		return bridges.Answer{}, context.Cause(ctx)
	}
	return answer(q), nil
}

func (r *recorder) Cancelled() <-chan struct{} { return r.cancelled }

func (r *recorder) all() []bridges.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

func (r *recorder) text() string { return textOf(r.all()) }

func textOf(events []bridges.Event) string {
	var b strings.Builder
	for _, ev := range events {
		if ev.Kind == bridges.KindText {
			b.WriteString(ev.Text)
		}
	}
	return b.String()
}

// await waits until the turn has shown what is asked for.
func (r *recorder) await(t testing.TB, what string, seen func() bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	for !seen() {
		select {
		case <-r.more:
		case <-late:
			t.Fatalf("no %s; events: %+v", what, r.all())
		}
	}
}

func (r *recorder) awaitText(t testing.TB, text string) {
	t.Helper()
	r.await(t, "text "+text, func() bool { return strings.Contains(r.text(), text) })
}

func (r *recorder) awaitQuestion(t testing.TB) bridges.Question {
	t.Helper()
	r.await(t, "question", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.questions) > 0 })
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.questions[0]
}

func TestTurns(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Default)
	w.settings.Instructions = "be a pirate"
	created := w.create(nil)
	if created.Info.Hold.Strength != bridges.HoldKernel || created.Info.NativeID == "" {
		t.Errorf("created %+v", created.Info)
	}
	if got := w.say("say hello"); got != "hello" {
		t.Errorf("answer %q", got)
	}
	r, rec := w.submit("count")
	if got := rec.text(); got != "messages=2" {
		t.Errorf("second turn: %q: the process did not stay", got)
	}
	want := &bridges.Usage{Input: 100, Output: 10, CostUSD: 0.1, Source: "session_diff", ContextSize: 200000}
	r.Usage.Raw = nil
	r.Usage.CostUSD = 0.1
	if diff := cmp.Diff(want, r.Usage); diff != "" {
		t.Error(diff)
	}
	if r.Model != "fake-model" || r.StopReason != "end_turn" {
		t.Errorf("result %+v", r)
	}
	if got := w.say("cat " + filepath.Join(homeOf(w.folders, nativeID(w.id)).dir, "persona")); got != "be a pirate" {
		t.Errorf("persona %q", got)
	}
	w.settings.Model, w.settings.Effort = "opus", "max"
	if got := w.say("argv"); !strings.Contains(got, "--model=opus\n--effort=max") || !strings.Contains(got, "--resume\n"+nativeID(w.id)) {
		t.Errorf("after a change of settings: %s", got)
	}
	if got := w.say("count"); got != "messages=5" {
		t.Errorf("after the restart: %q: the conversation was lost", got)
	}
	receipt := w.dispose(true)
	if !receipt.Proven || receipt.Exit == nil || receipt.SurvivedCount != 0 {
		t.Errorf("receipt %+v", receipt)
	}
	for _, dir := range []string{w.folders.Run, homeOf(w.folders, nativeID(w.id)).dir} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
}

// TestB53 gives tasks that look like anything but text.
func TestB53TaskIsText(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Full)
	w.create(nil)
	for _, task := range []string{"--dangerously-skip-permissions x", "-m pytest", "@file y", "/compact now", "--help ", "%PATH% \"q\"", " /x y"} {
		if got := w.say(task); got != "task: "+task {
			t.Errorf("task %q arrived as %q", task, got)
		}
		if argv := w.say("argv"); strings.Contains(argv, strings.Fields(task)[1%len(strings.Fields(task))]+"\n") {
			t.Errorf("a piece of %q is in the command line: %s", task, argv)
		}
	}
	for in, want := range map[string]string{"/compact": "\n/compact", "x /y": "x /y", "": "", "\n/x": "\n/x"} {
		if got := inert(in); got != want {
			t.Errorf("inert(%q) = %q", in, got)
		}
	}
}

// TestB54B55 looks at the environment and the flags that the agent gets.
func TestB54B55EnvironmentIsAllowListed(t *testing.T) {
	for name, value := range map[string]string{
		"CLAUDECODE": "1", "CLAUDE_CODE_SSE_PORT": "1", "CANARY_SECRET": "canary", "OPENAI_API_KEY": "sk-other-0123456789", "NODE_OPTIONS": "--x",
		"ANTHROPIC_API_KEY": "sk-ant-of-the-bridge-itself", "PLUGIN_X": "1",
	} {
		t.Setenv(name, value)
	}
	w := setUp(t, ceiling.Readonly)
	w.agent.Env = map[string]string{"GIVEN": "yes", "CLAUDECODE": "1"}
	w.settings.Env = []string{"ANTHROPIC_API_KEY=sk-ant-of-the-caller-012345", "AWS_PROFILE=p", "NOT_ASKED_FOR=1"}
	w.create(nil)
	env := w.say("env")
	var names []string
	for line := range strings.Lines(env) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		names = append(names, name)
		if name == "ANTHROPIC_API_KEY" && value != "[secret removed]" {
			t.Errorf("the caller's key: %q", value)
		}
	}
	for _, want := range []string{"GIVEN", "ANTHROPIC_API_KEY", "AWS_PROFILE", "PATH", "TMPDIR", "CLAUDE_CONFIG_DIR", "DISABLE_TELEMETRY"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, never := range []string{"CLAUDECODE", "CLAUDE_CODE_SSE_PORT", "CANARY_SECRET", "OPENAI_API_KEY", "NODE_OPTIONS", "NOT_ASKED_FOR", "PLUGIN_X", "IS_SANDBOX"} {
		if slices.Contains(names, never) {
			t.Errorf("%s got through", never)
		}
	}
}

// TestModes holds every mode by what the agent can write, and looks at its flags.
func TestModes(t *testing.T) {
	t.Parallel()
	for _, mode := range ceiling.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := setUp(t, mode)
			w.create(nil)
			inside, outside := filepath.Join(w.settings.Cwd, "in"), filepath.Join(filepath.Dir(w.settings.Cwd), "out")
			w.say("write " + inside + " x\nwrite " + outside + " x\nsay end")
			for path, want := range map[string]bool{inside: mode != ceiling.Readonly, outside: mode == ceiling.Full} {
				if _, err := os.Stat(path); (err == nil) != want {
					t.Errorf("%s: %v", path, err)
				}
			}
			argv := w.say("argv")
			want := map[bridges.Mode]string{ceiling.Readonly: "default\n--tools=Bash", ceiling.Default: "acceptEdits", ceiling.Full: "bypassPermissions"}[mode]
			for _, flag := range []string{"--permission-mode\n" + want, "--setting-sources\nuser", "--strict-mcp-config", "--permission-prompt-tool\nstdio"} {
				if !strings.Contains(argv, flag) {
					t.Errorf("no %q in %s", flag, argv)
				}
			}
		})
	}
}

func TestHoldIsRefusedOrNamed(t *testing.T) {
	broken := errors.New("no landlock")
	for _, tt := range []struct {
		mode   bridges.Mode
		accept bridges.Strength
		failed error
		want   bridges.Strength
		flags  string
		kind   bridges.ErrorKind
	}{
		{ceiling.Readonly, "", nil, bridges.HoldKernel, "default", ""},
		{ceiling.Readonly, bridges.HoldAsked, nil, bridges.HoldKernel, "default", ""},
		{ceiling.Readonly, "", broken, "", "", bridges.KindSandboxUnavailable},
		{ceiling.Default, bridges.HoldProductSandbox, broken, "", "", bridges.KindSandboxUnavailable},
		{ceiling.Readonly, bridges.HoldProductPolicy, broken, bridges.HoldProductPolicy, "dontAsk --tools=Read,Glob,Grep", ""},
		{ceiling.Default, bridges.HoldAsked, broken, bridges.HoldProductPolicy, "default", ""},
		{ceiling.Full, "", broken, bridges.HoldNone, "bypassPermissions", ""},
		{99, "", nil, bridges.HoldKernel, "default", ""}, // not a mode: readonly
	} {
		l, err := limitFor(bridges.Settings{Mode: tt.mode, Accept: tt.accept}, "detail", tt.failed)
		if bridges.KindOf(err) != tt.kind {
			t.Errorf("%+v: %v", tt, err)
		}
		if err == nil && (l.hold.Strength != tt.want || !strings.HasPrefix(strings.Join(l.flags()[1:], " "), tt.flags)) {
			t.Errorf("%+v: hold %v, flags %q", tt, l.hold, l.flags())
		}
	}
	for _, tt := range []struct {
		limit limit
		tool  string
		want  bool
	}{
		{limit{mode: ceiling.Readonly, hold: bridges.Hold{Strength: bridges.HoldKernel}}, "ExitPlanMode", true},
		{limit{mode: ceiling.Readonly, hold: bridges.Hold{Strength: bridges.HoldKernel}}, "Write", true},
		{limit{mode: ceiling.Readonly, hold: bridges.Hold{Strength: bridges.HoldKernel}}, "Bash", false},
		{limit{mode: ceiling.Readonly, hold: bridges.Hold{Strength: bridges.HoldProductPolicy}}, "Bash", true},
		{limit{mode: ceiling.Default, hold: bridges.Hold{Strength: bridges.HoldKernel}}, "Write", false},
	} {
		if _, got := tt.limit.refuses(tt.tool); got != tt.want {
			t.Errorf("%+v: refused %v", tt, got)
		}
	}
}

func TestB50Questions(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Default)
	w.create(nil)
	ask := func(task string, a bridges.Answer) (bridges.Result, *recorder) {
		t.Helper()
		rec := newRecorder(w)
		rec.answer = func(bridges.Question) bridges.Answer { return a }
		r, err := w.bridge.Submit(ctx(t), w.request(task), rec)
		if err != nil {
			t.Fatal(err)
		}
		return r, rec
	}
	const bash = `tool Bash {"command":"make"}`
	r, rec := ask(bash, bridges.Answer{Decision: bridges.Allow})
	if rec.text() != "allow" || r.Denied != 0 || rec.questions[0].Title != "Bash: make" || rec.questions[0].Tool.Kind != bridges.ToolExecute {
		t.Errorf("allow: %q %+v %+v", rec.text(), r, rec.questions)
	}
	r, rec = ask(bash, bridges.Answer{}) // the zero answer denies
	if rec.text() != "deny" || r.Denied != 1 || r.Status != bridges.StatusCompleted {
		t.Errorf("deny: %q %+v", rec.text(), r)
	}
	r, _ = ask(bash, bridges.Answer{Decision: bridges.Cancel})
	if r.Status != bridges.StatusCancelled {
		t.Errorf("cancel: %+v", r)
	}
	if _, rec = ask("ask", bridges.Answer{Decision: bridges.Allow, Choice: "B"}); rec.text() != "allow B" {
		t.Errorf("choice: %q", rec.text())
	}
	if _, rec = ask("ask", bridges.Answer{Decision: bridges.Allow, Choice: "C"}); rec.text() != "deny " {
		t.Errorf("a choice that was not offered: %q", rec.text())
	}
	if _, rec = ask("request elicitation\nrequest brand_new", bridges.Answer{}); rec.text() != "success declineerror " {
		t.Errorf("requests that nobody serves: %q", rec.text())
	}
	w.settings.Mode = ceiling.Readonly
	r, rec = ask(`tool ExitPlanMode {"plan":"do it"}`, bridges.Answer{Decision: bridges.Allow})
	if rec.text() != "deny" || len(rec.questions) != 0 || r.Denied != 1 {
		t.Errorf("ExitPlanMode in readonly: %q, asked %+v", rec.text(), rec.questions)
	}
}

// start submits in the background.
func (w *bench) start(req bridges.SubmitRequest, rec *recorder) <-chan func() (bridges.Result, error) {
	done := make(chan func() (bridges.Result, error), 1)
	c := ctx(w.t)
	go func() {
		r, err := w.bridge.Submit(c, req, rec)
		done <- func() (bridges.Result, error) { return r, err }
	}()
	return done
}

func TestCancel(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Default)
	w.create(nil)
	for _, task := range []string{"say before\nhang", "say before\n" + `tool Bash {"command":"x"}`, "say before\ndeaf"} {
		rec := newRecorder(w)
		done := w.start(w.request(task), rec)
		rec.awaitText(t, "before")
		if strings.Contains(task, "tool") {
			rec.awaitQuestion(t)
		}
		close(rec.cancelled)
		r, err := (<-done)()
		if err != nil || r.Status != bridges.StatusCancelled {
			t.Errorf("%q: %+v, %v", task, r, err)
		}
	}
	if got := w.say("count"); got != "messages=4" {
		t.Errorf("after the cancels: %q", got)
	}
}

func TestFatalRetryEndsTheTurn(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Default)
	w.create(nil)
	r, _ := w.submit("refuse authentication_failed")
	if r.Status != bridges.StatusFailed || !errors.Is(r.Error, bridges.ErrAuthRequired) || r.Error.Next != "log in, please" {
		t.Errorf("%+v %v", r, r.Error)
	}
	if got := w.say("count"); got != "messages=2" {
		t.Errorf("the next task: %q", got)
	}
	if r, _ = w.submit("refuse billing_error"); !errors.Is(r.Error, bridges.ErrQuotaExhausted) {
		t.Errorf("%+v %v", r, r.Error)
	}
}

func TestAgentDies(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Default)
	w.create(nil)
	r, rec := w.submit("say partial\ndie 7")
	if r.Status != bridges.StatusFailed || !errors.Is(r.Error, bridges.ErrAgentFailed) || rec.text() != "partial" {
		t.Errorf("%+v", r)
	}
	if msg := r.Error.Message; !strings.Contains(msg, "code 7") || !strings.Contains(msg, "fake died on purpose") {
		t.Errorf("message %q", msg)
	}
	if r, _ = w.submit("die 0"); r.Status != bridges.StatusFailed {
		t.Errorf("exit 0 without a result: %+v", r)
	}
	if got := w.say("count"); got != "messages=3" {
		t.Errorf("the conversation went on as %q", got)
	}
}

func TestB24SilenceIsNoticed(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Default)
	w.bridge.waits.silent = 50 * time.Millisecond
	w.create(nil)
	rec := newRecorder(w)
	done := w.start(w.request("say partial\nhang"), rec)
	rec.await(t, "notice of silence", func() bool {
		return slices.ContainsFunc(rec.all(), func(ev bridges.Event) bool { return ev.Notice != nil && ev.Notice.Code == "silent" })
	})
	close(rec.cancelled) // the host decides
	if r, err := (<-done)(); err != nil || r.Status != bridges.StatusCancelled || rec.text() != "partial" {
		t.Errorf("%+v %v", r, err)
	}
}

func TestB12BigAnswer(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Default)
	w.create(nil)
	for _, n := range []int{70 << 10, 6 << 20} {
		if got := w.say(fmt.Sprintf("big %d", n)); len(got) != n {
			t.Errorf("%d bytes arrived as %d", n, len(got))
		}
	}
	if got := w.say("noise \x1b[31mnot json\nsay after"); got != "after" {
		t.Errorf("after noise: %q", got)
	}
}

// TestGone asks for what is not there.
func TestGone(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Default)
	w.create(nil)
	if r := w.reconnect("t9"); r.Status != bridges.ReconnectSame || r.Turn != bridges.TurnNotSent {
		t.Errorf("a session without a task: %+v", r)
	}
	w.say("say x")
	w.dispose(false)
	if r := w.reconnect(""); r.Status != bridges.ReconnectSame {
		t.Errorf("a session without a process: %+v", r)
	}
	if got := w.say("count"); got != "messages=2" {
		t.Errorf("after dispose: %q", got)
	}
	w.dispose(true)
	if r := w.reconnect(""); r.Status != bridges.ReconnectGone || r.Reason == "" {
		t.Errorf("a deleted session: %+v", r)
	}
	if _, err := w.bridge.Submit(ctx(t), w.request("say x"), newRecorder(w)); !errors.Is(err, bridges.ErrSessionGone) {
		t.Errorf("a task for a deleted session: %v", err)
	}
	w.settings.Cwd = filepath.Dir(w.settings.Cwd)
	if r := w.reconnect(""); r.Status != bridges.ReconnectRefused {
		t.Errorf("another folder: %+v", r)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Default)
	create := func(change func(*bridges.CreateRequest)) error {
		req := bridges.CreateRequest{SessionID: w.id, Agent: w.agent, Settings: w.settings, Folders: w.folders}
		change(&req)
		_, err := w.bridge.Create(ctx(t), req)
		return err
	}
	for name, tt := range map[string]struct {
		err  error
		kind *bridges.Error
	}{
		"effort":  {create(func(r *bridges.CreateRequest) { r.Settings.Effort = "huge" }), bridges.ErrEffortUnsupported},
		"agent":   {create(func(r *bridges.CreateRequest) { r.Agent.Command = []string{"/nowhere/claude"} }), bridges.ErrAgentMissing},
		"session": {create(func(r *bridges.CreateRequest) { r.SessionID = "" }), bridges.ErrInvalidArgument},
		"fork": {create(func(r *bridges.CreateRequest) {
			h := handle{NativeID: nativeID("other"), Cwd: r.Settings.Cwd}.encode()
			r.ForkFrom = &h
		}), bridges.ErrSessionGone},
		"handle": {create(func(r *bridges.CreateRequest) { r.ForkFrom = &bridges.Handle{Version: 9} }), bridges.ErrInvalidArgument},
	} {
		if !errors.Is(tt.err, tt.kind) {
			t.Errorf("%s: %v, want %s", name, tt.err, tt.kind.Kind)
		}
	}
	if _, err := Resolve(Agent(), func(string) (string, error) { return "", exec.ErrNotFound }); !errors.Is(err, bridges.ErrAgentMissing) {
		t.Errorf("resolve: %v", err)
	}
}

func TestFork(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Default)
	w.create(nil)
	w.say("say one")
	parent := w.handle
	fork := w.other("fork")
	fork.create(&parent)
	w.say("say two") // the parent goes on; the fork does not hear of it
	if got := fork.say("count"); got != "messages=2" {
		t.Errorf("the fork has %q", got)
	}
	if got := fork.say("id"); got != nativeID(fork.id) {
		t.Errorf("the fork runs as %q", got)
	}
	if got := w.say("count"); got != "messages=3" {
		t.Errorf("the parent has %q", got)
	}
}

// TestStateIsMadeAfresh plants what an agent could plant in its own folder.
func TestStateIsMadeAfresh(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Readonly)
	w.create(nil)
	dir := homeOf(w.folders, nativeID(w.id)).dir
	w.say("write " + filepath.Join(dir, "settings.json") + ` {"hooks":{}}` + "\nwrite " + filepath.Join(dir, "settings.local.json") + " {}\nsay x")
	w.dispose(false)
	w.settings.Mode = ceiling.Full
	w.say("count")
	data, err := os.ReadFile(filepath.Join(dir, "settings.json"))
	if err != nil || string(data) != settings {
		t.Errorf("settings.json: %s, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "settings.local.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("settings.local.json: %v", err)
	}
}

func TestLoginWithoutRefreshToken(t *testing.T) {
	user := t.TempDir()
	t.Setenv("HOME", user)
	file := filepath.Join(user, ".claude", ".credentials.json")
	write := func(expires time.Time) string {
		t.Helper()
		data := fmt.Sprintf(`{"claudeAiOauth":{"accessToken":"sk-ant-oat-0123456789","refreshToken":"sk-ant-ort-9876543210","expiresAt":%d,"scopes":["user:inference"]},"other":{"k":"v"}}`, expires.UnixMilli())
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		return data
	}
	w := setUp(t, ceiling.Default)
	w.agent.Login = Agent().Login
	w.create(nil)
	before := write(time.Now().Add(time.Hour))
	copied := filepath.Join(homeOf(w.folders, nativeID(w.id)).dir, ".credentials.json")
	w.settings.Model = "m"
	got := w.say("cat " + copied)
	if strings.Contains(got, "ort") || strings.Contains(got, "sk-ant-oat-0123456789") || !strings.Contains(got, "[secret removed]") || strings.Contains(got, "other") {
		t.Errorf("the agent's login as it told it: %s", got)
	}
	if data, err := os.ReadFile(copied); err != nil || !strings.Contains(string(data), "sk-ant-oat-0123456789") {
		t.Errorf("the agent's login: %s, %v", data, err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != before {
		t.Errorf("the user's login was changed: %s, %v", data, err)
	}
	// The user's own agent renews it; the running one gets the new one.
	later := time.Now().Add(2 * time.Hour)
	write(later)
	w.say("count")
	if data, err := os.ReadFile(copied); err != nil || !strings.Contains(string(data), fmt.Sprint(later.UnixMilli())) {
		t.Errorf("the renewed login: %s, %v", data, err)
	}
	// Run out, it is refused before anything is started.
	w.dispose(false)
	write(time.Now().Add(-time.Minute))
	if _, err := w.bridge.Submit(ctx(t), w.request("say x"), newRecorder(w)); !errors.Is(err, bridges.ErrAuthRequired) {
		t.Errorf("a login that ran out: %v", err)
	}
	w.settings.Env = []string{"ANTHROPIC_API_KEY=sk-ant-0123456789"}
	if got := w.say("say paid"); got != "paid" {
		t.Errorf("with a key: %q", got)
	}
	if _, err := os.Stat(copied); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("with a key the login file is there too: %v", err)
	}
}

func TestDisposeEndsARunningTurn(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Default)
	w.create(nil)
	rec := newRecorder(w)
	done := w.start(w.request("say before\nhang"), rec)
	rec.awaitText(t, "before")
	if receipt := w.dispose(false); !receipt.Proven || receipt.EndedCount == 0 {
		t.Errorf("receipt %+v", receipt)
	}
	if r, err := (<-done)(); err != nil || r.Status != bridges.StatusCancelled {
		t.Errorf("%+v %v", r, err)
	}
	if r := w.dispose(false); !r.Proven {
		t.Errorf("a second time: %+v", r)
	}
}

// workerOrder is what a worker does. Secrets are not part of a request as JSON.
type workerOrder struct {
	Request bridges.SubmitRequest
	Env     []string
}

// submitWorker is a bridge process of its own, to be killed.
func submitWorker(path string) {
	data, err := os.ReadFile(path)
	must(err)
	var order workerOrder
	must(json.Unmarshal(data, &order))
	req := order.Request
	req.Settings.Env = order.Env
	b := New(Options{})
	out := printer{json.NewEncoder(os.Stdout)}
	_, err = b.Submit(context.Background(), req, out)
	must(err)
	must(b.Close())
}

type printer struct{ *json.Encoder }

func (p printer) Emit(ev bridges.Event) error { return p.Encode(ev) }
func (p printer) Ask(ctx context.Context, q bridges.Question) (bridges.Answer, error) {
	must(p.Encode(bridges.Event{Kind: bridges.KindQuestion, Question: &q}))
	<-ctx.Done()
	return bridges.Answer{}, ctx.Err()
}
func (p printer) Cancelled() <-chan struct{} { return nil }

// killWorker runs a turn in another process until it has shown an event, kills that
// process with SIGKILL and returns what it had shown.
func (w *bench) killWorker(req bridges.SubmitRequest, enough func([]bridges.Event) bool) []bridges.Event {
	w.t.Helper()
	data, err := json.Marshal(workerOrder{req, req.Settings.Env})
	if err != nil {
		w.t.Fatal(err)
	}
	path := filepath.Join(w.t.TempDir(), "request.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		w.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(self, "submit-worker", path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	var events []bridges.Event
	in := bufio.NewReader(out)
	for !enough(events) {
		line, err := in.ReadBytes('\n')
		if err != nil {
			w.t.Fatalf("the worker ended: %v; events %+v", err, events)
		}
		var ev bridges.Event
		if err := json.Unmarshal(line, &ev); err != nil {
			w.t.Fatal(err)
		}
		if ev.Session != nil && ev.Session.Handle != nil {
			w.handle = *ev.Session.Handle
		}
		events = append(events, ev)
	}
	if err := cmd.Process.Kill(); err != nil {
		w.t.Fatal(err)
	}
	_ = cmd.Wait()
	return events
}

// TestKilledBridge kills the bridge in the middle of a turn; a new one goes on.
func TestKilledBridge(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Full)
	w.create(nil)
	w.say("say first")
	file := filepath.Join(w.settings.Cwd, "go")
	req := w.request("say one\nsay two\n" + `tool Bash {"command":"x"}` + "\nwait " + file + "\nsay three")
	if err := w.bridge.Close(); err != nil { // it is the session's writer
		t.Fatal(err)
	}
	events := w.killWorker(req, func(events []bridges.Event) bool {
		return len(events) > 0 && events[len(events)-1].Kind == bridges.KindQuestion
	})
	question := events[len(events)-1].Question
	events = events[:len(events)-1]
	w.bridge = newBridge(t)

	if r := w.reconnect(req.TurnID); r.Status != bridges.ReconnectSame || r.Turn != bridges.TurnAttachable || r.Info.Model != "fake-model" {
		t.Fatalf("reconnect: %+v", r)
	}
	after := events[2].Pos // the host was killed too, and had recorded only so much
	rec := newRecorder(w)
	rec.answer = func(bridges.Question) bridges.Answer {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Error(err)
		}
		return bridges.Answer{Decision: bridges.Allow}
	}
	req.Resume = &bridges.Resume{After: after}
	r, err := w.bridge.Submit(ctx(t), req, rec)
	if err != nil || r.Status != bridges.StatusCompleted {
		t.Fatalf("%+v, %v", r, err)
	}
	if len(rec.questions) != 1 || rec.questions[0].ID != question.ID {
		t.Errorf("asked %+v, want %s again", rec.questions, question.ID)
	}
	both := append(slices.Clone(events[:3]), rec.all()...)
	if got := textOf(both); got != "onetwoallowthree" {
		t.Errorf("the answer is %q", got)
	}
	if r.Usage == nil || r.Usage.Input != 100 {
		t.Errorf("usage %+v", r.Usage)
	}
	// Once more, for a turn that has ended long ago.
	w.restart()
	req.Resume = &bridges.Resume{}
	rec = newRecorder(w)
	again, err := w.bridge.Submit(ctx(t), req, rec)
	if diff := cmp.Diff(r, again); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if got := rec.text(); got != "onetwoallowthree" {
		t.Errorf("the whole answer is %q", got)
	}
	if got := w.say("count"); got != "messages=3" {
		t.Errorf("the task ran more than once: %q", got)
	}
}

// TestKilledBridgeAndAgent kills both. The turn is lost and never run again.
func TestKilledBridgeAndAgent(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Full)
	w.create(nil)
	req := w.request("say one\nhang")
	w.killWorker(req, func(events []bridges.Event) bool { return textOf(events) == "one" })
	killAgents(t, w)
	if r := w.reconnect(req.TurnID); r.Status != bridges.ReconnectSame || r.Turn != bridges.TurnLost {
		t.Fatalf("reconnect: %+v", r)
	}
	req.Resume = &bridges.Resume{}
	rec := newRecorder(w)
	r, err := w.bridge.Submit(ctx(t), req, rec)
	if err != nil || r.Status != bridges.StatusFailed || !errors.Is(r.Error, bridges.ErrAgentFailed) || rec.text() != "one" {
		t.Errorf("%+v, %v", r, err)
	}
	if got := w.say("count"); got != "messages=2" {
		t.Errorf("the task ran again: %q", got)
	}
	w.dispose(false)
	if _, err := w.bridge.Submit(ctx(t), req, newRecorder(w)); !errors.Is(err, bridges.ErrOutcomeUnknown) {
		t.Errorf("without the output: %v", err)
	}
	// A turn that was accepted by the host and never got to the agent runs now.
	req.TurnID, req.Task, rec = "never", "count", newRecorder(w)
	if r := w.reconnect(req.TurnID); r.Turn != bridges.TurnNotSent {
		t.Errorf("a turn that was never sent: %+v", r)
	}
	if r, err := w.bridge.Submit(ctx(t), req, rec); err != nil || r.Status != bridges.StatusCompleted || rec.text() != "messages=3" {
		t.Errorf("a turn that was never sent: %+v, %v, %q", r, err, rec.text())
	}
}

// killAgents kills the keeper and what it keeps.
func killAgents(t *testing.T, w *bench) {
	t.Helper()
	s, err := w.bridge.session("look")
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.runner.Attach(ctx(t), w.folders.Run)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	_, agent := p.Processes()
	victim, err := os.FindProcess(agent.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
}

func TestResumeOfACancelledTurn(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Full)
	w.create(nil)
	req := w.request("say one\nhang")
	w.killWorker(req, func(events []bridges.Event) bool { return textOf(events) == "one" })
	req.Resume = &bridges.Resume{Cancel: true}
	r, err := w.bridge.Submit(ctx(t), req, newRecorder(w))
	if err != nil || r.Status != bridges.StatusCancelled {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestTaskSentTwice has a journal with a task that may or may not have arrived.
func TestTaskSentTwice(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Full)
	w.create(nil)
	w.say("say one")
	req := w.request("say two")
	if _, err := w.bridge.Submit(ctx(t), req, newRecorder(w)); err != nil {
		t.Fatal(err)
	}
	w.restart()
	s, err := w.bridge.session(w.id)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := s.attach(ctx(t), launch{folders: w.folders}); err != nil || !found {
		t.Fatalf("attach: %v, %v", found, err)
	}
	for i := range s.queue { // as if the writer had died over them
		s.queue[i].Committed = false
	}
	if err := s.settle(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if len(s.redo) != 1 || !s.has(messageID(w.id, req.TurnID)) {
		t.Fatalf("to be written again: %q", s.redo)
	}
	if err := s.again(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := w.say("count"); got != "messages=3" {
		t.Errorf("the task ran twice: %q", got)
	}
}
