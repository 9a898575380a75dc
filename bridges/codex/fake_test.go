package codex

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// The fake app-server: the test binary, with FAKE_CODEX in its environment. What it
// does in a turn is written into the task, as words in square brackets:
//
//	[say X]      a message, in two deltas
//	[tool X]     a command item with output X
//	[ask X]      ask for leave to run X; say the decision
//	[patch P]    ask for leave to edit P; say the decision
//	[elicit]     ask for leave to call an MCP tool; say the action
//	[choose]     ask the user to choose; say the answer
//	[odd]        send a request that nobody knows; say the error's code
//	[env]        say the environment
//	[echo]       say the task
//	[wait P]     go on when the file P exists
//	[hang]       nothing more, until interrupted
//	[deaf]       nothing more, not even when interrupted
//	[freeze]     stop reading
//	[die N]      end at once with code N, words on stderr
//	[fail J]     end the turn as failed with the error J
//	[retry J]    an error that will be retried
//	[flood N]    N deltas of 64 bytes
//	[reroute M]  answer with another model
//	[late]       more of the turn after its end
//	[sub X]      a message in a thread of a subagent
const fakeEnv = "FAKE_CODEX"

type fakeServer struct {
	home  string
	write sync.Mutex
	log   *os.File

	mu      sync.Mutex
	answers map[string]chan json.RawMessage
	asked   int
	turn    string // under way
	stop    chan struct{}
	threads map[string]bool // loaded here
	total   int
}

func fakeMain() {
	args := os.Args[1:]
	switch {
	case slices.Contains(args, "sandbox"):
		if os.Getenv("FAKE_SANDBOX") == "broken" {
			fmt.Fprintln(os.Stderr, "no user namespaces here")
			os.Exit(1)
		}
		cmd := exec.Command("/bin/sh", "-c", "echo ran; exit 1")
		cmd.Stdout = os.Stdout
		_ = cmd.Run()
		os.Exit(1)
	case slices.Contains(args, "delete"):
		paths, _ := filepath.Glob(filepath.Join(os.Getenv("CODEX_HOME"), "sessions", "*", "*", "*", "*"+args[len(args)-1]+".jsonl"))
		for _, p := range paths {
			os.Remove(p)
		}
		os.Exit(0)
	}
	f := &fakeServer{home: os.Getenv("CODEX_HOME"), answers: map[string]chan json.RawMessage{}, threads: map[string]bool{}}
	log, err := os.OpenFile(filepath.Join(f.home, "frames.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	f.log = log
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				os.Exit(0)
			}
			os.Exit(4)
		}
		f.log.Write(line)
		var m fakeFrame
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		if m.Method == "initialize" && os.Getenv("FAKE_START") == "dies" {
			fmt.Fprintln(os.Stderr, "bad configuration")
			os.Exit(1)
		}
		f.handle(m)
	}
}

type fakeFrame struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
	Params struct {
		ThreadID string `json:"threadId"`
		Cwd      string `json:"cwd"`
		Model    string `json:"model"`
		Client   string `json:"clientUserMessageId"`
		TurnID   string `json:"turnId"`
		Refresh  bool   `json:"refreshToken"`
		Input    []struct {
			Text string `json:"text"`
		} `json:"input"`
	} `json:"params"`
}

func (f *fakeServer) send(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	f.write.Lock()
	defer f.write.Unlock()
	os.Stdout.Write(append(b, '\n'))
}

type object = map[string]any

func (f *fakeServer) reply(id json.RawMessage, result any) {
	f.send(object{"id": id, "result": result})
}
func (f *fakeServer) fail(id json.RawMessage, text string) {
	f.send(object{"id": id, "error": object{"code": -32600, "message": text}})
}
func (f *fakeServer) notify(method string, params object) {
	f.send(object{"method": method, "params": params})
}

func (f *fakeServer) record(thread string) string {
	return filepath.Join(f.home, "sessions", "2026", "11", "30", "rollout-2026-11-30T00-00-00-"+thread+".jsonl")
}

func (f *fakeServer) thread(id json.RawMessage, thread, model string) {
	f.mu.Lock()
	f.threads[thread] = true
	f.mu.Unlock()
	if model == "" {
		model = "m-1"
	}
	provider := os.Getenv("FAKE_PROVIDER")
	if provider == "" {
		provider = "scripted"
	}
	f.reply(id, object{"thread": object{"id": thread}, "model": model, "modelProvider": provider, "reasoningEffort": nil})
	f.notify("thread/started", object{"thread": object{"id": thread}})
}

func newThread() string {
	return fmt.Sprintf("01a22e66-0000-7000-8000-%012x", time.Now().UnixNano()&0xffffffffffff)
}

