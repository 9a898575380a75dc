//go:build unix

package acp

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// rig is a session with the fake agent, driven as a host does.
type rig struct {
	t        *testing.T
	b        *Bridge
	id       string
	agent    bridges.Agent
	settings bridges.Settings
	folders  bridges.Folders
	handle   bridges.Handle
	turns    int
}

// newRig makes a session's folders and a bridge. Flags are the fake's.
func newRig(t *testing.T, flags string, options string) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "acp")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, id: "s_" + filepath.Base(dir),
		agent:    bridges.Agent{Name: "fake", Command: []string{self}, Env: map[string]string{"FAKE": "on," + flags, "GORACE": "atexit_sleep_ms=0"}, PassEnv: []string{"FAKE_KEY"}, LoginHint: "log in, please"},
		settings: bridges.Settings{Mode: ceiling.Full, Cwd: filepath.Join(dir, "work")},
		folders:  bridges.Folders{Run: filepath.Join(dir, "run"), State: filepath.Join(dir, "state")},
	}
	if options != "" {
		r.agent.Options = json.RawMessage(options)
	}
	if err := os.Mkdir(r.settings.Cwd, 0o700); err != nil {
		t.Fatal(err)
	}
	r.b = r.bridge()
	t.Cleanup(func() {
		receipt, err := r.b.Dispose(context.Background(), bridges.DisposeRequest{SessionID: r.id, Agent: r.agent, Folders: r.folders, Grace: 200 * time.Millisecond})
		if err != nil || !receipt.Proven {
			t.Errorf("dispose: %+v, %v", receipt, err)
		}
		if err := r.b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		os.RemoveAll(dir)
	})
	return r
}

// bridge makes a bridge with short limits.
func (r *rig) bridge() *Bridge {
	b := New(Options{Version: "test"})
	b.limits.cancel = 500 * time.Millisecond
	return b
}

func (r *rig) create() (bridges.Created, error) {
	c, err := r.b.Create(r.t.Context(), bridges.CreateRequest{SessionID: r.id, Agent: r.agent, Settings: r.settings, Folders: r.folders})
	if err == nil {
		r.handle = c.Handle
	}
	return c, err
}

func (r *rig) mustCreate() bridges.Created {
	r.t.Helper()
	c, err := r.create()
	if err != nil {
		r.t.Fatalf("create: %v", err)
	}
	return c
}

// submit runs a turn to its end, with a host that answers by answer (nil denies).
func (r *rig) submit(task string, answer func(bridges.Question) bridges.Answer) (*host, bridges.Result, error) {
	r.turns++
	h := newHost(answer)
	res, err := r.b.Submit(r.t.Context(), r.request(task), h)
	r.learn(h)
	return h, res, err
}

func (r *rig) request(task string) bridges.SubmitRequest {
	return bridges.SubmitRequest{SessionID: r.id, TurnID: turnName(r.turns), Agent: r.agent, Handle: r.handle, Settings: r.settings, Folders: r.folders, Task: task}
}

func turnName(n int) string { return "t_" + string(rune('a'+n)) }

// learn takes a handle that came with an event, as a host does.
func (r *rig) learn(h *host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ev := range h.events {
		if ev.Session != nil && ev.Session.Handle != nil {
			r.handle = *ev.Session.Handle
		}
	}
}

func (r *rig) mustSubmit(task string) (*host, bridges.Result) {
	r.t.Helper()
	h, res, err := r.submit(task, nil)
	if err != nil {
		r.t.Fatalf("submit %q: %v", task, err)
	}
	return h, res
}

func (r *rig) reconnect(turnID string) (bridges.Reconnected, error) {
	rec, err := r.b.Reconnect(r.t.Context(), bridges.ReconnectRequest{SessionID: r.id, Agent: r.agent, Handle: r.handle, Settings: r.settings, Folders: r.folders, TurnID: turnID})
	if err == nil && rec.Status == bridges.ReconnectSame {
		r.handle = rec.Handle
	}
	return rec, err
}

// kill ends the agent alone, from outside.
func (r *rig) kill() {
	r.t.Helper()
	proc, err := r.b.runner.Attach(r.t.Context(), r.folders.Run)
	if err != nil {
		r.t.Fatal(err)
	}
	defer proc.Release()
	_, agent := proc.Processes()
	p, err := os.FindProcess(agent.PID)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	<-proc.Exited()
}

