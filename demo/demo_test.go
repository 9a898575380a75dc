package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestInitialize(t *testing.T) {
	c := start(t, t.TempDir())
	c.fails(codeInvalidRequest, "session/new", map[string]any{"cwd": "/"})
	c.fails(codeInvalidRequest, "session/prompt", prompt("demo-x", "hello"))
	var r struct {
		ProtocolVersion   int
		AgentInfo         struct{ Name string }
		AgentCapabilities struct {
			LoadSession         bool
			SessionCapabilities map[string]any
		}
	}
	c.must("initialize", map[string]any{"protocolVersion": 99}, &r)
	if r.ProtocolVersion != 1 || r.AgentInfo.Name != "subspan-demo" || !r.AgentCapabilities.LoadSession {
		t.Errorf("initialize: %+v", r)
	}
	for _, want := range []string{"list", "resume", "fork", "close", "delete"} {
		if _, ok := r.AgentCapabilities.SessionCapabilities[want]; !ok {
			t.Errorf("%s is not advertised", want)
		}
	}
	c.fails(codeNoMethod, "session/set_model", nil)
	c.fails(codeNoMethod, "_x", nil)
}

func TestBadFramesAndReplies(t *testing.T) {
	c := ready(t, t.TempDir())
	c.raw(`{"jsonrpc":`)
	f, err := c.step()
	if err != nil || f.Error == nil || f.Error.Code != codeParse || string(f.ID) != "null" {
		t.Fatalf("got %+v, %v", f, err)
	}
	c.raw(`{"jsonrpc":"2.0","id":77,"result":{}}`)            // a reply to nothing
	c.raw(`{"jsonrpc":"2.0","method":"_unknown","params":7}`) // a notification has no reply
	c.raw("\r")
	c.fails(codeInvalidParams, "session/new", "text")
	c.fails(codeInvalidParams, "session/new", map[string]any{"cwd": "relative"})
	gone := filepath.Join(t.TempDir(), "gone")
	if msg := c.fails(codeInvalidParams, "session/new", map[string]any{"cwd": gone}); !strings.Contains(msg, gone) {
		t.Errorf("the error does not name the folder: %s", msg)
	}
	c.fails(codeInvalidParams, "session/new", map[string]any{"cwd": "/", "mcpServers": []any{map[string]string{"type": "http", "name": "x"}}})
	id := c.newSession(t.TempDir())
	c.fails(codeInvalidParams, "session/prompt", map[string]any{"sessionId": id, "prompt": []any{map[string]string{"type": "image"}}})
}

func TestMapOfAFolder(t *testing.T) {
	dir := t.TempDir()
	files(t, dir, map[string]string{
		"cmd/tool/main.go":      "package main\n\nfunc main() {} // TODO: everything\n",
		"cmd/tool/main_test.go": "package main\n",
		"go.mod":                "module example.org/x\n",
		"README.md":             "# The tool\n\nIt does things.\n",
	})
	c := ready(t, t.TempDir())
	id := c.newSession(dir)
	answer := c.ask(id, "Please write a parser; then run the tests.")
	for _, want := range []string{"| Go | 2 |", "cmd/tool", "go test ./...", "> # The tool", "TODO: everything"} {
		if !strings.Contains(answer, want) {
			t.Errorf("the map lacks %q:\n%s", want, answer)
		}
	}
	if len(c.asked) > 0 {
		t.Errorf("a map asked for %v", c.asked)
	}
	chunks, plans := 0, 0
	for _, u := range c.seen {
		switch u.Update.SessionUpdate {
		case "agent_message_chunk":
			chunks++
			if u.Update.MessageID == "" {
				t.Error("a chunk has no messageId")
			}
		case "plan":
			plans++
			if n := len(u.Update.Entries); n != 4 {
				t.Errorf("a plan of %d entries", n)
			}
		}
	}
	if chunks < 4 || plans < 4 {
		t.Errorf("%d chunks, %d plans", chunks, plans)
	}
	for title, status := range c.statuses() {
		if status != "in_progress completed" {
			t.Errorf("%s went %s", title, status)
		}
	}
	if c.text("agent_thought_chunk") == "" {
		t.Error("no thoughts")
	}
	c.must("session/set_config_option", map[string]any{"sessionId": id, "configId": "thought_level", "value": "low"}, nil)
	c.ask(id, "Again")
	if got := c.text("agent_thought_chunk"); got != "" {
		t.Errorf("thoughts at level low: %s", got)
	}
}

