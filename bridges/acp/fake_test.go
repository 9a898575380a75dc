//go:build unix

package acp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/bridges/agentproc"
)

func TestMain(m *testing.M) {
	agentproc.Main()
	if dir := os.Getenv("DRIVE"); dir != "" {
		drive(dir)
		os.Exit(0)
	}
	if flags := os.Getenv("FAKE"); flags != "" {
		newFake(flags).serve()
		os.Exit(0)
	}
	os.Exit(runTests(m))
}

// runTests has keepers start by way of a script. With the race detector every process
// sleeps for a second before it ends unless its environment says otherwise, and a
// keeper's is empty.
func runTests(m *testing.M) int {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "acp-keeper")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	keeper := filepath.Join(dir, "keeper")
	script := "#!/bin/sh\n" + noSleep + " exec '" + self + "' \"$@\"\n"
	if err := os.WriteFile(keeper, []byte(script), 0o700); err != nil {
		panic(err)
	}
	os.Setenv(agentproc.KeeperEnv, keeper)
	os.Setenv("GORACE", strings.TrimPrefix(noSleep, "GORACE="))
	return m.Run()
}

const noSleep = "GORACE=atexit_sleep_ms=0"

// fake is an ACP agent that does what it is told: how it opens by flags in its
// environment, what it does in a turn by the lines of the task. It keeps sessions in
// its home, and what it received in its home's file received.
type fake struct {
	flags map[string]string
	home  string
	in    *bufio.Reader

	mu       sync.Mutex // of stdout and of what follows
	replies  map[string]chan map[string]any
	session  string
	model    string
	effort   string
	mode     string
	auth     bool
	prompts  int
	cancel   chan struct{}
	received *os.File
}

