package fakeagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Script is everything that a fake agent does. The zero Script is an agent that
// behaves.
type Script struct {
	// Dialect is "acp", which is also the default, or "stream".
	Dialect string `json:"dialect,omitempty"`
	// Journal is a file to which everything that happens is appended; see ReadJournal.
	Journal string `json:"journal,omitempty"`
	// Store is a folder that keeps ACP sessions. Without it they end with the process.
	Store string `json:"store,omitempty"`
	// KeepPrompted makes the store forget sessions that never ran a turn.
	KeepPrompted bool `json:"keep_prompted,omitempty"`
	// Buffer holds back output until this many bytes wait, or until a normal exit.
	Buffer int `json:"buffer,omitempty"`
	// Start is done before the first byte is read.
	Start []Step `json:"start,omitempty"`
	On    []Rule `json:"on,omitempty"`
}

// Rule says what to do about a message; see the package comment.
type Rule struct {
	On string `json:"on"`
	// Nth restricts the rule to the n-th message that it fits, from 1.
	Nth int `json:"nth,omitempty"`
	// Contains restricts the rule to messages whose line holds this text.
	Contains string `json:"contains,omitempty"`
	// Inline makes the agent read nothing until the steps are done.
	Inline bool   `json:"inline,omitempty"`
	Do     []Step `json:"do"`
}

// Step is one thing to do: exactly one of its fields is set (Then and Else belong to
// If). The functions named after them are shorter to write.
type Step struct {
	Write   *string  `json:"write,omitempty"`   // raw to stdout
	Trickle *Trickle `json:"trickle,omitempty"` // raw to stdout, in pieces
	Fill    *Fill    `json:"fill,omitempty"`    // very much of one byte
	Stderr  *string  `json:"stderr,omitempty"`  // raw to stderr

	Update  json.RawMessage `json:"update,omitempty"` // a session/update
	Text    *string         `json:"text,omitempty"`   // an agent_message_chunk
	Result  json.RawMessage `json:"result,omitempty"` // answers the message
	Error   json.RawMessage `json:"error,omitempty"`  // answers the message
	Request *Request        `json:"request,omitempty"`
	Default bool            `json:"default,omitempty"` // what would be done without the rule

	Read   int      `json:"read,omitempty"`   // bytes of stdin, exactly; -1: up to its end
	Close  string   `json:"close,omitempty"`  // stdin, stdout or stderr; stdin only from start or an inline rule
	Sleep  Duration `json:"sleep,omitempty"`  //
	Hang   bool     `json:"hang,omitempty"`   // for ever, whatever is cancelled
	Exit   *int     `json:"exit,omitempty"`   // the process, at once
	Signal string   `json:"signal,omitempty"` // to itself: KILL, STOP, TERM, …
	Child  *Child   `json:"child,omitempty"`

	If   *If    `json:"if,omitempty"`
	Then []Step `json:"then,omitempty"`
	Else []Step `json:"else,omitempty"`

	Go     []Step  `json:"go,omitempty"` // beside what follows
	Repeat *Repeat `json:"repeat,omitempty"`
}

// Trickle writes a text in pieces of Size bytes with pauses between them, wherever
// that cuts characters and frames.
type Trickle struct {
	Text  string   `json:"text"`
	Size  int      `json:"size"`
	Every Duration `json:"every,omitempty"`
}

// Fill writes Before, Bytes times "x", and After.
type Fill struct {
	Before string `json:"before,omitempty"`
	Bytes  int64  `json:"bytes"`
	After  string `json:"after,omitempty"`
	Stderr bool   `json:"stderr,omitempty"`
}

// Request asks the client and notes the reply in the journal.
type Request struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
	// Forget does not wait for the reply.
	Forget bool `json:"forget,omitempty"`
}

// Child starts a process that lives on.
type Child struct {
	// How it is related: "group" (a plain child), "setsid" (a child with a session of
	// its own) or "double" (its parent is gone, and it has a session of its own).
	How string `json:"how"`
	// Canary is a file that it appends to every 20 ms; see type Canary.
	Canary string `json:"canary,omitempty"`
	// Hold lists what it keeps open: stdout, stderr.
	Hold []string `json:"hold,omitempty"`
	// Stubborn makes it ignore SIGTERM, SIGINT and SIGHUP.
	Stubborn bool `json:"stubborn,omitempty"`
	// For is how long it lives at most; a minute unless given.
	For Duration `json:"for,omitempty"`
}

// If is true when all that is set holds.
type If struct {
	Env    string `json:"env,omitempty"`    // the variable is set
	Arg    string `json:"arg,omitempty"`    // it is one of the arguments
	Exists string `json:"exists,omitempty"` // the file is there
	Claim  string `json:"claim,omitempty"`  // the file was not there, and now is
	Reply  string `json:"reply,omitempty"`  // the last reply holds this text
}

// Repeat does steps a number of times.
type Repeat struct {
	Times int    `json:"times"`
	Do    []Step `json:"do"`
}

