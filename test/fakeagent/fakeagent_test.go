package fakeagent_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/test/fakeagent"
)

func TestMain(m *testing.M) {
	fakeagent.Main()
	os.Exit(m.Run())
}

// peer is the client's side of one fake agent.
type peer struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr strings.Builder
	next   int
	// updates are the texts and kinds of updates passed over while waiting.
	updates []string
}

func start(t *testing.T, s fakeagent.Script, args ...string) *peer {
	t.Helper()
	command, err := s.Command(t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return startCommand(t, command)
}

func startCommand(t *testing.T, command []string) *peer {
	t.Helper()
	p := &peer{t: t, cmd: exec.Command(command[0], command[1:]...)}
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "FAKE_TEST=yes")
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = time.Second // a child may hold stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A test that waits in vain is ended by the agent's end.
	timer := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	t.Cleanup(func() {
		timer.Stop()
		_ = p.cmd.Process.Kill() // most have ended
		_ = p.cmd.Wait()
	})
	return p
}

// acp starts an agent and brings it to its first session.
func acp(t *testing.T, s fakeagent.Script) (*peer, string) {
	t.Helper()
	p := start(t, s)
	p.must("initialize", `{"protocolVersion":1}`)
	var r struct{ SessionID string }
	if err := json.Unmarshal(p.must("session/new", `{"cwd":"/","mcpServers":[]}`), &r); err != nil {
		t.Fatal(err)
	}
	return p, r.SessionID
}

func (p *peer) write(s string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, s); err != nil {
		p.t.Fatalf("writing: %v; stderr: %s", err, p.stderr.String())
	}
}

type line struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
	}
}

func (p *peer) read() line {
	p.t.Helper()
	var l line
	raw, err := p.out.ReadBytes('\n')
	if err != nil {
		p.t.Fatalf("reading: %v", err)
	}
	if err := json.Unmarshal(raw, &l); err != nil {
		p.t.Fatalf("%v in %.200s", err, raw)
	}
	if l.Method == "session/update" {
		var u struct {
			Update struct {
				SessionUpdate string
				Content       struct{ Text string }
			}
		}
		if err := json.Unmarshal(l.Params, &u); err != nil {
			p.t.Fatal(err)
		}
		p.updates = append(p.updates, strings.TrimSpace(u.Update.SessionUpdate+" "+u.Update.Content.Text))
	}
	return l
}

func (p *peer) send(method, params string) string {
	p.t.Helper()
	p.next++
	id := fmt.Sprint(p.next)
	p.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`+"\n", id, method, params))
	return id
}

func (p *peer) notify(method, params string) {
	p.t.Helper()
	p.write(fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`+"\n", method, params))
}

func (p *peer) reply(id string) line {
	p.t.Helper()
	for {
		if l := p.read(); l.Method == "" && string(l.ID) == id {
			return l
		}
	}
}

func (p *peer) must(method, params string) json.RawMessage {
	p.t.Helper()
	l := p.reply(p.send(method, params))
	if l.Error != nil {
		p.t.Fatalf("%s: %+v", method, *l.Error)
	}
	return l.Result
}

func (p *peer) prompt(session, text string) string {
	p.t.Helper()
	return p.send("session/prompt", promptParams(session, text))
}

func promptParams(session, text string) string {
	return fmt.Sprintf(`{"sessionId":%q,"prompt":[{"type":"text","text":%q}]}`, session, text)
}

