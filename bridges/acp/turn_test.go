//go:build unix

package acp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
)

func TestOddAgentsWork(t *testing.T) {
	for _, flags := range []string{"crlf", "ansi", "early", "stringids", "twice", "legacy"} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, flags, "")
			r.settings.Model = "large"
			r.mustCreate()
			h, res := r.mustSubmit("say one \nconfig")
			if h.text() != "one large low ask" || res.Status != bridges.StatusCompleted {
				t.Errorf("%q, %+v", h.text(), res)
			}
			if h, _ := r.mustSubmit("say two"); h.text() != "two" {
				t.Errorf("second turn: %q", h.text())
			}
		})
	}
}

func TestB16B17NoiseInATurn(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	h, res := r.mustSubmit("raw Loaded cached credentials.\nsay a\ntail hook: {x} \nsay b\nraw \x1b]0;title\x07\nsay c\nraw {\"jsonrpc\":\"2.0\",\"id\":77,\"result\":1}\nraw 17")
	if h.text() != "abc" || res.Status != bridges.StatusCompleted {
		t.Errorf("%q, %+v", h.text(), res)
	}
	var noise []string
	for _, ev := range h.of(bridges.KindNotice) {
		noise = append(noise, ev.Notice.Code+" "+ev.Text)
	}
	if d := cmp.Diff([]string{"noise Loaded cached credentials.", "noise hook: {x} ", "noise \x1b]0;title\x07", "noise 17"}, noise); d != "" {
		t.Errorf("notices (-want +got):\n%s", d)
	}
}

func TestB11CharactersOneByteAtATime(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	if h, _ := r.mustSubmit("slowly €uro 😀 é"); h.text() != "€uro 😀 é" {
		t.Errorf("%q", h.text())
	}
}

func TestB12LineLongerThanBuffer(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "")
	r.mustCreate()
	largest := 40 << 20
	if raced {
		largest = 4 << 20
	}
	for _, size := range []int{70 << 10, 2 << 20, largest} {
		h, res := r.mustSubmit(fmt.Sprintf("big %d\nsay .", size))
		if n := len(h.text()); n != size+1 || res.Status != bridges.StatusCompleted {
			t.Errorf("%d bytes of %d, %+v", n, size, res)
		}
		for i, ev := range h.of(bridges.KindText) {
			if len(ev.Text) > maxPiece || i > 0 && !ev.Pos.After(h.of(bridges.KindText)[i-1].Pos) {
				t.Fatalf("event %d: %d bytes at %+v", i, len(ev.Text), ev.Pos)
			}
		}
	}
	r.b.limits.frame = 2 << 20
	h, res := r.mustSubmit(fmt.Sprintf("big %d\nsay after it", 2<<20))
	if h.text() != "after it" || res.Status != bridges.StatusCompleted {
		t.Errorf("%d bytes, %+v", len(h.text()), res)
	}
	if n := h.of(bridges.KindNotice); len(n) != 1 || n[0].Notice.Code != "oversize_frame" {
		t.Errorf("notices %+v", n)
	}
}

func TestB26LateUpdates(t *testing.T) {
	t.Run("plain", func(t *testing.T) {
		r := newRig(t, "", "")
		r.mustCreate()
		start := time.Now()
		r.mustSubmit("say x\nlate 0 a\nlate 50 b\nlate 200 c")
		if d := time.Since(start); d > 45*time.Millisecond {
			t.Logf("a result took %v", d) // no wait of ours is in it; the machine may be busy
		}
		waitFor(t, func() bool { return strings.Contains(readFile(t, filepath.Join(r.folders.Run, "out")), `"text":"c"`) })
		h, _ := r.mustSubmit("say second")
		n := h.of(bridges.KindNotice)
		if h.text() != "second" || len(n) != 1 || n[0].Notice.Code != "late_update" || !strings.HasPrefix(n[0].Text, "3 ") {
			t.Errorf("%q, %+v", h.text(), n)
		}
	})
	t.Run("agent that is known for it", func(t *testing.T) {
		r := newRig(t, "", `{"late_updates":true}`)
		r.b.limits.quiet, r.b.limits.settle = 300*time.Millisecond, 3*time.Second
		r.mustCreate()
		h, _ := r.mustSubmit("say x\nlate 0 a\nlate 20 b")
		if h.text() != "xab" {
			t.Errorf("first: %q", h.text())
		}
		h, _ = r.mustSubmit("say second")
		if h.text() != "second" || len(h.of(bridges.KindNotice)) != 0 {
			t.Errorf("second: %+v", h.events)
		}
	})
}

