package fakeagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// work is one message, or signal, being dealt with.
type work struct {
	ctx     context.Context // ends when a prompt is cancelled
	cancel  context.CancelFunc
	id      json.RawMessage
	name    string
	msg     message
	session string
	text    string // of a prompt
	n       int    // how often its rule fitted
	i       int    // of a repeat
}

// do does steps in order. A cancelled prompt does no further steps, which is no error.
func (f *fake) do(w *work, steps []Step) error {
	for _, s := range steps {
		if w.ctx.Err() != nil {
			return nil
		}
		if err := f.step(w, s); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) step(w *work, s Step) error {
	switch {
	case s.Write != nil:
		return f.write([]byte(f.expand(w, *s.Write, false)))
	case s.Trickle != nil:
		return f.trickle(w, *s.Trickle)
	case s.Fill != nil:
		return f.fill(w, *s.Fill)
	case s.Stderr != nil:
		_, err := io.WriteString(os.Stderr, f.expand(w, *s.Stderr, false))
		return err
	case s.Update != nil:
		return f.update(w, json.RawMessage(f.expand(w, string(s.Update), true)))
	case s.Text != nil:
		return f.update(w, chunk("agent_message_chunk", f.expand(w, *s.Text, false)))
	case s.Result != nil:
		return f.answer(w, "result", s.Result)
	case s.Error != nil:
		return f.answer(w, "error", s.Error)
	case s.Request != nil:
		return f.request(w, *s.Request)
	case s.Default:
		return f.byDefault(w)
	case s.If != nil:
		yes, err := f.test(w, *s.If)
		if err != nil {
			return err
		}
		if yes {
			return f.do(w, s.Then)
		}
		return f.do(w, s.Else)
	case s.Go != nil:
		f.works.Add(1)
		go func() {
			defer f.works.Done()
			if err := f.do(w, s.Go); err != nil {
				f.fail(err)
			}
		}()
		return nil
	case s.Repeat != nil:
		for i := range s.Repeat.Times {
			each := *w
			each.i = i
			if err := f.do(&each, s.Repeat.Do); err != nil {
				return err
			}
		}
		return nil
	}
	return f.processStep(w, s)
}

// processStep does what concerns the process rather than the protocol.
func (f *fake) processStep(w *work, s Step) error {
	switch {
	case s.Read != 0:
		return f.read(s.Read)
	case s.Close != "":
		return f.closeStream(s.Close)
	case s.Sleep != 0:
		sleep(w.ctx, s.Sleep)
	case s.Hang:
		hang()
	case s.Exit != nil:
		if err := f.flush(); err != nil {
			return err
		}
		os.Exit(*s.Exit)
	case s.Signal != "":
		return raise(s.Signal)
	case s.Child != nil:
		c := *s.Child
		c.Canary = f.expand(w, c.Canary, false)
		if err := c.start(); err != nil {
			return err
		}
		return f.journal.add(Record{Event: "child", Name: c.How})
	}
	return nil
}

func sleep(ctx context.Context, d Duration) {
	t := time.NewTimer(time.Duration(d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (f *fake) trickle(w *work, t Trickle) error {
	for piece := range slices.Chunk([]byte(f.expand(w, t.Text, false)), max(t.Size, 1)) {
		if err := f.write(piece); err != nil {
			return err
		}
		sleep(w.ctx, t.Every)
	}
	return nil
}

func (f *fake) fill(w *work, t Fill) error {
	write := f.write
	if t.Stderr {
		write = func(b []byte) error { _, err := os.Stderr.Write(b); return err }
	}
	if err := write([]byte(f.expand(w, t.Before, false))); err != nil {
		return err
	}
	block := bytes.Repeat([]byte("x"), 64<<10)
	for left := t.Bytes; left > 0; left -= int64(len(block)) {
		if err := write(block[:min(left, int64(len(block)))]); err != nil {
			return err
		}
	}
	return write([]byte(f.expand(w, t.After, false)))
}

// read takes bytes off stdin: before serve has begun, not one more than asked for.
func (f *fake) read(n int) error {
	in := io.Reader(os.Stdin)
	if f.in != nil {
		in = f.in
	}
	if n < 0 {
		n = 1 << 62
	}
	if _, err := io.CopyN(io.Discard, in, int64(n)); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading stdin: %w", err)
	}
	return nil
}

func (f *fake) closeStream(name string) error {
	switch name {
	case "stdin":
		f.closed = true
		return closeFD(os.Stdin, 0)
	case "stdout":
		if err := f.flush(); err != nil {
			return err
		}
		return closeFD(os.Stdout, 1)
	case "stderr":
		return closeFD(os.Stderr, 2)
	}
	return fmt.Errorf("close: %q is none of stdin, stdout, stderr", name)
}

// update sends a session/update.
func (f *fake) update(w *work, u any) error {
	return f.send(map[string]any{"jsonrpc": "2.0", "method": "session/update", "params": map[string]any{
		"sessionId": f.sessionOf(w), "update": u,
	}})
}

// answer answers the message, as often as it is told to.
func (f *fake) answer(w *work, key string, value json.RawMessage) error {
	if len(w.id) == 0 {
		return fmt.Errorf("%s for %q: there is no request to answer", key, w.name)
	}
	f.answered(w)
	return f.send(map[string]any{"jsonrpc": "2.0", "id": w.id, key: json.RawMessage(f.expand(w, string(value), true))})
}

func (f *fake) request(w *work, r Request) error {
	ch := make(chan message, 1)
	f.mu.Lock()
	f.nextID++
	id := fmt.Sprintf("fake-%d", f.nextID)
	f.replies[id] = ch
	f.mu.Unlock()
	params := json.RawMessage("{}")
	if r.Params != nil {
		params = json.RawMessage(f.expand(w, string(r.Params), true))
	}
	if err := f.send(map[string]any{"jsonrpc": "2.0", "id": id, "method": r.Method, "params": params}); err != nil {
		return err
	}
	record := func(m message) error {
		raw := map[string]json.RawMessage{}
		if m.Result != nil {
			raw["result"] = m.Result
		}
		if m.Error != nil {
			raw["error"] = m.Error
		}
		b, err := json.Marshal(raw)
		if err != nil {
			return fmt.Errorf("writing the journal: %w", err)
		}
		return f.journal.add(Record{Event: "reply", Name: r.Method, Params: b})
	}
	if r.Forget {
		go func() { // ends with the reply, or with the process
			if err := record(<-ch); err != nil {
				f.fail(err)
			}
		}()
		return nil
	}
	select {
	case m := <-ch:
		return record(m)
	case <-w.ctx.Done():
		// The reply that a client owes after a cancel is still worth a record.
		go func() {
			if err := record(<-ch); err != nil {
				f.fail(err)
			}
		}()
		return nil
	}
}

// test reports whether all that an If names holds.
func (f *fake) test(w *work, t If) (bool, error) {
	if t.Env != "" {
		if _, ok := os.LookupEnv(t.Env); !ok {
			return false, nil
		}
	}
	if t.Arg != "" && !slices.Contains(os.Args, t.Arg) {
		return false, nil
	}
	if t.Exists != "" {
		if _, err := os.Stat(f.expand(w, t.Exists, false)); err != nil {
			return false, nil
		}
	}
	if t.Reply != "" {
		f.mu.Lock()
		last := f.last
		f.mu.Unlock()
		if !strings.Contains(last, t.Reply) {
			return false, nil
		}
	}
	if t.Claim != "" {
		c, err := os.OpenFile(f.expand(w, t.Claim, false), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, os.ErrExist) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("claim: %w", err)
		}
		return true, c.Close()
	}
	return true, nil
}

var variable = regexp.MustCompile(`\$\{(json:)?([a-z]+)(?::([A-Za-z0-9_]+))?\}`)

// expand fills in variables. Inside of JSON strings their values are escaped.
func (f *fake) expand(w *work, text string, inJSON bool) string {
	return variable.ReplaceAllStringFunc(text, func(ref string) string {
		m := variable.FindStringSubmatch(ref)
		value := ""
		switch m[2] {
		case "id":
			value = string(w.id)
		case "session":
			value = f.sessionOf(w)
		case "text":
			value = w.text
		case "n":
			value = strconv.Itoa(w.n)
		case "i":
			value = strconv.Itoa(w.i)
		case "pid":
			value = strconv.Itoa(os.Getpid())
		case "env":
			value = os.Getenv(m[3])
		default:
			return ref // not ours
		}
		if m[1] == "" && !inJSON {
			return value
		}
		quoted := string(mustJSON(value))
		if m[1] != "" && !inJSON {
			return quoted
		}
		return quoted[1 : len(quoted)-1]
	})
}
