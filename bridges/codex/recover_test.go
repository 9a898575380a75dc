package codex

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// hostEnv makes the test binary a process with a bridge in it, to be killed: it runs
// one Submit, and prints each event and question as it hears of it.
const hostEnv = "TEST_CODEX_HOST"

type printed struct {
	Event    *bridges.Event    `json:",omitempty"`
	Question *bridges.Question `json:",omitempty"`
	Error    string            `json:",omitempty"`
}

type printer struct{ mu sync.Mutex }

func (p *printer) print(v printed) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return json.NewEncoder(os.Stdout).Encode(v)
}

func (p *printer) Emit(e bridges.Event) error { return p.print(printed{Event: &e}) }

func (p *printer) Ask(ctx context.Context, q bridges.Question) (bridges.Answer, error) {
	if err := p.print(printed{Question: &q}); err != nil {
		return bridges.Answer{}, err
	}
	<-ctx.Done()
	return bridges.Answer{}, ctx.Err()
}

func (p *printer) Cancelled() <-chan struct{} { return nil }

func hostMain(spec string) {
	var req bridges.SubmitRequest
	if err := json.Unmarshal([]byte(spec), &req); err != nil {
		panic(err)
	}
	p := &printer{}
	if _, err := New(Options{}).Submit(context.Background(), req, p); err != nil {
		p.print(printed{Error: err.Error()})
	}
	time.Sleep(time.Hour) // to be killed
}

// killedHost submits a task from a process of its own and kills it with SIGKILL once
// enough was printed. It returns all that was.
func (r *rig) killedHost(req bridges.SubmitRequest, enough func([]printed) bool) []printed {
	r.t.Helper()
	spec, err := json.Marshal(req)
	if err != nil {
		r.t.Fatal(err)
	}
	self, _ := os.Executable()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), hostEnv+"="+string(spec))
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	parse := func() []printed {
		var all []printed
		for line := range strings.Lines(out.String()) {
			var p printed
			if json.Unmarshal([]byte(line), &p) == nil {
				all = append(all, p)
			}
		}
		return all
	}
	for limit := time.Now().Add(20 * time.Second); !enough(parse()); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(limit) {
			r.t.Errorf("the host printed %s", out.String())
			break
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	return parse()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func texts(all []printed) (out string, last bridges.Position) {
	var b strings.Builder
	for _, p := range all {
		if p.Event != nil && !p.Event.Pos.IsZero() {
			last = p.Event.Pos
			if p.Event.Kind == bridges.KindText {
				b.WriteString(p.Event.Text)
			}
		}
	}
	return b.String(), last
}

// A bridge that is killed in the middle of a turn loses nothing of it, and doubles
// nothing, wherever the knife falls.
func TestKilledInATurn(t *testing.T) {
	const pieces = 400
	var whole strings.Builder
	for i := range pieces {
		fmt.Fprintf(&whole, "%063d ", i)
	}
	for _, after := range []int{0, 1, 37, pieces / 2, pieces} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			r := newRig(t, ceiling.Full)
			r.create()
			r.restart()
			gate := filepath.Join(r.settings.Cwd, "gate")
			req := r.request(fmt.Sprintf("[flood %d][wait %s][say end]", pieces, gate))
			all := r.killedHost(req, func(all []printed) bool {
				n := 0
				for _, p := range all {
					if p.Event != nil && p.Event.Kind == bridges.KindText {
						n++
					}
				}
				return n >= after && len(all) > 0
			})
			first, last := texts(all)
			if out := r.reconnect(req.TurnID); out.Status != bridges.ReconnectSame || out.Turn != bridges.TurnAttachable {
				t.Fatalf("%+v", out)
			}
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			req.Resume = &bridges.Resume{After: last}
			h := newHost()
			res, err := r.b.Submit(t.Context(), req, h)
			if err != nil || res.Status != bridges.StatusCompleted || res.Usage.Input != 100 {
				t.Fatalf("%+v %v", res, err)
			}
			if got := first + text(h.events()); got != whole.String()+"end" {
				t.Errorf("got %d bytes, want %d", len(got), whole.Len()+3)
			}
			if n := len(r.frames("turn/start")); n != 1 {
				t.Errorf("the task was sent %d times", n)
			}
			// And a third time, after it all: the Result is still there.
			r.restart()
			if out := r.reconnect(req.TurnID); out.Turn != bridges.TurnAttachable {
				t.Fatalf("%+v", out)
			}
			again, err := r.b.Submit(t.Context(), req, newHost())
			if err != nil || again.Status != res.Status || again.Usage.Input != res.Usage.Input {
				t.Errorf("%+v %v", again, err)
			}
		})
	}
}