func TestLateQuestionIsNotAnsweredForTheNextTurn(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	r.mustSubmit("say x\nlateask")
	waitFor(t, func() bool {
		return strings.Contains(readFile(t, filepath.Join(r.folders.Run, "out")), "request_permission")
	})
	h, _, err := r.submit("say y", allow)
	if err != nil || len(h.asked) != 0 {
		t.Errorf("asked %+v, %v", h.asked, err)
	}
	if n := count(r.received(), "answer"); n != 1 {
		t.Errorf("%d answers", n)
	}
}

func TestB45SecondSubmitIsRefused(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	h := newHost(nil)
	done := make(chan bridges.Result, 1)
	r.turns++
	req := r.request("say first\nhang")
	go func() {
		res, err := r.b.Submit(t.Context(), req, h)
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	h.until(t, "first")
	if _, _, err := r.submit("say second", nil); !errors.Is(err, bridges.ErrSessionBusy) {
		t.Errorf("second submit: %v", err)
	}
	close(h.cancel)
	if res := <-done; res.Status != bridges.StatusCancelled || h.text() != "first" {
		t.Errorf("%q, %+v", h.text(), res)
	}
	if n := count(r.received(), "session/prompt"); n != 1 {
		t.Errorf("the agent got %d prompts", n)
	}
}

func TestCancel(t *testing.T) {
	tests := []struct {
		name, flags, task string
		answer            func(bridges.Question) bridges.Answer
		warning           string
		alive             bool // afterwards
	}{
		{"streaming", "", "say up\nhang", nil, "", true},
		{"error instead", "cancel=error", "say up\nhang", nil, "Request was aborted", true},
		{"end_turn instead", "cancel=end", "say up\nhang", nil, "", true},
		{"open permission", "", "say up\npermit a allow_once reject_once", func(bridges.Question) bridges.Answer { select {} }, "", true},
		{"two open permissions", "", "say up\nboth", func(bridges.Question) bridges.Answer { select {} }, "", true},
		{"unfinished tool", "", `update {"sessionUpdate":"tool_call","toolCallId":"c","title":"t","status":"pending"}` + "\nsay up\nhang", nil, "", true},
		{"deaf to it", "", "stubborn up", nil, "did not stop", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "load,"+tt.flags, "")
			r.mustCreate()
			h := newHost(tt.answer)
			r.turns++
			go func() {
				h.until(t, "up")
				if strings.Contains(tt.name, "permission") {
					waitFor(t, func() bool { h.mu.Lock(); defer h.mu.Unlock(); return len(h.asked) > 0 })
				}
				close(h.cancel)
			}()
			res, err := r.b.Submit(t.Context(), r.request(tt.task), h)
			if err != nil || res.Status != bridges.StatusCancelled || res.Error != nil {
				t.Fatalf("%+v, %v", res, err)
			}
			if !strings.Contains(strings.Join(res.Warnings, "\n"), tt.warning) || tt.warning == "" && len(res.Warnings) > 0 {
				t.Errorf("warnings %q", res.Warnings)
			}
			if n := count(r.received(), "session/cancel"); n != 1 {
				t.Errorf("%d cancels sent", n)
			}
			if tt.name == "unfinished tool" {
				tools := h.of(bridges.KindTool)
				if last := tools[len(tools)-1]; last.ID != "c" || last.Tool.Status != bridges.ToolCancelled {
					t.Errorf("tools %+v", tools)
				}
			}
			r.learn(h)
			next, res, err := r.submit("say next", nil)
			if err != nil || next.text() != "next" || res.Status != bridges.StatusCompleted {
				t.Errorf("next turn: %q, %+v, %v", next.text(), res, err)
			}
			if n := count(r.received(), "initialize"); (n == 1) != tt.alive {
				t.Errorf("the agent was started %d times", n)
			}
		})
	}
}