func (f *fakeServer) handle(m fakeFrame) {
	p := m.Params
	switch m.Method {
	case "initialize":
		f.reply(m.ID, object{"userAgent": "subspan/0.171.0 (Test)"})
	case "model/list":
		f.reply(m.ID, object{"data": []object{
			{"model": "m-1", "defaultReasoningEffort": "medium", "supportedReasoningEfforts": []object{{"reasoningEffort": "low"}, {"reasoningEffort": "medium"}}},
			{"model": "m-2", "defaultReasoningEffort": "high", "supportedReasoningEfforts": []object{{"reasoningEffort": "high"}}},
			{"model": "m-hidden", "hidden": true},
		}})
	case "account/read":
		f.renew()
		f.reply(m.ID, object{"account": nil})
	case "thread/start":
		f.thread(m.ID, newThread(), p.Model)
	case "thread/resume":
		if _, err := os.Stat(f.record(p.ThreadID)); err != nil {
			f.fail(m.ID, "no rollout found for thread id "+p.ThreadID)
		} else if os.Getenv("FAKE_RESUME") == "busy" {
			f.fail(m.ID, "thread "+p.ThreadID+" already has an active writer")
		} else {
			f.thread(m.ID, p.ThreadID, p.Model)
		}
	case "thread/fork":
		b, err := os.ReadFile(f.record(p.ThreadID))
		if err != nil {
			f.fail(m.ID, "no rollout found for thread id "+p.ThreadID)
			return
		}
		thread := newThread()
		os.WriteFile(f.record(thread), b, 0o600)
		f.thread(m.ID, thread, p.Model)
	case "turn/start":
		f.mu.Lock()
		loaded, busy := f.threads[p.ThreadID], f.turn
		f.mu.Unlock()
		if !loaded {
			f.fail(m.ID, "thread not found: "+p.ThreadID)
			return
		}
		if busy != "" {
			f.reply(m.ID, object{"turn": object{"id": busy}}) // steered
			return
		}
		os.MkdirAll(filepath.Dir(f.record(p.ThreadID)), 0o700)
		rec, err := os.OpenFile(f.record(p.ThreadID), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			f.fail(m.ID, err.Error())
			return
		}
		json.NewEncoder(rec).Encode(object{"type": "UserMessage", "client_id": p.Client})
		rec.Close()
		turn := fmt.Sprintf("turn-%d", time.Now().UnixNano())
		f.mu.Lock()
		f.turn, f.stop = turn, make(chan struct{})
		f.mu.Unlock()
		f.reply(m.ID, object{"turn": object{"id": turn, "status": "inProgress"}})
		f.notify("turn/started", object{"threadId": p.ThreadID, "turn": object{"id": turn}})
		if strings.Contains(p.Input[0].Text, "[freeze]") {
			time.Sleep(time.Hour)
		}
		go f.play(p.ThreadID, turn, p.Input[0].Text)
	case "turn/interrupt":
		f.mu.Lock()
		if f.turn == p.TurnID && f.stop != nil {
			close(f.stop)
			f.stop = nil
		}
		f.mu.Unlock()
		f.reply(m.ID, object{})
	case "thread/backgroundTerminals/clean":
		f.reply(m.ID, object{})
	case "initialized":
	case "":
		f.mu.Lock()
		ch := f.answers[string(m.ID)]
		f.mu.Unlock()
		if ch != nil {
			if m.Error != nil {
				m.Result = m.Error
			}
			ch <- m.Result
		}
	default:
		f.fail(m.ID, "unknown variant `"+m.Method+"`")
	}
}

var words = regexp.MustCompile(`\[([a-z]+) ?([^\]]*)\]`)

