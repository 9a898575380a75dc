package claude

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/tidwall/gjson"

	"github.com/subspan-dev/subspan/bridges/agentproc"
)

func TestMain(m *testing.M) {
	agentproc.Main()
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "fake-claude":
			fakeClaude(os.Args[2:])
			return
		case "mcp-server":
			mcpServer()
			return
		case "submit-worker":
			submitWorker(os.Args[2])
			return
		}
	}
	os.Exit(m.Run())
}

// fake plays Claude Code 2.1's part of stream-json. A task is a list of lines that
// say what to do, see step.
type fake struct {
	out        sync.Mutex
	id         string
	transcript string
	seen       map[string]bool
	answers    chan gjson.Result
	interrupts chan string
	deaf       bool
	messages   int
	tokens     int
}

func flagOf(args []string, name string) string {
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, name+"="); ok {
			return v
		}
		if a == name && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

func fakeClaude(args []string) {
	// What the real one does with settings that a bridge could get wrong.
	if os.Getenv("CLAUDECODE") != "" {
		fmt.Fprintln(os.Stderr, "Claude Code cannot be launched inside another Claude Code session")
		os.Exit(1)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("TMPDIR"), "probe"), nil, 0o600); err != nil {
		select {} // it hangs and says nothing
	}
	f := &fake{
		id: flagOf(args, "--session-id"), seen: map[string]bool{}, answers: make(chan gjson.Result, 16), interrupts: make(chan string, 16),
	}
	resume := flagOf(args, "--resume")
	if f.id == "" {
		f.id = resume
	}
	dir := filepath.Join(os.Getenv("CLAUDE_CONFIG_DIR"), "projects", "-fake")
	f.transcript = filepath.Join(dir, f.id+".jsonl")
	if resume != "" {
		data, err := os.ReadFile(filepath.Join(dir, resume+".jsonl"))
		if err != nil {
			f.print(map[string]any{"type": "result", "subtype": "error_during_execution", "is_error": true, "errors": []string{"No conversation found with session ID: " + resume}})
			fmt.Fprintln(os.Stderr, "No conversation found with session ID: "+resume)
			os.Exit(1)
		}
		if resume != f.id {
			must(os.WriteFile(f.transcript, data, 0o600))
		}
		for line := range strings.Lines(string(data)) {
			f.seen[gjson.Get(line, "uuid").String()] = true
			f.messages++
		}
	}
	sigint := make(chan os.Signal, 1)
	signal.Notify(sigint, os.Interrupt)
	tasks := make(chan gjson.Result, 16)
	go func() {
		in := bufio.NewReader(os.Stdin)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				os.Exit(0)
			}
			if strings.TrimSpace(line) == "" {
				continue
			}
			if !gjson.Valid(line) {
				fmt.Fprintln(os.Stderr, "Error parsing streaming input line")
				os.Exit(1)
			}
			f.dispatch(gjson.Parse(line), args, tasks)
		}
	}()
	go func() {
		for range sigint {
			if !f.deaf {
				os.Exit(0)
			}
		}
	}()
	for task := range tasks {
		f.run(task, args)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

func (f *fake) dispatch(m gjson.Result, args []string, tasks chan<- gjson.Result) {
	switch m.Get("type").String() {
	case "control_request":
		id := m.Get("request_id").String()
		switch m.Get("request.subtype").String() {
		case "initialize":
			must(os.WriteFile(filepath.Join(os.Getenv("CLAUDE_CONFIG_DIR"), "persona"), []byte(m.Get("request.appendSystemPrompt").String()), 0o600))
			f.print(map[string]any{"type": "control_response", "response": map[string]any{"subtype": "success", "request_id": id,
				"response": map[string]any{"models": []any{map[string]any{"value": "sonnet"}, map[string]any{"value": "opus"}}, "pid": os.Getpid()}}})
		case "interrupt":
			if !f.deaf {
				f.print(map[string]any{"type": "control_response", "response": map[string]any{"subtype": "success", "request_id": id}})
				f.interrupts <- id
			}
		}
	case "control_response":
		f.answers <- m.Get("response")
	case "user":
		id := m.Get("uuid").String()
		if f.seen[id] {
			f.echo(m) // and no result follows
			return
		}
		f.seen[id] = true
		must(os.MkdirAll(filepath.Dir(f.transcript), 0o700))
		file, err := os.OpenFile(f.transcript, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		must(err)
		_, err = fmt.Fprintf(file, `{"type":"user","uuid":%q,"sessionId":%q}`+"\n", id, f.id)
		must(err)
		must(file.Close())
		tasks <- m
	}
}

func (f *fake) print(v any) {
	data, err := json.Marshal(v)
	must(err)
	f.out.Lock()
	defer f.out.Unlock()
	_, err = os.Stdout.Write(append(data, '\n'))
	must(err)
}

func (f *fake) echo(m gjson.Result) {
	f.print(map[string]any{"type": "user", "isReplay": true, "uuid": m.Get("uuid").String(), "message": map[string]any{"role": "user", "content": m.Get("message.content").String()}})
}

func (f *fake) run(m gjson.Result, args []string) {
	f.messages++
	for len(f.interrupts) > 0 {
		<-f.interrupts
	}
	model := flagOf(args, "--model")
	if model == "" {
		model = "fake-model"
	}
	f.print(map[string]any{"type": "system", "subtype": "init", "session_id": f.id, "model": model, "permissionMode": flagOf(args, "--permission-mode"), "apiKeySource": "ANTHROPIC_API_KEY", "claude_code_version": "2.1.fake"})
	f.echo(m)
	f.tokens += 100
	res := map[string]any{"type": "result", "subtype": "success", "is_error": false, "result": "", "stop_reason": "end_turn", "terminal_reason": "completed",
		"modelUsage": map[string]any{model: map[string]any{"inputTokens": f.tokens, "outputTokens": f.tokens / 10, "contextWindow": 200000}}, "total_cost_usd": float64(f.tokens) / 1000}
	for line := range strings.Lines(strings.TrimLeft(m.Get("message.content").String(), "\n")) {
		verb, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !f.step(verb, rest, model, args, res) {
			break
		}
	}
	f.print(res)
}

// step does one line of a task; false ends the turn.
func (f *fake) step(verb, rest, model string, args []string, res map[string]any) bool {
	aborted := func(reason string) bool {
		res["subtype"], res["is_error"], res["terminal_reason"] = "error_during_execution", true, reason
		return false
	}
	switch verb {
	case "say":
		f.say(rest, model)
	case "big":
		var n int
		_, err := fmt.Sscan(rest, &n)
		must(err)
		f.say(strings.Repeat("x", n), model)
	case "env":
		f.say(strings.Join(os.Environ(), "\n"), model)
	case "argv":
		f.say(strings.Join(args, "\n"), model)
	case "count":
		f.say(fmt.Sprint("messages=", f.messages), model)
	case "id":
		f.say(f.id, model)
	case "cat":
		data, err := os.ReadFile(rest)
		must(err)
		f.say(string(data), model)
	case "wait": // for a file of the test
		for _, err := os.Stat(rest); err != nil; _, err = os.Stat(rest) {
			select {
			case <-f.interrupts:
				return aborted("aborted_streaming")
			case <-time.After(time.Millisecond):
			}
		}
	case "write":
		path, text, _ := strings.Cut(rest, " ")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			f.say("cannot write: "+err.Error(), model)
		}
	case "hang":
		<-f.interrupts
		return aborted("aborted_streaming")
	case "deaf":
		f.deaf = true
		select {}
	case "die":
		var code int
		_, err := fmt.Sscan(rest, &code)
		must(err)
		fmt.Fprintln(os.Stderr, "fake died on purpose")
		os.Exit(code)
	case "tool":
		return f.tool(rest, model, aborted)
	case "ask":
		f.print(map[string]any{"type": "control_request", "request_id": uuid.NewString(), "request": map[string]any{
			"subtype": "can_use_tool", "tool_name": "AskUserQuestion", "tool_use_id": "ask1", "input": map[string]any{"questions": []any{
				map[string]any{"question": "Which?", "options": []any{map[string]any{"label": "A"}, map[string]any{"label": "B"}}}}}}})
		a := <-f.answers
		f.say(a.Get("response.behavior").String()+" "+a.Get("response.updatedInput.answers.Which?").String(), model)
	case "request":
		f.print(map[string]any{"type": "control_request", "request_id": uuid.NewString(), "request": map[string]any{"subtype": rest}})
		a := <-f.answers
		f.say(a.Get("subtype").String()+" "+a.Get("response.action").String(), model)
	case "refuse":
		f.print(map[string]any{"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 10, "retry_delay_ms": 500, "error_status": 401, "error": rest})
		<-f.interrupts
		return aborted("aborted_streaming")
	case "noise":
		f.out.Lock()
		fmt.Println(rest)
		f.out.Unlock()
	default:
		f.say("task: "+verb+" "+rest, model)
	}
	return true
}

func (f *fake) say(text, model string) {
	id := "msg_" + uuid.NewString()
	ev := func(e map[string]any) {
		f.print(map[string]any{"type": "stream_event", "event": e, "parent_tool_use_id": nil})
	}
	ev(map[string]any{"type": "message_start", "message": map[string]any{"id": id, "model": model}})
	ev(map[string]any{"type": "content_block_start", "index": 0, "content_block": map[string]any{"type": "text", "text": ""}})
	for part := range slices.Chunk([]byte(text), 1<<16) {
		ev(map[string]any{"type": "content_block_delta", "index": 0, "delta": map[string]any{"type": "text_delta", "text": string(part)}})
	}
	f.print(map[string]any{"type": "assistant", "message": map[string]any{"id": id, "model": model, "content": []any{map[string]any{"type": "text", "text": text}}}})
	ev(map[string]any{"type": "content_block_stop", "index": 0})
}

func (f *fake) tool(rest, model string, aborted func(string) bool) bool {
	name, input, _ := strings.Cut(rest, " ")
	id, call := "toolu_"+uuid.NewString(), map[string]any{"type": "tool_use", "name": name, "input": json.RawMessage(input)}
	call["id"] = id
	f.print(map[string]any{"type": "assistant", "message": map[string]any{"id": "msg_" + id, "model": model, "content": []any{call}}})
	request := uuid.NewString()
	f.print(map[string]any{"type": "control_request", "request_id": request, "request": map[string]any{"subtype": "can_use_tool", "tool_name": name, "tool_use_id": id, "input": json.RawMessage(input)}})
	for {
		select {
		case a := <-f.answers:
			if a.Get("request_id").String() != request {
				continue
			}
			allowed := a.Get("response.behavior").String() == "allow"
			f.print(map[string]any{"type": "user", "message": map[string]any{"role": "user", "content": []any{map[string]any{
				"type": "tool_result", "tool_use_id": id, "is_error": !allowed, "content": a.Get("response").Raw}}}})
			if a.Get("response.interrupt").Bool() {
				return aborted("aborted_tools")
			}
			f.say(a.Get("response.behavior").String(), model)
			return true
		case <-f.interrupts:
			f.print(map[string]any{"type": "control_cancel_request", "request_id": request})
			return aborted("aborted_tools")
		}
	}
}

// mcpServer offers one tool, echo.
func mcpServer() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		m := gjson.ParseBytes(in.Bytes())
		var result any
		switch m.Get("method").String() {
		case "initialize":
			result = map[string]any{"protocolVersion": m.Get("params.protocolVersion").String(), "capabilities": map[string]any{"tools": map[string]any{}},
				"serverInfo": map[string]any{"name": "lab", "version": "1"}}
		case "tools/list":
			result = map[string]any{"tools": []any{map[string]any{"name": "echo", "description": "echoes", "inputSchema": map[string]any{
				"type": "object", "properties": map[string]any{"text": map[string]any{"type": "string"}}}}}}
		case "tools/call":
			result = map[string]any{"content": []any{map[string]any{"type": "text", "text": "echo " + m.Get("params.arguments.text").String()}}}
		}
		if !m.Get("id").Exists() || result == nil {
			continue
		}
		data, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": m.Get("id").Value(), "result": result})
		must(err)
		_, err = os.Stdout.Write(append(data, '\n'))
		must(err)
	}
}