// In a long turn the state is stored from time to time, and what lies before it is
// not read again.
func TestLongTurn(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	r.restart()
	gate := filepath.Join(r.settings.Cwd, "gate")
	const pieces = 120_000 // some 24 MiB of output
	req := r.request(fmt.Sprintf("[flood %d][wait %s][say end]", pieces, gate))
	h := newHost()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		h.until(t, "the flood", func() bool { return h.count() > pieces-1000 })
		cancel()
	}()
	if _, err := r.b.Submit(ctx, req, h); err == nil {
		t.Fatal("no error")
	}
	first := h.events()
	s, err := r.b.attach(t.Context(), r.id, r.folders.Run)
	if err != nil || s == nil {
		t.Fatal(err)
	}
	if s.fold.Next < checkpointEvery || s.fold.Turn == nil {
		t.Errorf("nothing was stored in the turn: %d", s.fold.Next)
	}
	s.proc.Release()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	req.Resume = &bridges.Resume{After: first[len(first)-1].Pos}
	h = newHost()
	if res, err := r.b.Submit(t.Context(), req, h); err != nil || res.Status != bridges.StatusCompleted {
		t.Fatalf("%+v %v", res, err)
	}
	if got := len(text(first)) + len(text(h.events())); got != pieces*64+3 {
		t.Errorf("got %d bytes, want %d", got, pieces*64+3)
	}
}

func TestKilledWhileAsking(t *testing.T) {
	r := newRig(t, ceiling.Default)
	r.create()
	r.restart()
	req := r.request("[ask rm x]")
	asked := func(all []printed) *bridges.Question {
		for _, p := range all {
			if p.Question != nil {
				return p.Question
			}
		}
		return nil
	}
	first := asked(r.killedHost(req, func(all []printed) bool { return asked(all) != nil }))
	r.reconnect(req.TurnID)
	req.Resume = &bridges.Resume{}
	h := newHost()
	h.answer = func(bridges.Question) bridges.Answer { return bridges.Answer{Decision: bridges.Allow} }
	res, err := r.b.Submit(t.Context(), req, h)
	if err != nil || text(h.events()) != `decision {"decision":"accept"}` {
		t.Errorf("%+v %v %q", res, err, text(h.events()))
	}
	if q := h.questions(); len(q) != 1 || q[0].ID != first.ID {
		t.Errorf("asked %+v, then %+v", first, q)
	}
	// Answered once: whoever reads it all again asks nobody.
	r.restart()
	h = newHost()
	if res, err := r.b.Submit(t.Context(), req, h); err != nil || res.Status != bridges.StatusCompleted || len(h.questions()) != 0 {
		t.Errorf("%+v %v, asked %v", res, err, h.questions())
	}
}