// exit waits for the end and returns the exit code and, for a signal, its name.
func (p *peer) exit() (int, string) {
	p.t.Helper()
	_, _ = io.Copy(io.Discard, p.out)
	_ = p.cmd.Wait() // its state is what counts
	return p.cmd.ProcessState.ExitCode(), p.cmd.ProcessState.String()
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestSaneByDefault(t *testing.T) {
	dir := t.TempDir()
	s := fakeagent.Script{Journal: filepath.Join(dir, "journal"), Store: filepath.Join(dir, "store")}
	p, id := acp(t, s)
	p.must("session/set_config_option", fmt.Sprintf(`{"sessionId":%q,"configId":"mode","value":"plan"}`, id))
	if got := string(p.reply(p.prompt(id, "hello")).Result); !strings.Contains(got, `"end_turn"`) {
		t.Errorf("prompt: %s", got)
	}
	if l := p.reply(p.send("session/set_config_option", fmt.Sprintf(`{"sessionId":%q,"configId":"mode","value":"x"}`, id))); l.Error == nil || l.Error.Code != -32602 {
		t.Errorf("a wrong value: %+v", l)
	}
	if l := p.reply(p.send("_odd", `{}`)); l.Error == nil || l.Error.Code != -32601 {
		t.Errorf("an unknown method: %+v", l)
	}
	_ = p.in.Close()
	if code, _ := p.exit(); code != 0 {
		t.Errorf("exit code %d at the end of stdin", code)
	}

	p = start(t, s)
	p.must("initialize", `{}`)
	p.must("session/load", fmt.Sprintf(`{"sessionId":%q,"cwd":"/","mcpServers":[]}`, id))
	if diff := cmp.Diff([]string{"user_message_chunk hello", "agent_message_chunk fake answer 1 to: hello"}, p.updates); diff != "" {
		t.Errorf("replay (-want +got):\n%s", diff)
	}
	p.reply(p.prompt(id, "more"))
	if l := p.reply(p.send("session/resume", `{"sessionId":"fake-none"}`)); l.Error == nil || l.Error.Code != -32002 {
		t.Errorf("an unknown session: %+v", l)
	}

	j, err := fakeagent.ReadJournal(s.Journal)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range j.Of("prompt") {
		got = append(got, fmt.Sprintf("%d %s %s", r.Turn, r.Text, r.Options["mode"]))
	}
	if diff := cmp.Diff([]string{"1 hello plan", "2 more plan"}, got); diff != "" {
		t.Errorf("prompts in the journal (-want +got):\n%s", diff)
	}
	if len(j.Of("start")) != 2 || j.Of("start")[0].Cwd == "" || len(j.Named("initialize")) != 2 {
		t.Errorf("journal: %+v", j)
	}
}

func TestSessionsAreForgotten(t *testing.T) {
	for name, s := range map[string]fakeagent.Script{
		"without a store":     {},
		"that were not asked": {Store: t.TempDir(), KeepPrompted: true},
	} {
		t.Run(name, func(t *testing.T) {
			_, id := acp(t, s)
			p := start(t, s)
			if l := p.reply(p.send("session/load", fmt.Sprintf(`{"sessionId":%q}`, id))); l.Error == nil || l.Error.Code != -32002 {
				t.Errorf("got %+v", l)
			}
		})
	}
}

func TestRulesByNumberAndContent(t *testing.T) {
	p, id := acp(t, fakeagent.Script{On: []fakeagent.Rule{
		{On: "session/prompt", Contains: "special", Do: []fakeagent.Step{fakeagent.EndTurn("refusal")}},
		fakeagent.OnNth(2, "session/prompt", fakeagent.Text(`${n} "${text}"`), fakeagent.Fail(-32000, "auth ${session}")),
		fakeagent.On("_x", fakeagent.Result(`{"said":"${text}"}`)),
	}})
	want := []string{`"end_turn"`, "auth " + id, `"refusal"`, `"end_turn"`}
	for i, task := range []string{"a", `b"`, "special", "c"} {
		l := p.reply(p.prompt(id, task))
		got := string(l.Result)
		if l.Error != nil {
			got = l.Error.Message
		}
		if !strings.Contains(got, want[i]) {
			t.Errorf("prompt %d: %s", i+1, got)
		}
	}
	if p.updates[1] != `agent_message_chunk 2 "b""` {
		t.Errorf("updates: %q", p.updates)
	}
}

func TestB26LateTwiceAndNever(t *testing.T) {
	p, id := acp(t, fakeagent.Script{On: []fakeagent.Rule{
		fakeagent.OnNth(1, "session/prompt", fakeagent.EndTurn("end_turn"), fakeagent.EndTurn("end_turn"),
			fakeagent.Sleep(50*time.Millisecond), fakeagent.Text("late")),
		fakeagent.OnNth(2, "session/prompt"),
		fakeagent.OnNth(3, "session/prompt", fakeagent.Sleep(time.Hour), fakeagent.Text("never said")),
		fakeagent.Ignore("_silent"),
	}})
	first := p.prompt(id, "x")
	p.reply(first)
	p.reply(first) // a second time
	if p.read(); len(p.updates) != 1 || p.updates[0] != "agent_message_chunk late" {
		t.Errorf("updates: %q", p.updates)
	}
	p.send("_silent", `{}`) // not answered: the next reply is for the next request
	for range 2 {
		turn := p.prompt(id, "x")
		p.notify("session/cancel", fmt.Sprintf(`{"sessionId":%q}`, id))
		if l := p.read(); string(l.ID) != turn || !strings.Contains(string(l.Result), "cancelled") {
			t.Errorf("after a cancel: %+v", l)
		}
	}
}

func TestCancelMayBeIgnored(t *testing.T) {
	p, id := acp(t, fakeagent.Script{On: []fakeagent.Rule{
		fakeagent.On("session/prompt", fakeagent.Sleep(100*time.Millisecond), fakeagent.EndTurn("end_turn")),
		fakeagent.Ignore("session/cancel"),
	}})
	turn := p.prompt(id, "x")
	p.notify("session/cancel", fmt.Sprintf(`{"sessionId":%q}`, id))
	if l := p.reply(turn); !strings.Contains(string(l.Result), "end_turn") {
		t.Errorf("got %s", l.Result)
	}
}

func TestB50RepliesAreRecorded(t *testing.T) {
	journal := filepath.Join(t.TempDir(), "j")
	p, id := acp(t, fakeagent.Script{Journal: journal, On: []fakeagent.Rule{
		fakeagent.On("session/prompt",
			fakeagent.AskPermission("edit", "Write ${text}"),
			fakeagent.Step{If: &fakeagent.If{Reply: `"allow"`}, Then: []fakeagent.Step{fakeagent.Text("allowed")}, Else: []fakeagent.Step{fakeagent.Text("denied")}},
			fakeagent.Ask("elicitation/create", `{"message":"?"}`),
			fakeagent.EndTurn("end_turn")),
	}})
	turn := p.prompt(id, "a")
	ask := p.read()
	if !strings.Contains(string(ask.Params), `"Write a"`) || !strings.Contains(string(ask.Params), id) {
		t.Errorf("asked %s", ask.Params)
	}
	p.write(fmt.Sprintf(`{"id":%s,"result":{"outcome":{"outcome":"selected","optionId":"allow"}}}`+"\n", ask.ID))
	p.read()
	p.write(fmt.Sprintf(`{"id":%s,"error":{"code":-32601,"message":"no"}}`+"\n", p.read().ID))
	p.reply(turn)
	j, err := fakeagent.ReadJournal(journal)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range j.Of("reply") {
		got = append(got, r.Name+" "+string(r.Params))
	}
	want := []string{
		`session/request_permission {"result":{"outcome":{"outcome":"selected","optionId":"allow"}}}`,
		`elicitation/create {"error":{"code":-32601,"message":"no"}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("replies (-want +got):\n%s", diff)
	}
	if p.updates[0] != "agent_message_chunk allowed" {
		t.Errorf("updates %q", p.updates)
	}
}

func TestRawBytes(t *testing.T) {
	out := func(s fakeagent.Script) (string, *peer) {
		p := start(t, s)
		b, err := io.ReadAll(p.out)
		if err != nil {
			t.Fatal(err)
		}
		return string(b), p
	}
	got, p := out(fakeagent.Script{Dialect: "stream", Start: []fakeagent.Step{
		fakeagent.Write("noise ${env:FAKE_TEST} ${json:env:FAKE_TEST} ${HOME}"),
		{Trickle: &fakeagent.Trickle{Text: "né\n", Size: 1, Every: fakeagent.Duration(time.Millisecond)}},
		fakeagent.WriteErr("err"),
		{Fill: &fakeagent.Fill{Before: "<", Bytes: 200_000, After: ">"}},
		{Fill: &fakeagent.Fill{Bytes: 100_000, Stderr: true}},
		{Repeat: &fakeagent.Repeat{Times: 3, Do: []fakeagent.Step{fakeagent.Write("${i}")}}},
		fakeagent.Exit(7),
	}})
	if want := `noise yes "yes" ${HOME}` + "né\n<" + strings.Repeat("x", 200_000) + ">012"; got != want {
		t.Errorf("stdout is %d bytes: %.60q", len(got), got)
	}
	if code, _ := p.exit(); code != 7 || len(p.stderr.String()) != 100_003 {
		t.Errorf("exit code %d, %d bytes on stderr", code, len(p.stderr.String()))
	}
}

func TestB22BufferedOutput(t *testing.T) {
	s := fakeagent.Script{Dialect: "stream", Buffer: 10, Start: []fakeagent.Step{fakeagent.Write("12345"), fakeagent.Write("6789")}}
	killed := s
	killed.Start = append(killed.Start[:2:2], fakeagent.Step{Signal: "KILL"})
	exited := s
	exited.Start = append(exited.Start[:2:2], fakeagent.Write("ABC"), fakeagent.Write("D"), fakeagent.Exit(0))
	for want, s := range map[string]fakeagent.Script{"": killed, "123456789ABCD": exited} {
		b, err := io.ReadAll(start(t, s).out)
		if err != nil || string(b) != want {
			t.Errorf("got %q, %v; want %q", b, err, want)
		}
	}
}

func TestB20ReadsExactly(t *testing.T) {
	p := start(t, fakeagent.Script{Dialect: "stream", Start: []fakeagent.Step{{Read: 5}}, On: []fakeagent.Rule{
		{On: "user", Inline: true, Do: []fakeagent.Step{{Read: 3}, fakeagent.Write("read\n")}},
		fakeagent.On("line", fakeagent.Write("line\n")),
		fakeagent.On("eof", fakeagent.Write("eof\n"), fakeagent.Exit(4)),
	}})
	p.write("12345" + `{"type":"user"}` + "\nabcrest\n")
	_ = p.in.Close()
	b, err := io.ReadAll(p.out)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(b); got != "read\nline\neof\n" && got != "read\neof\nline\n" && got != "read\neof\n" {
		t.Errorf("got %q", got)
	}
	if code, _ := p.exit(); code != 4 {
		t.Errorf("exit code %d; stderr %s", code, p.stderr.String())
	}
}

func TestB54StartConditionsAndClaims(t *testing.T) {
	claim := filepath.Join(t.TempDir(), "claim")
	s := fakeagent.Script{Dialect: "stream", Start: []fakeagent.Step{
		{If: &fakeagent.If{Env: "FAKE_TEST_NOT_SET"}, Then: []fakeagent.Step{fakeagent.Exit(1)}},
		{If: &fakeagent.If{Arg: "--resume", Exists: claim}, Then: []fakeagent.Step{fakeagent.Exit(2)}},
		{If: &fakeagent.If{Claim: claim}, Then: []fakeagent.Step{fakeagent.Exit(3)}, Else: []fakeagent.Step{fakeagent.Exit(4)}},
	}}
	for i, tc := range []struct {
		arg  string
		code int
	}{{"--resume", 3}, {"--new", 4}, {"--resume", 2}} {
		if code, _ := start(t, s, tc.arg).exit(); code != tc.code {
			t.Errorf("start %d: exit code %d, want %d", i+1, code, tc.code)
		}
	}
}

func TestGoRunsBeside(t *testing.T) {
	p := start(t, fakeagent.Script{Dialect: "stream", On: []fakeagent.Rule{
		fakeagent.On("user", fakeagent.Step{Go: []fakeagent.Step{fakeagent.Sleep(50 * time.Millisecond), fakeagent.Write("b\n")}}, fakeagent.Write("a\n")),
	}})
	p.write(`{"type":"user"}` + "\n")
	_ = p.in.Close() // what was asked is still done
	if b, err := io.ReadAll(p.out); err != nil || string(b) != "a\nb\n" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestCanaryTellsOfGrowthAndQuiet(t *testing.T) {
	c := fakeagent.Canary(filepath.Join(t.TempDir(), "canary"))
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.WaitAlive(short); err == nil {
		t.Error("a file that is not there is alive")
	}
	if err := c.WaitStill(within(t), 50*time.Millisecond); err != nil {
		t.Error(err)
	}
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			f, err := os.OpenFile(string(c), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err == nil {
				_, _ = f.WriteString(".")
				err = f.Close()
			}
			select {
			case <-stop:
				done <- err
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	if err := c.WaitAlive(within(t)); err != nil {
		t.Error(err)
	}
	short, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := c.WaitStill(short, 200*time.Millisecond); err == nil {
		t.Error("a growing file is still")
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := c.WaitStill(within(t), 50*time.Millisecond); err != nil {
		t.Error(err)
	}
}

func TestScriptsAreCheckedAndJoined(t *testing.T) {
	for name, tc := range map[string]struct{ script, want string }{
		"two values":     {`{"dialect":"stream","start":[{"write":"a"}]} {"start":[{"write":"b"},{"exit":0}]}`, ""},
		"unknown key":    {`{"strat":[]}`, `unknown field "strat"`},
		"empty step":     {`{"start":[{}]}`, "0 things"},
		"double step":    {`{"on":[{"on":"x","do":[{"if":{},"then":[{"write":"a","exit":1}]}]}]}`, "2 things"},
		"unknown duty":   {`{"dialect":"latin"}`, "neither"},
		"rule without":   {`{"on":[{"do":[]}]}`, `lacks "on"`},
		"bad duration":   {`{"start":[{"sleep":"1 day"}]}`, "duration"},
		"not JSON":       {`[`, "script"},
		"child how":      {`{"start":[{"child":{"how":"odd"}}]}`, "none of group"},
		"close what":     {`{"start":[{"close":"door"}]}`, "none of stdin"},
		"answer to none": {`{"start":[{"result":{}}]}`, "no request to answer"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "script.json")
			if err := os.WriteFile(file, []byte(tc.script), 0o600); err != nil {
				t.Fatal(err)
			}
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			p := startCommand(t, []string{exe, fakeagent.Arg, file})
			out, err := io.ReadAll(p.out)
			if err != nil {
				t.Fatal(err)
			}
			code, _ := p.exit()
			if tc.want == "" {
				if code != 0 || string(out) != "ab" {
					t.Errorf("exit code %d, %q, %s", code, out, p.stderr.String())
				}
			} else if code != 97 || !strings.Contains(p.stderr.String(), tc.want) {
				t.Errorf("exit code %d, stderr %s", code, p.stderr.String())
			}
		})
	}
}

func TestJournalWithoutItsLastNewline(t *testing.T) {
	file := filepath.Join(t.TempDir(), "j")
	if j, err := fakeagent.ReadJournal(file); err != nil || j != nil {
		t.Errorf("a missing journal: %v, %v", j, err)
	}
	if err := os.WriteFile(file, []byte(`{"event":"eof","pid":1}`+"\n"+`{"event":"in`), 0o600); err != nil {
		t.Fatal(err)
	}
	if j, err := fakeagent.ReadJournal(file); err != nil || len(j) != 1 {
		t.Errorf("an unfinished line: %v, %v", j, err)
	}
	if err := os.WriteFile(file, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fakeagent.ReadJournal(file); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a damaged line: %v", err)
	}
}
