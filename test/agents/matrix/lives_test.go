//go:build linux

package matrix

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/test/modelserver"
)

// lives are the behaviours around the ends of turns, sessions and processes. That no
// process is left is asserted after every cell.
func lives() []behaviour {
	return []behaviour{
		{name: "cancel stream", about: "an interrupt ends the turn while the model writes; the session goes on", run: cancelStream},
		{name: "cancel tool", about: "the same while a command runs, which ends", run: cancelTool},
		{name: "stop hang", about: "subspan stop from beside ends a turn whose model is silent, with a receipt", run: stopHang},
		{name: "reconnect", about: "a new process goes on with the conversation and the permission", run: reconnect},
		{name: "agent killed in stream", about: "SIGKILL of the agent is told, nothing runs twice, the session goes on", run: agentKilledStream},
		{name: "agent killed in tool", about: "the same while a command runs, which ends", run: agentKilledTool},
		{name: "bridge killed", about: "SIGKILL of the bridge's process: the turn comes to its end, whole", run: bridgeKilled},
		{name: "caller killed", about: "SIGKILL of the caller: another one waits for the turn, whole", run: callerKilled},
		{name: "fork", about: "a new session has the history, the old one does not see it", run: fork},
		{name: "two sessions", about: "work in one folder at the same time", run: beside},
		{name: "unknown session", about: "is unknown_session, and nothing is asked", run: unknownSession},
		{name: "vanished session", about: "is session_gone, and nothing is asked", run: vanishedSession},
	}
}

// interrupted ends a run as a person does, and wants it cancelled.
func (c *cell) interrupted(r *run) outcome {
	if err := r.Process.Signal(os.Interrupt); err != nil {
		c.fatalf("interrupt: %v", err)
	}
	o := r.finish()
	if o.exit != 130 || o.Status != "cancelled" {
		c.errorf("interrupted: %v", o)
	}
	return o
}

func cancelStream(c *cell) {
	r := c.begin("default", "[[slow 100]][[delta 500 x 20]]")
	c.until("the model writes", func(r modelserver.Request) bool { return r.State == modelserver.Playing })
	c.usable(c.interrupted(r).Session)
}

// sleeper is a command that says that it has begun and then never ends.
const sleeper = "[[sh touch begun && exec tail -f /dev/null]][[say after]]"

func cancelTool(c *cell) {
	r := c.begin("default", sleeper)
	c.poll("the command begins", func() bool { return has(filepath.Join(c.work, "begun")) })
	o := c.interrupted(r)
	c.gone("tail -f /dev/null")
	c.usable(o.Session)
}