func (r *rig) home() string { return filepath.Join(r.folders.State, "home") }

// received returns the methods (or "answer") of what the fake was sent.
func (r *rig) received() []string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.home(), "received"))
	if err != nil {
		r.t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(b)) {
		var m struct {
			Method string
			Params struct{ Value string }
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			r.t.Fatalf("sent %q: %v", line, err)
		}
		if m.Method == "" {
			m.Method = "answer"
		}
		if m.Params.Value != "" {
			m.Method += "=" + m.Params.Value
		}
		all = append(all, m.Method)
	}
	return all
}

func count(list []string, s string) int {
	n := 0
	for _, e := range list {
		if e == s {
			n++
		}
	}
	return n
}

// host is a bridges.Turn that records.
type host struct {
	answer func(bridges.Question) bridges.Answer
	cancel chan struct{}
	seen   chan struct{} // gets a value for each event, while there is room

	mu     sync.Mutex
	events []bridges.Event
	asked  []bridges.Question
	failAt int           // Emit fails from this event on; 0 = never
	gate   chan struct{} // text waits for it to be closed
}

func newHost(answer func(bridges.Question) bridges.Answer) *host {
	return &host{answer: answer, cancel: make(chan struct{}), seen: make(chan struct{}, 1<<16)}
}

var errHostGone = errors.New("host gone")

func (h *host) Emit(ev bridges.Event) error {
	if h.gate != nil && ev.Kind == bridges.KindText {
		<-h.gate
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failAt > 0 && len(h.events)+1 >= h.failAt {
		return errHostGone
	}
	h.events = append(h.events, ev)
	select {
	case h.seen <- struct{}{}:
	default:
	}
	return nil
}

func (h *host) Ask(ctx context.Context, q bridges.Question) (bridges.Answer, error) {
	h.mu.Lock()
	h.asked = append(h.asked, q)
	h.mu.Unlock()
	if h.answer == nil {
		return bridges.Answer{Decision: bridges.Deny}, nil
	}
	answers := make(chan bridges.Answer, 1)
	go func() { answers <- h.answer(q) }()
	select {
	case a := <-answers:
		return a, nil
	case <-ctx.Done():
		return bridges.Answer{}, ctx.Err()
	}
}

func (h *host) Cancelled() <-chan struct{} { return h.cancel }

// text is the answer, as a host puts it together.
func (h *host) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for _, ev := range h.events {
		if ev.Kind == bridges.KindText {
			b.WriteString(ev.Text)
		}
	}
	return b.String()
}

func (h *host) of(kind bridges.Kind) []bridges.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []bridges.Event
	for _, ev := range h.events {
		if ev.Kind == kind {
			all = append(all, ev)
		}
	}
	return all
}

// until waits until a text was emitted.
func (h *host) until(t *testing.T, text string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for !strings.Contains(h.text(), text) {
		select {
		case <-h.seen:
		case <-limit:
			t.Fatalf("no %q in %q", text, h.text())
		}
	}
}

func allow(bridges.Question) bridges.Answer { return bridges.Answer{Decision: bridges.Allow} }

func TestTurn(t *testing.T) {
	r := newRig(t, "load", "")
	c := r.mustCreate()
	if c.Info.NativeID == "" || c.Info.AgentVersion != "1.2.3" || c.Info.Model != "small" || c.Info.Hold.Strength != bridges.HoldNone {
		t.Errorf("info %+v", c.Info)
	}
	h, res := r.mustSubmit("say hello \nthink hm\nsay world\nusage {\"inputTokens\":10,\"outputTokens\":5,\"totalTokens\":15}")
	if h.text() != "hello world" || res.Status != bridges.StatusCompleted || res.StopReason != "end_turn" || res.Usage == nil || res.Usage.Input != 10 {
		t.Errorf("%q, %+v", h.text(), res)
	}
	if th := h.of(bridges.KindThought); len(th) != 1 || th[0].Text != "hm" {
		t.Errorf("thoughts %+v", th)
	}
	h, _ = r.mustSubmit("say again")
	if h.text() != "again" || len(h.of(bridges.KindNotice)) != 0 {
		t.Errorf("second turn: %+v", h.events)
	}
}

func stopProcess(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}
