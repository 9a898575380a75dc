package fold

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// recording is one turn of a real codex, 0.171: the state before it, what was sent,
// what came back, and what the bridge made of it. The tests of the bridge make them.
type recording struct {
	Checkpoint json.RawMessage
	From       int64
	Sent       []struct {
		At    int64
		Frame string
	}
	Text   string
	Result bridges.Result
	out    []byte
}

func recordings(t testing.TB) map[string]recording {
	t.Helper()
	paths, err := filepath.Glob("testdata/turns/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatal("no recordings", err)
	}
	all := map[string]recording{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var r recording
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
		if r.out, err = os.ReadFile(strings.TrimSuffix(path, ".json") + ".out"); err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(path)] = r
	}
	return all
}

// feed folds the lines of out, the first of which begins at offset.
func feed(f *State, out []byte, offset int64, got func(bridges.Event)) {
	for line := range bytes.Lines(out) {
		for m := range jsonrpc.Messages(jsonrpc.Frame{Offset: offset, Data: line, Size: int64(len(line))}) {
			f.Received(&m, got)
		}
		offset += int64(len(line))
	}
}

func load(t testing.TB, data []byte) *State {
	t.Helper()
	f, err := Load(data)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func save(t testing.TB, f *State) []byte {
	t.Helper()
	b, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// play folds a recording in one go, everything sent first.
func (r recording) play(t testing.TB) (*State, []bridges.Event) {
	var events []bridges.Event
	f := load(t, r.Checkpoint)
	for _, s := range r.Sent {
		f.Sent([]byte(s.Frame))
	}
	feed(f, r.out, r.From, func(e bridges.Event) { events = append(events, e) })
	return f, events
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

func TestRecordings(t *testing.T) {
	for name, r := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			f, events := r.play(t)
			if got := text(events); got != r.Text {
				t.Errorf("text %q, want %q", got, r.Text)
			}
			if f.Turn.End == nil || f.Turn.End.Status != r.Result.StopReason {
				t.Fatalf("end %+v, want %s", f.Turn.End, r.Result.StopReason)
			}
			if d := cmp.Diff(r.Result.Usage, f.Turn.Usage); d != "" {
				t.Error(d)
			}
			if f.Turn.Denied != r.Result.Denied || f.Turn.Model != r.Result.Model || len(f.Asked) != 0 {
				t.Errorf("denied %d, model %s, open %v", f.Turn.Denied, f.Turn.Model, f.Asked)
			}
			if r.Result.Error != nil {
				if err := f.Turn.End.Fault.AsError(bridges.Agent{}, ""); err.Kind != r.Result.Error.Kind {
					t.Errorf("error %s, want %s", err.Kind, r.Result.Error.Kind)
				}
			}
			checkEvents(t, events)
		})
	}
}

// checkEvents checks what must hold of the events of any stream.
func checkEvents(t testing.TB, events []bridges.Event) {
	t.Helper()
	last := bridges.Position{Offset: -1}
	for _, e := range events {
		if !e.Pos.After(last) {
			t.Errorf("%v does not come after %v", e.Pos, last)
		}
		last = e.Pos
		if len(e.Text) > maxPiece || !utf8.ValidString(e.Text) {
			t.Errorf("a text of %d bytes, valid %v", len(e.Text), utf8.ValidString(e.Text))
		}
		if _, err := json.Marshal(e); err != nil {
			t.Errorf("event %+v: %v", e, err)
		}
		if tool := e.Tool; tool != nil && (len(tool.Input) > maxInput || len(tool.Output) > maxOutput || !utf8.ValidString(tool.Output) || strings.Contains(tool.Title, "\n")) {
			t.Errorf("tool %+v", tool)
		}
	}
}

// Cut anywhere and folded on by a state that was stored and loaded, the stream gives
// the same events, the same positions and the same end. What was sent arrives at the
// moment it was written here, and all at once in play.
func TestRecordingsCutAnywhere(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, r := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			whole, want := r.play(t)
			end := save(t, whole)
			for range 50 {
				cut := random.IntN(len(r.out))
				line := bytes.LastIndexByte(r.out[:cut], '\n') + 1 // the rest of it is not read yet
				f := load(t, r.Checkpoint)
				var got []bridges.Event
				sent := r.Sent
				step := func(out []byte, offset int64) {
					for l := range bytes.Lines(out) {
						for len(sent) > 0 && sent[0].At <= offset {
							f.Sent([]byte(sent[0].Frame))
							sent = sent[1:]
						}
						feed(f, l, offset, func(e bridges.Event) { got = append(got, e) })
						offset += int64(len(l))
					}
				}
				step(r.out[:line], r.From)
				f = load(t, save(t, f))
				step(r.out[line:], r.From+int64(line))
				if !reflect.DeepEqual(want, got) {
					t.Fatalf("cut at %d: %s", cut, cmp.Diff(want, got))
				}
				if state := save(t, f); !bytes.Equal(state, end) {
					t.Fatalf("cut at %d: %s", cut, cmp.Diff(string(end), string(state)))
				}
			}
		})
	}
}