// A host that goes away leaves codex at work.
func TestHostGone(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	gate := filepath.Join(r.settings.Cwd, "gate")
	req := r.request(fmt.Sprintf("[say one][wait %s][say two]", gate))
	ctx, cancel := context.WithCancel(t.Context())
	h := newHost()
	go func() {
		h.until(t, "text", func() bool { return text(h.events()) == "one" })
		cancel()
	}()
	if _, err := r.b.Submit(ctx, req, h); err == nil {
		t.Fatal("no error")
	}
	if _, err := r.b.Submit(t.Context(), r.request("[say three]"), newHost()); bridges.KindOf(err) != bridges.KindSessionBusy {
		t.Errorf("another task meanwhile: %v", err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	events := h.events()
	req.Resume = &bridges.Resume{After: events[len(events)-1].Pos}
	h = newHost()
	if res, err := r.b.Submit(t.Context(), req, h); err != nil || res.Status != bridges.StatusCompleted || text(h.events()) != "two" {
		t.Errorf("%+v %v %q", res, err, text(h.events()))
	}
}

// Credentials are in nobody's record: after a host's death a session that runs goes
// on without them, and one that does not run asks for them.
func TestCredentialsAreGone(t *testing.T) {
	r := newRig(t, ceiling.Full).own()
	r.settings.Env = []string{"CODEX_API_KEY=a"}
	r.create()
	r.submit("[say x]", newHost())
	r.restart()
	r.settings.Env = nil
	if out := r.reconnect(""); out.Status != bridges.ReconnectSame {
		t.Errorf("%+v", out)
	}
	if res := r.submit("[say y]", newHost()); res.Status != bridges.StatusCompleted {
		t.Errorf("%+v", res)
	}
	r.kill()
	if _, err := r.b.Submit(t.Context(), r.request("[say z]"), newHost()); bridges.KindOf(err) != bridges.KindAuthRequired {
		t.Error(err)
	}
	// A new value reaches the agent by a new process.
	r.settings.Env = []string{"CODEX_API_KEY=b"}
	r.submit("[say x]", newHost())
	r.settings.Env = []string{"CODEX_API_KEY=c"}
	h := newHost()
	if r.submit("[env]", h); !strings.Contains(text(h.events()), "CODEX_API_KEY=c") {
		t.Error("the old key is still in use")
	}
}

func TestEmitFails(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	h := newHost()
	h.gone = fmt.Errorf("closed")
	req := r.request("[say one]")
	if _, err := r.b.Submit(t.Context(), req, h); err == nil {
		t.Fatal("no error")
	}
	req.Resume = &bridges.Resume{}
	h = newHost()
	if res, err := r.b.Submit(t.Context(), req, h); err != nil || res.Status != bridges.StatusCompleted || text(h.events()) != "one" {
		t.Errorf("%+v %v %q", res, err, text(h.events()))
	}
}

// A task that was cut short on its way is sent again only when codex's own record
// says that it never arrived.
func TestKilledWhileSending(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	r.submit("[say x]", newHost()) // there is a record
	// Codex stops reading in its turn, so the next frame stays in the pipe.
	h := newHost()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		h.until(t, "the session", func() bool { return len(h.events()) > 0 })
		cancel()
	}()
	r.handle = note{Thread: mustNote(t, r.handle).Thread}.handle() // so that there is an event
	if _, err := r.b.Submit(ctx, r.request("[freeze]"), h); err == nil {
		t.Fatal("no error")
	}
	r.restart()
	req := r.request("[say " + strings.Repeat("long ", 1<<18) + "]")
	s, err := r.b.attach(t.Context(), r.id, r.folders.Run)
	if err != nil || s == nil {
		t.Fatal(err)
	}
	short, cancelWrite := context.WithTimeout(t.Context(), time.Second)
	defer cancelWrite()
	frame, _ := json.Marshal(object{"id": 99, "method": "turn/start", "params": object{"threadId": s.fold.Thread, "clientUserMessageId": clientID(r.id, req.TurnID), "input": []object{{"text": req.Task}}}})
	if err := s.proc.Write(short, append(frame, '\n')); err == nil {
		t.Fatal("codex read it")
	}
	s.proc.Release()
	if out := r.reconnect(req.TurnID); out.Status != bridges.ReconnectSame || out.Turn != bridges.TurnNotSent {
		t.Fatalf("%+v", out)
	}
	req.Handle, req.Resume = r.handle, &bridges.Resume{}
	h = newHost()
	if res, err := r.b.Submit(t.Context(), req, h); err != nil || res.Status != bridges.StatusCompleted || len(text(h.events())) != 5<<18 {
		t.Errorf("%+v %v, %d bytes", res, err, len(text(h.events())))
	}
}

func mustNote(t *testing.T, h bridges.Handle) note {
	n, err := readNote(h)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestReconnect(t *testing.T) {
	t.Run("alive", func(t *testing.T) {
		r := newRig(t, ceiling.Full)
		r.create()
		r.submit("[say x]", newHost())
		r.restart()
		if out := r.reconnect(""); out.Status != bridges.ReconnectSame || len(r.frames("initialize")) != 1 {
			t.Errorf("%+v", out)
		}
		if res := r.submit("[say y]", newHost()); res.Status != bridges.StatusCompleted || len(r.frames("initialize")) != 1 {
			t.Errorf("%+v", res)
		}
	})
	t.Run("dead", func(t *testing.T) {
		r := newRig(t, ceiling.Full)
		r.create()
		r.submit("[say x]", newHost())
		r.kill()
		if out := r.reconnect(""); out.Status != bridges.ReconnectSame || len(r.frames("thread/resume")) != 1 {
			t.Errorf("%+v", out)
		}
	})
	t.Run("dead in the turn", func(t *testing.T) {
		r := newRig(t, ceiling.Full)
		r.create()
		h := newHost()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			h.until(t, "text", func() bool { return text(h.events()) == "x" })
			cancel()
		}()
		req := r.request("[say x][hang]")
		if _, err := r.b.Submit(ctx, req, h); err == nil {
			t.Fatal("no error")
		}
		r.kill()
		if out := r.reconnect(req.TurnID); out.Status != bridges.ReconnectSame || out.Turn != bridges.TurnLost {
			t.Errorf("%+v", out)
		}
		req.Resume = &bridges.Resume{}
		if _, err := r.b.Submit(t.Context(), req, newHost()); bridges.KindOf(err) != bridges.KindOutcomeUnknown {
			t.Errorf("submitted again: %v", err)
		}
		if len(r.frames("turn/start")) != 1 {
			t.Error("the task was sent again")
		}
	})
	t.Run("dead after the turn", func(t *testing.T) {
		r := newRig(t, ceiling.Full)
		r.create()
		req := r.request("[say x]")
		if _, err := r.b.Submit(t.Context(), req, newHost()); err != nil {
			t.Fatal(err)
		}
		r.kill()
		if out := r.reconnect(req.TurnID); out.Turn != bridges.TurnAttachable {
			t.Errorf("%+v", out)
		}
		req.Resume = &bridges.Resume{}
		h := newHost()
		if res, err := r.b.Submit(t.Context(), req, h); err != nil || res.Status != bridges.StatusCompleted || text(h.events()) != "x" {
			t.Errorf("%+v %v", res, err)
		}
	})
	t.Run("rebooted", func(t *testing.T) {
		r := newRig(t, ceiling.Full)
		r.create()
		r.submit("[say x]", newHost())
		r.kill()
		if err := os.RemoveAll(r.folders.Run); err != nil {
			t.Fatal(err)
		}
		if out := r.reconnect("t2"); out.Status != bridges.ReconnectSame || out.Turn != bridges.TurnNotSent {
			t.Errorf("%+v", out)
		}
		if n := mustNote(t, r.handle); n.Out == 0 {
			t.Error("positions begin anew")
		}
	})
	t.Run("busy elsewhere", func(t *testing.T) {
		r := newRig(t, ceiling.Full)
		r.create()
		r.submit("[say x]", newHost())
		r.kill()
		r.agent.Env["FAKE_RESUME"] = "busy"
		if out := r.reconnect(""); out.Status != bridges.ReconnectRefused {
			t.Errorf("%+v", out)
		}
	})
	t.Run("gone", func(t *testing.T) {
		r := newRig(t, ceiling.Full)
		r.create()
		r.submit("[say x]", newHost())
		r.kill()
		rec, _ := recordOf(r.folders.State, mustNote(t, r.handle).Thread)
		os.Remove(rec.path)
		if out := r.reconnect(""); out.Status != bridges.ReconnectGone || out.Reason == "" {
			t.Errorf("%+v", out)
		}
	})
}

// kill ends the agent behind the bridge's back.
func (r *rig) kill() {
	r.t.Helper()
	r.restart()
	s, err := r.b.attach(r.t.Context(), r.id, r.folders.Run)
	if err != nil || s == nil {
		r.t.Fatal("nothing to kill", err)
	}
	defer s.proc.Release()
	_, agent := s.proc.Processes()
	p, err := os.FindProcess(agent.PID)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		r.t.Fatal(err)
	}
	<-s.proc.Exited()
}

// B39: a thread without a turn is nowhere on disk.
func TestB39NeverRan(t *testing.T) {
	r := newRig(t, ceiling.Full)
	r.create()
	before := mustNote(t, r.handle)
	r.kill()
	out := r.reconnect("")
	if out.Status != bridges.ReconnectSame || len(out.Info.Warnings) != 1 || mustNote(t, out.Handle).Thread == before.Thread {
		t.Errorf("%+v", out)
	}
	if res := r.submit("[say x]", newHost()); res.Status != bridges.StatusCompleted {
		t.Errorf("%+v", res)
	}
}
