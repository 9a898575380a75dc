// Package examples holds whole plugins to copy from: go is a bridge with
// plugins.Serve, node-echo an agent for the ACP bridge.
package examples

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/plugins/dropin"
)

// The Node example is trusted, resolved and spoken to as the ACP bridge would.
func TestNodeAgent(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("node is not installed")
	}
	base := t.TempDir()
	store := dropin.Store{Dir: filepath.Join(base, "plugins"), Lock: filepath.Join(base, "lock.json"), Cache: filepath.Join(base, "cache")}
	t.Cleanup(func() {
		if err := store.Forget("node-echo"); err != nil {
			t.Error(err)
		}
	})
	if err := os.CopyFS(filepath.Join(store.Dir, "node-echo"), os.DirFS("node-echo")); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Trust("node-echo"); err != nil {
		t.Fatal(err)
	}
	bridge, agent, err := store.Agent("node-echo")
	if err != nil || bridge != "acp" {
		t.Fatalf("%q, %v", bridge, err)
	}

	cmd := exec.CommandContext(t.Context(), agent.Command[0], agent.Command[1:]...)
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	read := func() (m struct {
		Result struct{ SessionID, StopReason string }
		Error  *struct{ Code int }
		Params struct {
			Update struct{ Content struct{ Text string } }
		}
	}) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the agent ended: %v", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		return m
	}
	fmt.Fprintln(stdin, "noise\n"+`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}`)
	read()
	fmt.Fprintln(stdin, `{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}`)
	id := read().Result.SessionID
	prompt := func(session string) {
		fmt.Fprintf(stdin, `{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":%q,"prompt":[{"type":"text","text":"hé"}]}}`+"\n", session)
	}
	prompt(id)
	got := []string{read().Params.Update.Content.Text, read().Result.StopReason}
	if d := cmp.Diff([]string{"hé", "end_turn"}, got); d != "" {
		t.Error(d)
	}
	prompt("nobody")
	if e := read().Error; e == nil || e.Code != -32002 {
		t.Errorf("an unknown session: %+v", e)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("it did not end with its input: %v", err)
	}
}
