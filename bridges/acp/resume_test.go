//go:build unix

package acp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// resume submits the newest turn again, to a bridge that knows nothing.
func (r *rig) resume(after bridges.Position, answer func(bridges.Question) bridges.Answer) (*host, bridges.Result, error) {
	r.t.Helper()
	r.restart()
	h := newHost(answer)
	req := r.request("this must never be sent")
	req.Resume = &bridges.Resume{After: after}
	res, err := r.b.Submit(r.t.Context(), req, h)
	return h, res, err
}

// restart puts a new bridge in the place of the old one, as a new process does.
func (r *rig) restart() {
	r.t.Helper()
	if err := r.b.Close(); err != nil {
		r.t.Error(err)
	}
	r.b = r.bridge()
}

// leave begins a turn and goes away as soon as a text was emitted.
func (r *rig) leave(task, text string, answer func(bridges.Question) bridges.Answer) *host {
	r.t.Helper()
	r.turns++
	h := newHost(answer)
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := r.b.Submit(ctx, r.request(task), h)
		done <- err
	}()
	h.until(r.t, text)
	if answer != nil {
		waitFor(r.t, func() bool { h.mu.Lock(); defer h.mu.Unlock(); return len(h.asked) > 0 })
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		r.t.Fatalf("submit whose host is gone: %v", err)
	}
	r.learn(h)
	return h
}

func positioned(events []bridges.Event) []bridges.Event {
	var all []bridges.Event
	for _, ev := range events {
		if !ev.Pos.IsZero() {
			all = append(all, ev)
		}
	}
	return all
}

const varied = `think a
say one
update {"sessionUpdate":"plan","entries":[{"content":"step","status":"pending","priority":"high"}]}
update {"sessionUpdate":"tool_call","toolCallId":"c1","title":"t","kind":"read","status":"pending"}
permit c2 allow_once reject_once
say two
update {"sessionUpdate":"tool_call_update","toolCallId":"c1","status":"completed","content":[{"type":"content","content":{"type":"text","text":"out"}}]}
update {"sessionUpdate":"usage_update","used":5,"size":10,"cost":{"amount":0.5,"currency":"USD"}}
update {"sessionUpdate":"brand_new","x":1}
big 600000
usage {"inputTokens":10,"outputTokens":5,"totalTokens":15}
say three`

func TestResumeFromEveryPosition(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "")
	r.mustCreate()
	r.mustSubmit("say an earlier turn")
	full, want, err := r.submit(varied, allow)
	if err != nil {
		t.Fatal(err)
	}
	events := positioned(full.events)
	for i := -1; i < len(events); i++ {
		after := bridges.Position{}
		if i >= 0 {
			after = events[i].Pos
		}
		h, res, err := r.resume(after, nil)
		if err != nil {
			t.Fatalf("after %+v: %v", after, err)
		}
		if d := cmp.Diff(want, res, cmp.Comparer(func(a, b json.RawMessage) bool { return string(a) == string(b) })); d != "" {
			t.Errorf("after %+v: result (-first +again):\n%s", after, d)
		}
		rest := events[i+1:]
		got := positioned(h.events)
		if joinText(rest) != joinText(got) {
			t.Errorf("after %+v: %d bytes of text, want %d", after, len(joinText(got)), len(joinText(rest)))
		}
		if d := cmp.Diff(others(rest), others(got)); d != "" {
			t.Errorf("after %+v: events (-want +got):\n%s", after, d)
		}
		if len(h.asked) > 0 {
			t.Errorf("after %+v: asked %+v again, which was answered", after, h.asked)
		}
	}
	if got := r.received(); count(got, "session/prompt") != 2 || count(got, "answer") != 1 || count(got, "initialize") != 1 {
		t.Errorf("the agent got %q", got)
	}
}

// joinText is the text by message, as pieces may be joined differently.
func joinText(events []bridges.Event) string {
	var b strings.Builder
	last := ""
	for _, ev := range events {
		if ev.Kind == bridges.KindText || ev.Kind == bridges.KindThought {
			if key := string(ev.Kind) + ev.ID; key != last {
				last = key
				fmt.Fprintf(&b, "\n%s: ", key)
			}
			b.WriteString(ev.Text)
		}
	}
	return b.String()
}

func others(events []bridges.Event) []bridges.Event {
	var all []bridges.Event
	for _, ev := range events {
		if ev.Kind != bridges.KindText && ev.Kind != bridges.KindThought {
			all = append(all, ev)
		}
	}
	return all
}

