package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core"
)

// outcome is what --json prints of a turn. Members are added, never changed.
type outcome struct {
	Session      string         `json:"session,omitempty"`
	Turn         string         `json:"turn,omitempty"`
	Status       string         `json:"status"`
	StopReason   string         `json:"stop_reason,omitempty"`
	Text         string         `json:"text"`
	Agent        string         `json:"agent,omitempty"`
	AgentVersion string         `json:"agent_version,omitempty"`
	Role         string         `json:"role,omitempty"`
	Model        core.Choice    `json:"model"`
	Permission   string         `json:"permission,omitempty"`
	Hold         string         `json:"hold,omitempty"`
	Usage        *bridges.Usage `json:"usage,omitempty"`
	Tools        map[string]int `json:"tools,omitempty"`
	Denied       int            `json:"denied,omitempty"`
	DurationMS   int64          `json:"duration_ms"`
	Warnings     []string       `json:"warnings"`
	Error        *bridges.Error `json:"error,omitempty"`
	ResultFile   string         `json:"result_file,omitempty"`
}

func newOutcome(s core.Session, t core.Turn) outcome {
	o := outcome{
		Session: s.ID, Turn: t.ID, Status: string(t.Status), Agent: s.Agent, AgentVersion: s.AgentVersion,
		Role: s.Role, Model: s.Model, Warnings: append([]string{}, s.Warnings...), ResultFile: t.ResultPath,
	}
	if s.ID != "" {
		o.Permission, o.Hold = s.Permission.String(), s.Hold.String()
	}
	if en := t.Ended; en != nil {
		o.StopReason, o.Usage, o.Tools, o.Denied, o.Error = en.StopReason, en.Usage, en.Tools, en.Denied, en.Error
		o.DurationMS = en.Duration.Milliseconds()
		o.Warnings = append(o.Warnings, en.Warnings...)
		if en.Model != "" {
			o.Model.Observed = en.Model
		}
		if en.Hold.Strength != "" {
			o.Hold = en.Hold.String()
		}
	}
	return o
}

// report prints how a turn came out and returns the exit code as an error.
func (a *app) report(flags turnFlags, s core.Session, t core.Turn, p *progress) error {
	// The session may have learnt what it is only in this turn.
	if now, _, err := a.core.Show(a.ctx, s.ID); err == nil {
		s = now
	}
	o := newOutcome(s, t)
	code := exitStatus(turnCode(t))
	if flags.json {
		text, err := os.ReadFile(t.ResultPath)
		if err != nil && t.Ended != nil && t.Ended.TextBytes > 0 {
			return fmt.Errorf("read the answer: %w", err)
		}
		o.Text = string(text)
		return a.printJSON(o, int(code))
	}
	if t.Ended != nil {
		if err := a.printAnswer(t); err != nil {
			return err
		}
	}
	if t.Ended != nil {
		for _, w := range t.Ended.Warnings { // the session's own were said at the start
			p.say("  ! %s", oneLine(w, 300))
		}
		p.say("%s in %s%s  %s", t.Status, t.Duration.Round(time.Millisecond), usageText(o.Usage), next(s, t))
	}
	if o.Error != nil {
		complain(a.stderr, o.Error)
	}
	if code == exitOK {
		return nil
	}
	return code
}

func next(s core.Session, t core.Turn) string {
	if t.Status == core.TurnCompleted {
		return "go on with: subspan submit " + s.ID + " TASK"
	}
	return "see: subspan show " + s.ID
}

func usageText(u *bridges.Usage) string {
	if u == nil || u.Input+u.Output == 0 {
		return ""
	}
	return fmt.Sprintf(", %d tokens in, %d out", u.Input, u.Output)
}

// printAnswer copies the final message to stdout. On a terminal, control
// characters from the agent are left out; a pipe gets the exact bytes.
func (a *app) printAnswer(t core.Turn) error {
	f, err := os.Open(t.ResultPath)
	if err != nil {
		if t.Ended.TextBytes == 0 {
			return nil
		}
		return fmt.Errorf("read the answer: %w", err)
	}
	defer f.Close()
	if !isTerminal(a.stdout) {
		if _, err := io.Copy(a.stdout, f); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
	} else {
		r := bufio.NewReader(f)
		for {
			line, err := r.ReadString('\n')
			fmt.Fprint(a.stdout, printable(line))
			if err != nil {
				break
			}
		}
	}
	if t.Ended.TextBytes > 0 {
		fmt.Fprintln(a.stdout)
	}
	return nil
}

// printable drops what could steer a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || !unicode.IsControl(r) {
			return r
		}
		return -1
	}, s)
}

// fail reports an error in the form the caller asked for.
func (a *app) fail(flags turnFlags, s core.Session, t core.Turn, err error) error {
	if !flags.json {
		return err
	}
	o := newOutcome(s, t)
	o.Status, o.Error = "failed", bridges.AsError(err)
	return a.printJSON(o, exitCode(err))
}

func (a *app) printJSON(v any, code int) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	if code == exitOK {
		return nil
	}
	return exitStatus(code)
}