func files(t *testing.T, dir string, content map[string]string) {
	t.Helper()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDirectives(t *testing.T) {
	dir := t.TempDir()
	files(t, dir, map[string]string{"a.txt": "one\ntwo\nthree\n", "sub/b.txt": "two birds\n", "empty/x": ""})
	c := ready(t, t.TempDir())
	id := c.newSession(dir)
	for _, tc := range []struct{ task, want string }{
		{"say hello; world", "hello; world\n"},
		{"read a.txt 2-3", "```\n     2  two\n     3  three\n```\n"},
		{"read a.txt 3", "```\n     3  three\n```\n"},
		{"read a.txt 9-10", "a.txt has 3 lines, none of them asked for\n"},
		{"grep ^two", "```\na.txt:2: two\nsub/b.txt:1: two birds\n```\n"},
		{`grep "two b" sub`, "```\nsub/b.txt:1: two birds\n```\n"},
		{"grep absent", "no line matches `absent`\n"},
		{"list", "```\n        14  a.txt\n         -  empty/\n         -  sub/\n```\n"},
		{"write new.txt some  text", "wrote 11 bytes to new.txt\n"},
		{"read new.txt", "```\n     1  some  text\n```\n"},
		{"run echo hi; exit 3", "```\nhi\n```\nexit status 3\n"},
		{"run pwd >here; cat here >/dev/null", "```\n\n```\nexit 0\n"},
		{"env DEMO_TEST", "DEMO_TEST=set for the test\n"},
		{"env DEMO_NOT_THERE", "DEMO_NOT_THERE is not set\n"},
		{"say one\n\nsay two; say three", "one\ntwo\nthree\n"},
		{"read nothing.txt; say on", "`read nothing.txt` failed: stat " + dir + "/nothing.txt: no such file or directory\non\n"},
		{"read sub", "`read sub` failed: " + dir + "/sub is not a regular file\n"},
		{"read a.txt 3-2", "`read a.txt 3-2` failed: lines 3-2 run backwards\n"},
		{"sleep 0.01", "slept 10ms\n"},
		{"ask really?", "asked \"really?\": allow_once\n"},
		{"mcp", "0 MCP servers offered\n"},
	} {
		if diff := cmp.Diff(tc.want, c.ask(id, tc.task)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tc.task, diff)
		}
	}
	want := []string{"edit: Write new.txt", "execute: echo hi; exit 3", "execute: pwd >here; cat here >/dev/null", "other: really?"}
	if diff := cmp.Diff(want, c.asked); diff != "" {
		t.Errorf("permission requests (-want +got):\n%s", diff)
	}
}

