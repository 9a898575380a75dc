package agents_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/subspan-dev/subspan/test/agents"
	"github.com/subspan-dev/subspan/test/modelserver"
)

// acpClient is a raw ACP client that says yes to everything. It is on purpose not
// the bridge's client: it shows that the agents work, whatever our code does.
type acpClient struct {
	t      *testing.T
	in     io.Writer
	out    *bufio.Reader
	next   int
	text   string // of all agent_message_chunk updates so far
	errors *strings.Builder
}

type acpMessage struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

func startACP(t *testing.T, a agents.Agent, dir string) *acpClient {
	t.Helper()
	cmd := a.Command(t, dir, a.ACP...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c := &acpClient{t: t, in: in, out: bufio.NewReader(out), errors: &strings.Builder{}}
	cmd.Stderr = c.errors
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()         // agents end with their input,
		_ = cmd.Process.Kill() // and if not, now
		_ = cmd.Wait()         // the exit status says nothing here
		if t.Failed() {
			t.Logf("%s wrote on stderr:\n%s", a.Name, c.errors)
		}
	})
	return c
}

func (c *acpClient) send(v any) {
	c.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c.in, "%s\n", b); err != nil {
		c.t.Fatalf("send %s: %v", b, err)
	}
}

// call sends a request and serves the agent until its answer is there.
func (c *acpClient) call(method string, params, result any) {
	c.t.Helper()
	c.next++
	id := fmt.Sprint(c.next)
	c.send(map[string]any{"jsonrpc": "2.0", "id": c.next, "method": method, "params": params})
	for {
		line, err := c.out.ReadBytes('\n')
		if err != nil {
			c.t.Fatalf("%s: %v", method, err)
		}
		var m acpMessage
		if json.Unmarshal(line, &m) != nil {
			continue // prose on stdout
		}
		switch {
		case m.Method == "" && string(m.ID) == id:
			if m.Error != nil {
				c.t.Fatalf("%s: error %s", method, m.Error)
			}
			if err := json.Unmarshal(m.Result, result); err != nil {
				c.t.Fatalf("%s: %v in %s", method, err, m.Result)
			}
			return
		case m.Method == "session/request_permission":
			c.permit(m)
		case m.Method != "" && m.ID != nil:
			c.send(map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32601, "message": "not offered"}})
		case m.Method == "session/update":
			var u struct {
				Update struct {
					Kind    string `json:"sessionUpdate"`
					Content struct {
						Text string `json:"text"`
					} `json:"content"`
				} `json:"update"`
			}
			if json.Unmarshal(m.Params, &u) == nil && u.Update.Kind == "agent_message_chunk" {
				c.text += u.Update.Content.Text
			}
		}
	}
}

// permit chooses the option that allows once.
func (c *acpClient) permit(m acpMessage) {
	c.t.Helper()
	var p struct {
		Options []struct {
			ID   string `json:"optionId"`
			Kind string `json:"kind"`
		} `json:"options"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		c.t.Fatalf("%s: %v", m.Params, err)
	}
	for _, o := range p.Options {
		if o.Kind == "allow_once" {
			outcome := map[string]any{"outcome": map[string]any{"outcome": "selected", "optionId": o.ID}}
			c.send(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": outcome})
			return
		}
	}
	c.t.Fatalf("no option allows once: %s", m.Params)
}

func TestRealACP(t *testing.T) {
	type object = map[string]any
	each(t, func(t *testing.T, s *modelserver.Server, a agents.Agent) {
		if a.ACP == nil {
			t.Skip("this program has a protocol of its own instead of ACP")
		}
		dir := t.TempDir()
		program, variable := mcpServer(t)
		c := startACP(t, a, dir)
		var hello struct {
			Version int `json:"protocolVersion"`
		}
		c.call("initialize", object{"protocolVersion": 1, "clientCapabilities": object{}}, &hello)
		if hello.Version != 1 {
			t.Errorf("protocol version %d, want 1", hello.Version)
		}
		var session struct {
			ID string `json:"sessionId"`
		}
		c.call("session/new", object{"cwd": dir, "mcpServers": []object{{
			"name": mcpName, "command": program, "args": []string{}, "env": []object{{"name": variable, "value": "1"}},
		}}}, &session)
		prompt := func(task string) {
			t.Helper()
			c.text = ""
			var end struct {
				Reason string `json:"stopReason"`
			}
			c.call("session/prompt", object{"sessionId": session.ID, "prompt": []object{{"type": "text", "text": task}}}, &end)
			if end.Reason != "end_turn" || !strings.HasSuffix(c.text, answer) {
				t.Errorf("the turn ends with %q and the text %q, want end_turn and %q", end.Reason, c.text, answer)
			}
		}
		task, replies := script(dir)
		prompt(task)
		checkScript(t, s, a, dir, task, replies)

		prompt(fmt.Sprintf(`[[mcp %s echo {"text":"through MCP"}]][[say %s]]`, mcpName, answer))
		if last, _ := s.Last(); len(last.Results) != 1 || !strings.Contains(last.Results[0], "echo: through MCP") {
			t.Errorf("MCP tool results %q", last.Results)
		}
	})
}
