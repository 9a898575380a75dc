//go:build linux

package matrix

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/test/modelserver"
)

// cell is one behaviour of one agent, being tried.
type cell struct {
	t    *testing.T
	ctx  context.Context // ends with the cell's time
	name string          // of the behaviour
	p    product
	lane *lane
	u    *user
	work string // where the agent works
	out  string // a folder beside it
	from int    // how many requests the model had before

	verdict Verdict
	reason  string
	version string
	faults  []string
}

// lane is what the cells of one agent share: they run one after the other.
type lane struct {
	u     *user
	cells int
	first *outcome // of the run that the first cells look at
	asked []modelserver.Request
	seen  string // the version of the agent, once it was seen
}

func (c *cell) errorf(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// fatalf ends the cell. It is called on the cell's own goroutine alone.
func (c *cell) fatalf(format string, args ...any) {
	c.errorf(format, args...)
	runtime.Goexit()
}

// refused reports whether the agent cannot do what the cell asks for, and asserts
// that the outcome says so in the way that the product's entry states.
func (c *cell) refused(o outcome) bool {
	r, ok := c.p.refuses[c.name]
	if !ok {
		return false
	}
	if o.kind() != string(r.kind) || o.Error.Next == "" {
		c.errorf("wants the error %s with a next step: %v", r.kind, o)
	}
	c.unsupported("%s; the answer is %s", r.why, r.kind)
	return true
}

// unsupported says that the agent cannot; what is answered was asserted.
func (c *cell) unsupported(format string, args ...any) {
	c.verdict, c.reason = Unsupported, fmt.Sprintf(format, args...)
}

// folders gives the cell folders of its own, below the user's.
func (c *cell) folders() error {
	c.lane.cells++
	base := filepath.Join(c.u.dir, fmt.Sprint("c", c.lane.cells))
	c.work, c.out = filepath.Join(base, "work"), filepath.Join(base, "out")
	for _, dir := range []string{c.work, c.out} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	c.from = len(c.u.s.Requests())
	return nil
}

// alone gives the cell a user of its own, for what would disturb the others.
func (c *cell) alone() {
	c.u = newUser(c.t, c.p)
	if err := c.folders(); err != nil {
		c.fatalf("%v", err)
	}
}

// turns are the model calls of users' conversations that this cell caused.
func (c *cell) turns() (all []modelserver.Request) {
	for _, r := range c.u.s.Requests()[c.from:] {
		if r.IsTurn() {
			all = append(all, r)
		}
	}
	return all
}

// last is the newest of them.
func (c *cell) last() modelserver.Request {
	all := c.turns()
	if len(all) == 0 {
		c.fatalf("the model was not asked")
	}
	return all[len(all)-1]
}

// outcome is the part of --json that the cells look at.
type outcome struct {
	Session, Turn, Status, Text, Permission, Hold string

	AgentVersion string `json:"agent_version"`
	StopReason   string `json:"stop_reason"`
	Model        struct{ Requested, Observed string }
	Usage        *struct {
		Input, Output int
		CacheRead     int `json:"cache_read"`
		Source        string
	}
	Denied   int
	Warnings []string
	Error    *struct{ Kind, Detail, Next string }
	Receipt  *struct {
		Proven   bool
		Ended    int `json:"ended_count"`
		Survived int `json:"survived_count"`
	}

	exit   int
	stderr string
}

func (o outcome) kind() string {
	if o.Error == nil {
		return ""
	}
	return o.Error.Kind
}

func (o outcome) String() string {
	s := fmt.Sprintf("exit %d, status %q, stop reason %q, text %q", o.exit, o.Status, o.StopReason, cut(o.Text, 300))
	if o.Permission != "" {
		s += fmt.Sprintf(", permission %s held by %q, %d denied", o.Permission, o.Hold, o.Denied)
	}
	if o.Error != nil {
		s += fmt.Sprintf(", error %s: %s (next: %s)", o.Error.Kind, cut(o.Error.Detail, 600), o.Error.Next)
	}
	if len(o.Warnings) > 0 {
		s += fmt.Sprintf(", warnings %q", o.Warnings)
	}
	return s
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

// run is the program at work.
type run struct {
	*exec.Cmd
	c        *cell
	out, err bytes.Buffer
}

// command makes a command of the program that is not started.
func (c *cell) command(stdin string, args ...string) *run {
	r := &run{Cmd: exec.CommandContext(c.ctx, binary, args...), c: c}
	r.Env, r.Dir, r.Stdout, r.Stderr = c.u.env, c.work, &r.out, &r.err
	r.Stdin = strings.NewReader(stdin)
	r.WaitDelay = 5 * time.Second
	return r
}

func (c *cell) start(stdin string, args ...string) *run {
	r := c.command(stdin, args...)
	if err := r.Start(); err != nil {
		c.fatalf("start subspan: %v", err)
	}
	return r
}

// finish waits for the command and reads what it printed.
func (r *run) finish() outcome {
	err := r.Wait()
	if r.c.ctx.Err() != nil {
		r.c.fatalf("%q had not ended when the cell's time was over: %s", r.Args[1:], r.err.String())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.c.fatalf("%q: %v", r.Args[1:], err)
	}
	o := outcome{exit: r.ProcessState.ExitCode(), stderr: r.err.String()}
	if r.out.Len() > 0 {
		if err := json.Unmarshal(r.out.Bytes(), &o); err != nil {
			r.c.fatalf("%q prints no JSON: %v\n%s\n%s", r.Args[1:], err, r.out.String(), r.err.String())
		}
	}
	if o.AgentVersion != "" {
		r.c.version = o.AgentVersion
	}
	return o
}

// begin starts a session with a task, which goes through stdin.
func (c *cell) begin(permission, task string, flags ...string) *run {
	args := append([]string{"run", "--agent", c.p.name, "--role", "free", "--permission", permission, "--json"}, flags...)
	return c.start(task, append(args, "-")...)
}

// run starts a session and waits for the answer.
func (c *cell) run(permission, task string, flags ...string) outcome {
	return c.begin(permission, task, flags...).finish()
}

// answered is run for a task that has to come back with an answer.
func (c *cell) answered(permission, task, want string) outcome {
	o := c.run(permission, task)
	if o.exit != 0 || o.Status != "completed" || o.Text != want {
		c.fatalf("wants the answer %q: %v", cut(want, 100), o)
	}
	return o
}

// submit gives a session its next task and waits for the answer.
func (c *cell) submit(session, task string) outcome {
	return c.start(task, "submit", "--json", session, "-").finish()
}

// usable fails unless a session answers its next task, and that alone.
func (c *cell) usable(session string) {
	before := len(c.turns())
	o := c.submit(session, "[[say still here]]")
	if o.exit != 0 || o.Text != "still here" || o.Session != session {
		c.errorf("the session is not usable afterwards: %v", o)
	}
	for _, r := range c.turns()[before:] {
		if !strings.Contains(r.Task, "still here") {
			c.errorf("an old task was asked again: %q", r.Task)
		}
	}
}

// poll waits until ready says so.
func (c *cell) poll(what string, ready func() bool) {
	for !ready() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-c.ctx.Done():
			c.fatalf("%s: the cell's time is over; the model was asked %s", what, c.story())
		}
	}
}