func newFake(flags string) *fake {
	f := &fake{flags: map[string]string{}, home: os.Getenv("HOME"), in: bufio.NewReaderSize(os.Stdin, 1<<16),
		replies: map[string]chan map[string]any{}, model: "small", effort: "low", mode: "ask"}
	for _, kv := range strings.Split(flags, ",") {
		name, value, _ := strings.Cut(kv, "=")
		f.flags[name] = value
	}
	f.received, _ = os.OpenFile(filepath.Join(f.home, "received"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return f
}

func (f *fake) has(flag string) bool { _, ok := f.flags[flag]; return ok }

func (f *fake) raw(line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	io.WriteString(os.Stdout, line)
}

func (f *fake) put(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	end := "\n"
	if f.has("crlf") {
		end = "\r\n"
	}
	if f.has("ansi") {
		f.raw("\x1b[?2004h" + string(b) + "\x1b[0m" + end)
		return
	}
	f.raw(string(b) + end)
}

type obj = map[string]any

func (f *fake) reply(id json.RawMessage, result any) {
	if f.has("stringids") {
		id = json.RawMessage(`"` + string(id) + `"`)
	}
	f.put(obj{"jsonrpc": "2.0", "id": id, "result": result})
	if f.has("twice") {
		f.put(obj{"jsonrpc": "2.0", "id": id, "result": result})
	}
}

func (f *fake) fail(id json.RawMessage, code int, text string, data any) {
	f.put(obj{"jsonrpc": "2.0", "id": id, "error": obj{"code": code, "message": text, "data": data}})
}

func (f *fake) update(u obj) {
	f.put(obj{"jsonrpc": "2.0", "method": "session/update", "params": obj{"sessionId": f.session, "update": u}})
}

func (f *fake) say(text string) {
	f.update(obj{"sessionUpdate": "agent_message_chunk", "content": obj{"type": "text", "text": text}})
}

// ask sends a request and waits for its answer.
func (f *fake) ask(id any, method string, params any) map[string]any {
	raw, _ := json.Marshal(id)
	ch := make(chan map[string]any, 2)
	f.mu.Lock()
	f.replies[string(raw)] = ch
	f.mu.Unlock()
	f.put(obj{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	return <-ch
}

func (f *fake) serve() {
	if f.has("silent") {
		fmt.Println("Welcome! Please choose a theme.")
		fmt.Fprintln(os.Stderr, "no terminal")
		select {}
	}
	for {
		line, err := f.in.ReadBytes('\n')
		if err != nil {
			if f.has("ignore-eof") {
				select {}
			}
			return
		}
		f.received.Write(line)
		var m struct {
			ID     json.RawMessage
			Method string
			Params json.RawMessage
			Result map[string]any
			Error  map[string]any
		}
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		switch {
		case m.Method == "session/prompt":
			go f.prompt(m.ID, m.Params)
		case m.Method == "session/cancel":
			f.mu.Lock()
			if f.cancel != nil {
				close(f.cancel)
				f.cancel = nil
			}
			f.mu.Unlock()
		case m.Method != "":
			f.request(m.ID, m.Method, m.Params)
		default:
			f.mu.Lock()
			ch := f.replies[string(m.ID)]
			f.mu.Unlock()
			if m.Result == nil {
				m.Result = obj{"error": m.Error}
			}
			if ch != nil {
				ch <- m.Result
			}
		}
	}
}

func (f *fake) config() []any {
	option := func(id, category, current string, values ...string) obj {
		var list []any
		for _, v := range values {
			list = append(list, obj{"value": v, "name": strings.ToUpper(v)})
		}
		return obj{"id": id, "category": category, "type": "select", "currentValue": current, "options": list}
	}
	all := []any{option("m", "model", f.model, "small", "large"), option("mode", "mode", f.mode, "ask", "yolo")}
	if f.model == "large" {
		all = append(all, option("e", "thought_level", f.effort, "low", "high"))
	}
	return append(all, obj{"id": "x", "type": "dial", "currentValue": 7})
}

func (f *fake) opened(id string) obj {
	f.session = id
	if f.has("legacy") {
		return obj{"sessionId": id,
			"models": obj{"currentModelId": f.model, "availableModels": []any{obj{"modelId": "small", "name": "Small"}, obj{"modelId": "large", "name": "Large"}}},
			"modes":  obj{"currentModeId": f.mode, "availableModes": []any{obj{"id": "ask", "name": "Ask"}, obj{"id": "yolo", "name": "YOLO"}}}}
	}
	return obj{"sessionId": id, "configOptions": f.config()}
}

func (f *fake) file(id string) string { return filepath.Join(f.home, "session-"+id) }

func (f *fake) request(id json.RawMessage, method string, params json.RawMessage) {
	var p struct{ SessionID, ConfigID, Value, ModelID, ModeID, MethodID, Cwd string }
	json.Unmarshal(params, &p)
	needsAuth := f.has("auth") && f.flags["auth"] != "prompt" && !f.auth
	switch method {
	case "initialize":
		version := 1
		if f.has("v2") {
			version = 2
		}
		caps := obj{"close": obj{}, "fork": obj{}, "unheard": true}
		if f.has("resume") {
			caps["resume"] = obj{}
		}
		methods := []any{obj{"id": "browser", "name": "Browser", "type": "terminal"}, obj{"id": "key", "name": "Key", "_meta": obj{"api-key": obj{"provider": "x"}}}, obj{"id": "odd", "type": "telepathy"}}
		f.reply(id, obj{"protocolVersion": version, "agentCapabilities": obj{"loadSession": f.has("load"), "sessionCapabilities": caps},
			"agentInfo": obj{"name": "fake", "version": "1.2.3"}, "authMethods": methods})
	case "authenticate":
		f.auth = f.flags["auth"] != "never"
		f.reply(id, obj{})
	case "session/new", "session/load", "session/resume", "session/fork":
		if needsAuth {
			f.fail(id, -32000, "Authentication required", nil)
			return
		}
		f.open(id, method, p.SessionID)
	case "session/set_config_option":
		switch {
		case f.has("stubborn"):
		case p.ConfigID == "m":
			f.model = p.Value
		case p.ConfigID == "e":
			f.effort = p.Value
		case p.ConfigID == "mode":
			f.mode = p.Value
		}
		f.reply(id, obj{"configOptions": f.config()})
	case "session/set_model":
		f.model = p.ModelID
		f.reply(id, obj{})
	case "session/set_mode":
		f.mode = p.ModeID
		f.reply(id, obj{})
	case "session/close":
		f.reply(id, obj{})
	default:
		f.fail(id, -32601, "Method not found", nil)
	}
}

func (f *fake) open(id json.RawMessage, method, native string) {
	if method == "session/new" || method == "session/fork" {
		native = fmt.Sprintf("s%d", time.Now().UnixNano())
		if !f.has("forgetful") {
			os.WriteFile(f.file(native), []byte("0"), 0o600)
		}
		if f.has("early") { // an update for a session that nobody has heard of
			f.session = native
			f.update(obj{"sessionUpdate": "available_commands_update", "availableCommands": []any{}})
		}
		f.reply(id, f.opened(native))
		f.update(obj{"sessionUpdate": "available_commands_update", "availableCommands": []any{}})
		return
	}
	if method == "session/resume" && f.flags["resume"] == "lie" {
		f.fail(id, -32601, "Method not found", nil)
		return
	}
	turns, err := os.ReadFile(f.file(native))
	if err != nil && !f.has("amnesia") {
		switch f.flags["gone"] {
		case "-32603":
			f.fail(id, -32603, "Internal error: service failure", obj{"service": "session"})
		case "-32602":
			f.fail(id, -32602, "Invalid params", obj{"message": "unknown session id"})
		default:
			f.fail(id, -32002, "Resource not found", nil)
		}
		return
	}
	f.session = native
	if method == "session/load" {
		n, _ := strconv.Atoi(string(turns))
		if m, _ := strconv.Atoi(f.flags["history"]); m > 0 {
			n = m
		}
		for range n {
			f.update(obj{"sessionUpdate": "user_message_chunk", "content": obj{"type": "text", "text": "old question"}})
			f.say("old answer")
		}
	}
	o := f.opened(native)
	delete(o, "sessionId")
	f.reply(id, o)
}

func (f *fake) prompt(id json.RawMessage, params json.RawMessage) {
	var p struct{ Prompt []struct{ Text string } }
	json.Unmarshal(params, &p)
	text := p.Prompt[len(p.Prompt)-1].Text
	cancel := make(chan struct{})
	f.mu.Lock()
	f.prompts++
	f.cancel = cancel
	f.mu.Unlock()
	if f.flags["auth"] == "prompt" && !f.auth {
		f.fail(id, -32000, "Authentication required", nil)
		return
	}
	if f.has("slash") { // as real agents do: what begins with a slash is a command
		if t := strings.TrimSpace(text); strings.HasPrefix(t, "/") {
			f.say("COMMAND " + t)
			f.reply(id, obj{"stopReason": "end_turn"})
			return
		}
	}
	if turns, err := os.ReadFile(f.file(f.session)); err == nil {
		n, _ := strconv.Atoi(string(turns))
		os.WriteFile(f.file(f.session), []byte(strconv.Itoa(n+1)), 0o600)
	}
	result := obj{"stopReason": "end_turn"}
	var after []func()
	for _, line := range strings.Split(text, "\n") {
		verb, arg, _ := strings.Cut(strings.TrimLeft(line, "\u200b "), " ")
		switch verb {
		case "say":
			f.say(arg)
		case "think":
			f.update(obj{"sessionUpdate": "agent_thought_chunk", "content": obj{"type": "text", "text": arg}})
		case "echo":
			f.say(fmt.Sprintf("%q", text))
		case "blocks":
			f.say(fmt.Sprint(len(p.Prompt)))
		case "chunks":
			var n, size int
			fmt.Sscan(arg, &n, &size)
			piece := strings.Repeat("x", size)
			for i := range n {
				f.say(strconv.Itoa(i) + ":" + piece + ";")
			}
		case "flood": // bytes of text, as fast as the pipe takes them
			n, _ := strconv.Atoi(arg)
			w := bufio.NewWriterSize(os.Stdout, 1<<20)
			line := `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"` + f.session + `","update":{"sessionUpdate":"agent_message_chunk","messageId":"flood","content":{"type":"text","text":"` + strings.Repeat("y", 65536) + `"}}}}` + "\n"
			for ; n > 0; n -= 65536 {
				w.WriteString(line)
			}
			w.Flush()
		case "big": // one text in one line
			n, _ := strconv.Atoi(arg)
			w := bufio.NewWriterSize(os.Stdout, 1<<16)
			w.WriteString(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"` + f.session + `","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"`)
			for n > 0 {
				k := min(n, 1<<14)
				w.WriteString(strings.Repeat("z", k))
				n -= k
			}
			w.WriteString(`"}}}}` + "\n")
			w.Flush()
		case "slowly": // one byte at a time
			b, _ := json.Marshal(obj{"jsonrpc": "2.0", "method": "session/update", "params": obj{"sessionId": f.session, "update": obj{"sessionUpdate": "agent_message_chunk", "content": obj{"type": "text", "text": arg}}}})
			for _, c := range append(b, '\n') {
				os.Stdout.Write([]byte{c})
			}
		case "update":
			var u obj
			if err := json.Unmarshal([]byte(arg), &u); err != nil {
				panic(err)
			}
			f.update(u)
		case "raw":
			f.raw(arg + "\n")
		case "tail": // without a newline
			f.raw(arg)
		case "stderr":
			fmt.Fprintln(os.Stderr, arg)
		case "config":
			f.say(f.model + " " + f.effort + " " + f.mode)
		case "env":
			var names []string
			for _, kv := range os.Environ() {
				name, _, _ := strings.Cut(kv, "=")
				names = append(names, name)
			}
			sort.Strings(names)
			f.say(strings.Join(names, " ") + " HOME=" + os.Getenv("HOME"))
		case "write":
			f.say(fmt.Sprintf("%s: %v;", arg, os.WriteFile(arg, []byte("written"), 0o600) == nil))
		case "wait":
			for {
				if _, err := os.Stat(arg); err == nil {
					break
				}
				time.Sleep(2 * time.Millisecond)
			}
		case "hang":
			<-cancel
		case "permit": // permit ID KIND…
			f.permit(arg)
		case "both":
			var wg sync.WaitGroup
			wg.Go(func() { f.permit("one allow_once reject_once") })
			wg.Go(func() { f.permit("two allow_once reject_once") })
			wg.Wait()
		case "request":
			f.say(fmt.Sprint(f.ask("odd-1", arg, obj{"sessionId": f.session})["error"]))
		case "deaf": // neither reads nor ends
			os.Stdin.Close()
			select {}
		case "stubborn": // says something, and does not care about cancel
			f.say(arg)
			<-cancel
			select {}
		case "grandchild":
			cmd := exec.Command("/bin/sleep", "1000")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := cmd.Start(); err != nil {
				panic(err)
			}
			f.say(strconv.Itoa(cmd.Process.Pid))
		case "exit":
			n, _ := strconv.Atoi(arg)
			os.Exit(n)
		case "kill":
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "late": // late MS TEXT, after the end
			ms, t, _ := strings.Cut(arg, " ")
			d, _ := strconv.Atoi(ms)
			after = append(after, func() { time.Sleep(time.Duration(d) * time.Millisecond); f.say(t) })
		case "lateask":
			after = append(after, func() { f.permit("late allow_once reject_once") })
		case "stop":
			result["stopReason"] = arg
		case "usage":
			result["usage"] = json.RawMessage(arg)
		case "error":
			code, t, _ := strings.Cut(arg, " ")
			n, _ := strconv.Atoi(code)
			f.fail(id, n, t, nil)
			return
		case "mem":
			f.say(runtime.Version())
		}
		select {
		case <-cancel:
			switch f.flags["cancel"] {
			case "error":
				f.fail(id, -32603, "Request was aborted.", nil)
				return
			case "end":
			default:
				result["stopReason"] = "cancelled"
			}
			f.reply(id, result)
			return
		default:
		}
	}
	f.mu.Lock()
	f.cancel = nil
	f.mu.Unlock()
	f.reply(id, result)
	for _, do := range after {
		do()
	}
}

func (f *fake) permit(arg string) {
	words := strings.Fields(arg)
	var options []any
	for i, kind := range words[1:] {
		options = append(options, obj{"optionId": fmt.Sprintf("o%d-%s", i, kind), "kind": kind, "name": "do not go by the name"})
	}
	answer := f.ask("p-"+words[0], "session/request_permission", obj{"sessionId": f.session,
		"toolCall": obj{"toolCallId": words[0], "title": "run " + words[0], "kind": "execute", "status": "pending", "rawInput": obj{"command": "ls"}}, "options": options})
	outcome, _ := answer["outcome"].(map[string]any)
	f.say(fmt.Sprintf("[%s %v %v]", words[0], outcome["outcome"], outcome["optionId"]))
}
