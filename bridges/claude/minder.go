package claude

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/claude/internal/stream"
)

// minder does for a turn what must not wait for the next frame: it asks questions,
// interrupts, and notices silence. Its goroutines end with its context; wait waits
// for them.
type minder struct {
	r    *run
	ctx  context.Context
	done sync.WaitGroup
	stop chan string   // why the turn shall be interrupted
	life chan struct{} // a frame came

	mu     sync.Mutex
	forced bool
	asked  map[string]context.CancelFunc // by question
	fatal  bool
	failed error // of an answer that could not be written
}

func newMinder(ctx context.Context, r *run) *minder {
	m := &minder{r: r, ctx: ctx, stop: make(chan string, 2), life: make(chan struct{}, 1), asked: map[string]context.CancelFunc{}}
	m.done.Go(m.watch)
	return m
}

func (m *minder) wait() { m.done.Wait() }

// beat says that a frame came.
func (m *minder) beat() {
	select {
	case m.life <- struct{}{}:
	default:
	}
}

// interrupt asks the agent to stop the turn.
func (m *minder) interrupt(why string) {
	select {
	case m.stop <- why:
	default: // it is being done
	}
}

// stopped reports whether the agent had to be ended.
func (m *minder) stopped() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.forced
}

// watch interrupts the turn when that is asked for, ends the agent when it does not
// obey, and tells of silence, once for each.
func (m *minder) watch() {
	silent := time.NewTimer(m.r.silence())
	defer silent.Stop()
	var grace <-chan time.Time
	cancelled := m.r.turn.Cancelled()
	interrupt := func(why string) {
		if grace != nil {
			return
		}
		timer := time.NewTimer(m.r.waits.cancel)
		context.AfterFunc(m.ctx, func() { timer.Stop() })
		grace = timer.C
		if m.sent(why) {
			return
		}
		if err := m.r.send(m.ctx, stream.Interrupt(why, m.r.message)); err != nil {
			m.r.log.Warn("claude could not be interrupted", "error", err)
		}
	}
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-cancelled:
			cancelled = nil
			interrupt("cancel")
		case why := <-m.stop:
			interrupt(why)
		case <-grace:
			grace = nil
			m.force()
		case <-m.life:
			silent.Reset(m.r.silence())
		case <-silent.C:
			m.tell()
		}
	}
}

// sent reports whether an earlier process has interrupted the turn.
func (m *minder) sent(why string) bool {
	m.r.mu.Lock()
	defer m.r.mu.Unlock()
	m.r.fold()
	t := m.r.state.Turn
	return t != nil && t.ID == m.r.message && t.Interrupted == why
}

// force ends an agent that does not stop.
func (m *minder) force() {
	m.mu.Lock()
	m.forced = true
	m.mu.Unlock()
	_, err := m.r.proc.Stop(m.ctx, agentproc.StopOptions{
		Reason: fmt.Sprintf("it did not stop within %v of being interrupted", m.r.waits.cancel), Interrupt: true, Grace: m.r.waits.cancel / 5,
	})
	if err != nil && m.ctx.Err() == nil {
		m.r.log.Warn("claude could not be ended", "error", err)
	}
}

// tell says that the agent is silent. Whether to end it is for the host to decide.
func (m *minder) tell() {
	text := "claude has said nothing for " + m.r.silence().String()
	m.r.mu.Lock()
	open := len(m.r.state.Open)
	m.r.mu.Unlock()
	if open > 0 {
		return // it waits for an answer
	}
	_ = m.r.notice("silent", text) // an error shows at the next event too
}

// attend looks at what the last frame has brought: questions that are new or that
// nobody waits for any more, and a failure that no waiting mends.
func (m *minder) attend() error {
	m.r.mu.Lock()
	m.r.fold()
	caughtUp := len(m.r.queue) == 0
	open := slices.Clone(m.r.state.Open)
	t := m.r.state.Turn
	fatal := t != nil && t.Fatal != nil && t.Result == nil
	m.r.mu.Unlock()
	if !caughtUp {
		return nil // what was answered before is not known yet
	}
	if m.r.lives() {
		if err := m.r.again(m.ctx); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil && m.r.lives() {
		return m.failed
	}
	if fatal && !m.fatal {
		m.fatal = true
		m.interrupt("fatal")
	}
	still := map[string]bool{}
	for _, q := range open {
		still[q.ID] = true
		if m.asked[q.ID] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(m.ctx)
		m.asked[q.ID] = cancel
		m.done.Go(func() {
			defer cancel()
			m.answer(ctx, q)
		})
	}
	for id, cancel := range m.asked {
		if !still[id] {
			cancel()
			delete(m.asked, id)
		}
	}
	return nil
}

// answer gets a question answered and passes the answer on.
func (m *minder) answer(ctx context.Context, q stream.Question) {
	reply, err := m.reply(ctx, q)
	if ctx.Err() != nil {
		return // withdrawn, or the turn is left to another process
	}
	if err == nil {
		err = m.r.send(ctx, reply)
	}
	if err != nil && ctx.Err() == nil {
		m.mu.Lock()
		m.failed = fmt.Errorf("answer claude's question: %w", err)
		m.mu.Unlock()
		m.r.log.Warn("claude's question was not answered", "error", err)
	}
}

// reply decides. What this mode can never allow nobody is asked for.
func (m *minder) reply(ctx context.Context, q stream.Question) ([]byte, error) {
	if q.Kind != "can_use_tool" {
		return q.Decline(), nil
	}
	if reason, yes := m.r.launch.limit.refuses(q.Name); yes {
		return q.Deny(reason, false), nil
	}
	if len(q.Picks) == 0 {
		a, err := m.r.turn.Ask(ctx, q.Ask)
		if err != nil {
			return nil, err
		}
		if a.Decision != bridges.Allow {
			return refusal(q, a), nil
		}
		return q.Allow(), nil
	}
	var choices []string
	for _, pick := range q.Picks {
		a, err := m.r.turn.Ask(ctx, pick)
		if err != nil {
			return nil, err
		}
		if a.Decision != bridges.Allow || !slices.Contains(pick.Choices, a.Choice) {
			return refusal(q, a), nil
		}
		choices = append(choices, a.Choice)
	}
	return q.Choose(choices), nil
}

func refusal(q stream.Question, a bridges.Answer) []byte {
	reason := a.Reason
	if reason == "" {
		reason = "not allowed; go on without it, and say in your answer what you could not do"
	}
	return q.Deny(reason, a.Decision == bridges.Cancel)
}
