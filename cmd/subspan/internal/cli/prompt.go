package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core"
)

// prompter asks the person at the terminal. It is the whole of this command's
// right to answer: without a terminal nobody is asked, and it is a no.
type prompter struct {
	e     *env
	mu    sync.Mutex // one question at a time
	once  sync.Once
	lines chan string
}

var _ core.Asker = (*prompter)(nil)

func (e *env) prompter(flags turnFlags) *prompter {
	if flags.json || flags.quiet || !isTerminal(e.stdin) || !isTerminal(e.stderr) {
		return nil
	}
	return &prompter{e: e, lines: make(chan string)}
}

// Ask implements core.Asker. Anything but a clear yes is a no.
func (p *prompter) Ask(ctx context.Context, session string, q bridges.Question) (bridges.Answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The reader lives as long as the process: a read of a terminal cannot be called off.
	p.once.Do(func() { go p.read() })
	fmt.Fprintf(p.e.stderr, "\r\x1b[K\n%s asks: %s\n", session, oneLine(q.Title, 200))
	for _, l := range q.Tool.Locations {
		fmt.Fprintf(p.e.stderr, "    %s\n", oneLine(l, 200))
	}
	if len(q.Tool.Input) > 0 {
		fmt.Fprintf(p.e.stderr, "    %s\n", oneLine(string(q.Tool.Input), 400))
	}
	if len(q.Choices) > 0 {
		return p.choose(ctx, q.Choices)
	}
	fmt.Fprint(p.e.stderr, "  allow this once? [y/N] ")
	select {
	case line := <-p.lines:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return bridges.Answer{Decision: bridges.Allow, By: "user", Reason: "allowed at the terminal"}, nil
		}
		return bridges.Answer{Decision: bridges.Deny, By: "user", Reason: "denied at the terminal"}, nil
	case <-ctx.Done():
		fmt.Fprintln(p.e.stderr)
		return bridges.Answer{}, context.Cause(ctx)
	}
}

func (p *prompter) choose(ctx context.Context, choices []string) (bridges.Answer, error) {
	for i, c := range choices {
		fmt.Fprintf(p.e.stderr, "  %d  %s\n", i+1, oneLine(c, 120))
	}
	fmt.Fprint(p.e.stderr, "  which one? [none] ")
	select {
	case line := <-p.lines:
		for i, c := range choices {
			if strings.TrimSpace(line) == fmt.Sprint(i+1) {
				return bridges.Answer{Decision: bridges.Allow, Choice: c, By: "user", Reason: "chosen at the terminal"}, nil
			}
		}
		return bridges.Answer{Decision: bridges.Deny, By: "user", Reason: "none chosen at the terminal"}, nil
	case <-ctx.Done():
		fmt.Fprintln(p.e.stderr)
		return bridges.Answer{}, context.Cause(ctx)
	}
}

func (p *prompter) read() {
	r := bufio.NewReader(p.e.stdin)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		p.lines <- line
	}
}
