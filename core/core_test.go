package core

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/config"
	"github.com/subspan-dev/subspan/core/ceiling"
	"github.com/subspan-dev/subspan/registry"
	"github.com/subspan-dev/subspan/roles"
)

// fakeBridge is a bridge in this process, for the rules of the host that need no
// real agent. Each verb is a function that a test may replace.
type fakeBridge struct {
	mu        sync.Mutex
	submits   []bridges.SubmitRequest
	disposes  []bridges.DisposeRequest
	submit    func(ctx context.Context, req bridges.SubmitRequest, t bridges.Turn) (bridges.Result, error)
	reconnect func(req bridges.ReconnectRequest) (bridges.Reconnected, error)
	create    func(req bridges.CreateRequest) (bridges.Created, error)
	receipt   bridges.Receipt
}

func (b *fakeBridge) Describe(context.Context) (bridges.Description, error) {
	return bridges.Description{Name: "fake", Contract: []int{1}}, nil
}

func (b *fakeBridge) Create(_ context.Context, req bridges.CreateRequest) (bridges.Created, error) {
	if b.create != nil {
		return b.create(req)
	}
	return bridges.Created{
		Handle: bridges.Handle{Version: 1, Data: []byte(`{"id":"native"}`)},
		Info:   bridges.Info{NativeID: "native", Hold: bridges.Hold{Strength: bridges.HoldKernel}},
	}, nil
}

func (b *fakeBridge) Submit(ctx context.Context, req bridges.SubmitRequest, t bridges.Turn) (bridges.Result, error) {
	b.mu.Lock()
	b.submits = append(b.submits, req)
	submit := b.submit
	b.mu.Unlock()
	if submit != nil {
		return submit(ctx, req, t)
	}
	err := t.Emit(bridges.Event{Kind: bridges.KindText, ID: "m1", Pos: bridges.Position{Offset: 10, Part: 1}, Text: "answer to " + req.Task})
	return bridges.Result{Status: bridges.StatusCompleted, StopReason: "end_turn"}, err
}

func (b *fakeBridge) Reconnect(_ context.Context, req bridges.ReconnectRequest) (bridges.Reconnected, error) {
	if b.reconnect != nil {
		return b.reconnect(req)
	}
	return bridges.Reconnected{Status: bridges.ReconnectSame, Handle: req.Handle, Turn: bridges.TurnAttachable}, nil
}

func (b *fakeBridge) Dispose(_ context.Context, req bridges.DisposeRequest) (bridges.Receipt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.disposes = append(b.disposes, req)
	return b.receipt, nil
}

func (b *fakeBridge) submitted() []bridges.SubmitRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]bridges.SubmitRequest(nil), b.submits...)
}

// fakes is a BridgeSource and an AgentSource with one agent.
type fakes struct{ bridge *fakeBridge }

func (f fakes) Open(context.Context, string) (bridges.Bridge, error) { return f.bridge, nil }

func (f fakes) Resolve(name string) (AgentEntry, error) {
	if name != "fake" {
		return AgentEntry{}, bridges.Errorf(bridges.KindAgentMissing, "no agent %q", name)
	}
	return AgentEntry{Agent: bridges.Agent{Name: "fake", Command: []string{"/fake"}, PassEnv: []string{"FAKE_KEY"}}, Bridge: "fake"}, nil
}

func (f fakes) List() []AgentEntry           { e, _ := f.Resolve("fake"); return []AgentEntry{e} }
func (f fakes) Default() (AgentEntry, error) { return f.Resolve("fake") }

// world is a host's surroundings on disk.
type world struct {
	t      *testing.T
	dirs   config.Dirs
	conf   config.Config
	bridge *fakeBridge
	ask    Asker
	cwd    string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{
		t: t, conf: config.Default(), bridge: &fakeBridge{}, cwd: filepath.Join(dir, "work"),
		dirs: config.Dirs{
			State: filepath.Join(dir, "state"), Config: filepath.Join(dir, "config"),
			Runtime: filepath.Join(dir, "run"), Data: filepath.Join(dir, "data"),
		},
	}
	if err := os.Mkdir(w.cwd, 0o755); err != nil {
		t.Fatal(err)
	}
	return w
}

