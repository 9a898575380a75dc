package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core"
)

// progress shows a turn on stderr: one line that is written over on a terminal,
// a line per step elsewhere. Quiet, it shows nothing.
type progress struct {
	w       io.Writer
	quiet   bool
	live    bool // a terminal
	started time.Time

	mu    sync.Mutex
	shown bool // the live line is on the screen
	last  string
	tools map[string]bridges.Tool
	plan  string
	stop  chan struct{}
	done  chan struct{}
}

func (a *app) progress(flags turnFlags) *progress {
	return &progress{
		w: a.stderr, quiet: flags.quiet, live: isTerminal(a.stderr), started: time.Now(),
		tools: map[string]bridges.Tool{}, stop: make(chan struct{}), done: make(chan struct{}),
	}
}

func (p *progress) start(s core.Session, turn string) {
	p.say("%s  %s %s  role %s  %s (%s)", s.ID, s.Agent, s.AgentVersion, s.Role, s.Permission, s.Hold)
	for _, w := range s.Warnings {
		p.say("note: %s", w)
	}
	if !p.live || p.quiet {
		close(p.done)
		return
	}
	go func() { // ends with finish, which waits for it
		defer close(p.done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-tick.C:
				p.mu.Lock()
				p.draw()
				p.mu.Unlock()
			}
		}
	}()
}

// finish takes the live line away.
func (p *progress) finish() {
	close(p.stop)
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

// say prints one line of its own.
func (p *progress) say(format string, args ...any) {
	if p.quiet {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line(fmt.Sprintf(format, args...))
}

func (p *progress) entry(e core.Entry) {
	if p.quiet || e.Event == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ev := e.Event
	switch ev.Kind {
	case bridges.KindTool:
		p.tool(ev.ID, *ev.Tool)
	case bridges.KindPlan:
		p.showPlan(ev.Plan)
	case bridges.KindNotice:
		p.line("  ! " + oneLine(ev.Text, 200))
	case bridges.KindAnswer:
		if ev.Answer.Decision == bridges.Deny {
			p.line(fmt.Sprintf("  ✗ refused: %s", ev.Answer.Reason))
		}
	case bridges.KindThought:
		p.last = "thinking"
	case bridges.KindText:
		p.last = "answering"
	}
}

func (p *progress) tool(id string, now bridges.Tool) {
	t := p.tools[id]
	known := t.Title != ""
	if now.Title != "" {
		t.Title = now.Title
	}
	if t.Title == "" {
		t.Title = now.Name
	}
	if now.Status != "" {
		t.Status = now.Status
	}
	p.tools[id] = t
	text := oneLine(t.Title, 100)
	p.last = text
	switch {
	case t.Status == bridges.ToolFailed:
		p.line("  ✗ " + text)
	case t.Status == bridges.ToolCancelled:
		p.line("  ✗ " + text + " (cancelled)")
	case !known && text != "" && !strings.HasSuffix(p.plan, text): // the plan may have said it
		p.line("  → " + text)
	}
}

func (p *progress) showPlan(plan []bridges.PlanEntry) {
	n := 0
	current := ""
	for _, entry := range plan {
		switch entry.Status {
		case "completed":
			n++
		case "in_progress":
			current = entry.Text
		}
	}
	text := fmt.Sprintf("  [%d/%d] %s", n, len(plan), oneLine(current, 100))
	if current != "" && text != p.plan {
		p.plan = text
		p.line(text)
	}
}

// line prints a line above the live one. The caller holds p.mu.
func (p *progress) line(s string) {
	p.erase()
	fmt.Fprintln(p.w, strings.TrimRight(s, " "))
	p.draw()
}

func (p *progress) draw() {
	if !p.live || p.last == "" {
		return
	}
	select {
	case <-p.stop:
		return
	default:
	}
	fmt.Fprintf(p.w, "\r\x1b[K  %s  %s", time.Since(p.started).Round(time.Second), oneLine(p.last, 60))
	p.shown = true
}

func (p *progress) erase() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// oneLine makes text from an agent fit for a terminal: one line, no control
// characters, at most n characters.
func oneLine(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	if r := []rune(s); len(r) > n {
		s = string(r[:n-1]) + "…"
	}
	return s
}