func TestPermissionRefused(t *testing.T) {
	dir := t.TempDir()
	c := ready(t, t.TempDir())
	id := c.newSession(dir)
	for _, answer := range []string{"reject_once", "cancelled"} {
		c.answer = answer
		got := c.ask(id, "write x.txt y; run touch x.txt; fork-child x.txt; ask sure?")
		want := strings.Join([]string{
			"`write x.txt y` failed: refused: permission was not given (" + answer + ")",
			"`run touch x.txt` failed: refused: permission was not given (" + answer + ")",
			"`fork-child x.txt` failed: refused: permission was not given (" + answer + ")",
			"asked \"sure?\": " + answer, "",
		}, "\n")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if got := c.statuses()["Write x.txt"]; got != "pending failed" {
			t.Errorf("the write went %s", got)
		}
	}
	asked := len(c.asked)
	c.must("session/set_mode", map[string]any{"sessionId": id, "modeId": "readonly"}, nil)
	if got := c.ask(id, "write x.txt y\nrun touch x.txt"); strings.Count(got, "readonly mode") != 2 {
		t.Errorf("in readonly: %s", got)
	}
	if len(c.asked) != asked {
		t.Error("readonly mode asked for permission")
	}
	if _, err := os.Stat(filepath.Join(dir, "x.txt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("refused, and yet: %v", err)
	}
}

func TestSessionGoesOnInAnotherProcess(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	c := ready(t, home)
	id := c.newSession(dir)
	c.ask(id, "say first words")
	c.must("session/set_config_option", map[string]any{"sessionId": id, "configId": "model", "value": "demo-echo"}, nil)
	if msg := c.fails(codeInvalidParams, "session/set_config_option", map[string]any{"sessionId": id, "configId": "model", "value": "gpt"}); !strings.Contains(msg, "demo-map, demo-echo") {
		t.Errorf("the error does not say what is offered: %s", msg)
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}

	c = ready(t, home)
	where := map[string]any{"sessionId": id, "cwd": dir, "mcpServers": []any{map[string]any{"name": "files", "command": "/bin/x", "args": []string{"-v"}, "env": []any{}}}}
	c.fails(codeNotFound, "session/prompt", prompt(id, "say not attached"))
	var r struct{ ConfigOptions []configOption }
	c.must("session/resume", where, &r)
	if len(c.seen) != 0 {
		t.Error("resume replayed the history")
	}
	if len(r.ConfigOptions) != 3 || r.ConfigOptions[0].CurrentValue != "demo-echo" {
		t.Errorf("options after resume: %+v", r.ConfigOptions)
	}
	if got := c.ask(id, "tell me\nmore"); got != "tell me\nmore\n" {
		t.Errorf("echo: %q", got)
	}
	if got := c.ask(id, "history; mcp"); got != "2 turns before this one\n1. say first words\n2. tell me more\n1 MCP servers offered\n- files: /bin/x -v\n" {
		t.Errorf("history: %q", got)
	}
	c.seen = nil
	c.must("session/load", where, nil)
	if got := c.text("user_message_chunk"); got != "say first wordstell me\nmorehistory; mcp" {
		t.Errorf("replayed tasks: %q", got)
	}
	if got := c.text("agent_message_chunk"); strings.Count(got, footer) != 3 {
		t.Errorf("replayed answers: %q", got)
	}

	var fork struct{ SessionID string }
	c.must("session/fork", where, &fork)
	if fork.SessionID == id || !strings.HasPrefix(c.ask(fork.SessionID, "history"), "3 turns") {
		t.Error("the fork lacks the history")
	}
	var list struct {
		Sessions []struct{ SessionID, Title, Cwd string }
	}
	c.must("session/list", map[string]any{"cwd": dir}, &list)
	if len(list.Sessions) != 2 || list.Sessions[0].SessionID != fork.SessionID || list.Sessions[1].Title != "say first words" {
		t.Errorf("list: %+v", list)
	}
	c.must("session/close", map[string]any{"sessionId": id}, nil)
	c.fails(codeNotFound, "session/prompt", prompt(id, "say closed"))
	c.must("session/delete", map[string]any{"sessionId": id}, nil)
	c.must("session/delete", map[string]any{"sessionId": id}, nil)
	for _, method := range []string{"session/load", "session/resume", "session/fork"} {
		c.fails(codeNotFound, method, where)
		c.fails(codeNotFound, method, map[string]any{"sessionId": "../../etc/passwd", "cwd": dir})
	}
}

func TestDamagedSessionIsKept(t *testing.T) {
	home := t.TempDir()
	c := ready(t, home)
	id := c.newSession(t.TempDir())
	file := filepath.Join(home, "sessions", id+".json")
	if err := os.WriteFile(file, []byte(`{"version":1,"id":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if msg := c.fails(codeInternal, "session/prompt", prompt(id, "say x")); !strings.Contains(msg, file) {
		t.Errorf("the error does not name the file: %s", msg)
	}
	var list struct{ Sessions []any }
	c.must("session/list", nil, &list)
	if list.Sessions == nil || len(list.Sessions) != 0 {
		t.Errorf("list: %v", list.Sessions)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != `{"version":1,"id":` {
		t.Errorf("the damaged file became %q, %v", b, err)
	}
}

func TestB45SecondPromptIsRefused(t *testing.T) {
	c := ready(t, t.TempDir())
	id, other := c.newSession(t.TempDir()), c.newSession(t.TempDir())
	first := c.send("session/prompt", prompt(id, "sleep 60"))
	if msg := c.fails(codeInternal, "session/prompt", prompt(id, "say me too")); !strings.Contains(msg, "busy") {
		t.Errorf("error: %s", msg)
	}
	if got := c.ask(other, "say other sessions work"); got != "other sessions work\n" {
		t.Errorf("got %q", got)
	}
	c.notify("session/cancel", map[string]string{"sessionId": id})
	c.stopped(first, "cancelled")
	if got := c.ask(id, "say again"); got != "again\n" {
		t.Errorf("after the cancel: %q", got)
	}
	c.notify("session/cancel", map[string]string{"sessionId": id}) // idle: poisons nothing
	if got := c.ask(id, "say still"); got != "still\n" {
		t.Errorf("after an idle cancel: %q", got)
	}
}

func (c *client) stopped(id, want string) {
	c.t.Helper()
	raw, err := c.wait(id)
	var r struct{ StopReason string }
	if err != nil || json.Unmarshal(raw, &r) != nil || r.StopReason != want {
		c.t.Fatalf("got %s, %v; want stop reason %s", raw, err, want)
	}
}

func TestCancelWhilePermissionIsOpen(t *testing.T) {
	c := ready(t, t.TempDir())
	id := c.newSession(t.TempDir())
	c.answer = ""
	turn := c.send("session/prompt", prompt(id, "write a.txt x; say never"))
	for len(c.asked) == 0 {
		if _, err := c.step(); err != nil {
			t.Fatal(err)
		}
	}
	c.notify("session/cancel", map[string]string{"sessionId": id})
	c.stopped(turn, "cancelled")
	if got := c.statuses()["Write a.txt"]; got != "pending failed" {
		t.Errorf("the open call went %s", got)
	}
	if got := c.text("agent_message_chunk"); got != "" {
		t.Errorf("a cancelled turn said %q", got)
	}
}

func TestB01CancelKillsTheCommandsGroup(t *testing.T) {
	dir := t.TempDir()
	c := ready(t, t.TempDir())
	id := c.newSession(dir)
	turn := c.send("session/prompt", prompt(id, `run trap "" TERM; (while :; do echo . >>canary; sleep 0.02; done) & wait`))
	grows(t, c, filepath.Join(dir, "canary"))
	begin := time.Now()
	c.notify("session/cancel", map[string]string{"sessionId": id})
	c.stopped(turn, "cancelled")
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("cancel took %v", took)
	}
	still(t, filepath.Join(dir, "canary"))
}

func fileSize(path string) int64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return fi.Size()
}

// grows waits until a file grows twice.
func grows(t *testing.T, c *client, path string) {
	t.Helper()
	for end := time.Now().Add(patience); fileSize(path) < 4; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not grow", path)
		}
		for len(c.frames) > 0 { // permission requests want answers
			if _, err := c.step(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// still fails when a file grows during half a second.
func still(t *testing.T, path string) {
	t.Helper()
	before := fileSize(path)
	time.Sleep(500 * time.Millisecond)
	if after := fileSize(path); after != before {
		t.Errorf("%s still grows: %d, then %d bytes", path, before, after)
	}
}

func TestBackgroundChildDoesNotHoldTheTurn(t *testing.T) {
	dir := t.TempDir()
	c := ready(t, t.TempDir())
	got := c.ask(c.newSession(dir), "run sleep 30 & echo $! >pid")
	if !strings.Contains(got, "still runs") {
		t.Errorf("got %q", got)
	}
	kill(t, filepath.Join(dir, "pid"))
}

func kill(t *testing.T, pidFile string) {
	t.Helper()
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(b), &pid); err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCrashAndKill(t *testing.T) {
	for _, tc := range []struct {
		task   string
		code   int
		signal syscall.Signal
	}{
		{"crash", 1, 0}, {"say before; crash 7", 7, 0}, {"kill", -1, syscall.SIGKILL},
	} {
		t.Run(tc.task, func(t *testing.T) {
			home := t.TempDir()
			c := ready(t, home)
			id := c.newSession(t.TempDir())
			if raw, err := c.wait(c.send("session/prompt", prompt(id, tc.task))); !errors.Is(err, errEnded) {
				t.Fatalf("it answered: %s, %v", raw, err)
			}
			_ = c.cmd.Wait() // its state is what counts
			if got := c.cmd.ProcessState.ExitCode(); got != tc.code {
				t.Errorf("exit code %d, want %d", got, tc.code)
			}
			if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && tc.signal != 0 && ws.Signal() != tc.signal {
				t.Errorf("signal %v", ws.Signal())
			}
			c = ready(t, home)
			c.must("session/resume", map[string]any{"sessionId": id, "cwd": t.TempDir(), "mcpServers": []any{}}, nil)
			if got := c.ask(id, "history"); got != "1 turns before this one\n1. "+tc.task+"\n" {
				t.Errorf("history after the end: %q", got)
			}
		})
	}
}

func TestEOFCancelsTurns(t *testing.T) {
	c := ready(t, t.TempDir())
	turn := c.send("session/prompt", prompt(c.newSession(t.TempDir()), "sleep 60"))
	_ = c.in.Close()
	c.stopped(turn, "cancelled")
	for range c.frames {
	}
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
}

func TestB12LongFramesBothWays(t *testing.T) {
	c := ready(t, t.TempDir())
	id := c.newSession(t.TempDir())
	long := strings.Repeat("0123456789abcdef", 2<<20/16)
	if got := c.ask(id, "say "+long); got != long+"\n" {
		t.Errorf("2 MiB came back as %d bytes", len(got))
	}
	if got := c.ask(id, "big 3"); len(got) != 3<<20 {
		t.Errorf("big 3 is %d bytes", len(got))
	}
	got := c.ask(id, "spam 2000 40")
	if len(got) != 2000*40 || !strings.HasPrefix(got, "0000000001 xxx") || !strings.Contains(got, "x0000002000 x") {
		t.Errorf("spam is %d bytes: %.60q", len(got), got)
	}
	if got := c.ask(id, "spam 3 2"); got != "xxxxxx" {
		t.Errorf("small spam is %q", got)
	}
}

func TestMainEndsWithItsContext(t *testing.T) {
	t.Setenv("SUBSPAN_DEMO_HOME", t.TempDir())
	in, feed := io.Pipe()
	out, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int)
	go func() { code <- Main(ctx, in, w, io.Discard) }()
	if _, err := io.WriteString(feed, `{"jsonrpc":"2.0","id":1,"method":"initialize"}`+"\n"); err == nil {
		_, err = bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
	} else {
		t.Fatal(err)
	}
	cancel()
	if got := <-code; got != 0 {
		t.Errorf("exit code %d", got)
	}
	if _, err := feed.Write([]byte("x")); err == nil {
		t.Error("stdin is still read")
	}
}

func TestStoreThatCannotBeWritten(t *testing.T) {
	home := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(home, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := ready(t, home)
	if msg := c.fails(codeInternal, "session/new", map[string]any{"cwd": "/"}); !strings.Contains(msg, "SUBSPAN_DEMO_HOME") {
		t.Errorf("the error tells no next step: %s", msg)
	}
}

// Bad input ends in errors on the wire, never in a panic or a hang. No fuzzed
// frame knows a session's id, so that no directive is ever carried out.
func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[{}]}}`))
	f.Add([]byte(`{"id":"x","method":"session/list","params":{"cursor":"-1"}}` + "\n" + `{"id":null,"method":"session/prompt"}`))
	f.Add([]byte("{\"id\":1,\"result\":{}}\n[]\n\"\"\n7\n\x00\xff\n{\"method\":\"session/cancel\",\"params\":[]}"))
	f.Setenv("SUBSPAN_DEMO_HOME", f.TempDir())
	f.Fuzz(func(t *testing.T, input []byte) {
		in := io.MultiReader(strings.NewReader(`{"id":0,"method":"initialize"}`+"\n"), bytes.NewReader(input))
		var out bytes.Buffer
		if code := Main(t.Context(), in, &out, io.Discard); code != 0 {
			t.Errorf("exit code %d", code)
		}
		for line := range bytes.Lines(out.Bytes()) {
			if !json.Valid(line) {
				t.Errorf("not JSON: %q", line)
			}
		}
	})
}
