package demo

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// question asks like a permission request does, but does nothing with the answer.
func (t *turn) question(text string) (out string, err error) {
	c := t.begin("other", text, "pending", nil)
	defer func() { c.end(out, err) }()
	kind, err := c.ask("Yes", "No")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("asked %q: %s", text, kind), nil
}

func (t *turn) sleep(d time.Duration) (out string, err error) {
	c := t.begin("other", "Sleep "+d.String(), "in_progress", nil)
	defer func() { c.end(out, err) }()
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-t.ctx.Done():
			return "", t.ctx.Err()
		case <-end.C:
			return "slept " + d.String(), nil
		case <-tick.C:
			t.think(fmt.Sprintf("%d s\n", n))
		}
	}
}

func showEnv(name string) string {
	if v, ok := os.LookupEnv(name); ok {
		return fmt.Sprintf("%s=%s", name, v)
	}
	return name + " is not set"
}

func (t *turn) history() (string, error) {
	before := t.settings.Turns[:t.number-1]
	var b strings.Builder
	fmt.Fprintf(&b, "%d turns before this one\n", len(before))
	for i, r := range before {
		fmt.Fprintf(&b, "%d. %s\n", i+1, firstWords(r.Task, 80))
	}
	return b.String(), nil
}

func (t *turn) servers() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%d MCP servers offered\n", len(t.mcp))
	for _, s := range t.mcp {
		fmt.Fprintf(&b, "- %s: %s\n", s.Name, strings.Join(append([]string{s.Command}, s.Args...), " "))
	}
	return b.String(), nil
}

// spam sends n pieces of text, without encoding each. They are numbered where there
// is room, so that a lost one can be seen.
func (t *turn) spam(n, size int) (string, error) {
	head, end, err := t.frameAround()
	if err != nil {
		return "", err
	}
	t.keep(fmt.Sprintf("[%d pieces of %d bytes]\n", n, size))
	frame := bytes.Join([][]byte{head, bytes.Repeat([]byte("x"), size), end}, nil)
	for i := range n {
		if err := t.ctx.Err(); err != nil {
			return "", err
		}
		if size >= 16 {
			copy(frame[len(head):], fmt.Sprintf("%010d ", i+1))
		}
		if err := t.agent.conn.write(frame, i == n-1); err != nil {
			return "", err
		}
	}
	return "", nil
}

// big sends one piece of that many MiB, which is a single frame.
func (t *turn) big(mib int) (string, error) {
	head, end, err := t.frameAround()
	if err != nil {
		return "", err
	}
	t.keep(fmt.Sprintf("[one piece of %d MiB]\n", mib))
	frame := make([]byte, 0, len(head)+mib<<20+len(end))
	frame = append(frame, head...)
	block := bytes.Repeat([]byte("x"), 1<<20)
	for range mib {
		frame = append(frame, block...)
	}
	return "", t.agent.conn.write(append(frame, end...), true)
}

// forkChild leaves a child behind that no process group and no parent leads to:
// what a supervisor has to find all the same.
func (t *turn) forkChild(file string) (out string, err error) {
	path := t.path(file)
	c := t.begin("execute", "Leave a child appending to "+file, "pending", locations(path))
	defer func() { c.end(out, err) }()
	if err := c.permit(); err != nil {
		return "", err
	}
	if err := detach(t.ctx, path); err != nil {
		return "", err
	}
	return "a detached child appends to " + file + " every 100 ms", nil
}

// crash ends the process with code and says nothing more, not even for this turn.
func (t *turn) crash(code int) (string, error) {
	t.agent.conn.silence()
	select {
	case t.agent.crashed <- code:
	default: // another turn crashes already
	}
	<-t.ctx.Done()
	return "", t.ctx.Err()
}

// kill is what SIGKILL from outside would be.
func (t *turn) kill() (string, error) {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		return "", fmt.Errorf("killing itself: %w", err)
	}
	<-t.ctx.Done() // the signal is on its way
	return "", t.ctx.Err()
}