// host starts a host over the world's registry, as a new process would.
func (w *world) host() *Core {
	w.t.Helper()
	reg, err := registry.Open(w.dirs.State)
	if err != nil {
		w.t.Fatal(err)
	}
	c := New(Options{
		Registry: reg, Config: w.conf, Dirs: w.dirs, Bridges: fakes{w.bridge}, Agents: fakes{w.bridge},
		Roles: func(cwd string) (*roles.Set, error) {
			return roles.Load(roles.Sources{User: w.dirs.RolesDir(), Cwd: cwd, ProjectMaximum: w.conf.ProjectMaximum})
		},
		Getenv: func(name string) (string, bool) { return "value of " + name, name == "FAKE_KEY" },
		Ask:    w.ask,
	})
	w.t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func (w *world) create(c *Core, change func(*CreateRequest)) Session {
	w.t.Helper()
	req := CreateRequest{Cwd: w.cwd, Agent: "fake"}
	if change != nil {
		change(&req)
	}
	s, err := c.Create(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) turn(c *Core, s Session, task string) Turn {
	w.t.Helper()
	ref, err := c.Submit(w.t.Context(), SubmitRequest{Session: s.ID, Task: task})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	turn, err := c.Wait(ctx, s.ID, ref.Turn)
	if err != nil {
		w.t.Fatal(err)
	}
	return turn
}

func (w *world) text(turn Turn) string {
	w.t.Helper()
	b, err := os.ReadFile(turn.ResultPath)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

func TestTurnsOfOneSessionInTwoHosts(t *testing.T) {
	w := newWorld(t)
	c := w.host()
	s := w.create(c, nil)
	if got := w.text(w.turn(c, s, "one")); got != "answer to one" {
		t.Errorf("first answer %q", got)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(w.bridge.disposes); n != 1 {
		t.Errorf("closing an idle session ended its processes %d times, want once", n)
	}

	c = w.host()
	second := w.turn(c, s, "two")
	if second.ID != "t2" || w.text(second) != "answer to two" {
		t.Errorf("second turn %s: %q", second.ID, w.text(second))
	}
	got, turns, err := c.Show(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.Status != SessionIdle || got.Turns != 2 || len(turns) != 2 {
		t.Errorf("session %s with %d turns, %d listed", got.Status, got.Turns, len(turns))
	}
}

func TestSameKeySameTurn(t *testing.T) {
	w := newWorld(t)
	c := w.host()
	s := w.create(c, nil)
	for range 2 {
		ref, err := c.Submit(t.Context(), SubmitRequest{Session: s.ID, Task: "once", Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		if ref.Turn != "t1" {
			t.Errorf("turn %s", ref.Turn)
		}
		if _, err := c.Wait(t.Context(), s.ID, ref.Turn); err != nil {
			t.Fatal(err)
		}
	}
	c.Close(t.Context())
	c = w.host()
	if ref, err := c.Submit(t.Context(), SubmitRequest{Session: s.ID, Task: "once", Key: "k"}); err != nil || ref.Turn != "t1" {
		t.Errorf("in a new host: %v, %v", ref, err)
	}
	if n := len(w.bridge.submitted()); n != 1 {
		t.Errorf("the task ran %d times", n)
	}
}

func TestB45SecondSubmitIsRefusedByName(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	w.bridge.submit = func(ctx context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
		select {
		case <-release:
		case <-ctx.Done():
			return bridges.Result{}, ctx.Err()
		}
		return bridges.Result{Status: bridges.StatusCompleted}, nil
	}
	c := w.host()
	s := w.create(c, nil)
	ref, err := c.Submit(t.Context(), SubmitRequest{Session: s.ID, Task: "long"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Submit(t.Context(), SubmitRequest{Session: s.ID, Task: "second"})
	if !errors.Is(err, bridges.ErrSessionBusy) {
		t.Errorf("same host: %v", err)
	}
	other := w.host()
	_, err = other.Submit(t.Context(), SubmitRequest{Session: s.ID, Task: "third"})
	if !errors.Is(err, bridges.ErrSessionBusy) {
		t.Errorf("other host: %v", err)
	}
	close(release)
	if _, err := c.Wait(t.Context(), s.ID, ref.Turn); err != nil {
		t.Fatal(err)
	}
	if n := len(w.bridge.submitted()); n != 1 {
		t.Errorf("%d tasks reached the agent", n)
	}
}

func TestTurnStoppedByAnotherProcessIsCancelled(t *testing.T) {
	w := newWorld(t)
	ended := make(chan struct{})
	w.bridge.submit = func(context.Context, bridges.SubmitRequest, bridges.Turn) (bridges.Result, error) {
		<-ended // an agent that ends when it is asked to does not say why
		return bridges.Result{Status: bridges.StatusFailed, Error: bridges.Errorf(bridges.KindAgentFailed, "it ended")}, nil
	}
	c := w.host()
	s := w.create(c, nil)
	ref, err := c.Submit(t.Context(), SubmitRequest{Session: s.ID, Task: "long"})
	if err != nil {
		t.Fatal(err)
	}
	stopped, err := w.host().Stop(t.Context(), s.ID)
	if err != nil || stopped.Turn != ref.Turn {
		t.Fatalf("stopped turn %q, %v", stopped.Turn, err)
	}
	close(ended)
	turn, err := c.Wait(t.Context(), s.ID, ref.Turn)
	if err != nil || turn.Status != TurnCancelled {
		t.Errorf("%s, %v", turn.Status, err)
	}
	w.bridge.submit = submitFunc(func() (bridges.Result, error) {
		return bridges.Result{Status: bridges.StatusFailed, Error: bridges.Errorf(bridges.KindAgentFailed, "it died")}, nil
	})
	if next := w.turn(c, s, "next"); next.Status != TurnFailed {
		t.Errorf("the next turn, which nobody stopped: %s", next.Status)
	}
}

func TestTurnOutlivesItsBridgeProcess(t *testing.T) {
	w := newWorld(t)
	emit := func(turn bridges.Turn, offset int64, text string) error {
		return turn.Emit(bridges.Event{Kind: bridges.KindText, ID: "m", Pos: bridges.Position{Offset: offset, Part: 1}, Text: text})
	}
	w.bridge.submit = func(_ context.Context, req bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
		if req.Resume == nil {
			if err := emit(turn, 10, "first "); err != nil {
				return bridges.Result{}, err
			}
			return bridges.Result{}, bridges.Errorf(bridges.KindPluginFailed, "killed")
		}
		if req.Resume.After != (bridges.Position{Offset: 10, Part: 1}) {
			t.Errorf("resumed after %v", req.Resume.After)
		}
		// A careless bridge tells an event again: it must not be doubled.
		if err := errors.Join(emit(turn, 10, "first "), emit(turn, 20, "second")); err != nil {
			return bridges.Result{}, err
		}
		return bridges.Result{Status: bridges.StatusCompleted}, nil
	}
	c := w.host()
	turn := w.turn(c, w.create(c, nil), "task")
	if turn.Status != TurnCompleted || w.text(turn) != "first second" {
		t.Errorf("%s: %q", turn.Status, w.text(turn))
	}
}

func TestTurnThatKillsEveryBridgeProcessEnds(t *testing.T) {
	w := newWorld(t)
	w.bridge.submit = func(context.Context, bridges.SubmitRequest, bridges.Turn) (bridges.Result, error) {
		return bridges.Result{}, bridges.Errorf(bridges.KindPluginFailed, "killed again")
	}
	c := w.host()
	turn := w.turn(c, w.create(c, nil), "task")
	if turn.Status != TurnFailed || turn.Ended.Error.Kind != bridges.KindPluginFailed {
		t.Errorf("%s: %v", turn.Status, turn.Ended.Error)
	}
	if n := len(w.bridge.submitted()); n != restarts+1 {
		t.Errorf("%d attempts", n)
	}
}

func TestOpenTurnOfADeadHostIsTakenOver(t *testing.T) {
	w := newWorld(t)
	started := make(chan struct{}, 1)
	w.bridge.submit = func(ctx context.Context, req bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
		if req.Resume == nil {
			if err := turn.Emit(bridges.Event{Kind: bridges.KindText, ID: "m", Pos: bridges.Position{Offset: 1, Part: 1}, Text: "before, "}); err != nil {
				return bridges.Result{}, err
			}
			started <- struct{}{}
			<-ctx.Done() // the host goes away
			return bridges.Result{}, ctx.Err()
		}
		err := turn.Emit(bridges.Event{Kind: bridges.KindText, ID: "m", Pos: bridges.Position{Offset: 2, Part: 1}, Text: "after"})
		return bridges.Result{Status: bridges.StatusCompleted}, err
	}
	c := w.host()
	s := w.create(c, nil)
	ref, err := c.Submit(t.Context(), SubmitRequest{Session: s.ID, Task: "task"})
	if err != nil {
		t.Fatal(err)
	}
	<-started
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	c = w.host()
	all, _, err := c.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Status != SessionInterrupted {
		t.Errorf("listed as %+v, %v", all, err)
	}
	turn, err := c.Wait(t.Context(), s.ID, ref.Turn)
	if err != nil {
		t.Fatal(err)
	}
	if turn.Status != TurnCompleted || w.text(turn) != "before, after" {
		t.Errorf("%s: %q", turn.Status, w.text(turn))
	}
}

func TestB65LostTurnIsLostForEveryVerb(t *testing.T) {
	w := newWorld(t)
	started := make(chan struct{}, 1)
	w.bridge.submit = func(ctx context.Context, _ bridges.SubmitRequest, _ bridges.Turn) (bridges.Result, error) {
		started <- struct{}{}
		<-ctx.Done()
		return bridges.Result{}, ctx.Err()
	}
	c := w.host()
	s := w.create(c, nil)
	if _, err := c.Submit(t.Context(), SubmitRequest{Session: s.ID, Task: "task"}); err != nil {
		t.Fatal(err)
	}
	<-started
	c.Close(t.Context())

	w.bridge.reconnect = func(req bridges.ReconnectRequest) (bridges.Reconnected, error) {
		if req.TurnID != "" {
			return bridges.Reconnected{Status: bridges.ReconnectSame, Handle: req.Handle, Turn: bridges.TurnLost, Reason: "killed"}, nil
		}
		return bridges.Reconnected{Status: bridges.ReconnectSame, Handle: req.Handle}, nil
	}
	w.bridge.submit = nil
	c = w.host()
	shown, turns, err := c.Show(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	waited, err := c.Wait(t.Context(), s.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	listed, _, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopped, err := c.Stop(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	if shown.Status != SessionLost || turns[0].Status != TurnLost || waited.Status != TurnLost || listed[0].Status != SessionLost || stopped.Turn != "" {
		t.Errorf("show %s/%s, wait %s, ls %s, stop ended %q", shown.Status, turns[0].Status, waited.Status, listed[0].Status, stopped.Turn)
	}
	if waited.Ended.Error.Kind != bridges.KindOutcomeUnknown {
		t.Errorf("kind %s", waited.Ended.Error.Kind)
	}
	// Nothing is blocked by it.
	if next := w.turn(c, s, "again"); next.Status != TurnCompleted {
		t.Errorf("next turn: %s %v", next.Status, next.Ended.Error)
	}
}

func TestB36GoneSessionIsNeverAFreshOne(t *testing.T) {
	w := newWorld(t)
	c := w.host()
	s := w.create(c, nil)
	c.Close(t.Context())
	for _, tt := range []struct {
		status bridges.ReconnectStatus
		kind   bridges.ErrorKind
	}{
		{bridges.ReconnectGone, bridges.KindSessionGone},
		{bridges.ReconnectCannot, bridges.KindCapabilityUnsupported},
		{bridges.ReconnectRefused, bridges.KindSessionBusy},
	} {
		w.bridge.reconnect = func(req bridges.ReconnectRequest) (bridges.Reconnected, error) {
			return bridges.Reconnected{Status: tt.status, Reason: "because", Handle: req.Handle}, nil
		}
		c = w.host()
		turn := w.turn(c, s, "hello?")
		if turn.Status != TurnFailed || turn.Ended.Error.Kind != tt.kind {
			t.Errorf("%s: %s %v", tt.status, turn.Status, turn.Ended.Error)
		}
		c.Close(t.Context())
	}
	if n := len(w.bridge.submitted()); n != 0 {
		t.Errorf("%d tasks were sent", n)
	}
}

func TestLimitsEndATurn(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits config.Limits
	}{
		{"turn", config.Limits{TurnTimeout: 50 * time.Millisecond, MaxDepth: 1, MaxChildren: 1, MaxLive: 9}},
		{"idle", config.Limits{IdleTimeout: 50 * time.Millisecond, MaxDepth: 1, MaxChildren: 1, MaxLive: 9}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.conf.Limits = tt.limits
			w.bridge.submit = func(_ context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
				err := turn.Emit(bridges.Event{Kind: bridges.KindText, Text: "partial"})
				<-turn.Cancelled()
				return bridges.Result{Status: bridges.StatusCompleted}, err // too late to be true
			}
			c := w.host()
			turn := w.turn(c, w.create(c, nil), "task")
			if turn.Status != TurnFailed || turn.Ended.Error.Kind != bridges.KindTimeout {
				t.Errorf("%s: %v", turn.Status, turn.Ended.Error)
			}
			if w.text(turn) != "partial" {
				t.Errorf("text %q", w.text(turn))
			}
		})
	}
}

func TestFinalMessage(t *testing.T) {
	tool := bridges.Event{Kind: bridges.KindTool, ID: "1", Tool: &bridges.Tool{Title: "ls", Status: bridges.ToolFailed}}
	text := func(id, s string) bridges.Event { return bridges.Event{Kind: bridges.KindText, ID: id, Text: s} }
	for _, tt := range []struct {
		name   string
		events []bridges.Event
		want   string
	}{
		{"without ids a tool call ends a message", []bridges.Event{
			text("", "let me look"), tool, {Kind: bridges.KindThought, ID: "x", Text: "hm"}, text("", "it is "), text("", "42"),
		}, "it is 42"},
		{"another id is another message", []bridges.Event{text("a", "let me look"), tool, text("b", "it is "), text("b", "42")}, "it is 42"},
		{"one id is one message", []bridges.Event{text("a", "part one, "), tool, text("a", "part two")}, "part one, part two"},
		{"what a tool says late changes nothing", []bridges.Event{text("a", "done"), tool}, "done"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.bridge.submit = func(_ context.Context, _ bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
				var errs []error
				for i, ev := range tt.events {
					ev.Pos = bridges.Position{Offset: int64(i + 1), Part: 1}
					errs = append(errs, turn.Emit(ev))
				}
				return bridges.Result{Status: bridges.StatusCompleted}, errors.Join(errs...)
			}
			c := w.host()
			turn := w.turn(c, w.create(c, nil), "task")
			if got := w.text(turn); got != tt.want {
				t.Errorf("text %q, want %q", got, tt.want)
			}
			if turn.Ended.Tools["failed"] != 1 {
				t.Errorf("tools %v", turn.Ended.Tools)
			}
		})
	}
}

func TestCallerSecretsStayOffTheDisk(t *testing.T) {
	w := newWorld(t)
	c := w.host()
	s := w.create(c, nil)
	w.turn(c, s, "task")
	if got := w.bridge.submitted()[0].Settings.Env; len(got) != 1 || got[0] != "FAKE_KEY=value of FAKE_KEY" {
		t.Errorf("the agent got %q", got)
	}
	c.Close(t.Context())
	err := filepath.WalkDir(w.dirs.State, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if string(b) != "" && contains(b, "value of FAKE_KEY") {
			t.Errorf("%s holds the value", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestForkKeepsTheCeilingOfItsOrigin(t *testing.T) {
	w := newWorld(t)
	c := w.host()
	readonly := ceiling.Readonly
	s := w.create(c, func(r *CreateRequest) { r.Mode = &readonly })
	full := ceiling.Full
	_, err := c.Create(t.Context(), CreateRequest{Fork: s.ID, Mode: &full})
	if !errors.Is(err, bridges.ErrPermissionCeiling) {
		t.Errorf("fork with full: %v", err)
	}
	fork, err := c.Create(t.Context(), CreateRequest{Fork: s.ID})
	if err != nil {
		t.Fatal(err)
	}
	if fork.Permission != ceiling.Readonly || fork.ForkedFrom != s.ID {
		t.Errorf("fork has %s from %q", fork.Permission, fork.ForkedFrom)
	}
}

func contains(b []byte, s string) bool { return bytes.Contains(b, []byte(s)) }

// submitFunc makes a bridge's Submit out of how a turn ends.
func submitFunc(result func() (bridges.Result, error)) func(context.Context, bridges.SubmitRequest, bridges.Turn) (bridges.Result, error) {
	return func(context.Context, bridges.SubmitRequest, bridges.Turn) (bridges.Result, error) { return result() }
}
