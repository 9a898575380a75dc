package fakeagent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"
)

// Arg is the first argument of a program that shall be a fake agent.
const Arg = "run-fakeagent"

// badScript is the exit code for a script that cannot be followed; the reason is
// on stderr. It is one that no test would ask for.
const badScript = 97

const (
	dialectACP    = "acp"
	dialectStream = "stream"
)

// Main makes this process a fake agent when its first argument is Arg, and never
// returns then. Otherwise it does nothing.
func Main() {
	if len(os.Args) > 1 && os.Args[1] == Arg {
		os.Exit(Run(os.Args[1:]))
	}
}

// Run is a fake agent on this process's own stdin, stdout and stderr, and returns its
// exit code. args are the script's file and what else the agent was given; a leading
// Arg is passed over.
func Run(args []string) int {
	if len(args) > 0 && args[0] == Arg {
		args = args[1:]
	}
	err := errors.New("usage: fakeagent SCRIPT [ARGUMENT…]")
	switch {
	case len(args) == 2 && args[0] == childArg:
		err = runChild(args[1])
	case len(args) > 0:
		err = run(args[0])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "fakeagent: %v\n", err)
		return badScript
	}
	return 0
}

// fake is a running script.
type fake struct {
	script  Script
	journal *journal
	acp     *acp
	in      *bufio.Reader // nil until start is done
	closed  bool          // stdin, by a step; only the reader and inline steps look at it

	omu sync.Mutex // guards out
	out []byte     // held back, see Script.Buffer

	mu      sync.Mutex // guards what follows
	fits    []int      // by rule: how often it fitted
	open    map[*work]bool
	nextID  int
	replies map[string]chan message
	last    string // reply

	works sync.WaitGroup
}

// message is what is looked at of a line.
type message struct {
	ID     json.RawMessage
	Method string
	Type   string
	Params json.RawMessage
	Result json.RawMessage
	Error  json.RawMessage
}

func run(path string) error {
	s, err := load(path)
	if err != nil {
		return err
	}
	j, err := openJournal(s.Journal)
	if err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		cwd = "gone: " + err.Error() // a case to be tested, not an end
	}
	if err := j.add(Record{Event: "start", Argv: os.Args, Env: os.Environ(), Cwd: cwd}); err != nil {
		return err
	}
	f := &fake{
		script: s, journal: j, fits: make([]int, len(s.On)), open: make(map[*work]bool),
		replies: make(map[string]chan message),
	}
	f.acp = newACP(f)
	f.watchSignals()
	if err := f.do(&work{ctx: context.Background()}, s.Start); err != nil {
		return err
	}
	return f.serve()
}

// fail ends the process because of the script.
func (f *fake) fail(err error) {
	fmt.Fprintf(os.Stderr, "fakeagent: %v\n", err)
	os.Exit(badScript)
}

// watchSignals takes the signals that have rules; all others do what they do.
func (f *fake) watchSignals() {
	var want []os.Signal
	for _, s := range stoppers {
		if slices.ContainsFunc(f.script.On, func(r Rule) bool { return r.On == signalName(s) }) {
			want = append(want, s)
		}
	}
	if len(want) == 0 {
		return
	}
	ch := make(chan os.Signal, 16)
	signal.Notify(ch, want...)
	go func() { // ends with the process
		for s := range ch {
			name := signalName(s)
			if err := f.journal.add(Record{Event: "signal", Name: name}); err != nil {
				f.fail(err)
			}
			w := &work{ctx: context.Background(), name: name}
			if rule := f.match(w, ""); rule != nil {
				if err := f.do(w, rule.Do); err != nil {
					f.fail(err)
				}
			}
		}
	}()
}

// serve reads until the end of stdin.
func (f *fake) serve() error {
	f.in = bufio.NewReader(os.Stdin)
	for !f.closed {
		line, err := f.in.ReadString('\n')
		if text := strings.TrimRight(line, "\r\n"); text != "" {
			if terr := f.take(text); terr != nil {
				return terr
			}
		}
		if err != nil && !f.closed {
			if !errors.Is(err, io.EOF) {
				return fmt.Errorf("reading stdin: %w", err)
			}
			return f.eof()
		}
	}
	hang()
	return nil
}