func TestCancelledBeforeTheTaskWasSent(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	h := newHost(nil)
	close(h.cancel)
	r.turns++
	res, err := r.b.Submit(t.Context(), r.request("say x"), h)
	if err != nil || res.Status != bridges.StatusCancelled {
		t.Errorf("%+v, %v", res, err)
	}
	if got := r.received(); count(got, "session/prompt")+count(got, "session/cancel") != 0 {
		t.Errorf("sent %q", got)
	}
}

func TestB51PermissionAnswers(t *testing.T) {
	tests := []struct {
		offered  string
		decision bridges.Decision
		want     string
		status   bridges.Status
		denied   int
	}{
		{"allow_once reject_once", bridges.Allow, "[a selected o0-allow_once]", bridges.StatusCompleted, 0},
		{"reject_once allow_always allow_once", bridges.Allow, "[a selected o2-allow_once]", bridges.StatusCompleted, 0},
		{"allow_always reject_once", bridges.Allow, "[a selected o1-reject_once]", bridges.StatusCompleted, 1},
		{"reject_once", bridges.Allow, "[a selected o0-reject_once]", bridges.StatusCompleted, 1},
		{"allow_once reject_always reject_once", bridges.Deny, "[a selected o2-reject_once]", bridges.StatusCompleted, 1},
		{"allow_once reject_always", bridges.Deny, "[a cancelled <nil>]", bridges.StatusCancelled, 1},
		{"allow_always", bridges.Allow, "[a cancelled <nil>]", bridges.StatusCancelled, 1},
		{"odd_kind", bridges.Deny, "[a cancelled <nil>]", bridges.StatusCancelled, 1},
		{"", bridges.Deny, "[a cancelled <nil>]", bridges.StatusCancelled, 1},
		{"allow_once reject_once", "what", "[a selected o1-reject_once]", bridges.StatusCompleted, 1},
		{"allow_once reject_once", bridges.Cancel, "[a cancelled <nil>]", bridges.StatusCompleted, 0},
	}
	r := newRig(t, "", "")
	r.mustCreate()
	for _, tt := range tests {
		t.Run(tt.offered+" "+string(tt.decision), func(t *testing.T) {
			h, res, err := r.submit("say before\npermit a "+tt.offered, func(bridges.Question) bridges.Answer { return bridges.Answer{Decision: tt.decision} })
			if err != nil {
				t.Fatal(err)
			}
			if h.text() != "before"+tt.want || res.Status != tt.status || res.Denied != tt.denied {
				t.Errorf("%q, %+v", h.text(), res)
			}
			q := h.asked[0]
			if len(h.asked) != 1 || q.ID == "" || q.ToolID != "a" || q.Title != "run a" || q.Tool.Kind != bridges.ToolExecute || q.Pos.IsZero() {
				t.Errorf("asked %+v", h.asked)
			}
			if ev := h.of(bridges.KindTool); len(ev) == 0 || ev[0].ID != "a" || q.Pos != (bridges.Position{Offset: ev[0].Pos.Offset, Part: 2}) {
				t.Errorf("the tool call of the question: %+v, question at %+v", ev, q.Pos)
			}
		})
	}
}

func TestPermissionComesAfterWhatLedToIt(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	h := newHost(nil)
	seen := make(chan int, 1)
	h.answer = func(bridges.Question) bridges.Answer {
		h.mu.Lock()
		defer h.mu.Unlock()
		n := 0
		for _, ev := range h.events {
			n += strings.Count(ev.Text, ";")
		}
		seen <- n
		return bridges.Answer{Decision: bridges.Allow}
	}
	r.turns++
	if _, err := r.b.Submit(t.Context(), r.request("chunks 500 10\npermit a allow_once"), h); err != nil {
		t.Fatal(err)
	}
	if n := <-seen; n != 500 {
		t.Errorf("the question came after %d of 500 pieces", n)
	}
}