// stream is a session of a state whose thread is "t" and whose turn/start is on its way.
func stream(t *testing.T) (*State, func(lines ...string) []bridges.Event) {
	f := New("", "", 0)
	f.Thread = "t"
	f.Sent([]byte(`{"id":7,"method":"turn/start","params":{"threadId":"t","clientUserMessageId":"s/1","model":"m"}}` + "\n"))
	offset := int64(0)
	return f, func(lines ...string) []bridges.Event {
		var events []bridges.Event
		for _, l := range lines {
			l = strings.ReplaceAll(l, "$", `"threadId":"t","turnId":"u"`) + "\n"
			feed(f, []byte(l), offset, func(e bridges.Event) { events = append(events, e) })
			offset += int64(len(l))
		}
		checkEvents(t, events)
		return events
	}
}

const accepted = `{"id":7,"result":{"turn":{"id":"u"}}}`

func TestTextIsShownOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		lines []string
		want  string
	}{
		"deltas, then whole": {[]string{`{"method":"item/agentMessage/delta","params":{$,"itemId":"a","delta":"héllo "}}`, `{"method":"item/completed","params":{$,"item":{"type":"agentMessage","id":"a","text":"héllo wörld"}}}`}, "héllo wörld"},
		"no deltas":          {[]string{`{"method":"item/completed","params":{$,"item":{"type":"agentMessage","id":"a","text":"whole"}}}`}, "whole"},
		"deltas alone":       {[]string{`{"method":"item/agentMessage/delta","params":{$,"itemId":"a","delta":"x"}}`}, "x"},
		"of a subagent":      {[]string{`{"method":"item/completed","params":{"threadId":"other","turnId":"v","item":{"type":"agentMessage","id":"a","text":"no"}}}`}, ""},
		"of another turn":    {[]string{`{"method":"item/completed","params":{"threadId":"t","turnId":"w","item":{"type":"agentMessage","id":"a","text":"no"}}}`}, ""},
		"after the end":      {[]string{`{"method":"turn/completed","params":{"threadId":"t","turn":{"id":"u","status":"completed"}}}`, `{"method":"item/agentMessage/delta","params":{$,"itemId":"a","delta":"late"}}`}, ""},
		"cut surrogate":      {[]string{`{"method":"item/agentMessage/delta","params":{$,"itemId":"a","delta":"\ud83d"}}`}, "\uFFFD"},
	} {
		t.Run(name, func(t *testing.T) {
			_, feed := stream(t)
			if got := text(feed(append([]string{accepted}, tc.lines...)...)); got != tc.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

// A notification may overtake the answer to turn/start; one of the turn before must
// not be taken for it.
func TestTurnIsKnownByItsID(t *testing.T) {
	f, feed := stream(t)
	f.Past = "old"
	feed(`{"method":"turn/completed","params":{"threadId":"t","turn":{"id":"old","status":"completed"}}}`)
	if f.Turn.End != nil {
		t.Fatal("the end of the turn before ended this one")
	}
	feed(`{"method":"turn/started","params":{"threadId":"t","turn":{"id":"u"}}}`, `{"method":"turn/completed","params":{"threadId":"t","turn":{"id":"u","status":"completed"}}}`, accepted)
	if f.Turn.End == nil || f.Turn.Codex != "u" {
		t.Errorf("%+v", f.Turn)
	}
}

func TestRefusedTurn(t *testing.T) {
	f, feed := stream(t)
	feed(`{"id":7,"error":{"code":-32600,"message":"thread not found: t"}}`)
	if f.Turn.Refused == nil || bridges.KindOf(CallError("turn/start", f.Turn.Refused)) != bridges.KindSessionGone {
		t.Errorf("%+v", f.Turn.Refused)
	}
}

func TestB30UsageIsTheTurnsOwn(t *testing.T) {
	update := func(turn string, total, last int) string {
		return fmt.Sprintf(`{"method":"thread/tokenUsage/updated","params":{"threadId":"t","turnId":%q,"tokenUsage":{"total":{"inputTokens":%d},"last":{"inputTokens":%d}}}}`, turn, total, last)
	}
	for name, tc := range map[string]struct {
		before []string
		in     []string
		want   int64
	}{
		"new thread":                   {nil, []string{update("u", 100, 100), update("u", 250, 150)}, 250},
		"resumed, total told":          {[]string{update("old", 900, 50)}, []string{update("u", 1000, 100), update("u", 1100, 100)}, 200},
		"forked, total not told":       {nil, []string{update("u", 1000, 100), update("u", 1100, 100)}, 200},
		"of a subagent's":              {nil, []string{strings.Replace(update("u", 5, 5), `"t"`, `"x"`, 1), update("u", 100, 100)}, 100},
		"compaction, an estimate only": {nil, []string{update("u", 1000, 100), update("u", 1000, 0)}, 100},
		"told after the end":           {nil, []string{update("u", 100, 100), `{"method":"turn/completed","params":{"threadId":"t","turn":{"id":"u","status":"completed"}}}`, update("u", 300, 200)}, 100},
	} {
		t.Run(name, func(t *testing.T) {
			f, feed := stream(t)
			feed(slices.Concat(tc.before, []string{accepted}, tc.in)...)
			if f.Turn.Usage == nil || f.Turn.Usage.Input != tc.want {
				t.Errorf("%+v, want %d", f.Turn.Usage, tc.want)
			}
		})
	}
}

func TestTools(t *testing.T) {
	for name, tc := range map[string]struct {
		item string
		want bridges.Tool
	}{
		"shell": {`{"type":"commandExecution","id":"i","command":"/bin/bash -lc 'cat a'","cwd":"/w","status":"completed","aggregatedOutput":"out","commandActions":[{"type":"read","command":"cat a","name":"a","path":"a"}]}`,
			bridges.Tool{Name: "shell", Title: "cat a", Kind: bridges.ToolRead, Status: bridges.ToolCompleted, Output: "out", Input: json.RawMessage(`{"command":"/bin/bash -lc 'cat a'","cwd":"/w"}`)}},
		"silent failure": {`{"type":"commandExecution","id":"i","command":"false","cwd":"/w","status":"failed","aggregatedOutput":"","exitCode":1,"commandActions":[{"type":"unknown","command":"false"}]}`,
			bridges.Tool{Name: "shell", Title: "false", Kind: bridges.ToolExecute, Status: bridges.ToolFailed, Output: "exit code 1", Input: json.RawMessage(`{"command":"false","cwd":"/w"}`)}},
		"patch": {`{"type":"fileChange","id":"i","status":"declined","changes":[{"path":"/w/a","kind":{"type":"add"},"diff":"x"}]}`,
			bridges.Tool{Name: "apply_patch", Title: "edit a", Kind: bridges.ToolEdit, Status: bridges.ToolFailed, Locations: []string{"/w/a"}, Input: json.RawMessage(`[{"path":"/w/a","kind":{"type":"add"},"diff":"x"}]`)}},
		"mcp": {`{"type":"mcpToolCall","id":"i","server":"lab","tool":"echo","status":"completed","arguments":{"a":1},"result":{"content":[{"type":"text","text":"r"}]}}`,
			bridges.Tool{Name: "lab.echo", Title: "lab.echo", Kind: bridges.ToolOther, Status: bridges.ToolCompleted, Output: "r", Input: json.RawMessage(`{"a":1}`)}},
	} {
		t.Run(name, func(t *testing.T) {
			_, feed := stream(t)
			events := feed(accepted, `{"method":"item/completed","params":{$,"item":`+tc.item+`}}`)
			if len(events) != 1 || events[0].ID != "i" {
				t.Fatalf("%+v", events)
			}
			if d := cmp.Diff(&tc.want, events[0].Tool); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestRunningOutput(t *testing.T) {
	f, feed := stream(t)
	feed(accepted, `{"method":"item/started","params":{$,"item":{"type":"commandExecution","id":"i","command":"x","cwd":"/","status":"inProgress"}}}`)
	var last string
	for range 100 {
		for _, e := range feed(`{"method":"item/commandExecution/outputDelta","params":{$,"itemId":"i","delta":"` + strings.Repeat("é", 1000) + `"}}`) {
			last = e.Tool.Output
		}
	}
	if len(last) < maxOutput-8 || len(last) > maxOutput || !strings.Contains(last, "[…]") || !utf8.ValidString(last) {
		t.Errorf("%d bytes", len(last))
	}
	events := feed(`{"method":"item/completed","params":{$,"item":{"type":"commandExecution","id":"i","command":"x","cwd":"/","status":"failed","aggregatedOutput":null}}}`)
	if events[0].Tool.Output == "" || len(f.Turn.Items) != 0 {
		t.Error("the output was lost with the end")
	}
}

func TestUnknownIsKept(t *testing.T) {
	_, feed := stream(t)
	events := feed(accepted,
		`{"method":"item/completed","params":{$,"item":{"type":"hologram","id":"i","x":1}}}`,
		`{"method":"weather/changed","params":{$,"rain":true}}`)
	if len(events) != 2 || events[0].Kind != bridges.KindUnknown || string(events[0].Raw) != `{"type":"hologram","id":"i","x":1}` || !strings.Contains(string(events[1].Raw), "rain") {
		t.Errorf("%+v", events)
	}
}

func TestOversizeEnd(t *testing.T) {
	f, feed := stream(t)
	feed(accepted)
	var events []bridges.Event
	f.Received(&jsonrpc.Message{Kind: jsonrpc.Oversize, Offset: 1 << 20, Size: 1 << 30, Method: "turn/completed"}, func(e bridges.Event) { events = append(events, e) })
	if len(events) != 1 || events[0].Notice.Code != "oversize_frame" || f.Turn.End == nil || f.Turn.End.Status != "failed" {
		t.Errorf("%+v %+v", events, f.Turn.End)
	}
}

func TestFaults(t *testing.T) {
	for raw, want := range map[string]bridges.ErrorKind{
		`{"message":"Missing environment variable: X."}`:                                                bridges.KindAuthRequired,
		`{"message":"m","codexErrorInfo":"unauthorized"}`:                                               bridges.KindAuthRequired,
		`{"message":"m","codexErrorInfo":{"httpConnectionFailed":{"httpStatusCode":401}}}`:              bridges.KindAuthRequired,
		`{"message":"m","codexErrorInfo":{"httpConnectionFailed":{"httpStatusCode":null}}}`:             bridges.KindAgentFailed,
		`{"message":"m","codexErrorInfo":{"responseTooManyFailedAttempts":{"httpStatusCode":429}}}`:     bridges.KindRateLimited,
		`{"message":"m","codexErrorInfo":"rateLimitExceeded"}`:                                          bridges.KindRateLimited,
		`{"message":"m","codexErrorInfo":"usageLimitExceeded"}`:                                         bridges.KindQuotaExhausted,
		`{"message":"m","codexErrorInfo":"modelNotFound"}`:                                              bridges.KindModelUnavailable,
		`{"message":"Unsupported value: 'bogus' for 'reasoning.effort'","codexErrorInfo":"badRequest"}`: bridges.KindEffortUnsupported,
		`{"message":"m","codexErrorInfo":"sandboxError"}`:                                               bridges.KindSandboxUnavailable,
		`{"message":"m","codexErrorInfo":"contextWindowExceeded"}`:                                      bridges.KindAgentFailed,
		`{"message":"m","codexErrorInfo":{"somethingNew":{}}}`:                                          bridges.KindAgentFailed,
		`{}`: bridges.KindAgentFailed,
	} {
		err := faultOf([]byte(raw)).AsError(bridges.Agent{}, "m")
		if err.Kind != want || err.Next == "" {
			t.Errorf("%s: %s, next %q", raw, err.Kind, err.Next)
		}
	}
}

func TestInquire(t *testing.T) {
	ask := func(method, params string) (Inquiry, bool) {
		return Inquire(&jsonrpc.Message{Method: method, Params: []byte(params)}, "id", nil)
	}
	allow := bridges.Answer{Decision: bridges.Allow, Choice: "b"}
	for name, tc := range map[string]struct {
		method, params    string
		yes, no, withdraw string
	}{
		"permissions": {"item/permissions/requestApproval", `{"permissions":{"network":{"enabled":true}}}`,
			`{"permissions":{"network":{"enabled":true}},"scope":"turn"}`, `{"permissions":{},"scope":"turn"}`, `{"permissions":{},"scope":"turn"}`},
		"a choice": {"mcpServer/elicitation/request", `{"serverName":"s","message":"m","requestedSchema":{"properties":{"p":{"enum":["a","b"]}}}}`,
			`{"action":"accept","content":{"p":"b"}}`, `{"action":"decline","content":null}`, `{"action":"cancel","content":null}`},
		"a form that cannot be filled in": {"mcpServer/elicitation/request", `{"serverName":"s","requestedSchema":{"properties":{"p":{"type":"string"}}}}`,
			`{"action":"decline","content":null}`, `{"action":"decline","content":null}`, `{"action":"cancel","content":null}`},
		"a page to open": {"mcpServer/elicitation/request", `{"serverName":"s","mode":"url","url":"https://x"}`,
			`{"action":"decline","content":null}`, `{"action":"decline","content":null}`, `{"action":"cancel","content":null}`},
	} {
		t.Run(name, func(t *testing.T) {
			in, ok := ask(tc.method, tc.params)
			if !ok || len(in.Questions) != 1 {
				t.Fatalf("%+v", in)
			}
			for answer, want := range map[bridges.Answer]string{allow: tc.yes, {}: tc.no, {Decision: bridges.Cancel}: tc.withdraw} {
				if got, _ := json.Marshal(in.Reply([]bridges.Answer{answer})); string(got) != want {
					t.Errorf("%s: %s, want %s", answer.Decision, got, want)
				}
				if got, _ := json.Marshal(in.Reply([]bridges.Answer{answer})); denies(got) != (want != tc.yes || tc.yes == tc.no) {
					t.Errorf("%s counts as denial: %v", got, denies(got))
				}
			}
		})
	}
	if _, ok := ask("account/chatgptAuthTokens/refresh", `{}`); ok {
		t.Error("served what is not ours")
	}
}

func FuzzFold(f *testing.F) {
	for _, r := range recordings(f) {
		if len(r.out) < 20<<10 {
			f.Add(r.out)
		}
	}
	f.Add([]byte(accepted + "\n" + `{"id":0,"method":"item/fileChange/requestApproval","params":{"threadId":"t","turnId":"u","itemId":null}}`))
	f.Add([]byte(`{"method":"thread/tokenUsage/updated","params":{"threadId":"t","tokenUsage":{"total":{"inputTokens":-1}}}}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		play := func() (*State, []bridges.Event) {
			s := New("", "", 0)
			s.Thread = "t"
			s.Sent([]byte(`{"id":7,"method":"turn/start","params":{"threadId":"t","clientUserMessageId":"s/1"}}` + "\n"))
			var events []bridges.Event
			feed(s, out, 0, func(e bridges.Event) { events = append(events, e) })
			return s, events
		}
		s, events := play()
		checkEvents(t, events)
		if again, _ := play(); !bytes.Equal(save(t, s), save(t, again)) {
			t.Error("the same bytes gave another state")
		}
		if data := save(t, s); !bytes.Equal(data, save(t, load(t, data))) {
			t.Error("stored and loaded, the state is another")
		}
		for line := range bytes.Lines(out) {
			for m := range jsonrpc.Messages(jsonrpc.Frame{Data: line}) {
				if in, ok := Inquire(&m, "id", nil); ok {
					if _, err := json.Marshal(in.Reply(make([]bridges.Answer, len(in.Questions)))); err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
}

// A text of 32 MiB in one frame passes in pieces, and the fold does not keep it.
func TestHugeText(t *testing.T) {
	f, feed := stream(t)
	feed(accepted)
	line := []byte(`{"method":"item/completed","params":{"threadId":"t","turnId":"u","item":{"type":"agentMessage","id":"a","text":"` + strings.Repeat(`0123456\n`, 4<<20) + `"}}}` + "\n")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	total, pieces, peak := 0, 0, uint64(0)
	for m := range jsonrpc.Messages(jsonrpc.Frame{Offset: 1 << 20, Data: line, Size: int64(len(line))}) {
		f.Received(&m, func(e bridges.Event) {
			total, pieces = total+len(e.Text), pieces+1
			if pieces%32 == 0 {
				runtime.GC()
				runtime.ReadMemStats(&after)
				peak = max(peak, after.HeapAlloc)
			}
		})
	}
	if total != 32<<20 || pieces < total/maxPiece {
		t.Errorf("%d bytes in %d pieces", total, pieces)
	}
	if grown := int64(peak) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	if len(save(t, f)) > 4<<10 {
		t.Error("the fold keeps the text")
	}
}