func (f *fakeServer) play(thread, turn, task string) {
	f.mu.Lock()
	stop := f.stop
	f.mu.Unlock()
	base := func(more object) object {
		more["threadId"], more["turnId"] = thread, turn
		return more
	}
	n := 0
	say := func(text string) {
		n++
		id := fmt.Sprintf("msg_%s_%d", turn, n)
		half := len(text) / 2
		for half > 0 && !utf8.RuneStart(text[half]) {
			half--
		}
		for _, piece := range []string{text[:half], text[half:]} {
			f.notify("item/agentMessage/delta", base(object{"itemId": id, "delta": piece}))
		}
		f.notify("item/completed", base(object{"item": object{"type": "agentMessage", "id": id, "text": text}}))
	}
	ask := func(method string, params object) json.RawMessage {
		f.mu.Lock()
		id := fmt.Sprint(f.asked)
		f.asked++
		ch := make(chan json.RawMessage, 1)
		f.answers[id] = ch
		f.mu.Unlock()
		f.send(object{"id": json.RawMessage(id), "method": method, "params": base(params)})
		select {
		case r := <-ch:
			f.notify("serverRequest/resolved", object{"threadId": thread, "requestId": json.RawMessage(id)})
			return r
		case <-stop:
			f.notify("serverRequest/resolved", object{"threadId": thread, "requestId": json.RawMessage(id)})
			return nil
		}
	}
	end := func(status string, fault any) {
		f.mu.Lock()
		f.turn = ""
		f.total += 100
		total := f.total
		f.mu.Unlock()
		f.notify("thread/tokenUsage/updated", base(object{"tokenUsage": object{
			"total": object{"inputTokens": total, "outputTokens": total / 10, "totalTokens": total}, "last": object{"inputTokens": 100, "outputTokens": 10, "totalTokens": 100}}}))
		f.notify("turn/completed", object{"threadId": thread, "turn": object{"id": turn, "status": status, "error": fault}})
	}
	for _, w := range words.FindAllStringSubmatch(task, -1) {
		arg := w[2]
		switch w[1] {
		case "say":
			say(arg)
		case "echo":
			say(task)
		case "env":
			say(strings.Join(os.Environ(), "\n"))
		case "tool":
			item := object{"type": "commandExecution", "id": "call_" + turn, "command": "echo", "cwd": "/", "status": "inProgress"}
			f.notify("item/started", base(object{"item": item}))
			item["status"], item["aggregatedOutput"] = "completed", arg
			f.notify("item/completed", base(object{"item": item}))
		case "ask":
			r := ask("item/commandExecution/requestApproval", object{"itemId": "call_x", "command": arg, "cwd": "/", "reason": nil})
			say("decision " + string(r))
			if strings.Contains(string(r), `"cancel"`) {
				end("interrupted", nil)
				return
			}
		case "patch":
			f.notify("item/started", base(object{"item": object{"type": "fileChange", "id": "call_p", "status": "inProgress",
				"changes": []object{{"path": arg, "kind": object{"type": "add"}, "diff": "x"}}}}))
			r := ask("item/fileChange/requestApproval", object{"itemId": "call_p"})
			say("decision " + string(r))
		case "elicit":
			r := ask("mcpServer/elicitation/request", object{"serverName": "lab", "mode": "form", "message": "Allow lab?",
				"_meta": object{"codex_approval_kind": "mcp_tool_call", "tool_name": "echo", "tool_params": object{"a": 1}}, "requestedSchema": object{"type": "object", "properties": object{}}})
			say("action " + string(r))
		case "choose":
			r := ask("item/tool/requestUserInput", object{"itemId": "call_q", "isBlocking": true, "questions": []object{
				{"id": "q", "header": "H", "question": "Which?", "options": []object{{"label": "A", "description": "a"}, {"label": "B", "description": "b"}}}}})
			say("answers " + string(r))
		case "odd":
			say("odd " + string(ask("item/strange/request", object{})))
		case "sub":
			f.notify("item/completed", object{"threadId": "sub-1", "turnId": "sub-turn", "item": object{"type": "agentMessage", "id": "sub-msg", "text": arg}})
		case "wait":
			for {
				if _, err := os.Stat(arg); err == nil {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
		case "flood":
			var count int
			fmt.Sscan(arg, &count)
			for i := range count {
				f.notify("item/agentMessage/delta", base(object{"itemId": "flood", "delta": fmt.Sprintf("%063d ", i)}))
			}
		case "hang":
			<-stop
			end("interrupted", nil)
			return
		case "deaf":
			time.Sleep(time.Hour)
		case "die":
			fmt.Fprintln(os.Stderr, "thread 'main' panicked at the worst time")
			os.Exit(7)
		case "fail":
			end("failed", json.RawMessage(arg))
			return
		case "retry":
			f.notify("error", base(object{"error": json.RawMessage(arg), "willRetry": true}))
		case "reroute":
			f.notify("model/rerouted", base(object{"fromModel": "m-1", "toModel": arg, "reason": "overload"}))
		}
	}
	end("completed", nil)
	if strings.Contains(task, "[late]") {
		for range 2 {
			f.notify("item/agentMessage/delta", base(object{"itemId": "late", "delta": "late"}))
		}
		f.notify("turn/completed", object{"threadId": thread, "turn": object{"id": turn, "status": "completed"}})
	}
}

// renew writes a new login as codex does: through the link, by rename.
func (f *fakeServer) renew() {
	path, err := filepath.EvalSymlinks(filepath.Join(f.home, "auth.json"))
	if err != nil {
		return
	}
	var login map[string]any
	b, _ := os.ReadFile(path)
	if json.Unmarshal(b, &login) != nil {
		return
	}
	login["tokens"] = object{"access_token": fakeJWT(time.Now().Add(240 * time.Hour)), "refresh_token": "rotated"}
	login["last_refresh"] = time.Now().UTC()
	b, _ = json.Marshal(login)
	os.WriteFile(path+".new", b, 0o600)
	os.Rename(path+".new", path)
}
