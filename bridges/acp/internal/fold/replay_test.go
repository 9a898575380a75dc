package fold

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// sent is one frame of ours, and where in the agent's output it belongs.
type sent struct {
	at    int64
	frame []byte
}

// recorded is a real conversation: the agent's output, and what was sent to it.
func recorded(t testing.TB, path string) (output []byte, frames []sent) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		var l struct {
			In  json.RawMessage `json:"<"`
			Out json.RawMessage `json:">"`
			Dir string          `json:"dir"`
			Msg json.RawMessage `json:"msg"`
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		switch l.Dir {
		case "client->agent":
			l.Out = l.Msg
		case "agent->client":
			l.In = l.Msg
		}
		if l.In != nil {
			output = append(append(output, l.In...), '\n')
		}
		if l.Out != nil {
			frames = append(frames, sent{int64(len(output)), append(bytes.Clone(l.Out), '\n')})
		}
	}
	return output, frames
}

// replay folds a conversation, in frames that r yields, and shows what came of it.
func replay(t testing.TB, s *State, r io.Reader, offset int64, frames []sent) string {
	t.Helper()
	return replayFrom(t, s, r, offset, frames, 0)
}

func replayFrom(t testing.TB, s *State, r io.Reader, offset int64, frames []sent, turn int) string {
	t.Helper()
	var show strings.Builder
	text, key := "", ""
	flush := func() {
		if text != "" {
			fmt.Fprintf(&show, "  %s %q\n", key, text)
			text = ""
		}
	}
	in := bufio.NewReaderSize(r, 16)
	for {
		line, err := in.ReadBytes('\n')
		for len(frames) > 0 && frames[0].at <= offset {
			if bytes.Contains(frames[0].frame, []byte(`"session/prompt"`)) && !s.Running() {
				flush()
				turn++
				s.Begin(fmt.Sprint("turn ", turn))
				fmt.Fprintf(&show, "turn %d\n", turn)
			}
			s.Sent(frames[0].frame, frames[0].at)
			frames = frames[1:]
		}
		if len(line) == 0 {
			break
		}
		for m := range jsonrpc.Messages(jsonrpc.Frame{Offset: offset, Data: line, Size: int64(len(line))}) {
			step := s.Received(&m)
			for _, ev := range step.Events {
				flush()
				fmt.Fprintf(&show, "  %s\n", line1(ev))
			}
			if step.Text != nil {
				if k := string(step.TextEvent.Kind) + " " + step.TextEvent.ID; k != key {
					flush()
					key = k
				}
				text += jsonrpc.Unquote(step.Text)
			}
			if step.Ended {
				flush()
				fmt.Fprintf(&show, "  ended %q error %v denied %d model %q usage %s\n", s.Turn.Stop, s.Turn.Error, s.Turn.Denied, s.Turn.Model, usage(s.Turn.Usage))
			}
		}
		offset += int64(len(line))
		if err != nil {
			break
		}
	}
	flush()
	fmt.Fprintf(&show, "agent %+v\n", s.Agent)
	for _, c := range []string{CategoryModel, CategoryMode, CategoryEffort} {
		if o := s.Config.Option(c); o != nil {
			fmt.Fprintf(&show, "%s %s of %d\n", c, o.Current, len(o.Values))
		}
	}
	fmt.Fprintf(&show, "models %s of %d, modes %s of %d\nopen %d, late %d, replayed %d, calls %d\n", s.Config.Models.Current, len(s.Config.Models.Values),
		s.Config.Modes.Current, len(s.Config.Modes.Values), len(s.Open), s.Late, s.Replayed, len(s.Calls))
	return show.String()
}

func usage(u *bridges.Usage) string {
	if u == nil {
		return "none"
	}
	c := *u
	c.Raw = nil
	b, _ := json.Marshal(c)
	return string(b)
}

func line1(ev bridges.Event) string {
	b, _ := json.Marshal(ev)
	if len(b) > 400 {
		return string(b[:400]) + "…"
	}
	return string(b)
}

func recordings(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	return paths
}

func TestRecordedStreams(t *testing.T) {
	for _, path := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".jsonl"), func(t *testing.T) {
			output, frames := recorded(t, path)
			got := replay(t, &State{NextID: 1}, bytes.NewReader(output), 0, frames)
			golden := strings.TrimSuffix(path, ".jsonl") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			// The same bytes in other pieces, with noise that a terminal would hide.
			if again := replay(t, &State{NextID: 1}, &pieces{output, rand.New(rand.NewPCG(1, 2))}, 0, frames); again != got {
				t.Errorf("in pieces (-whole +pieces):\n%s", cmp.Diff(got, again))
			}
		})
	}
}

