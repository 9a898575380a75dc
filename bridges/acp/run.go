package acp

import (
	"sync"
	"sync/atomic"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/acp/internal/fold"
	"github.com/subspan-dev/subspan/bridges/acp/internal/outbox"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// run is a turn under way, from the host's side.
type run struct {
	s     *session
	turn  bridges.Turn
	after bridges.Position // events up to here are the host's already
	out   *outbox.Outbox
	ended chan struct{} // gets one value for each answer to a prompt

	stopping chan struct{} // closed once the agent was asked to stop
	stopOnce sync.Once
	asks     sync.WaitGroup
	moved    atomic.Int64 // counts messages that show activity
	refused  atomic.Int64 // questions denied without a way to say so
	fault    error        // why a login failed that the agent asked for in the turn
	warnings []string
}

func (s *session) newRun(turn bridges.Turn, after bridges.Position) *run {
	return &run{s: s, turn: turn, after: after, out: outbox.New(turn.Emit), ended: make(chan struct{}, 1), stopping: make(chan struct{})}
}

// take hands on what a message means. It is called by the reader and waits while
// the host is behind.
func (r *run) take(step fold.Step) {
	if step.Activity {
		r.moved.Add(1)
	}
	for _, ev := range step.Events {
		r.push(ev)
	}
	if step.Text != nil {
		ev := step.TextEvent
		ev.Pos.Part = len(step.Events)
		for text := range jsonrpc.Pieces(step.Text, maxPiece) {
			ev.Pos.Part++
			ev.Text = text
			if !r.push(ev) {
				break
			}
		}
	}
	if step.Ended {
		select {
		case r.ended <- struct{}{}:
		default:
		}
	}
}

func (r *run) push(ev bridges.Event) bool {
	if !ev.Pos.IsZero() {
		r.s.mu.Lock()
		r.s.last = ev.Pos
		r.s.mu.Unlock()
		if !ev.Pos.After(r.after) {
			return true
		}
	}
	r.s.scrub(&ev)
	return r.out.Push(ev) == nil
}

func (r *run) warn(text string) { r.warnings = append(r.warnings, text) }
