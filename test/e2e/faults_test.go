//go:build linux

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/test/fakeagent"
)

// scripted configures an agent named fake that does what the script says, and
// returns the file in which it notes what it got.
func scripted(t testing.TB, dir string, s fakeagent.Script) (journal string) {
	t.Helper()
	journal = filepath.Join(dir, "work", "journal")
	s.Journal = journal
	command, err := s.Command(filepath.Join(dir, "work"))
	if err != nil {
		t.Fatal(err)
	}
	conf, err := json.Marshal(map[string]any{"agents": map[string]any{
		// The test binary sleeps at its end under the race detector; the agent must not.
		"fake": map[string]any{"command": command, "env": map[string]string{"GORACE": "atexit_sleep_ms=0"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config", "config.json"), conf, 0o600); err != nil {
		t.Fatal(err)
	}
	return journal
}

func TestB23AnswerIsThereThoughTheAgentStays(t *testing.T) {
	dir, _ := home(t)
	scripted(t, dir, fakeagent.Script{On: []fakeagent.Rule{
		fakeagent.On("session/prompt", fakeagent.Text("the answer"), fakeagent.EndTurn("end_turn")),
		fakeagent.Ignore("eof"), fakeagent.Ignore("SIGTERM"), fakeagent.Ignore("SIGINT"),
	}})
	c := start(t, dir, "run", "--agent", "fake", "--json", "go")
	var answered time.Duration
	await(t, "the end of the turn in the log", func() bool {
		for _, s := range sessions(t, dir) {
			answered = time.Since(c.started)
			return s.Status == "idle" && s.Turn == ""
		}
		return false
	})
	code, r := c.finish(t)
	if code != 0 || r.Status != "completed" || r.Text != "the answer" {
		t.Errorf("exit %d: %+v", code, r)
	}
	t.Logf("turn over after %s; the agent was ended after it", answered.Round(time.Millisecond))
}

func TestB19StderrIsDrained(t *testing.T) {
	dir, _ := home(t)
	scripted(t, dir, fakeagent.Script{On: []fakeagent.Rule{
		fakeagent.On("session/prompt",
			fakeagent.Step{Fill: &fakeagent.Fill{Bytes: 200 << 10, Stderr: true}},
			fakeagent.Text("the answer"), fakeagent.EndTurn("end_turn")),
	}})
	if code, r := run(t, dir, "run", "--agent", "fake", "--json", "go"); code != 0 || r.Text != "the answer" {
		t.Errorf("exit %d: %+v", code, r)
	}
}

func TestB20DeadAgentIsNeverASuccess(t *testing.T) {
	for _, code := range []int{0, 2} {
		dir, _ := home(t)
		scripted(t, dir, fakeagent.Script{On: []fakeagent.Rule{
			fakeagent.On("session/prompt", fakeagent.WriteErr("out of cheese\n"), fakeagent.Exit(code)),
		}})
		got, r := startWith(t, dir, strings.NewReader(strings.Repeat("x", 1<<20)), "run", "--agent", "fake", "--json", "-").finish(t)
		if got != 5 || r.Error == nil || !strings.Contains(r.Error.Detail, "out of cheese") {
			t.Errorf("agent's exit %d: exit %d, %+v, %+v", code, got, r.Status, r.Error)
		}
	}
}

func TestB27FailedToolsAreCounted(t *testing.T) {
	dir, _ := home(t)
	scripted(t, dir, fakeagent.Script{On: []fakeagent.Rule{
		fakeagent.On("session/prompt",
			fakeagent.Update(`{"sessionUpdate":"tool_call","toolCallId":"1","title":"write out.txt","kind":"edit","status":"pending"}`),
			fakeagent.Update(`{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"failed"}`),
			fakeagent.Text("all done"), fakeagent.EndTurn("end_turn")),
	}})
	c := start(t, dir, "run", "--agent", "fake", "--json", "go")
	code, r := c.finish(t)
	if code != 0 || !strings.Contains(c.out.String(), `"tools":{"failed":1}`) {
		t.Errorf("exit %d: %+v\n%s", code, r, c.out.String())
	}
}

func TestB36VanishedSessionIsGone(t *testing.T) {
	dir, _ := home(t)
	journal := scripted(t, dir, fakeagent.Script{On: []fakeagent.Rule{
		fakeagent.On("session/prompt", fakeagent.Text("hello"), fakeagent.EndTurn("end_turn")),
		fakeagent.On("session/resume", fakeagent.Fail(-32002, "no such session")),
		fakeagent.On("session/load", fakeagent.Fail(-32002, "no such session")),
	}})
	_, first := run(t, dir, "run", "--agent", "fake", "--json", "one")
	code, r := run(t, dir, "submit", "--json", first.Session, "two")
	if code != 6 || r.Error == nil || r.Error.Kind != "session_gone" || r.Text != "" {
		t.Errorf("exit %d: %+v, %+v", code, r, r.Error)
	}
	entries, err := fakeagent.ReadJournal(journal)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(entries.Named("session/new")); n != 1 {
		t.Errorf("%d sessions were made for one", n)
	}
}

func TestB56InputEnds(t *testing.T) {
	dir, _ := home(t)
	// An agent that only stops at the end of its input is ended by it, not by force.
	scripted(t, dir, fakeagent.Script{On: []fakeagent.Rule{
		fakeagent.On("session/prompt", fakeagent.Text("hello"), fakeagent.EndTurn("end_turn")),
		fakeagent.Ignore("SIGTERM"),
	}})
	began := time.Now()
	if code, r := run(t, dir, "run", "--agent", "fake", "--json", "go"); code != 0 {
		t.Fatalf("exit %d: %+v", code, r)
	}
	t.Logf("ended after %s", time.Since(began).Round(time.Millisecond))
}