// Duration is a time.Duration that is a text in JSON.
type Duration time.Duration

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// MarshalText is the reverse.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// On makes a rule for every message of a method or type.
func On(name string, do ...Step) Rule { return Rule{On: name, Do: do} }

// OnNth makes a rule for the n-th message of a method or type, from 1.
func OnNth(n int, name string, do ...Step) Rule { return Rule{On: name, Nth: n, Do: do} }

// Ignore makes a rule that does nothing: about a message, or a signal.
func Ignore(name string) Rule { return Rule{On: name, Do: []Step{}} }

// Write writes raw bytes to stdout.
func Write(s string) Step { return Step{Write: &s} }

// WriteErr writes raw bytes to stderr.
func WriteErr(s string) Step { return Step{Stderr: &s} }

// Text sends a piece of the answer.
func Text(s string) Step { return Step{Text: &s} }

// Update sends a session/update of any shape, given as JSON.
func Update(raw string) Step { return Step{Update: json.RawMessage(raw)} }

// Result answers the message with a JSON value.
func Result(raw string) Step { return Step{Result: json.RawMessage(raw)} }

// EndTurn answers a prompt.
func EndTurn(reason string) Step {
	return Step{Result: mustJSON(map[string]string{"stopReason": reason})}
}

// Fail answers the message with an error.
func Fail(code int, text string) Step {
	return Step{Error: mustJSON(map[string]any{"code": code, "message": text})}
}

// Ask sends a request with params given as JSON and waits for its reply.
func Ask(method, params string) Step {
	return Step{Request: &Request{Method: method, Params: json.RawMessage(params)}}
}

// AskPermission asks with the options allow (allow_once) and reject (reject_once).
func AskPermission(kind, title string) Step {
	return Step{Request: &Request{Method: "session/request_permission", Params: mustJSON(map[string]any{
		"sessionId": "${session}",
		"toolCall":  map[string]string{"toolCallId": "call-${n}", "kind": kind, "title": title, "status": "pending"},
		"options": []map[string]string{
			{"optionId": "allow", "name": "Allow", "kind": "allow_once"},
			{"optionId": "reject", "name": "Reject", "kind": "reject_once"},
		},
	})}}
}

// Sleep waits; a cancelled prompt waits no longer.
func Sleep(d time.Duration) Step { return Step{Sleep: Duration(d)} }

// Exit ends the process.
func Exit(code int) Step { return Step{Exit: &code} }

func mustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only this package's own literals come here
	}
	return b
}

// Command writes the script into dir and returns the command line of this very
// program running it. The program's main has to call Main, or Run for a testscript
// command. Further arguments are for the agent to record.
func (s Script) Command(dir string, args ...string) ([]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	f, err := os.CreateTemp(dir, "fakeagent-*.json")
	if err != nil {
		return nil, fmt.Errorf("writing the script: %w", err)
	}
	err = json.NewEncoder(f).Encode(s)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("writing the script: %w", err)
	}
	return append([]string{exe, Arg, f.Name()}, args...), nil
}

// load reads a script file, which may hold several values.
func load(path string) (Script, error) {
	var all Script
	f, err := os.Open(path)
	if err != nil {
		return all, fmt.Errorf("reading the script: %w", err)
	}
	defer f.Close()
	dec := json.NewDecoder(f)
	dec.DisallowUnknownFields()
	for {
		part := all
		part.Start, part.On = nil, nil
		err := dec.Decode(&part)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return all, fmt.Errorf("script %s: %w", path, err)
		}
		part.Start, part.On = append(all.Start, part.Start...), append(all.On, part.On...)
		all = part
	}
	switch all.Dialect {
	case "", dialectACP:
		all.Dialect = dialectACP
	case dialectStream:
	default:
		return all, fmt.Errorf("script %s: dialect %q is neither acp nor stream", path, all.Dialect)
	}
	err = check(all.Start)
	for _, r := range all.On {
		if r.On == "" {
			err = errors.Join(err, errors.New(`a rule lacks "on"`))
		}
		err = errors.Join(err, check(r.Do))
	}
	if err != nil {
		return all, fmt.Errorf("script %s: %w", path, err)
	}
	return all, nil
}

// check finds steps that do nothing or two things.
func check(steps []Step) error {
	var errs []error
	for i, s := range steps {
		n := 0
		for _, set := range []bool{
			s.Write != nil, s.Trickle != nil, s.Fill != nil, s.Stderr != nil, s.Update != nil, s.Text != nil,
			s.Result != nil, s.Error != nil, s.Request != nil, s.Default, s.Read != 0, s.Close != "", s.Sleep != 0, s.Hang,
			s.Exit != nil, s.Signal != "", s.Child != nil, s.If != nil, s.Go != nil, s.Repeat != nil,
		} {
			if set {
				n++
			}
		}
		if n != 1 {
			errs = append(errs, fmt.Errorf("step %d says %d things to do instead of one", i+1, n))
		}
		errs = append(errs, check(s.Then), check(s.Else), check(s.Go))
		if s.Repeat != nil {
			errs = append(errs, check(s.Repeat.Do))
		}
	}
	return errors.Join(errs...)
}
