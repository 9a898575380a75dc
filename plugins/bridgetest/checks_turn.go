package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
)

// The secret is in the caller's environment and not among what the agent may have.
const (
	secretName  = "SUBSPAN_CHECK_SECRET"
	secretValue = "canary-6d1f0b"
)

// cancelLimit is how long a turn may take to end after it was asked to.
const cancelLimit = 2 * time.Second

func turnChecks() []check {
	return []check{
		{name: "answer", run: checkAnswer,
			fix: "Submit emits the agent's text as events of kind text and returns one Result with status completed, after the last event"},
		{name: "two-turns", run: checkTwoTurns,
			fix: "a session takes one turn after another; positions go on from turn to turn"},
		{name: "many-events", run: checkMany,
			fix: "hand every event over in the agent's order, and wait when Emit blocks instead of dropping"},
		{name: "large-text", run: checkLarge,
			fix: "read lines of any length from the agent, and cut text into events of at most 256 KiB, on character borders"},
		{name: "ask", run: checkAsk,
			fix: "a permission request of the agent goes to Turn.Ask and the answer back to the agent; Deny is an answer too and does not end the turn"},
		{name: "cancel", run: checkCancel,
			fix: "when Turn.Cancelled is closed, ask the agent to stop, wait a grace below 2 s, and return a Result with status cancelled"},
		{name: "replay", run: checkReplay,
			fix: "Submit with Resume never runs the task again: emit the recorded events after Resume.After and return the turn's Result"},
		{name: "agent-death", run: checkCrash,
			fix: "an agent that dies in a turn is an error or a failed Result, never completed; the next turn or Reconnect says what became of the session"},
		{name: "no-environment-leak", run: checkLeak,
			fix: "give the agent Agent.Env and of Settings.Env only the names in Agent.PassEnv, and nothing of your own process's environment"},
	}
}

func checkAnswer(ctx context.Context, e *env) error {
	task, err := e.task("say", "text", "marzipan-42")
	if err != nil {
		return err
	}
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	t := s.newTurn()
	if _, err := s.complete(ctx, t, task); err != nil {
		return err
	}
	if !strings.Contains(t.text(), "marzipan-42") {
		return fmt.Errorf("the answer %.100q lacks what the agent was to say", t.text())
	}
	return nil
}

func checkTwoTurns(ctx context.Context, e *env) error {
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	var last bridges.Position
	for _, text := range []string{"first-7", "second-8"} {
		task, err := e.task("say", "text", text)
		if err != nil {
			return err
		}
		t := s.newTurn()
		t.lastPos = last
		if _, err := s.complete(ctx, t, task); err != nil {
			return err
		}
		if !strings.Contains(t.text(), text) || text == "second-8" && strings.Contains(t.text(), "first-7") {
			return fmt.Errorf("the answer to %q is %.100q", task, t.text())
		}
		last = t.lastPos
	}
	return nil
}

func checkMany(ctx context.Context, e *env) error  { return spam(ctx, e, 3000, 64) }
func checkLarge(ctx context.Context, e *env) error { return spam(ctx, e, 3, 200<<10) }

func spam(ctx context.Context, e *env, count, size int) error {
	task, err := e.task("spam", "count", strconv.Itoa(count), "bytes", strconv.Itoa(size))
	if err != nil {
		return err
	}
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	t := s.newTurn()
	if _, err := s.complete(ctx, t, task); err != nil {
		return err
	}
	if got := len(t.text()); got < count*size {
		return fmt.Errorf("%d of %d bytes of text arrived, in %d events", got, count*size, t.count())
	}
	return nil
}

func checkAsk(ctx context.Context, e *env) error {
	task, err := e.task("ask", "text", "may I look at this?")
	if err != nil {
		return err
	}
	b, err := e.bridge(ctx)
	if err != nil {
		return err
	}
	d, err := b.Describe(ctx)
	if err != nil {
		return err
	}
	if !d.Has(bridges.CanAsk) {
		return skip("the bridge does not have the capability %s", bridges.CanAsk)
	}
	for _, answer := range []bridges.Decision{bridges.Allow, bridges.Deny} {
		s, err := e.create(ctx)
		if err != nil {
			return err
		}
		t := s.newTurn()
		t.answer = answer
		res, err := s.submit(ctx, t, task, nil)
		if err != nil {
			return fmt.Errorf("with %s: %w", answer, err)
		}
		if t.asked != 1 {
			return fmt.Errorf("with %s: %d questions arrived, want 1", answer, t.asked)
		}
		if denied := answer == bridges.Deny; denied != (res.Denied == 1) {
			return fmt.Errorf("with %s: Result.Denied is %d", answer, res.Denied)
		}
	}
	return nil
}

func checkCancel(ctx context.Context, e *env) error {
	task, err := e.task("sleep", "seconds", "40")
	if err != nil {
		return err
	}
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	t := s.newTurn()
	var asked time.Time
	go func() {
		select {
		case <-t.first:
		case <-ctx.Done():
		}
		asked = time.Now()
		close(t.cancelled)
	}()
	res, err := s.submit(ctx, t, task, nil)
	if err != nil {
		return err
	}
	select {
	case <-t.cancelled:
	default:
		return fmt.Errorf("a turn that was to take 40 s ended by itself, with %s", res.Status)
	}
	if took := time.Since(asked); took > cancelLimit {
		return fmt.Errorf("the turn ended %s after it was asked to, more than %s", took.Round(time.Millisecond), cancelLimit)
	}
	if res.Status != bridges.StatusCancelled {
		return fmt.Errorf("the cancelled turn ended with status %s", res.Status)
	}
	return nil
}

func checkReplay(ctx context.Context, e *env) error {
	task, err := e.task("say", "text", "once-only-9")
	if err != nil {
		return err
	}
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	t := s.newTurn()
	if _, err := s.complete(ctx, t, task); err != nil {
		return err
	}
	if t.lastPos.IsZero() {
		return errors.New("no event of the turn has a position, so no host can continue it")
	}
	again := s.newTurn()
	again.id = t.id
	res, err := s.submit(ctx, again, task, &bridges.Resume{After: t.lastPos})
	if err != nil {
		return fmt.Errorf("resume after the last event: %w", err)
	}
	if res.Status != bridges.StatusCompleted {
		return fmt.Errorf("resume after the last event ended with %s", res.Status)
	}
	if text := again.text(); text != "" {
		return fmt.Errorf("resume after the last event emitted text again: %.100q", text)
	}
	return nil
}

func checkCrash(ctx context.Context, e *env) error {
	task, err := e.task("crash")
	if err != nil {
		return err
	}
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	res, err := s.submit(ctx, s.newTurn(), task, nil)
	switch {
	case err == nil && (res.Status == bridges.StatusCompleted || res.Status == bridges.StatusCancelled):
		return fmt.Errorf("the turn in which the agent died ended with status %s", res.Status)
	case errors.Is(err, bridges.ErrPluginFailed):
		return fmt.Errorf("the death of the agent was the death of the bridge: %w", err)
	}
	return nil
}

func checkLeak(ctx context.Context, e *env) error {
	for _, name := range []string{secretName, hostSecretName} {
		task, err := e.task("env", "name", name)
		if err != nil {
			return err
		}
		s, err := e.create(ctx)
		if err != nil {
			return err
		}
		t := s.newTurn()
		if _, err := s.complete(ctx, t, task); err != nil {
			return err
		}
		if strings.Contains(t.text(), secretValue) {
			return fmt.Errorf("the agent has the variable %s, which it was not given", name)
		}
	}
	return nil
}
