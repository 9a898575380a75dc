package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// footer ends every answer.
const footer = "\n_No model was used: this is subspan's demo agent._\n"

// turn is one prompt under way. Its methods are for the one goroutine that works
// on it; cancel and done are for everybody.
type turn struct {
	agent  *agent
	id     string // the session's
	reqID  json.RawMessage
	task   string
	cwd    string
	mcp    []mcpServer
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed after the prompt was answered

	number   int             // of this turn, from 1
	settings *session        // as they were when the turn began
	answer   strings.Builder // what the record keeps of the answer
	calls    int             // tool calls so far
}

// block is one piece of a prompt.
type block struct{ Type, Text, URI string }

// taskText returns what an agent without a model can act on: the last piece of text.
// What stands before it, such as a role's instructions, is for a model to weigh.
func taskText(blocks []block) (string, error) {
	task := ""
	for _, b := range blocks {
		switch b.Type {
		case "text":
			task = b.Text
		case "resource_link":
		default:
			return "", errf(codeInvalidParams, "a prompt may hold text and resource_link, not %q", b.Type)
		}
	}
	return task, nil
}

// prompt starts a turn. The reply to m is sent when the turn ends, unless prompt
// returns an error.
func (a *agent) prompt(m message) error {
	if !a.initialized {
		return errf(codeInvalidRequest, "the first request has to be initialize, not %q", m.Method)
	}
	_, err := with(m, func(p struct {
		SessionID string
		Prompt    []block
	}) (any, error) {
		task, err := taskText(p.Prompt)
		if err != nil {
			return nil, err
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		s := a.open[p.SessionID]
		switch {
		case s == nil:
			return nil, notFound(p.SessionID)
		case s.turn != nil:
			return nil, errf(codeInternal, "busy: session %s is still at its last prompt", p.SessionID)
		case a.ended:
			return nil, errf(codeInternal, "the agent is ending")
		}
		ctx, cancel := context.WithCancel(a.ctx)
		s.turn = &turn{
			agent: a, id: p.SessionID, reqID: m.ID, task: task, cwd: s.cwd, mcp: s.mcp,
			ctx: ctx, cancel: cancel, done: make(chan struct{}),
		}
		a.turns.Add(1)
		go s.turn.run(s)
		return nil, nil
	})
	return err
}

// run works on the turn, lets go of the session, and answers the prompt, in this
// order: whoever has the answer may prompt again.
func (t *turn) run(s *attached) {
	defer t.agent.turns.Done()
	defer close(t.done)
	defer t.cancel()
	stop, err := t.work()
	t.agent.mu.Lock()
	s.turn = nil
	t.agent.mu.Unlock()
	result := map[string]any{
		"stopReason": stop,
		"usage":      map[string]int{"inputTokens": 0, "outputTokens": 0, "totalTokens": 0},
	}
	if err := t.agent.conn.reply(t.reqID, result, err); err != nil {
		t.agent.log.Warn("a prompt could not be answered", "session", t.id, "err", err)
	}
}

func (t *turn) work() (stop string, err error) {
	// The task is on disk before anything is done about it.
	t.settings, err = t.agent.store.update(t.id, func(s *session) error {
		s.Turns = append(s.Turns, turnRecord{Task: cut(t.task, keepText)})
		return nil
	})
	if err != nil {
		return "", err
	}
	t.number = len(t.settings.Turns)

	steps, ok := parse(t.task)
	switch {
	case ok:
		t.perform(steps)
	case t.settings.option(optModel) == modelEcho:
		t.say(t.task + "\n")
	default:
		t.makeMap()
	}
	stop = "cancelled"
	if t.ctx.Err() == nil {
		t.say(footer)
		stop = "end_turn"
	}
	_, err = t.agent.store.update(t.id, func(s *session) error {
		if len(s.Turns) < t.number {
			return fmt.Errorf("session %s lost its turn %d while it ran", t.id, t.number)
		}
		s.Turns[t.number-1].Answer, s.Turns[t.number-1].Stop = t.answer.String(), stop
		return nil
	})
	var re *rpcError
	if errors.As(err, &re) && re.Code == codeNotFound {
		err = nil // deleted meanwhile, on purpose
	}
	return stop, err
}

// perform carries out directives one after the other. One that fails does not keep
// the next from being tried; a cancelled turn does.
func (t *turn) perform(steps []step) {
	titles := make([]string, len(steps))
	for i, s := range steps {
		titles[i] = s.title
	}
	for i, s := range steps {
		if len(steps) > 1 {
			t.plan(titles, i)
		}
		out, err := s.do(t)
		if t.ctx.Err() != nil {
			return
		}
		if err != nil {
			out += fmt.Sprintf("`%s` failed: %v", s.title, err)
		}
		if out != "" {
			t.say(strings.TrimSuffix(out, "\n") + "\n")
		}
	}
	if len(steps) > 1 {
		t.plan(titles, len(steps))
	}
}

// send shows an update. When the client is gone the turn ends.
func (t *turn) send(update any) {
	if err := t.agent.update(t.id, update); err != nil {
		t.cancel()
	}
}

func chunk(kind, id, text string) map[string]any {
	return map[string]any{
		"sessionUpdate": kind, "messageId": id,
		"content": map[string]string{"type": "text", "text": text},
	}
}

func (t *turn) messageID() string { return fmt.Sprintf("answer-%d", t.number) }

// say adds a piece to the answer. A cancelled turn says no more.
func (t *turn) say(text string) {
	if t.ctx.Err() != nil {
		return
	}
	t.keep(text)
	t.send(chunk("agent_message_chunk", t.messageID(), text))
}

// keep puts text into the session's record, as far as there is room.
func (t *turn) keep(text string) {
	if room := keepText - t.answer.Len(); room > 0 {
		t.answer.WriteString(cut(text, room))
	}
}

func (t *turn) think(text string) {
	if t.ctx.Err() == nil {
		t.send(chunk("agent_thought_chunk", fmt.Sprintf("thought-%d", t.number), text))
	}
}

// plan shows the plan with the entries before current done.
func (t *turn) plan(titles []string, current int) {
	entries := make([]map[string]string, len(titles))
	for i, title := range titles {
		status := "pending"
		if i < current {
			status = "completed"
		} else if i == current {
			status = "in_progress"
		}
		entries[i] = map[string]string{"content": title, "priority": "medium", "status": status}
	}
	t.send(map[string]any{"sessionUpdate": "plan", "entries": entries})
}

// frameAround returns what comes before and after the text in the frame of a piece
// of the answer, for those who send the text without encoding it each time.
func (t *turn) frameAround() (head, tail []byte, err error) {
	const mark = "TEXT-GOES-HERE"
	frame, err := encode(map[string]any{"jsonrpc": "2.0", "method": "session/update", "params": map[string]any{
		"sessionId": t.id, "update": chunk("agent_message_chunk", t.messageID(), mark),
	}})
	head, tail, _ = bytes.Cut(frame, []byte(mark))
	return head, tail, err
}

// call is one tool call, as the client sees it.
type call struct {
	t    *turn
	body map[string]any // toolCallId, title, kind, …: what a permission request repeats
}

// begin announces a tool call. Asking means that it stays pending until asked.
func (t *turn) begin(kind, title, status string, more map[string]any) *call {
	t.calls++
	c := &call{t: t, body: map[string]any{
		"toolCallId": fmt.Sprintf("call-%d-%d", t.number, t.calls),
		"title":      title, "kind": kind, "status": status,
	}}
	for k, v := range more {
		c.body[k] = v
	}
	update := map[string]any{"sessionUpdate": "tool_call"}
	for k, v := range c.body {
		update[k] = v
	}
	t.send(update)
	return c
}

// end reports how the call went; it is sent for cancelled turns too.
func (c *call) end(output string, err error) {
	status := "completed"
	if err != nil {
		status = "failed"
		output = strings.TrimPrefix(output+"\n"+err.Error(), "\n")
	}
	c.t.send(map[string]any{
		"sessionUpdate": "tool_call_update", "toolCallId": c.body["toolCallId"], "status": status,
		"content": []any{map[string]any{
			"type": "content", "content": map[string]string{"type": "text", "text": cut(output, keepText)},
		}},
	})
}

// option is one way to answer a permission request.
type option struct {
	ID   string `json:"optionId"`
	Name string `json:"name"`
	Kind string `json:"kind"`
}

// errRefused is a permission that was asked for and not given.
var errRefused = errors.New("refused")

// ask asks the client and returns the kind of the option that came back, or
// "cancelled".
func (c *call) ask(yes, no string) (string, error) {
	options := []option{{"yes", yes, "allow_once"}, {"no", no, "reject_once"}}
	var reply struct {
		Outcome struct{ Outcome, OptionID string }
	}
	err := c.t.agent.conn.call(c.t.ctx, "session/request_permission", map[string]any{
		"sessionId": c.t.id, "toolCall": c.body, "options": options,
	}, &reply)
	if err != nil {
		return "", fmt.Errorf("asking: %w", err)
	}
	switch o := reply.Outcome; o.Outcome {
	case "cancelled":
		return "cancelled", nil
	case "selected":
		for _, have := range options {
			if have.ID == o.OptionID {
				return have.Kind, nil
			}
		}
		return "", fmt.Errorf("asking: the client chose %q, which was not offered", o.OptionID)
	default:
		return "", fmt.Errorf("asking: the client answered with outcome %q", o.Outcome)
	}
}

// permit asks for permission and marks the call as running when it is given. In
// readonly mode nobody is asked.
func (c *call) permit() error {
	now, err := c.t.agent.store.load(c.t.id) // the mode may have changed since the turn began
	if err != nil {
		return err
	}
	if now.option(optMode) == modeReadonly {
		return fmt.Errorf("%w: the session is in readonly mode", errRefused)
	}
	kind, err := c.ask("Allow once", "Reject")
	if err != nil {
		return err
	}
	if kind != "allow_once" {
		return fmt.Errorf("%w: permission was not given (%s)", errRefused, kind)
	}
	c.t.send(map[string]any{
		"sessionUpdate": "tool_call_update", "toolCallId": c.body["toolCallId"], "status": "in_progress",
	})
	return nil
}