func TestResumeInTheMiddle(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	gate := filepath.Join(r.folders.State, "gate")
	first := r.leave("say one;\nwait "+gate+"\nsay two;\nhang", "one;", nil)
	rec, err := r.reconnect(turnName(r.turns))
	if err != nil || rec.Status != bridges.ReconnectSame || rec.Turn != bridges.TurnAttachable {
		t.Fatalf("reconnect: %+v, %v", rec, err)
	}
	events := positioned(first.events)
	r.restart()
	h := newHost(nil)
	req := r.request("never sent")
	req.Resume = &bridges.Resume{After: events[len(events)-1].Pos}
	go func() {
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Error(err)
		}
		h.until(t, "two;")
		close(h.cancel)
	}()
	res, err := r.b.Submit(t.Context(), req, h)
	if err != nil || res.Status != bridges.StatusCancelled || h.text() != "two;" {
		t.Errorf("%q, %+v, %v", h.text(), res, err)
	}
	if next, _ := r.mustSubmit("say next"); next.text() != "next" {
		t.Errorf("next turn: %q", next.text())
	}
	if got := r.received(); count(got, "session/prompt") != 2 || count(got, "session/cancel") != 1 || count(got, "initialize") != 1 {
		t.Errorf("the agent got %q", got)
	}
}

func TestOpenQuestionsAreAskedAgain(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	never := func(bridges.Question) bridges.Answer { select {} }
	first := r.leave("say up\nboth", "up", never)
	waitFor(t, func() bool {
		return strings.Count(readFile(t, filepath.Join(r.folders.Run, "out")), "request_permission") == 2
	})
	if n := count(r.received(), "answer"); n != 0 {
		t.Fatalf("%d answers were sent for a host that is gone", n)
	}
	h, res, err := r.resume(bridges.Position{}, allow)
	if err != nil || res.Status != bridges.StatusCompleted || len(h.asked) != 2 {
		t.Fatalf("%+v, asked %+v, %v", res, h.asked, err)
	}
	again := map[string]bool{h.asked[0].ID: true, h.asked[1].ID: true}
	for _, q := range first.asked {
		if !again[q.ID] {
			t.Errorf("question %s was not asked again by its id, but %v", q.ID, again)
		}
	}
	if n := count(r.received(), "answer"); n != 2 {
		t.Errorf("%d answers", n)
	}
}

func TestCancelThatCameWhileNobodyWasThere(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	r.leave("say up\nhang", "up", nil)
	r.restart()
	h := newHost(nil)
	req := r.request("never sent")
	req.Resume = &bridges.Resume{Cancel: true}
	res, err := r.b.Submit(t.Context(), req, h)
	if err != nil || res.Status != bridges.StatusCancelled || h.text() != "up" {
		t.Errorf("%q, %+v, %v", h.text(), res, err)
	}
}

func TestAgentThatDiedMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, "load", "")
	r.mustCreate()
	gate := filepath.Join(r.folders.State, "gate")
	r.leave("say one;\nwait "+gate+"\nsay two;\nstderr it hurts\nexit 4", "one;", nil)
	os.WriteFile(gate, nil, 0o600)
	waitFor(t, func() bool { return fileSize(filepath.Join(r.folders.Run, "exit.json")) > 0 })
	r.restart()
	rec, err := r.reconnect(turnName(r.turns))
	if err != nil || rec.Turn != bridges.TurnAttachable {
		t.Fatalf("reconnect: %+v, %v", rec, err)
	}
	for range 2 { // the second host finds the same
		h, res, err := r.resume(bridges.Position{}, nil)
		if err != nil || h.text() != "one;two;" || res.Status != bridges.StatusFailed || !strings.Contains(res.Error.Message, "code 4") || !strings.Contains(res.Error.Message, "it hurts") {
			t.Errorf("%q, %+v, %v, %v", h.text(), res, res.Error, err)
		}
	}
	if next, _ := r.mustSubmit("say next"); next.text() != "next" {
		t.Errorf("next turn: %q", next.text())
	}
	// What came before is over, and is never sent again.
	r.restart()
	req := r.request("never sent")
	req.TurnID, req.Resume = turnName(r.turns-1), &bridges.Resume{}
	if _, err := r.b.Submit(t.Context(), req, newHost(nil)); !errors.Is(err, bridges.ErrOutcomeUnknown) {
		t.Errorf("resume of an old turn: %v", err)
	}
}

func TestTurnsThatWereNotSent(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	r.mustSubmit("say first")
	r.turns++
	r.restart()
	rec, err := r.reconnect(turnName(r.turns))
	if err != nil || rec.Status != bridges.ReconnectSame || rec.Turn != bridges.TurnNotSent {
		t.Fatalf("reconnect: %+v, %v", rec, err)
	}
	h := newHost(nil)
	req := r.request("say for the first time")
	req.Resume = &bridges.Resume{}
	res, err := r.b.Submit(t.Context(), req, h)
	if err != nil || h.text() != "for the first time" || res.Status != bridges.StatusCompleted {
		t.Errorf("%q, %+v, %v", h.text(), res, err)
	}
}

func TestTurnWhoseOutputIsGoneIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, "load", "")
	r.mustCreate()
	r.mustSubmit("say first")
	r.leave("say up\nhang", "up", nil)
	// The machine was started anew: the run folder is gone, the agent's store is not.
	r.kill()
	r.restart()
	waitFor(t, func() bool { return fileSize(filepath.Join(r.folders.Run, "receipt.json")) > 0 })
	waitFor(t, func() bool { return os.RemoveAll(r.folders.Run) == nil })
	for range 2 { // also for a host that died before it could note it
		rec, err := r.reconnect(turnName(r.turns))
		if err != nil || rec.Status != bridges.ReconnectSame || rec.Turn != bridges.TurnLost {
			t.Fatalf("reconnect: %+v, %v", rec, err)
		}
		r.restart()
	}
	if _, _, err := r.resume(bridges.Position{}, nil); !errors.Is(err, bridges.ErrOutcomeUnknown) {
		t.Errorf("resume: %v", err)
	}
	if h, _ := r.mustSubmit("say next"); h.text() != "next" {
		t.Errorf("next turn: %q", h.text())
	}
}

func TestTaskOfWhichAPartMayHaveArrived(t *testing.T) {
	t.Parallel()
	r := newRig(t, "load", "")
	r.mustCreate()
	r.mustSubmit("say x")
	proc, err := r.b.runner.Attach(t.Context(), r.folders.Run)
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Release()
	_, agent := proc.Processes()
	stopProcess(t, agent.PID)
	// The bridge dies while it writes: the frame is in the journal, its commit is not.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	journal := filepath.Join(r.folders.Run, "sent")
	before := fileSize(journal)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for ctx.Err() == nil && fileSize(journal) < before+1<<20 {
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(500 * time.Millisecond) // until the pipe is full; what is not begun is not sent
		cancel()
	}()
	r.turns++
	_, err = r.b.Submit(ctx, r.request("say "+strings.Repeat("x", 1<<20)), newHost(nil))
	cancel()
	<-watched
	if err == nil {
		t.Fatal("the task was taken by an agent that does not run")
	}
	if _, _, err := r.resume(bridges.Position{}, nil); !errors.Is(err, bridges.ErrOutcomeUnknown) {
		t.Errorf("resume: %v", err)
	}
	rec, err := r.reconnect(turnName(r.turns))
	if err != nil || rec.Turn != bridges.TurnLost || rec.Status != bridges.ReconnectSame {
		t.Errorf("reconnect: %+v, %v", rec, err)
	}
	if h, _ := r.mustSubmit("say next"); h.text() != "next" {
		t.Errorf("next turn: %q", h.text())
	}
}

// drive is the process that a test kills: it makes a session and submits a turn.
func drive(dir string) {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	b := New(Options{Version: "test"})
	agent := bridges.Agent{Name: "fake", Command: []string{self}, Env: map[string]string{"FAKE": "on", "GORACE": "atexit_sleep_ms=0"}}
	settings := bridges.Settings{Mode: ceiling.Full, Cwd: dir}
	folders := bridges.Folders{Run: filepath.Join(dir, "run"), State: filepath.Join(dir, "state")}
	c, err := b.Create(context.Background(), bridges.CreateRequest{SessionID: "driven", Agent: agent, Settings: settings, Folders: folders})
	if err != nil {
		panic(err)
	}
	out, err := json.Marshal(c.Handle)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s\n", out)
	task, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	_, err = b.Submit(context.Background(), bridges.SubmitRequest{SessionID: "driven", TurnID: "t", Agent: agent, Handle: c.Handle, Settings: settings, Folders: folders, Task: string(task)}, loud{})
	if err != nil {
		panic(err)
	}
	if _, err := b.Dispose(context.Background(), bridges.DisposeRequest{SessionID: "driven", Folders: folders}); err != nil {
		panic(err)
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM:") {
			fmt.Println(line)
		}
	}
}

// loud is a host that says what it records.
type loud struct{}

func (loud) Emit(ev bridges.Event) error {
	out, err := json.Marshal(ev)
	fmt.Printf("%s\n", out)
	return err
}

func (loud) Ask(ctx context.Context, q bridges.Question) (bridges.Answer, error) {
	fmt.Printf("{\"question\":{\"id\":%q}}\n", q.ID)
	<-ctx.Done()
	return bridges.Answer{}, ctx.Err()
}

