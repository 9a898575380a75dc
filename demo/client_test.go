package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// asAgent makes this test binary the agent.
const asAgent = "run-demo-agent"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asAgent {
		os.Exit(Main(context.Background(), os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for something that has to come.
const patience = 20 * time.Second

type frame struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *rpcError
}

type update struct {
	SessionID string
	Update    struct {
		SessionUpdate, MessageID, ToolCallID, Status, Kind, Title string
		Content                                                   json.RawMessage
		Entries                                                   []struct{ Content, Status string }
	}
}

// client drives an agent in a process of its own.
type client struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	frames chan frame // everything from the agent; closed at its end
	next   int
	// answer is what permission requests get: an option's kind, "cancelled", or
	// empty for no answer.
	answer string
	asked  []string // titles of permission requests
	seen   []update // updates so far
}

func start(t *testing.T, home string) *client {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, cmd: exec.Command(exe, asAgent), frames: make(chan frame, 1024), answer: "allow_once"}
	c.cmd.Env = append(os.Environ(), "SUBSPAN_DEMO_HOME="+home, "DEMO_TEST=set for the test",
		"GORACE=atexit_sleep_ms=0") // a race detector sleeps a second at exit otherwise
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.frames)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			var f frame
			if err := json.Unmarshal(line, &f); err != nil {
				f = frame{Error: &rpcError{Message: fmt.Sprintf("line is no JSON: %.100q", line)}}
			}
			c.frames <- f
		}
	}()
	t.Cleanup(func() {
		_ = c.in.Close()
		timer := time.AfterFunc(patience, func() { _ = c.cmd.Process.Kill(); t.Error("the agent does not end on EOF") })
		for range c.frames { // so that it is never stuck in a write
		}
		timer.Stop()
		_ = c.cmd.Wait() // crash tests look at its state
	})
	return c
}

// ready starts an agent and initializes it.
func ready(t *testing.T, home string) *client {
	t.Helper()
	c := start(t, home)
	c.must("initialize", map[string]any{"protocolVersion": 1, "clientCapabilities": map[string]any{}}, nil)
	return c
}

func (c *client) raw(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatalf("writing to the agent: %v", err)
	}
}

// send sends a request and returns its id.
func (c *client) send(method string, params any) string {
	c.t.Helper()
	c.next++
	id := fmt.Sprintf(`"r%d"`, c.next)
	c.raw(string(mustJSON(c.t, map[string]any{"jsonrpc": "2.0", "id": json.RawMessage(id), "method": method, "params": params})))
	return id
}

func (c *client) notify(method string, params any) {
	c.t.Helper()
	c.raw(string(mustJSON(c.t, map[string]any{"jsonrpc": "2.0", "method": method, "params": params})))
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var errEnded = errors.New("the agent ended")

// step takes one frame: it notes updates and answers permission requests.
func (c *client) step() (frame, error) {
	c.t.Helper()
	select {
	case f, ok := <-c.frames:
		if !ok {
			return frame{}, errEnded
		}
		switch f.Method {
		case "session/update":
			var u update
			if err := json.Unmarshal(f.Params, &u); err != nil {
				c.t.Fatalf("update: %v", err)
			}
			c.seen = append(c.seen, u)
		case "session/request_permission":
			c.permission(f)
		}
		return f, nil
	case <-time.After(patience):
		c.t.Fatal("nothing from the agent for too long")
		return frame{}, nil
	}
}

func (c *client) permission(f frame) {
	var p struct {
		ToolCall struct{ Title, Kind, Status string }
		Options  []option
	}
	if err := json.Unmarshal(f.Params, &p); err != nil {
		c.t.Fatalf("permission: %v", err)
	}
	c.asked = append(c.asked, p.ToolCall.Kind+": "+p.ToolCall.Title)
	if c.answer == "" {
		return
	}
	outcome := map[string]string{"outcome": "cancelled"}
	for _, o := range p.Options {
		if o.Kind == c.answer {
			outcome = map[string]string{"outcome": "selected", "optionId": o.ID}
		}
	}
	c.raw(string(mustJSON(c.t, map[string]any{"jsonrpc": "2.0", "id": f.ID, "result": map[string]any{"outcome": outcome}})))
}

// wait takes frames until the reply to id.
func (c *client) wait(id string) (json.RawMessage, error) {
	c.t.Helper()
	for {
		f, err := c.step()
		if err != nil {
			return nil, err
		}
		if f.Method == "" && string(f.ID) == id {
			if f.Error != nil {
				return nil, f.Error
			}
			return f.Result, nil
		}
	}
}

// must makes a request that has to succeed.
func (c *client) must(method string, params, result any) {
	c.t.Helper()
	raw, err := c.wait(c.send(method, params))
	if err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
	if result != nil {
		if err := json.Unmarshal(raw, result); err != nil {
			c.t.Fatalf("%s: %v in %s", method, err, raw)
		}
	}
}

// fails makes a request that has to fail with code.
func (c *client) fails(code int, method string, params any) string {
	c.t.Helper()
	raw, err := c.wait(c.send(method, params))
	var re *rpcError
	if !errors.As(err, &re) {
		c.t.Fatalf("%s: got %s, %v; want error %d", method, raw, err, code)
	}
	if re.Code != code {
		c.t.Fatalf("%s: got error %d %s; want %d", method, re.Code, re.Message, code)
	}
	return re.Message
}

func (c *client) newSession(cwd string) string {
	c.t.Helper()
	var r struct{ SessionID string }
	c.must("session/new", map[string]any{"cwd": cwd, "mcpServers": []any{}}, &r)
	return r.SessionID
}

func prompt(id, task string) map[string]any {
	return map[string]any{"sessionId": id, "prompt": []any{map[string]string{"type": "text", "text": task}}}
}

// ask runs a turn and returns its answer without the footer, which it checks.
func (c *client) ask(id, task string) string {
	c.t.Helper()
	c.seen = nil
	var r struct {
		StopReason string
		Usage      struct{ TotalTokens *int }
	}
	c.must("session/prompt", prompt(id, task), &r)
	if r.StopReason != "end_turn" {
		c.t.Fatalf("stop reason %q", r.StopReason)
	}
	if r.Usage.TotalTokens == nil || *r.Usage.TotalTokens != 0 {
		c.t.Error("usage is not told as zero")
	}
	text, ok := strings.CutSuffix(c.text("agent_message_chunk"), footer)
	if !ok {
		c.t.Errorf("the answer does not end with the footer: %q", text)
	}
	return text
}

// text joins the pieces of one kind.
func (c *client) text(kind string) string {
	var b strings.Builder
	for _, u := range c.seen {
		if u.Update.SessionUpdate == kind {
			var content struct{ Text string }
			if err := json.Unmarshal(u.Update.Content, &content); err != nil {
				c.t.Fatal(err)
			}
			b.WriteString(content.Text)
		}
	}
	return b.String()
}

// statuses lists every status a tool call went through, in order, by title.
func (c *client) statuses() map[string]string {
	title, out := make(map[string]string), make(map[string]string)
	for _, u := range c.seen {
		switch u.Update.SessionUpdate {
		case "tool_call":
			title[u.Update.ToolCallID] = u.Update.Title
			out[u.Update.Title] = u.Update.Status
		case "tool_call_update":
			out[title[u.Update.ToolCallID]] += " " + u.Update.Status
		}
	}
	return out
}