// until waits until a request of this cell to the model is as wanted.
func (c *cell) until(what string, want func(modelserver.Request) bool) {
	c.poll(what, func() bool {
		for _, r := range c.turns() {
			if want(r) {
				return true
			}
		}
		return false
	})
}

func hanging(r modelserver.Request) bool { return r.State == modelserver.Hanging }

// kill ends processes that there must be.
func (c *cell) kill(what string, pids []int) {
	if len(pids) == 0 {
		c.fatalf("there is no %s to kill among %v", what, c.u.processes())
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			c.errorf("kill the %s: %v", what, err)
		}
	}
}

// session is the id of the only session that works in the cell's folder.
func (c *cell) session() string {
	r := c.start("", "ls", "--json")
	if err := r.Wait(); err != nil {
		c.fatalf("ls: %v\n%s", err, r.err.String())
	}
	var all []struct{ Session, Cwd string }
	if err := json.Unmarshal(r.out.Bytes(), &all); err != nil {
		c.fatalf("ls: %v in %s", err, r.out.String())
	}
	for _, s := range all {
		if s.Cwd == c.work {
			return s.Session
		}
	}
	c.fatalf("no session works in %s: %s", c.work, r.out.String())
	return ""
}

// has reports whether a file is there.
func has(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// nothing fails when there is anything in the cell's folders but what was given.
func (c *cell) nothing(given ...string) {
	for _, dir := range []string{c.work, c.out} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			c.errorf("%v", err)
		}
		for _, e := range entries {
			if name := filepath.Join(filepath.Base(dir), e.Name()); !strings.Contains(strings.Join(given, " "), name) {
				c.errorf("%s was written", name)
			}
		}
	}
}

// write puts a file into a folder of the cell.
func (c *cell) write(path, content string) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		c.fatalf("%v", err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		c.fatalf("%v", err)
	}
}

// story is what the model saw of the cell, for messages.
func (c *cell) story() string {
	var b strings.Builder
	for _, r := range c.turns() {
		fmt.Fprintf(&b, "%q → %s (%s, results %q); ", cut(r.Task, 200), r.Reply, r.State, cut(strings.Join(r.Results, " | "), 400))
	}
	return b.String()
}
