package agents_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"
)

// The tests give agents an MCP server with one tool: this test binary, told by a
// variable to be that server.
const (
	mcpName = "scripted"
	mcpVar  = "SUBSPAN_TEST_MCP_SERVER"
)

func TestMain(m *testing.M) {
	if os.Getenv(mcpVar) != "" {
		if err := echoServer(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// mcpServer returns the program to start, and the variable to set for it.
func mcpServer(t *testing.T) (program, variable string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return program, mcpVar
}

// echoServer serves the tool echo until in ends.
func echoServer(in io.Reader, out io.Writer) error {
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var req struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				ProtocolVersion string `json:"protocolVersion"`
				Arguments       struct {
					Text string `json:"text"`
				} `json:"arguments"`
			} `json:"params"`
		}
		if err := dec.Decode(&req); err != nil {
			if err == io.EOF {
				return nil
			}
			return fmt.Errorf("MCP request: %w", err)
		}
		if req.ID == nil {
			continue
		}
		type object = map[string]any
		reply := object{"jsonrpc": "2.0", "id": req.ID}
		switch req.Method {
		case "initialize":
			reply["result"] = object{
				"protocolVersion": req.Params.ProtocolVersion, "capabilities": object{"tools": object{}},
				"serverInfo": object{"name": mcpName, "version": "1"},
			}
		case "ping":
			reply["result"] = object{}
		case "tools/list":
			reply["result"] = object{"tools": []object{{
				"name": "echo", "description": "Returns the text.",
				"inputSchema": object{"type": "object", "properties": object{"text": object{"type": "string"}}, "required": []string{"text"}},
			}}}
		case "tools/call":
			reply["result"] = object{"content": []object{{"type": "text", "text": "echo: " + req.Params.Arguments.Text}}}
		default:
			reply["error"] = object{"code": -32601, "message": "no such method"}
		}
		if err := enc.Encode(reply); err != nil {
			return fmt.Errorf("MCP reply: %w", err)
		}
	}
}