func (loud) Cancelled() <-chan struct{} { return nil }

// TestKilledInTheMiddle kills the bridge's process with SIGKILL, at an open question
// and behind some thousand events, and goes on in another one.
func TestKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	driver := exec.Command(self)
	driver.Env = append(os.Environ(), "DRIVE="+dir)
	driver.Stdin = strings.NewReader("chunks 2000 20\nsay |\npermit a allow_once reject_once\nsay done")
	driver.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	driver.Stderr = os.Stderr
	out, err := driver.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	var handle bridges.Handle
	var recorded []bridges.Event
	for question := false; !question; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		if handle.Version == 0 {
			if err := json.Unmarshal(line, &handle); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var ev bridges.Event
		if err := json.Unmarshal(line, &ev); err != nil {
			t.Fatal(err)
		}
		if ev.Session != nil && ev.Session.Handle != nil {
			handle = *ev.Session.Handle
		}
		question = ev.Question != nil
		if !question {
			recorded = append(recorded, ev)
		}
	}
	if err := driver.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	driver.Wait()

	events := positioned(recorded)
	cut := len(events) / 2 // the host had recorded half of them
	r := &rig{t: t, id: "driven", handle: handle,
		agent:    bridges.Agent{Name: "fake", Command: []string{self}, Env: map[string]string{"FAKE": "on", "GORACE": "atexit_sleep_ms=0"}},
		settings: bridges.Settings{Mode: ceiling.Full, Cwd: dir},
		folders:  bridges.Folders{Run: filepath.Join(dir, "run"), State: filepath.Join(dir, "state")},
	}
	r.b = r.bridge()
	t.Cleanup(func() {
		if rec, err := r.b.Dispose(context.Background(), bridges.DisposeRequest{SessionID: r.id, Folders: r.folders}); err != nil || !rec.Proven {
			t.Errorf("dispose: %+v, %v", rec, err)
		}
		r.b.Close()
	})
	rec, err := r.b.Reconnect(t.Context(), bridges.ReconnectRequest{SessionID: r.id, Agent: r.agent, Handle: handle, Settings: r.settings, Folders: r.folders, TurnID: "t"})
	if err != nil || rec.Status != bridges.ReconnectSame || rec.Turn != bridges.TurnAttachable {
		t.Fatalf("reconnect: %+v, %v", rec, err)
	}
	h := newHost(allow)
	req := r.request("never sent")
	req.TurnID, req.Resume = "t", &bridges.Resume{After: events[cut].Pos}
	res, err := r.b.Submit(t.Context(), req, h)
	if err != nil || res.Status != bridges.StatusCompleted || len(h.asked) != 1 {
		t.Fatalf("%+v, asked %+v, %v", res, h.asked, err)
	}
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&want, "%d:%s;", i, strings.Repeat("x", 20))
	}
	want.WriteString("|[a selected o0-allow_once]done")
	var all strings.Builder
	for _, ev := range append(events[:cut+1:cut+1], h.events...) {
		if ev.Kind == bridges.KindText {
			all.WriteString(ev.Text)
		}
	}
	if all.String() != want.String() {
		t.Errorf("the two hosts together have %d bytes, want %d", all.Len(), want.Len())
	}
}

func TestLongTurnDoesNotKeepItsOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "")
	r.mustCreate()
	const size = 44 << 20
	h, res := r.mustSubmit(fmt.Sprintf("flood %d\nsay end", size))
	if n := len(h.text()); n < size || res.Status != bridges.StatusCompleted {
		t.Fatalf("%d bytes, %+v", n, res)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(r.folders.Run, "out"), &st); err != nil {
		t.Fatal(err)
	}
	if held := st.Blocks * 512; st.Size < size || held > behind+2*snapshotEvery+4<<20 {
		t.Errorf("the spool of %d bytes holds %d", st.Size, held)
	}
	// A host that had recorded what it was handed goes on without a gap.
	events := positioned(h.events)
	last, res, err := r.resume(events[len(events)-2].Pos, nil)
	if err != nil || !strings.HasSuffix(last.text(), "end") || len(last.of(bridges.KindNotice)) != 0 || res.Status != bridges.StatusCompleted {
		t.Errorf("%q, %+v, %v", last.text(), res, err)
	}
	// One that had not is told.
	lost, res, err := r.resume(events[3].Pos, nil)
	if err != nil || res.Status != bridges.StatusCompleted || len(res.Warnings) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	if n := lost.of(bridges.KindNotice); len(n) != 1 || n[0].Notice.Code != "events_lost" {
		t.Errorf("notices %+v", n)
	}
}
