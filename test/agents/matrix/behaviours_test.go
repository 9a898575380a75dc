//go:build linux

package matrix

import (
	"fmt"
	"strings"

	"github.com/subspan-dev/subspan/test/modelserver"
)

// behaviours are the rows of the table.
func behaviours() []behaviour {
	rows := []behaviour{
		{name: "answer", about: "the whole text comes back, once asked", run: answer},
		{name: "deltas", about: "the text comes in pieces while the model writes", run: deltas},
		{name: "instructions", about: "the role's text reaches the model", run: instructions},
		{name: "usage", about: "tokens are those that the model counted", run: usage},
		{name: "model", about: "--model is the one that is asked, and reported", run: model},
		{name: "effort", about: "--effort reaches the model", run: effort},
		{name: "big answer", about: "2 MB come back byte for byte", run: bigAnswer},
		{name: "unicode", about: "all of Unicode and control characters come back as they were", run: unicode},
		{name: "big task", about: "200 KB of task reach the model byte for byte", run: bigTask},
	}
	for _, text := range []struct{ name, task string }{
		{"text help", "--help"},
		{"text flag", "-m x"},
		{"text compact", "/compact"},
		{"text always-approve", "/always-approve"},
		{"text file", "@/FILE"},
		{"text newline", "\n/help me"},
	} {
		rows = append(rows, behaviour{
			name: text.name, about: fmt.Sprintf("%q is text, not a flag, command or file", text.task), run: func(c *cell) { inert(c, text.task) },
		})
	}
	rows = append(rows, permissions()...)
	rows = append(rows, lives()...)
	return append(rows, failures()...)
}

const (
	pieces = 10
	piece  = 40
)

// firstRun is one run that several cells look at, each at something else.
func firstRun(c *cell) (outcome, []modelserver.Request) {
	if c.lane.first == nil {
		c.lane.first = &outcome{} // a run that does not end is tried once
		o := c.run("default", fmt.Sprintf("[[slow 50]][[delta %d x %d]]", pieces, piece))
		c.lane.first, c.lane.asked = &o, c.turns()
	}
	return *c.lane.first, c.lane.asked
}

func answer(c *cell) {
	o, asked := firstRun(c)
	if o.exit != 0 || o.Status != "completed" || o.Text != modelserver.Filler(pieces*piece) {
		c.errorf("%v", o)
	}
	if len(asked) != 1 {
		c.errorf("the model was asked %d times", len(asked))
	}
	if o.AgentVersion == "" {
		c.errorf("the agent's version is not told")
	}
}

func deltas(c *cell) {
	o, _ := firstRun(c)
	r := c.start("", "read", o.Session, "--events")
	if err := r.Wait(); err != nil {
		c.fatalf("read: %v\n%s", err, r.err.String())
	}
	if n := strings.Count(r.out.String(), `"kind":"text"`); n < 3 {
		c.errorf("%d pieces of text, the model wrote %d", n, pieces)
	}
}

func instructions(c *cell) {
	o, asked := firstRun(c)
	if len(asked) == 0 || !strings.Contains(string(asked[0].Body), persona) {
		c.errorf("the instructions are not in what the model was asked: %v", o)
	}
}

func usage(c *cell) {
	o, asked := firstRun(c)
	want := modelserver.Cost(len(asked))
	if o.Usage == nil || o.Usage.Input != want.Input || o.Usage.Output != want.Output {
		c.errorf("usage %+v, the model counted %+v", o.Usage, want)
	}
}

func model(c *cell) {
	o := c.run("readonly", "[[say other]]", "--model", c.p.model)
	if c.refused(o) {
		return
	}
	if o.exit != 0 || o.Text != "other" || o.Model.Requested != c.p.model {
		c.fatalf("%v", o)
	}
	for _, r := range c.turns() {
		if r.Model != c.p.asked {
			c.errorf("asked the model %q, want %q", r.Model, c.p.asked)
		}
	}
}

func effort(c *cell) {
	o := c.run("readonly", "[[say little]]", "--effort", "low")
	if c.refused(o) {
		if n := len(c.turns()); n != 0 {
			c.errorf("the model was asked %d times nevertheless", n)
		}
		return
	}
	if o.exit != 0 || o.Text != "little" {
		c.fatalf("%v", o)
	}
	if last := c.last(); last.Effort != "low" {
		c.errorf("the model was asked for effort %q", last.Effort)
	}
}

func bigAnswer(c *cell) {
	const size = 2 << 20
	o := c.run("readonly", fmt.Sprintf("[[big %d]]", size))
	if o.exit != 0 || o.Text != modelserver.Filler(size) {
		c.errorf("%d bytes came back, want %d: %v", len(o.Text), size, o)
	}
}

func unicode(c *cell) {
	if o := c.run("readonly", "[[unicode]]"); o.exit != 0 || o.Text != modelserver.Unicode {
		c.errorf("want %q: %v", modelserver.Unicode, o)
	}
}

func bigTask(c *cell) {
	task := "begin " + modelserver.Filler(200<<10) + " end"
	o := c.run("readonly", task)
	if c.refused(o) {
		return
	}
	if o.exit != 0 || o.Text == "" {
		c.errorf("%v", o)
	}
	if last := c.last(); !strings.Contains(last.UserText, task) {
		c.errorf("%d bytes of the user reached the model, not the task of %d", len(last.UserText), len(task))
	}
}

// canary is in a file whose name is in a task.
const canary = "CONTENT-OF-THE-FILE"

// inert sends a task that a front end could take for something else. It must be in the
// model's request byte for byte, and answered as a text of that kind.
func inert(c *cell, task string) {
	file := c.out + "/canary"
	c.write(file, canary)
	task = strings.ReplaceAll(task, "/FILE", file)
	o := c.run("default", task)
	if o.exit != 0 || o.Status != "completed" || o.Text == "" {
		c.errorf("%v", o)
	}
	turns := c.turns()
	if len(turns) != 1 {
		c.fatalf("the model was asked %d times: %s", len(turns), c.story())
	}
	if !strings.Contains(turns[0].UserText, task) {
		c.errorf("%q arrived as %q", task, turns[0].UserText)
	}
	if body := string(turns[0].Body); strings.Contains(body, canary) {
		i := strings.Index(body, canary)
		c.errorf("the file that the task names went along: %s", body[max(0, i-400):i+len(canary)])
	}
	// What was a command in secret shows in what the session may do now.
	if strings.HasPrefix(task, "/") {
		c.tried(c.submit(o.Session, c.p.edit(c.out+"/escaped", "x")+"[[say tried]]"))
		if has(c.out + "/escaped") {
			c.errorf("the session may do more than before")
		}
	}
}

// beside runs two sessions in one folder at the same time.
func beside(c *cell) {
	const each = 20
	task := fmt.Sprintf("[[slow 100]][[delta %d x 50]]", each)
	one, two := c.begin("default", task), c.begin("default", "[[slow 100]][[delta 20 x 60]]")
	a, b := one.finish(), two.finish()
	if a.exit != 0 || a.Text != modelserver.Filler(each*50) {
		c.errorf("the first: %v", a)
	}
	if b.exit != 0 || b.Text != modelserver.Filler(each*60) {
		c.errorf("the second: %v", b)
	}
	if a.Session == b.Session {
		c.errorf("both are session %s", a.Session)
	}
	c.usable(a.Session)
	c.usable(b.Session)
}

// long is a turn that takes some seconds, and what it answers.
const long = "[[slow 50]][[delta 60 x 20]]"

func longAnswer() string { return modelserver.Filler(60 * 20) }