// gone fails when a command is still alive.
func (c *cell) gone(command string) {
	deadline := time.Now().Add(5 * time.Second)
	for {
		alive := ""
		for _, p := range c.u.processes() {
			if strings.Contains(p.String(), command) {
				alive = p.String()
			}
		}
		if alive == "" {
			return
		}
		if time.Now().After(deadline) {
			c.errorf("still alive: %s", alive)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func stopHang(c *cell) {
	r := c.begin("default", "[[say before]][[hang]]")
	c.until("the model is silent", hanging)
	s := c.session()
	stopped := c.start("", "stop", "--json", s).finish()
	if stopped.exit != 0 || stopped.Receipt == nil || stopped.Receipt.Survived != 0 || !stopped.Receipt.Proven {
		c.errorf("stop: %v, receipt %+v", stopped, stopped.Receipt)
	}
	if o := r.finish(); o.Status != "cancelled" {
		c.errorf("the turn that was stopped: %v", o)
	}
	c.usable(s)
}

func reconnect(c *cell) {
	first := c.answered("readonly", "[[say PERIWINKLE]]", "PERIWINKLE")
	if err := c.u.rest(c.ctx, 5*time.Second); err != nil {
		c.errorf("between the turns: %v", err)
	}
	second := c.submit(first.Session, c.p.sh("echo x > "+filepath.Join(c.work, "written"))+"[[say two]]")
	if second.Session != first.Session || second.Turn == first.Turn {
		c.errorf("another session or the same turn: %v", second)
	}
	if !strings.Contains(string(c.last().Body), "PERIWINKLE") {
		c.errorf("the model does not see the first turn")
	}
	c.held(second, "readonly")
	c.tried(second)
	c.nothing()
}

// died wants a turn to be told as one whose agent died.
func (c *cell) died(o outcome) {
	if o.Status != "failed" && o.Status != "lost" || o.kind() != "agent_failed" && o.kind() != "outcome_unknown" {
		c.errorf("the agent was killed: %v", o)
	}
}

func agentKilledStream(c *cell) {
	r := c.begin("default", "[[say before]][[hang]]")
	c.until("the model is silent", hanging)
	c.kill("agent", c.u.agent())
	o := r.finish()
	c.died(o)
	if n := len(c.turns()); n != 1 {
		c.errorf("the model was asked %d times", n)
	}
	c.usable(o.Session)
}

func agentKilledTool(c *cell) {
	r := c.begin("default", sleeper)
	c.poll("the command begins", func() bool { return has(filepath.Join(c.work, "begun")) })
	c.kill("agent", c.u.agent())
	o := r.finish()
	c.died(o)
	c.gone("tail -f /dev/null")
	c.usable(o.Session)
}

func bridgeKilled(c *cell) {
	r := c.begin("default", long)
	c.until("the model writes", func(r modelserver.Request) bool { return r.State == modelserver.Playing })
	c.kill("bridge", c.u.bridges())
	o := r.finish()
	if o.Status == "running" || o.exit != 0 { // the turn may be left to the next caller
		o = c.start("", "wait", "--json", o.Session).finish()
	}
	c.whole(o)
}

// whole wants the long answer, asked for once.
func (c *cell) whole(o outcome) {
	if o.exit != 0 || o.Status != "completed" || o.Text != longAnswer() {
		c.errorf("%v", o)
	}
	if n := len(c.turns()); n != 1 {
		c.errorf("the model was asked %d times", n)
	}
}

func callerKilled(c *cell) {
	r := c.begin("default", long)
	c.until("the model writes", func(r modelserver.Request) bool { return r.State == modelserver.Playing })
	if err := r.Process.Kill(); err != nil {
		c.fatalf("kill the caller: %v", err)
	}
	_ = r.Wait() // it was killed
	c.whole(c.finished())
}

func fork(c *cell) {
	first := c.answered("default", "[[say ALPHA]]", "ALPHA")
	o := c.start("[[say GAMMA]]", "fork", "--json", first.Session, "-").finish()
	if c.refused(o) {
		return
	}
	if o.exit != 0 || o.Text != "GAMMA" || o.Session == first.Session {
		c.fatalf("the fork: %v", o)
	}
	if !strings.Contains(string(c.last().Body), "ALPHA") {
		c.errorf("the fork has no history")
	}
	c.usable(first.Session)
	if strings.Contains(string(c.last().Body), "GAMMA") {
		c.errorf("the first session sees what the fork was asked")
	}
}

func unknownSession(c *cell) {
	o := c.submit("s_nosuchsession", "[[say x]]")
	if o.kind() != "unknown_session" || o.exit != 2 {
		c.errorf("%v", o)
	}
	if n := len(c.turns()); n != 0 {
		c.errorf("the model was asked %d times", n)
	}
}

func vanishedSession(c *cell) {
	c.alone()
	first := c.answered("default", "[[say one]]", "one")
	before := len(c.turns())
	c.p.forget(c)
	o := c.submit(first.Session, "[[say two]]")
	if o.kind() != "session_gone" || o.exit != 6 {
		c.errorf("%v", o)
	}
	if n := len(c.turns()) - before; n != 0 {
		c.errorf("the model was asked %d times", n)
	}
}
