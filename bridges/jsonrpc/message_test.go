package jsonrpc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// show puts a message into one line, so that tables stay readable.
func show(m Message) string {
	switch m.Kind {
	case Noise:
		return fmt.Sprintf("%d noise %q", m.Offset, m.Raw)
	case Notification:
		return fmt.Sprintf("%d note %s %s", m.Offset, m.Method, m.Params)
	case Request:
		return fmt.Sprintf("%d request %s %s %s", m.Offset, m.ID, m.Method, m.Params)
	case Oversize:
		return fmt.Sprintf("%d oversize %s %s %d", m.Offset, m.ID, m.Method, m.Size)
	}
	if m.Error != nil {
		return fmt.Sprintf("%d error %s %d %s", m.Offset, m.ID, m.Error.Code, m.Error.Text())
	}
	return fmt.Sprintf("%d result %s %s", m.Offset, m.ID, m.Result)
}

func TestMessages(t *testing.T) {
	const note = `{"jsonrpc":"2.0","method":"m","params":{"a":"}{\"["}}`
	tests := []struct {
		name, line string
		want       []string
	}{
		{"notification", note, []string{`100 note m {"a":"}{\"["}`}},
		{"no version", `{"method":"m"}`, []string{`100 note m `}},
		{"space everywhere", " {\t\"method\" :\"m\" , \"params\" : [ 1 , 2 ] } ", []string{`101 note m [ 1 , 2 ]`}},
		{"request", `{"id":7,"method":"m"}`, []string{`100 request 7 m `}},
		{"request with a string id", `{"id":"7\u0041","method":"m"}`, []string{`100 request "7\u0041" m `}},
		{"request with a null id", `{"id":null,"method":"m"}`, []string{`100 request null m `}},
		{"result", `{"id":1,"result":null}`, []string{`100 result 1 null`}},
		{"result left out", `{"jsonrpc":"2.0","id":1}`, []string{`100 result 1 `}},
		{"a log line with an id is no answer", `{"level":"info","id":1}`, []string{`100 noise "{\"level\":\"info\",\"id\":1}"`}},
		{"error", `{"id":1,"error":{"code":-32000,"message":"auth","data":{"details":"401 from x"}}}`, []string{`100 error 1 -32000 auth: 401 from x`}},
		{"error as text", `{"id":1,"error":"boom"}`, []string{`100 error 1 -32603 boom`}},
		{"error code as text", `{"id":1,"error":{"code":"-32000","message":"x","data":"x"}}`, []string{`100 error 1 -32000 x`}},
		{"error null", `{"id":1,"error":null,"result":1}`, []string{`100 result 1 1`}},
		{"escaped names", `{"\u006dethod":"m"}`, []string{`100 note m `}},
		{"CRLF", note + "\r\n", []string{`100 note m {"a":"}{\"["}`}},
		{"BOM", "\uFEFF" + `{"method":"m"}`, []string{`103 note m `}},
		{"empty line", "  \r\n", nil},
		{"B16 prose", "Loaded cached credentials.", []string{`100 noise "Loaded cached credentials."`}},
		{"B16 prose glued in front", `a {b} {"method":"m"}`, []string{`100 noise "a {b} "`, `106 note m `}},
		{"B16 prose glued behind", `{"method":"m"} done`, []string{`100 note m `, `114 noise " done"`}},
		{"two on a line", `{"method":"m"}{"method":"n"}`, []string{`100 note m `, `114 note n `}},
		{"B17 bracketed paste", "\x1b[?2004h" + `{"method":"m"}`, []string{`100 noise "\x1b[?2004h"`, `108 note m `}},
		{"B17 OSC title", "\x1b]0;{title}\x07" + `{"method":"m"}`, []string{`100 noise "\x1b]0;{title}\a"`, `112 note m `}},
		{"B17 coloured", "\x1b[1m{\x1b[0m\"method\"\x1b[2m:\x1b[0m\"m\",\"params\":\"\x1b[1m\"}\x1b[0m", []string{"100 note m \"\x1b[1m\""}},
		{"B17 coloured, with prose behind", "\x1b[1m{\x1b[0m\"method\":\x1b[2m\"m\"} ok", []string{`100 note m `, `114 noise " ok"`}},
		{"B17 escapes alone", "\x1b]0;title\x07", []string{`100 noise "\x1b]0;title\a"`}},
		{"scalar", `17`, []string{`100 noise "17"`}},
		{"batch", `[]`, []string{`100 noise "[]"`}},
		{"truncated", `{"method":"m","params":{"a":`, []string{`100 noise "{\"method\":\"m\",\"params\":{\"a\":"`}},
		{"unclosed string", `{"method":"m`, []string{`100 noise "{\"method\":\"m"`}},
		{"method of another type", `{"method":5,"id":1}`, []string{`100 noise "{\"method\":5,\"id\":1}"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for m := range Messages(Frame{Offset: 100, Data: []byte(tt.line)}) {
				got = append(got, show(m))
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("messages (-want +got):\n%s", d)
			}
		})
	}
}

func TestOversizeTellsWhoseAnswerItWas(t *testing.T) {
	f := Frame{Offset: 5, Oversize: true, Size: 99, Data: []byte(`{"jsonrpc":"2.0","id":3,"result":{"text":"aaaa`)}
	for m := range Messages(f) {
		if got, want := show(m), "5 oversize 3  99"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestNoiseIsReadInBoundedTime would take minutes if every brace were tried.
func TestNoiseIsReadInBoundedTime(t *testing.T) {
	start := time.Now()
	for _, line := range []string{strings.Repeat("{", 4<<20), strings.Repeat(`{"a":`, 1<<20), strings.Repeat(`\`, 4<<20) + `"`, `{"` + strings.Repeat(`\"`, 2<<20), strings.Repeat(`{"a":[{"method":"m"}`, 1<<18)} {
		for range Messages(Frame{Data: []byte(line)}) {
		}
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestGet(t *testing.T) {
	obj := []byte(`{"a":{"b":[1,{"c":"x"},"]"],"n":"12","f":3.9,"big":1e99},"a":1}`)
	if got := string(Get(obj, "a", "b")); got != `[1,{"c":"x"},"]"]` {
		t.Errorf("a.b = %s", got)
	}
	var elems []string
	for e := range Elements(Get(obj, "a", "b")) {
		elems = append(elems, string(e))
	}
	if d := cmp.Diff([]string{"1", `{"c":"x"}`, `"]"`}, elems); d != "" {
		t.Error(d)
	}
	for path, want := range map[string]int64{"n": 12, "f": 3} {
		if n, ok := GetInt(obj, "a", path); !ok || n != want {
			t.Errorf("%s = %d, %v", path, n, ok)
		}
	}
	if _, ok := GetInt(obj, "a", "big"); ok {
		t.Error("a number beyond 64 bits was taken")
	}
	if Get(obj, "a", "none", "c") != nil || Get(nil, "a") != nil || GetString(obj, "a", "f") != "" {
		t.Error("found what is not there")
	}
}

// FuzzMessages: whatever the bytes, nothing is lost, nothing panics, places rise.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(`x{"method":"m","params":{}}y`))
	f.Add([]byte("\x1b[1m{\x1b[0m\"method\":\"m\"}"))
	f.Add([]byte(`{"id":1,"error":{"code":1,"data":[{}]}}{"id":`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if strings.ContainsRune(string(line), '\n') {
			return
		}
		last, size := int64(-1), 0
		for m := range Messages(Frame{Data: line}) {
			if m.Offset <= last && last >= 0 {
				t.Fatalf("offset %d after %d", m.Offset, last)
			}
			last = m.Offset
			size += len(m.Raw)
			if m.Kind != Noise && (m.Raw[0] != '{' || m.Raw[len(m.Raw)-1] != '}') {
				t.Fatalf("raw %q", m.Raw)
			}
			m.ID.Int()
			GetString(m.Params, "a", "b")
		}
		if size > len(line) {
			t.Fatalf("%d bytes out of %d", size, len(line))
		}
	})
}

func BenchmarkMessages(b *testing.B) {
	small := []byte(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_0123456789abcdef","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"` + strings.Repeat("x", 64) + `"}}}}`)
	large := []byte(strings.Replace(string(small), "xxxx", strings.Repeat("x", 64<<10), 1))
	for name, line := range map[string][]byte{"64B": small, "64KiB": large} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			for b.Loop() {
				for m := range Messages(Frame{Data: line}) {
					update := Get(m.Params, "update")
					if len(Get(update, "content", "text")) < 64 || GetString(update, "sessionUpdate") == "" {
						b.Fatal("not found")
					}
				}
			}
		})
		b.Run(name+"/floor", func(b *testing.B) { // tell a notification by its beginning only
			b.SetBytes(int64(len(line)))
			for b.Loop() {
				if !strings.HasPrefix(string(line[:32]), `{"jsonrpc":"2.0","method"`) {
					b.Fatal("no notification")
				}
			}
		})
	}
}
