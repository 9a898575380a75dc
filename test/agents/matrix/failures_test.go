//go:build linux

package matrix

import (
	"slices"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/test/agents"
)

// failures are what a provider answers when it does not answer.
func failures() []behaviour {
	return []behaviour{
		{name: "unknown model", about: "is model_unavailable", run: unknownModel},
		{name: "401", about: "is auth_required; with the key the session goes on", run: unauthorized},
		{name: "429", about: "is rate_limited", run: func(c *cell) { fails(c, "[[status 429]]", "rate_limited") }},
		{name: "quota", about: "is quota_exhausted", run: func(c *cell) { fails(c, "[[quota]]", "quota_exhausted") }},
		{name: "500", about: "is agent_failed", run: func(c *cell) { fails(c, "[[status 500]]", "agent_failed") }},
		{name: "dropped stream", about: "is no answer cut short: a failure, or asked again by the agent", run: dropped},
	}
}

func unknownModel(c *cell) {
	o := c.run("readonly", "[[say x]]", "--model", c.p.missing)
	if o.kind() != "model_unavailable" || o.exit != 2 {
		c.errorf("%v", o)
	}
}

func unauthorized(c *cell) {
	c.u.s.SetKey("another key")
	o := c.run("readonly", "[[say x]]")
	c.u.s.SetKey("")
	if o.kind() != "auth_required" || o.exit != 69 {
		c.errorf("%v", o)
	}
	if o.Session == "" {
		return
	}
	c.usable(o.Session)
	if last := c.last(); last.Auth == "" {
		c.errorf("%s was not sent", agents.Key)
	}
}

// fails has the provider fail, for as long as the agent tries.
func fails(c *cell, marker, kind string) {
	if c.endless(marker) {
		return
	}
	o := c.run("readonly", marker)
	if o.Status != "failed" || o.kind() != kind || o.exit == 0 || o.Error.Next == "" && kind != "agent_failed" {
		c.errorf("wants %s: %v", kind, o)
	}
	c.recovers(o, marker)
}

// recovers gives a session that failed its next task. Some agents hand the task that
// was not answered to the model once more, before the new one; it then fails as before.
func (c *cell) recovers(failed outcome, marker string) {
	before := len(c.turns())
	o := c.submit(failed.Session, "[[say still here]]")
	turns := c.turns()[before:]
	switch {
	case len(turns) == 0:
		c.errorf("the session does not ask the model again: %v", o)
	case strings.Contains(turns[0].Task, marker) && strings.Contains(turns[0].Task, "still here"):
		if o.kind() != failed.kind() || o.Turn == failed.Turn {
			c.errorf("asked for both tasks, wants the failure once more: %v", o)
		}
	case o.exit != 0 || o.Text != "still here":
		c.errorf("the session is not usable afterwards: %v", o)
	}
}

// endless is for agents that try again for minutes and say nothing: the caller's own
// patience ends first, the turn is told as running, and can be stopped.
func (c *cell) endless(marker string) bool {
	if !slices.Contains(c.p.repeats, c.name) {
		return false
	}
	o := c.run("readonly", marker, "--timeout", patience.String())
	if o.Status != "running" || o.exit != 3 {
		c.errorf("the agent tries again for minutes: %v", o)
	}
	stopped := c.start("", "stop", "--json", o.Session).finish()
	if stopped.exit != 0 || stopped.Receipt == nil || stopped.Receipt.Survived != 0 {
		c.errorf("stop: %v, receipt %+v", stopped, stopped.Receipt)
	}
	if o := c.finished(); o.Status != "cancelled" {
		c.errorf("stopped: %v", o)
	}
	c.usable(o.Session)
	c.unsupported("it tries again by itself for more than a minute and says nothing meanwhile; --timeout returns with status running (exit 3), and stop ends the turn")
	return true
}

// patience is how long a caller waits for an agent that tries again for minutes.
const patience = 15 * time.Second

func dropped(c *cell) {
	if c.endless("[[say half]][[drop]]") {
		return
	}
	o := c.run("readonly", "[[say half]][[drop]]")
	switch {
	case o.Status == "failed" && o.exit != 0:
	case o.Status == "completed" && len(c.turns()) > 1: // the agent asked again
	default:
		c.errorf("%v; the model was asked %d times", o, len(c.turns()))
	}
	c.recovers(o, "[[drop]]")
}