func TestB50UnofferedRequestsAreRefused(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	for _, method := range []string{"fs/write_text_file", "terminal/create", "elicitation/create", "_vendor/thing", "session/update"} {
		if h, res := r.mustSubmit("request " + method); !strings.Contains(h.text(), "-32601") || res.Status != bridges.StatusCompleted {
			t.Errorf("%s: %q, %+v", method, h.text(), res)
		}
	}
}

func TestB53TaskIsText(t *testing.T) {
	r := newRig(t, "slash", "")
	r.mustCreate()
	for _, task := range []string{"echo --dangerously-skip-permissions", "echo -m x %PATH% $HOME `id` \"'", "echo see /etc/hosts and @file", "\necho leading newline"} {
		if h, _ := r.mustSubmit(task); h.text() != fmt.Sprintf("%q", task) {
			t.Errorf("sent %q, arrived %s", task, h.text())
		}
	}
	for _, task := range []string{"/always-approve", " \n/yolo on", "@/etc/passwd", "!rm -rf /", "\ufeff/x"} {
		h, _ := r.mustSubmit(task + "\necho x")
		if want := fmt.Sprintf("%q", "\u200b"+task+"\necho x"); h.text() != want {
			t.Errorf("sent %q, arrived %s", task, h.text())
		}
	}
}

func TestInstructionsAreToldOnce(t *testing.T) {
	r := newRig(t, "", "")
	r.settings.Instructions = "be brief"
	r.mustCreate()
	var got []string
	for range 2 {
		h, _ := r.mustSubmit("blocks")
		got = append(got, h.text())
	}
	r.settings.Instructions = "be long"
	h, _ := r.mustSubmit("blocks")
	if got = append(got, h.text()); !cmp.Equal(got, []string{"2", "1", "2"}) {
		t.Errorf("blocks in the prompts: %q", got)
	}
}

func TestEndsOfATurn(t *testing.T) {
	t.Parallel()
	tests := []struct {
		task, options string
		status        bridges.Status
		kind          bridges.ErrorKind
	}{
		{"stop end_turn", "", bridges.StatusCompleted, ""},
		{"say x\nstop something_new", "", bridges.StatusCompleted, ""},
		{"stop refusal", "", bridges.StatusRefused, bridges.KindAgentFailed},
		{"stop max_tokens", "", bridges.StatusFailed, bridges.KindAgentFailed},
		{"stop cancelled", "", bridges.StatusCancelled, ""},
		{"error -32603 Internal error: 401 no key", "", bridges.StatusFailed, bridges.KindAuthRequired},
		{"error 429 slow down", "", bridges.StatusFailed, bridges.KindRateLimited},
		{"error -32003 Rate limited", "", bridges.StatusFailed, bridges.KindRateLimited},
		{"error -32603 insufficient_quota", "", bridges.StatusFailed, bridges.KindQuotaExhausted},
		{"error -32602 Session s1 not found", "", bridges.StatusFailed, bridges.KindSessionGone},
		{"error -32603 unknown model x", "", bridges.StatusFailed, bridges.KindModelUnavailable},
		{"error -32603 boom", "", bridges.StatusFailed, bridges.KindAgentFailed},
		{"say Error: 429 Too Many Requests", `{"error_text":"^Error: "}`, bridges.StatusFailed, bridges.KindRateLimited},
		{"say an Error: is discussed", `{"error_text":"^Error: "}`, bridges.StatusCompleted, ""},
		{"stderr last words\nexit 3", "", bridges.StatusFailed, bridges.KindAgentFailed},
		{"say x\ntail half a li\nexit 0", "", bridges.StatusFailed, bridges.KindAgentFailed},
		{"kill", "", bridges.StatusFailed, bridges.KindAgentFailed},
	}
	rigs := map[string]*rig{} // a start is dear; the agent's end is part of some cases
	for _, tt := range tests {
		r := rigs[tt.options]
		if r == nil {
			r = newRig(t, "load", tt.options)
			r.mustCreate()
			rigs[tt.options] = r
		}
		t.Run(tt.task, func(t *testing.T) {
			h, res := r.mustSubmit(tt.task)
			if res.Status != tt.status || bridges.KindOf(errOrNil(res.Error)) != tt.kind {
				t.Errorf("%+v, error %v", res, res.Error)
			}
			for verb, want := range map[string]string{"exit 3": "code 3 during the turn: last words", "kill": "signal killed during the turn"} {
				if strings.HasSuffix(tt.task, verb) && !strings.Contains(res.Error.Message, want) {
					t.Errorf("error %q, want %q", res.Error.Message, want)
				}
			}
			if strings.HasPrefix(tt.task, "say x\n") && h.text() != "x" {
				t.Errorf("text %q", h.text())
			}
			// Whatever it was, the next turn works; an agent that has ended is started anew.
			if next, _ := r.mustSubmit("say next"); next.text() != "next" {
				t.Errorf("next turn: %q", next.text())
			}
		})
	}
}

