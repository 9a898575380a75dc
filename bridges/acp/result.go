package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/acp/internal/fold"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// finish makes the result of a turn that the agent has ended.
func (l *link) finish(ctx context.Context, agent bridges.Agent) (bridges.Result, error) {
	s, r := l.s, l.run
	if s.profile.LateUpdates {
		l.settle(ctx)
	}
	s.mu.Lock()
	s.state.Turn.Tail = false
	t := *s.state.Turn
	s.mu.Unlock()
	l.close()
	r.asks.Wait()
	if err := r.out.Close(); err != nil {
		s.b.forget(s.id)
		return bridges.Result{}, bridges.Errorf(bridges.KindPluginFailed, "the host took no more events: %w", err)
	}
	return s.result(agent, t, r), nil
}

// settle waits for the tail of an answer that the agent sends after its end: until
// it is quiet for a moment, and not for long.
func (l *link) settle(ctx context.Context) {
	quiet := time.NewTicker(l.s.b.limits.quiet)
	defer quiet.Stop()
	limit := time.NewTimer(l.s.b.limits.settle)
	defer limit.Stop()
	for last := l.run.moved.Load(); ; {
		select {
		case <-quiet.C:
			now := l.run.moved.Load()
			if now == last {
				return
			}
			last = now
		case <-limit.C:
			return
		case <-l.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// result is the agent's own account of a turn, in our words.
func (s *session) result(agent bridges.Agent, t fold.Turn, r *run) bridges.Result {
	res := bridges.Result{
		StopReason: t.Stop,
		Usage:      s.usage(t),
		Model:      t.Model,
		Denied:     t.Denied + int(r.refused.Load()),
		Warnings:   r.warnings,
	}
	if res.Model == "" {
		res.Model = s.info().Model
	}
	warn := func(format string, args ...any) {
		res.Warnings = append(res.Warnings, fmt.Sprintf(format, args...))
	}
	fail := func(status bridges.Status, e *bridges.Error) {
		e.Message = s.hide(e.Message)
		res.Status, res.Error = status, e
	}
	switch {
	case t.Cancel:
		// Whatever an agent answers after it was asked to stop: it stopped.
		res.Status = bridges.StatusCancelled
		if t.Error != nil && t.Error.Code != codeCancelled {
			warn("the agent answered the stop with: %s", s.hide(t.Error.Error()))
		}
		if res.Denied > 0 && r.refused.Load() > 0 {
			warn("the turn was stopped because the agent offered no way to refuse what it asked for")
		}
	case r.fault != nil:
		fail(bridges.StatusFailed, bridges.AsError(agentError(r.fault)))
	case t.Error != nil:
		fail(bridges.StatusFailed, s.fault(agent, t.Error))
	case t.Stop == "refusal":
		fail(bridges.StatusRefused, bridges.Errorf(bridges.KindAgentFailed, "the model declined the task").
			WithNext("put the task differently, or give it to another model"))
	case t.Stop == "max_tokens" || t.Stop == "max_turn_requests":
		fail(bridges.StatusFailed, bridges.Errorf(bridges.KindAgentFailed, "the agent stopped before it was done: %s", t.Stop).
			WithNext("submit again and ask it to go on"))
	case t.Stop == "cancelled":
		res.Status = bridges.StatusCancelled
		warn("the agent ended the turn as cancelled, and nobody asked it to")
	case s.profile.errorText != nil && s.profile.errorText.MatchString(t.Head):
		fail(bridges.StatusFailed, textError(strings.TrimSpace(t.Head)))
	default:
		res.Status = bridges.StatusCompleted
		if t.Stop == "" {
			warn("the agent did not say why it ended the turn")
		}
		if t.Message == "" && t.Head == "" {
			warn("the turn ended without an answer")
		}
	}
	return res
}

// fault is the agent's error as one of ours, with what helps a person.
func (s *session) fault(agent bridges.Agent, fault *jsonrpc.Error) *bridges.Error {
	// What an agent is known to say of a session that it cannot load may mean
	// anything in the middle of a turn.
	if isGone(fault, &Profile{}) {
		return bridges.Errorf(bridges.KindSessionGone, "the agent does not have the session any more: %w", fault).
			WithNext("start a new session")
	}
	e := bridges.AsError(agentError(fault))
	if e.Kind == bridges.KindAuthRequired && agent.LoginHint != "" {
		e = e.WithNext("%s", agent.LoginHint)
	}
	return e
}

// usage names what the turn's numbers are for.
func (s *session) usage(t fold.Turn) *bridges.Usage {
	if t.Usage == nil {
		return nil
	}
	u := *t.Usage
	switch s.profile.Usage {
	case "session":
		u.Source = "session_diff"
	default:
		u.Source = s.profile.Usage
	}
	return &u
}

// died makes the result of a turn in which the agent ended.
func (l *link) died(ctx context.Context) (bridges.Result, error) {
	s, r := l.s, l.run
	if !errors.Is(l.result, io.EOF) {
		err := l.result
		l.detach(err)
		if ctx.Err() != nil {
			return bridges.Result{}, context.Cause(ctx)
		}
		return bridges.Result{}, bridges.Errorf(bridges.KindPluginFailed, "the agent's output could not be read on: %w", err)
	}
	l.close()
	r.asks.Wait()
	if err := r.out.Close(); err != nil {
		s.b.forget(s.id)
		return bridges.Result{}, bridges.Errorf(bridges.KindPluginFailed, "the host took no more events: %w", err)
	}
	s.mu.Lock()
	t := *s.state.Turn
	s.mu.Unlock()
	e := l.ended("the turn")
	e.Message = s.hide(e.Message)
	res := bridges.Result{Usage: s.usage(t), Model: s.info().Model, Denied: t.Denied + int(r.refused.Load()), Warnings: r.warnings}
	select {
	case <-r.stopping:
		res.Status = bridges.StatusCancelled
		res.Warnings = append(res.Warnings, e.Message)
	default:
		res.Status, res.Error = bridges.StatusFailed, e
	}
	return res, nil
}

// permission puts a question to the host and maps the answer to what is offered.
func (l *link) permission(ctx context.Context, q fold.Question) (any, error) {
	r := l.run
	l.s.mu.Lock()
	t := l.s.state.Turn
	// A question that an earlier turn left behind is not the new turn's to answer.
	due := r != nil && l.s.state.Running() && !t.Cancel && q.Asked.Pos.Offset >= t.From
	l.s.mu.Unlock()
	if !due {
		return outcome{Outcome: "cancelled"}.wrap(), nil
	}
	// What led to the question is shown before it.
	if r.out.Flush() != nil {
		return nil, jsonrpc.ErrLeaveOpen
	}
	asking, stop := context.WithCancel(ctx)
	type reply struct {
		answer bridges.Answer
		err    error
	}
	replies := make(chan reply, 1)
	r.asks.Go(func() {
		answer, err := r.turn.Ask(asking, l.s.hideQuestion(q.Asked))
		replies <- reply{answer, err}
	})
	defer stop()
	var answer bridges.Answer
	select {
	case got := <-replies:
		switch {
		case ctx.Err() != nil:
			return l.unasked()
		case got.err != nil:
			// A host always has an answer. One that has not is gone, and the next will
			// be asked.
			r.out.Abort(got.err)
			return nil, jsonrpc.ErrLeaveOpen
		}
		answer = got.answer
	case <-r.stopping:
		return outcome{Outcome: "cancelled"}.wrap(), nil
	case <-ctx.Done():
		return l.unasked()
	}
	switch answer.Decision {
	case bridges.Allow:
		if o, ok := q.Option("allow_once"); ok {
			return outcome{"selected", o.ID}.wrap(), nil
		}
		r.push(bridges.Event{Kind: bridges.KindNotice, Text: "allowed, but the agent offers no way to allow it once: denied",
			Notice: &bridges.Notice{Level: "warning", Code: "no_allow_once"}})
	case bridges.Cancel:
		return outcome{Outcome: "cancelled"}.wrap(), nil
	}
	if o, ok := q.Option("reject_once"); ok {
		return outcome{"selected", o.ID}.wrap(), nil
	}
	// The protocol has no other no than to stop the turn.
	r.refused.Add(1)
	l.cancel(ctx)
	return outcome{Outcome: "cancelled"}.wrap(), nil
}

// unasked is the answer to a question that nobody will answer any more: none when
// another process will ask it again.
func (l *link) unasked() (any, error) {
	select {
	case <-l.leave:
		return nil, jsonrpc.ErrLeaveOpen
	default:
		return outcome{Outcome: "cancelled"}.wrap(), nil
	}
}

type outcome struct {
	Outcome  string `json:"outcome"`
	OptionID string `json:"optionId,omitempty"`
}

func (o outcome) wrap() any {
	return struct {
		Outcome outcome `json:"outcome"`
	}{o}
}

func lateNotice(n int) bridges.Event {
	return bridges.Event{
		Kind: bridges.KindNotice, Text: fmt.Sprintf("%d updates came after the turn before had ended, and were dropped", n),
		Notice: &bridges.Notice{Level: "warning", Code: "late_update"},
	}
}

// minSecret is the length from which a value is looked for: shorter ones would be
// found in any text.
const minSecret = 8

const hidden = "[hidden]"

// hide takes the values of the caller's environment out of a text.
func (s *session) hide(text string) string {
	for _, secret := range s.secrets {
		text = strings.ReplaceAll(text, secret, hidden)
	}
	return text
}

// hideRaw is hide for JSON, where a value may be escaped.
func (s *session) hideRaw(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || len(s.secrets) == 0 {
		return raw
	}
	text := string(raw)
	for _, secret := range s.secrets {
		quoted, _ := json.Marshal(secret) // a string: it cannot fail
		text = strings.ReplaceAll(text, string(quoted[1:len(quoted)-1]), hidden)
	}
	return json.RawMessage(text)
}

func (s *session) hideTool(t bridges.Tool) bridges.Tool {
	t.Title, t.Output, t.Input = s.hide(t.Title), s.hide(t.Output), s.hideRaw(t.Input)
	return t
}

func (s *session) hideQuestion(q bridges.Question) bridges.Question {
	q.Title, q.Tool, q.Raw = s.hide(q.Title), s.hideTool(q.Tool), s.hideRaw(q.Raw)
	return q
}

// scrub takes secrets out of an event.
func (s *session) scrub(ev *bridges.Event) {
	if len(s.secrets) == 0 {
		return
	}
	ev.Text, ev.Raw = s.hide(ev.Text), s.hideRaw(ev.Raw)
	if ev.Tool != nil {
		t := s.hideTool(*ev.Tool)
		ev.Tool = &t
	}
	for i := range ev.Plan {
		ev.Plan[i].Text = s.hide(ev.Plan[i].Text)
	}
	if ev.Session != nil {
		ev.Session.Title = s.hide(ev.Session.Title)
	}
}