func (f *fake) eof() error {
	if err := f.journal.add(Record{Event: "eof"}); err != nil {
		return err
	}
	w := &work{ctx: context.Background(), name: "eof"}
	if rule := f.match(w, ""); rule != nil {
		return f.do(w, rule.Do)
	}
	if f.script.Dialect == dialectStream {
		f.works.Wait() // what was asked is still done
	}
	return f.flush()
}

// take handles one line.
func (f *fake) take(line string) error {
	var m message
	object := strings.HasPrefix(strings.TrimSpace(line), "{") && json.Unmarshal([]byte(line), &m) == nil
	if object && m.Method == "" && f.reply(m, line) {
		return nil
	}
	w := &work{id: m.ID, name: m.Method, msg: m}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	r := Record{Event: "in", Line: line}
	switch {
	case !object:
		w.name, r.Event = "line", "line"
	case w.name == "":
		w.name = m.Type
	}
	r.Name = w.name
	if err := f.journal.add(r); err != nil {
		return err
	}
	if f.script.Dialect == dialectACP {
		if err := f.acp.note(w); err != nil {
			return err
		}
	}
	rule := f.match(w, line)
	work := func() error {
		if rule == nil {
			return f.byDefault(w)
		}
		return f.do(w, rule.Do)
	}
	inline := rule != nil && rule.Inline || rule == nil && w.name != "session/prompt"
	if inline {
		if err := work(); err != nil || w.name != "session/prompt" {
			return err
		}
	}
	f.works.Add(1)
	go func() {
		defer f.works.Done()
		var err error
		if !inline {
			err = work()
		}
		if err == nil {
			err = f.acp.afterwards(w)
		}
		if err != nil {
			f.fail(err)
		}
	}()
	return nil
}

func (f *fake) byDefault(w *work) error {
	if f.script.Dialect == dialectStream {
		return nil
	}
	return f.acp.handle(w)
}

// match finds the rule for a message and counts all that fit.
func (f *fake) match(w *work, line string) *Rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found *Rule
	for i := range f.script.On {
		r := &f.script.On[i]
		message := line != ""
		if r.On != w.name && (r.On != "*" || !message) || !strings.Contains(line, r.Contains) {
			continue
		}
		f.fits[i]++
		if found == nil && (r.Nth == 0 || r.Nth == f.fits[i]) {
			found = r
			w.n = f.fits[i]
		}
	}
	return found
}

// reply takes the reply to a request of ours, and reports whether it is one.
func (f *fake) reply(m message, line string) bool {
	id := string(bytes.Trim(m.ID, `"`))
	f.mu.Lock()
	ch := f.replies[id]
	delete(f.replies, id)
	if ch != nil {
		f.last = line
	}
	f.mu.Unlock()
	if ch != nil {
		ch <- m
	}
	return ch != nil
}

// write writes to stdout, or holds the bytes back.
func (f *fake) write(b []byte) error {
	f.omu.Lock()
	defer f.omu.Unlock()
	if f.script.Buffer > 0 {
		f.out = append(f.out, b...)
		if len(f.out) < f.script.Buffer {
			return nil
		}
		b, f.out = f.out, nil
	}
	if _, err := os.Stdout.Write(b); err != nil {
		return fmt.Errorf("writing stdout: %w", err)
	}
	return nil
}

// flush writes what was held back.
func (f *fake) flush() error {
	f.omu.Lock()
	defer f.omu.Unlock()
	if _, err := os.Stdout.Write(f.out); err != nil {
		return fmt.Errorf("writing stdout: %w", err)
	}
	f.out = nil
	return nil
}

// send writes one JSON value as a line.
func (f *fake) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding a message: %w", err)
	}
	return f.write(append(b, '\n'))
}

// hang does nothing until the process is killed. (An empty select would be taken
// for a deadlock.)
func hang() {
	for {
		time.Sleep(time.Hour)
	}
}