func errOrNil(e *bridges.Error) error {
	if e == nil {
		return nil
	}
	return e
}

func TestTurnThatTheHostLeftKeepsTheSessionBusy(t *testing.T) {
	t.Parallel()
	r := newRig(t, "load", "")
	r.mustCreate()
	h := newHost(nil)
	r.turns++
	ctx, cancel := context.WithCancel(t.Context())
	go func() { h.until(t, "up"); cancel() }()
	if _, err := r.b.Submit(ctx, r.request("say up\nhang"), h); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	// The agent is still at work, and stopped by nobody.
	r.learn(h)
	if _, _, err := r.submit("say y", nil); !errors.Is(err, bridges.ErrSessionBusy) {
		t.Errorf("submit while the turn before goes on: %v", err)
	}
}

func TestLargeTaskForAnAgentThatStopsReading(t *testing.T) {
	t.Parallel()
	r := newRig(t, "load", "")
	r.b.limits.write = 300 * time.Millisecond
	r.mustCreate()
	r.mustSubmit("say x")
	proc, err := r.b.runner.Attach(t.Context(), r.folders.Run)
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Release()
	_, agent := proc.Processes()
	stopProcess(t, agent.PID)
	h, res, err := r.submit("say "+strings.Repeat("x", 1<<20), nil)
	if !errors.Is(err, bridges.ErrTimeout) && !errors.Is(err, bridges.ErrAgentFailed) {
		t.Errorf("%+v, %v, %d events", res, err, len(h.events))
	}
	if h, _ := r.mustSubmit("say next"); h.text() != "next" {
		t.Errorf("next turn: %q", h.text())
	}
}

func TestHostThatIsBehindSeesEverything(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "")
	r.mustCreate()
	h := newHost(nil)
	h.gate = make(chan struct{})
	go func() {
		defer close(h.gate)
		waitFor(t, func() bool { return fileSize(filepath.Join(r.folders.Run, "out")) > 1<<20 })
	}()
	r.turns++
	res, err := r.b.Submit(t.Context(), r.request("chunks 12000 100"), h)
	if err != nil || res.Status != bridges.StatusCompleted {
		t.Fatalf("%+v, %v", res, err)
	}
	var want strings.Builder
	for i := range 12000 {
		fmt.Fprintf(&want, "%d:%s;", i, strings.Repeat("x", 100))
	}
	if h.text() != want.String() {
		t.Errorf("%d bytes of %d", len(h.text()), want.Len())
	}
	if n := len(h.of(bridges.KindText)); n > 6000 {
		t.Errorf("%d events: nothing was joined while the host was behind", n)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Error("waited for too long")
			return
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func fileSize(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return st.Size()
}
