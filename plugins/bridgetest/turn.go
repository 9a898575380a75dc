package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/plugins"
)

// turn is the host's side of one turn. It watches the rules that hold for every turn.
type turn struct {
	id        string
	cancelled chan struct{}
	first     chan struct{} // closed with the first event
	answer    bridges.Decision

	mu      sync.Mutex
	events  []bridges.Event
	asked   int
	over    bool
	broken  error // the first rule that was broken
	lastPos bridges.Position
}

var _ bridges.Turn = (*turn)(nil)

func (s *session) newTurn() *turn {
	s.turns++
	return &turn{
		id: fmt.Sprintf("turn-%d", s.turns), cancelled: make(chan struct{}), first: make(chan struct{}),
		answer: bridges.Allow,
	}
}

func (t *turn) Emit(e bridges.Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.over:
		t.breaks("it emitted a %s event after Submit had returned", e.Kind)
	case e.Kind == "":
		t.breaks("it emitted an event without a kind")
	case !e.Pos.IsZero() && !e.Pos.After(t.lastPos):
		t.breaks("event positions go back or stand still: %+v after %+v, so a replay would lose or double events", e.Pos, t.lastPos)
	case len(e.Text) > 256<<10 && (e.Kind == bridges.KindText || e.Kind == bridges.KindThought):
		t.breaks("a %s event has %d bytes of text, more than 256 KiB", e.Kind, len(e.Text))
	}
	if !e.Pos.IsZero() {
		t.lastPos = e.Pos
	}
	if len(t.events) == 0 {
		close(t.first)
	}
	t.events = append(t.events, e)
	return nil
}

func (t *turn) Ask(_ context.Context, q bridges.Question) (bridges.Answer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
	if t.over {
		t.breaks("it asked a question after Submit had returned")
	}
	if q.ID == "" {
		t.breaks("it asked a question without an id")
	}
	return bridges.Answer{Decision: t.answer, By: "policy"}, nil
}

func (t *turn) Cancelled() <-chan struct{} { return t.cancelled }

// breaks records a broken rule. The caller holds mu.
func (t *turn) breaks(format string, args ...any) {
	if t.broken == nil {
		t.broken = fmt.Errorf(format, args...)
	}
}

// text is the answer.
func (t *turn) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	for _, e := range t.events {
		if e.Kind == bridges.KindText {
			b.WriteString(e.Text)
		}
	}
	return b.String()
}

func (t *turn) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.events)
}

// submit runs a turn and checks what holds for all of them. Its error is the
// bridge's or a broken rule's; res counts when it is nil.
func (s *session) submit(ctx context.Context, t *turn, task string, resume *bridges.Resume) (bridges.Result, error) {
	res, err := s.bridge.Submit(ctx, bridges.SubmitRequest{
		SessionID: s.id, TurnID: t.id, Agent: s.env.agent, Handle: s.handle, Settings: s.settings, Folders: s.folders,
		Task: task, Resume: resume,
	}, t)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	for _, e := range t.events {
		if e.Session != nil && e.Session.Handle != nil {
			s.handle = *e.Session.Handle
		}
	}
	if err != nil {
		return res, fmt.Errorf("submit %q: %w", task, err)
	}
	for _, w := range res.Warnings {
		if strings.HasPrefix(w, plugins.AfterFinal) {
			t.breaks("%s", w)
		}
	}
	if res.Status == bridges.StatusFailed && res.Error == nil {
		t.breaks("the result is failed and has no error")
	}
	if t.broken != nil {
		return res, fmt.Errorf("task %q: %w", task, t.broken)
	}
	return res, nil
}

// complete runs a turn that has to be completed.
func (s *session) complete(ctx context.Context, t *turn, task string) (bridges.Result, error) {
	res, err := s.submit(ctx, t, task, nil)
	if err == nil && res.Status != bridges.StatusCompleted {
		err = fmt.Errorf("task %q ended with status %s: %w", task, res.Status, causeOf(res))
	}
	return res, err
}

func causeOf(res bridges.Result) error {
	if res.Error == nil {
		return errors.New("no error given")
	}
	return res.Error
}
