package stream

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/subspan-dev/subspan/bridges"
	"github.com/tidwall/gjson"
)

var update = flag.Bool("update", false, "rewrite testdata/golden.txt from what the fold does now")

// line is one line of a recorded session: written to the agent (>) or by it (<).
type line struct {
	Dir    string          `json:"dir"`
	Msg    json.RawMessage `json:"msg"`
	offset int64           // in the agent's output
}

func recording(t testing.TB, name string) []line {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []line
	var offset int64
	sent := false
	in := bufio.NewReader(bytes.NewReader(data))
	for {
		raw, err := in.ReadBytes('\n')
		if len(raw) == 0 {
			break
		}
		var l line
		if e := json.Unmarshal(raw, &l); e != nil {
			t.Fatalf("%s: %v", name, e)
		}
		l.offset = offset
		if l.Dir == "<" {
			offset += int64(len(l.Msg)) + 1
		} else {
			sent = true
		}
		lines = append(lines, l)
		if err != nil {
			break
		}
	}
	if !sent { // a one-shot run: the task was in its command line
		lines = slices.Insert(lines, 0, line{Dir: ">", Msg: Task("task-1", "the task")})
	}
	return lines
}

func recordings(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) < 30 {
		t.Fatalf("recordings: %d, %v", len(files), err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".jsonl")
	}
	return files
}

// play folds the lines and returns all events and, at the end of each turn, its result.
func play(t testing.TB, s *State, lines []line) (events []bridges.Event, results []*bridges.Result) {
	t.Helper()
	for _, l := range lines {
		if l.Dir == ">" {
			s.Sent(l.Msg)
			continue
		}
		running := s.Running()
		events = append(events, s.Out(l.offset, l.Msg)...)
		if running && !s.Running() {
			results = append(results, s.Turn.Result)
		}
	}
	return events, results
}

// texts joins the text events by message, in order.
func texts(events []bridges.Event) []string {
	var ids, out []string
	for _, ev := range events {
		if ev.Kind != bridges.KindText {
			continue
		}
		if len(ids) == 0 || ids[len(ids)-1] != ev.ID {
			ids, out = append(ids, ev.ID), append(out, "")
		}
		out[len(out)-1] += ev.Text
	}
	return out
}

func summary(events []bridges.Event, results []*bridges.Result) string {
	var b strings.Builder
	kinds := map[bridges.Kind]int{}
	for _, ev := range events {
		kinds[ev.Kind]++
		switch {
		case ev.Kind == bridges.KindNotice:
			fmt.Fprintf(&b, "  notice %s: %s\n", ev.Notice.Code, clip(ev.Text, 90))
		case ev.Kind == bridges.KindUnknown:
			fmt.Fprintf(&b, "  unknown %s\n", clip(string(ev.Raw), 90))
		case ev.Kind == bridges.KindTool && ev.Tool.Status != bridges.ToolPending:
			fmt.Fprintf(&b, "  tool %s %s %q\n", ev.Tool.Status, ev.Tool.Kind, ev.Tool.Title)
		}
	}
	for _, text := range texts(events) {
		fmt.Fprintf(&b, "  text %q\n", clip(text, 120))
	}
	for _, r := range results {
		fmt.Fprintf(&b, "  result %s stop=%q model=%s denied=%d warnings=%q\n", r.Status, r.StopReason, r.Model, r.Denied, r.Warnings)
		if u := r.Usage; u != nil {
			fmt.Fprintf(&b, "    usage %s in=%d out=%d read=%d cost=%.5f context=%d/%d\n", u.Source, u.Input, u.Output, u.CacheRead, u.CostUSD, u.ContextUsed, u.ContextSize)
		}
		if e := r.Error; e != nil {
			fmt.Fprintf(&b, "    error %s retryable=%v: %s | %s\n", e.Kind, e.Retryable, clip(e.Message, 100), e.Next)
		}
	}
	fmt.Fprintf(&b, "  events text=%d thought=%d tool=%d\n", kinds[bridges.KindText], kinds[bridges.KindThought], kinds[bridges.KindTool])
	return b.String()
}

// TestGolden pins what the fold makes of every recorded stream of the real agent.
func TestGolden(t *testing.T) {
	var got strings.Builder
	for _, name := range recordings(t) {
		events, results := play(t, new(State), recording(t, name))
		fmt.Fprintf(&got, "%s\n%s", name, summary(events, results))
	}
	path := "testdata/golden.txt"
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("the fold has changed (-want +got); -update accepts it:\n%s", diff)
	}
}