// pieces yields its bytes in pieces of random length.
type pieces struct {
	b   []byte
	rnd *rand.Rand
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), 1+p.rnd.IntN(7))], p.b)
	p.b = p.b[n:]
	return n, nil
}

// TestStateSurvivesACheckpointAnywhere stores the state at every border between two
// frames, restores it, and folds on: the state in the end must be the same.
func TestStateSurvivesACheckpointAnywhere(t *testing.T) {
	for _, path := range recordings(t) {
		output, frames := recorded(t, path)
		want := State{NextID: 1}
		replay(t, &want, bytes.NewReader(output), 0, frames)
		for cut := 0; cut < len(output); cut += bytes.IndexByte(output[cut:], '\n') + 1 {
			before := 0
			for before < len(frames) && frames[before].at < int64(cut) {
				before++
			}
			s := State{NextID: 1}
			replay(t, &s, bytes.NewReader(output[:cut]), 0, frames[:before])
			b, err := json.Marshal(&s)
			if err != nil {
				t.Fatal(err)
			}
			var got State
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			turns := strings.Count(fmt.Sprint(got.Past), "turn") // as the replay numbers them
			if got.Turn != nil {
				turns++
			}
			replayFrom(t, &got, bytes.NewReader(output[cut:]), int64(cut), frames[before:], turns)
			if d := cmp.Diff(want, got, cmpopts()); d != "" {
				t.Fatalf("%s at %d (-whole +restored):\n%s", path, cut, d)
			}
		}
	}
}

// cmpopts takes nil and empty for the same, as JSON does, and raw JSON by its value.
func cmpopts() cmp.Option {
	return cmp.Options{
		cmp.FilterPath(func(p cmp.Path) bool {
			switch p.Last().Type().Kind() {
			case reflect.Slice, reflect.Map:
				return true
			}
			return false
		}, cmp.FilterValues(func(a, b any) bool {
			return reflect.ValueOf(a).Len() == 0 && reflect.ValueOf(b).Len() == 0
		}, cmp.Ignore())),
		cmp.Comparer(func(a, b json.RawMessage) bool {
			var x, y bytes.Buffer
			return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil &&
				strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(x.String()) == strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(y.String())
		}),
	}
}

// FuzzReceived: whatever an agent says, the fold neither panics nor makes an event
// that cannot be passed on, and the state can be stored.
func FuzzReceived(f *testing.F) {
	for _, path := range recordings(f) {
		output, _ := recorded(f, path)
		for line := range bytes.Lines(output) {
			if len(line) < 2<<10 {
				f.Add(bytes.TrimSpace(line))
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := State{NextID: 1}
		for _, line := range []string{
			`{"id":1,"method":"initialize"}`, `{"id":2,"method":"session/new"}`, `{"id":3,"method":"session/load","params":{"sessionId":"s"}}`,
		} {
			s.Sent([]byte(line+"\n"), 0)
		}
		delete(s.Calls, 3)
		s.Begin("t")
		s.Sent([]byte(`{"id":4,"method":"session/prompt"}`+"\n"), 0)
		offset := int64(0)
		for line := range bytes.Lines(data) {
			for m := range jsonrpc.Messages(jsonrpc.Frame{Offset: offset, Data: line}) {
				step := s.Received(&m)
				last := bridges.Position{}
				for _, ev := range step.Events {
					if _, err := json.Marshal(ev); err != nil {
						t.Fatalf("event %+v: %v", ev, err)
					}
					if ev.Tool != nil && (len(ev.Tool.Output) > 33<<10 || len(ev.Tool.Input) > 16<<10) {
						t.Fatalf("a tool of %d and %d bytes", len(ev.Tool.Input), len(ev.Tool.Output))
					}
					if !ev.Pos.After(last) {
						t.Fatalf("position %+v after %+v", ev.Pos, last)
					}
					last = ev.Pos
				}
			}
			offset += int64(len(line))
		}
		b, err := json.Marshal(&s)
		if err != nil {
			t.Fatal(err)
		}
		var again State
		if err := json.Unmarshal(b, &again); err != nil {
			t.Fatal(err)
		}
	})
}

// BenchmarkReceived is the whole decoding of one piece of text.
func BenchmarkReceived(b *testing.B) {
	for _, size := range []int{64, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			line := []byte(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_0123456789abcdef","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"` + strings.Repeat("x", size) + `"}}}}`)
			s := State{NextID: 1}
			s.Begin("t")
			s.Sent([]byte(`{"id":1,"method":"session/prompt"}`), 0)
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			for b.Loop() {
				for m := range jsonrpc.Messages(jsonrpc.Frame{Data: line}) {
					step := s.Received(&m)
					for p := range jsonrpc.Pieces(step.Text, 256<<10) {
						if len(p) != size {
							b.Fatal(len(p))
						}
					}
				}
			}
		})
	}
}