// TestRestart kills the fold at random bytes of the stream. The new one has the
// last checkpoint and what came since, and must end up the same, event for event.
func TestRestart(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, name := range recordings(t) {
		lines := recording(t, name)
		size := lines[len(lines)-1].offset + int64(len(lines[len(lines)-1].Msg)) + 1
		at := func(byteAt int64) int { // the first line that is not whole before byteAt
			i := slices.IndexFunc(lines, func(l line) bool {
				return l.Dir == "<" && l.offset+int64(len(l.Msg)) >= byteAt
			})
			if i < 0 {
				return len(lines)
			}
			return i
		}
		// One run without interruption, with a checkpoint before every line.
		s, checkpoints := new(State), make([][]byte, len(lines)+1)
		want := make([]string, len(lines))
		last := make([]bridges.Position, len(lines)+1)
		for i, l := range lines {
			var err error
			if checkpoints[i], err = s.Marshal(); err != nil {
				t.Fatal(err)
			}
			events, results := play(t, s, []line{l})
			want[i], last[i+1] = encode(t, events, results), last[i]
			if n := len(events); n > 0 {
				last[i+1] = events[n-1].Pos
			}
		}
		for range 50 {
			mark, cut := at(rnd.Int64N(size)), at(rnd.Int64N(size))
			if mark > cut {
				mark, cut = cut, mark
			}
			if mark == len(lines) {
				continue
			}
			s, err := Unmarshal(checkpoints[mark])
			if err != nil {
				t.Fatal(err)
			}
			for i, l := range lines[mark:] {
				events, results := play(t, s, []line{l})
				if got := encode(t, events, results); got != want[mark+i] {
					t.Fatalf("%s: checkpoint at line %d: line %d (-want +got):\n%s", name, mark, mark+i, cmp.Diff(want[mark+i], got))
				}
				for _, ev := range events { // what the host has is known by its position alone
					if known := mark+i < cut; known == ev.Pos.After(last[cut]) {
						t.Fatalf("%s: event at %v, the host has up to %v, recorded %v", name, ev.Pos, last[cut], known)
					}
				}
			}
		}
	}
}

func encode(t testing.TB, parts ...any) string {
	t.Helper()
	data, err := json.MarshalIndent(parts, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestFailures pins the kind of every failure that was seen on the real agent.
func TestFailures(t *testing.T) {
	for name, want := range map[string]bridges.ErrorKind{
		"err-403": bridges.KindAuthRequired, "err-noauth": bridges.KindAuthRequired,
		"err-quota": bridges.KindQuotaExhausted, "err-429": bridges.KindRateLimited,
		"err-500": bridges.KindAgentFailed, "err-529": bridges.KindAgentFailed, "err-refused": bridges.KindAgentFailed,
		"err-unknown-model": bridges.KindModelUnavailable, "err-overflow": bridges.KindAgentFailed,
		"err-budget": bridges.KindAgentFailed,
	} {
		_, results := play(t, new(State), recording(t, name))
		if len(results) != 1 || results[0].Status != bridges.StatusFailed || results[0].Error == nil {
			t.Errorf("%s: results %+v, want one that failed", name, results)
			continue
		}
		if e := results[0].Error; e.Kind != want || e.Next == "" || e.Message == "" {
			t.Errorf("%s: %s (%s; next %q), want %s with a next step", name, e.Kind, e.Message, e.Next, want)
		}
	}
}

func out(t testing.TB, s *State, frames ...string) []bridges.Event {
	t.Helper()
	var events []bridges.Event
	var offset int64 = 1 << 20
	for _, f := range frames {
		events = append(events, s.Out(offset, []byte(f))...)
		offset += int64(len(f)) + 1
	}
	return events
}

func started(t testing.TB) *State {
	t.Helper()
	s := new(State)
	s.Sent(Task("t1", "hello"))
	out(t, s, `{"type":"system","subtype":"init","session_id":"n","model":"m","apiKeySource":"ANTHROPIC_API_KEY"}`)
	return s
}

const success = `{"type":"result","subtype":"success","is_error":false,"result":"whole","stop_reason":"end_turn"}`

// TestB29 feeds one answer in every form that versions of the agent have used.
func TestB29SameTextFromPiecesWholeAndSnapshots(t *testing.T) {
	delta := func(text string) string {
		return `{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + text + `"}}}`
	}
	whole := func(text string) string {
		return `{"type":"assistant","message":{"id":"m1","model":"m","content":[{"type":"text","text":"` + text + `"}]}}`
	}
	start := `{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1","model":"m"}}}`
	block := `{"type":"stream_event","event":{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}}`
	stop := `{"type":"stream_event","event":{"type":"content_block_stop","index":0}}`
	for name, frames := range map[string][]string{
		"pieces":                 {start, block, delta("PROBE"), delta("-"), delta("XY"), whole("PROBE-XY"), stop, success},
		"pieces without whole":   {start, block, delta("PROBE"), delta("-XY"), stop, success},
		"whole":                  {whole("PROBE-XY"), success},
		"whole twice":            {whole("PROBE-XY"), whole("PROBE-XY"), success},
		"snapshots":              {whole("PROBE"), whole("PROBE-"), whole("PROBE-XY"), success},
		"pieces cut, then whole": {start, block, delta("PRO"), whole("PROBE-XY"), stop, success},
		"only in the result":     {strings.Replace(success, "whole", "PROBE-XY", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			got := texts(out(t, started(t), frames...))
			if diff := cmp.Diff([]string{"PROBE-XY"}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestB30 repeats one message's usage in every block; only the totals count.
func TestB30UsageIsNotCountedTwice(t *testing.T) {
	s := started(t)
	block := func(n int) string {
		return fmt.Sprintf(`{"type":"assistant","message":{"id":"m1","model":"m","content":[{"type":"text","text":"b%d"}],"usage":{"input_tokens":100,"output_tokens":%d}}}`, n, n)
	}
	res := `{"type":"result","subtype":"success","is_error":false,"stop_reason":"end_turn","total_cost_usd":0.5,"usage":{"input_tokens":100,"output_tokens":9},` +
		`"modelUsage":{"m":{"inputTokens":100,"outputTokens":9,"cacheReadInputTokens":7},"small":{"inputTokens":30,"outputTokens":1}}}`
	out(t, s, block(1), block(2), block(3), res)
	want := &bridges.Usage{Input: 137, Output: 10, CacheRead: 7, CostUSD: 0.5, Source: "session_diff", ContextUsed: 103}
	got := *s.Turn.Result.Usage
	got.Raw = nil
	if diff := cmp.Diff(want, &got); diff != "" {
		t.Errorf("first turn: %s", diff)
	}
	// The same process goes on counting; a turn is charged the difference.
	s.Sent(Task("t2", "again"))
	out(t, s, `{"type":"system","subtype":"init","session_id":"n","model":"m"}`, strings.Replace(res, `"outputTokens":9`, `"outputTokens":29`, 1))
	if u := s.Turn.Result.Usage; u.Output != 20 || u.Input != 0 || u.CostUSD != 0 {
		t.Errorf("second turn: %+v, want 20 tokens of output and nothing else", u)
	}
}

// TestB27 ends a turn well whose tool calls all failed, and one that failed
// although the agent calls it a success.
func TestB27StatusComesFromFrames(t *testing.T) {
	s := started(t)
	out(t, s,
		`{"type":"assistant","message":{"id":"m1","model":"m","content":[{"type":"tool_use","id":"u1","name":"Bash","input":{"command":"x"}}]}}`,
		`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"u1","is_error":true,"content":"boom"}]}}`, success)
	if diff := cmp.Diff([]string{"1 of 1 tool calls failed"}, s.Turn.Result.Warnings); diff != "" {
		t.Error(diff)
	}
	s = started(t)
	out(t, s, `{"type":"result","subtype":"success","is_error":true,"result":"it broke","api_error_status":500}`)
	if r := s.Turn.Result; r.Status != bridges.StatusFailed || r.Error.Kind != bridges.KindAgentFailed || !r.Error.Retryable {
		t.Errorf("is_error: %+v", r)
	}
}

// TestLateSuccess reports a turn that was asked to stop as cancelled, whatever
// its result says.
func TestLateSuccess(t *testing.T) {
	s := started(t)
	s.Sent(Interrupt("cancel", "t1"))
	out(t, s, success)
	if r := s.Turn.Result; r.Status != bridges.StatusCancelled {
		t.Errorf("status %s, want cancelled", r.Status)
	}
}

// TestB26 gives the agent a turn of its own between two tasks: its words and its
// result belong to nobody's turn.
func TestB26ForeignResultDoesNotEndTheTurn(t *testing.T) {
	s := started(t)
	echo := func(id string) string {
		return `{"type":"user","isReplay":true,"uuid":"` + id + `","message":{"content":"x"}}`
	}
	out(t, s, echo("t1"), success)
	late := out(t, s, `{"type":"assistant","message":{"id":"late","model":"m","content":[{"type":"text","text":"late"}]}}`, success)
	if len(late) != 0 {
		t.Errorf("frames after the end became events: %+v", late)
	}
	s.Sent(Task("t2", "second"))
	init := `{"type":"system","subtype":"init","session_id":"n","model":"m"}`
	out(t, s, init, success)
	if !s.Running() {
		t.Fatal("a result of another turn ended this one")
	}
	out(t, s, init, echo("t2"), success)
	if s.Running() {
		t.Fatal("the turn's own result did not end it")
	}
}

// TestRetries stops waiting for what no retry mends, and only that.
func TestRetries(t *testing.T) {
	retry := func(class string, attempt int) string {
		return fmt.Sprintf(`{"type":"system","subtype":"api_retry","attempt":%d,"max_retries":10,"retry_delay_ms":500,"error_status":401,"error":%q}`, attempt, class)
	}
	for _, tt := range []struct {
		class, source string
		attempt       int
		fatal         bool
	}{
		{"authentication_failed", "ANTHROPIC_API_KEY", 1, true},
		{"authentication_failed", "none", 1, false}, // OAuth may renew its token
		{"authentication_failed", "none", 2, true},
		{"billing_error", "none", 1, true},
		{"rate_limit", "ANTHROPIC_API_KEY", 9, false},
		{"overloaded", "ANTHROPIC_API_KEY", 9, false},
	} {
		s := started(t)
		s.KeySource = tt.source
		events := out(t, s, retry(tt.class, tt.attempt))
		if got := s.Turn.Fatal != nil; got != tt.fatal {
			t.Errorf("%+v: fatal %v", tt, got)
		}
		if len(events) != 1 || events[0].Notice.Code != "retry" {
			t.Errorf("%+v: events %+v, want one notice", tt, events)
		}
	}
	s := started(t)
	out(t, s, retry("authentication_failed", 1))
	s.Sent(Interrupt("fatal", "t1"))
	out(t, s, `{"type":"result","subtype":"error_during_execution","is_error":true,"terminal_reason":"aborted_streaming"}`)
	if r := s.Turn.Result; r.Status != bridges.StatusFailed || r.Error.Kind != bridges.KindAuthRequired {
		t.Errorf("interrupted for a refused login: %+v", r)
	}
}

// TestB50 keeps every request of the agent open until it has an answer.
func TestB50EveryRequestIsAnswered(t *testing.T) {
	s := started(t)
	out(t, s,
		`{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"touch x"},"tool_use_id":"u1","blocked_path":"/w/x"}}`,
		`{"type":"control_request","request_id":"q2","request":{"subtype":"elicitation","message":"who?"}}`,
		`{"type":"control_request","request_id":"q3","request":{"subtype":"never_heard_of"}}`,
		`{"type":"control_request","request_id":"q4","request":{"subtype":"can_use_tool","tool_name":"AskUserQuestion","tool_use_id":"u2","input":{"questions":[{"question":"Which?","options":[{"label":"A"},{"label":"B"}]}]}}}`)
	if len(s.Open) != 4 {
		t.Fatalf("%d open questions, want 4", len(s.Open))
	}
	q := s.Open[0]
	if q.Ask.Tool.Kind != bridges.ToolExecute || q.Ask.Title != "Bash: touch x" || !slices.Equal(q.Ask.Tool.Locations, []string{"/w/x"}) {
		t.Errorf("question %+v", q.Ask)
	}
	if got := gjson.GetBytes(q.Allow(), "response.response.updatedInput.command").String(); got != "touch x" {
		t.Errorf("allowed input %q", got)
	}
	if got := gjson.GetBytes(s.Open[1].Decline(), "response.response.action").String(); got != "decline" {
		t.Errorf("elicitation: %s", s.Open[1].Decline())
	}
	if got := gjson.GetBytes(s.Open[2].Decline(), "response.subtype").String(); got != "error" {
		t.Errorf("unknown request: %s", s.Open[2].Decline())
	}
	pick := s.Open[3]
	if len(pick.Picks) != 1 || !slices.Equal(pick.Picks[0].Choices, []string{"A", "B"}) || pick.Picks[0].ID != "q4/1" {
		t.Errorf("picks %+v", pick.Picks)
	}
	if got := gjson.GetBytes(pick.Choose([]string{"B"}), "response.response.updatedInput.answers.Which?").String(); got != "B" {
		t.Errorf("choice: %s", pick.Choose([]string{"B"}))
	}
	s.Sent(q.Deny("no", false))
	out(t, s, `{"type":"control_cancel_request","request_id":"q2"}`)
	if len(s.Open) != 2 || s.Turn.Denied != 1 {
		t.Errorf("%d open, %d denied; want 2, 1", len(s.Open), s.Turn.Denied)
	}
}

// TestB55 prints a secret in every place where text passes, also in two pieces.
func TestB55SecretsAreRemoved(t *testing.T) {
	const secret = "sk-ant-canary-0123456789"
	for cut := range len(secret) {
		s := started(t)
		s.Use(NewScrubber([]string{secret, "short"}))
		events := out(t, s,
			`{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1","model":"m"}}}`,
			`{"type":"stream_event","event":{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}}`,
			`{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"key: `+secret[:cut]+`"}}}`,
			`{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"`+secret[cut:]+` short sk-"}}}`,
			`{"type":"assistant","message":{"id":"m1","model":"m","content":[{"type":"text","text":"key: `+secret+` short sk-"}]}}`,
			`{"type":"assistant","message":{"id":"m1","model":"m","content":[{"type":"tool_use","id":"u","name":"Bash","input":{"command":"echo `+secret+`"}}]}}`,
			`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"u","content":"`+secret+`"}]}}`,
			`{"type":"brand_new","secret":"`+secret+`"}`, `noise `+secret,
			`{"type":"control_request","request_id":"q","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"echo `+secret+`"}}}`,
			`{"type":"result","subtype":"success","is_error":true,"result":"bad key `+secret+`"}`)
		all, err := json.Marshal(map[string]any{"events": events, "result": s.Turn.Result})
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(all, []byte(secret)) {
			t.Fatalf("cut at %d: the secret came through: %s", cut, all)
		}
		if diff := cmp.Diff([]string{"key: " + scrubbed + " short sk-"}, texts(events)); diff != "" {
			t.Fatalf("cut at %d: %s", cut, diff)
		}
	}
}

// TestSizes holds the contract's sizes for events.
func TestSizes(t *testing.T) {
	s := started(t)
	big := strings.Repeat("é", 300<<10)
	events := out(t, s, `{"type":"assistant","message":{"id":"m1","model":"m","content":[{"type":"text","text":"`+big+`"}]}}`,
		`{"type":"assistant","message":{"id":"m2","model":"m","content":[{"type":"tool_use","id":"u","name":"Write","input":{"file_path":"/w/f","content":"`+big+`"}}]}}`,
		`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"u","content":"`+big+`"}]}}`)
	if got := texts(events); len(got) != 1 || got[0] != big {
		t.Error("the text is not whole")
	}
	for i, ev := range events {
		if len(ev.Text) > maxText {
			t.Errorf("event %d has %d bytes of text", i, len(ev.Text))
		}
		if ev.Tool != nil && (len(ev.Tool.Input) > maxInput || len(ev.Tool.Output) > maxOutput || ev.Tool.Input != nil && !json.Valid(ev.Tool.Input)) {
			t.Errorf("event %d: input %d, output %d bytes", i, len(ev.Tool.Input), len(ev.Tool.Output))
		}
		if i > 0 && !ev.Pos.After(events[i-1].Pos) {
			t.Errorf("event %d at %v is not after %v", i, ev.Pos, events[i-1].Pos)
		}
	}
}

// FuzzFold: no stream breaks the fold, and a checkpoint taken anywhere makes no difference.
func FuzzFold(f *testing.F) {
	for _, name := range recordings(f) {
		var all []byte
		for _, l := range recording(f, name) {
			all = append(append(all, l.Msg...), '\n')
		}
		if len(all) < 20<<10 {
			f.Add(all, uint16(len(all)/2))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, at uint16) {
		a, b := started(t), started(t)
		var offset int64
		for _, frame := range bytes.SplitAfter(data, []byte{'\n'}) {
			if offset >= int64(at) && at > 0 {
				saved, err := b.Marshal()
				if err != nil {
					t.Fatal(err)
				}
				if b, err = Unmarshal(saved); err != nil {
					t.Fatal(err)
				}
				at = 0
			}
			want, got := a.Out(offset, frame), b.Out(offset, frame)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatal(diff)
			}
			for _, q := range a.Open {
				for _, reply := range [][]byte{q.Allow(), q.Deny("no", true), q.Choose([]string{"x"}), q.Decline()} {
					if !json.Valid(reply) {
						t.Fatalf("reply %q", reply)
					}
				}
			}
			offset += int64(len(frame))
		}
	})
}
