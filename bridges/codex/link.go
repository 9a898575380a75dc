package codex

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/codex/internal/fold"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// checkpointEvery is how much output of one turn is folded between checkpoints. One
// is stored when the next is due: the host has had that much more since, which is
// more than can be on its way to its record.
const checkpointEvery = 8 << 20

// link is the connection to an app-server for the time of one call. While it is open
// the session's fold belongs to its reader; close gives it back.
type link struct {
	s    *session
	conn *jsonrpc.Conn
	stop context.CancelFunc
	done chan struct{} // closed when the reading has ended, and all answers
	// ended is why; valid once done is closed.
	ended error

	// turn takes the events after the position after; nil drops them all. name is the
	// turn's: what comes first may be the rest of the one before.
	turn  bridges.Turn
	name  string
	after bridges.Position

	changed chan struct{} // something in view did; holds one token
	refused chan struct{} // closed when turn took no more events
	refusal error

	mu     sync.Mutex
	outbox [][]byte // written, not folded yet
	view   view
	asks   map[string]*ask // by raw id

	// Of the reader alone.
	last    int64 // where the newest checkpoint was taken
	pending *agentproc.Checkpoint
}

// view is what the rest of the bridge sees of a running turn.
type view struct {
	codex    string // codex's id of the turn
	over     bool   // its end, or its refusal, was read
	unauthed int
}

// ask is a request of the agent.
type ask struct {
	fold.Inquiry
	served   bool // the bridge knows what it is
	answered bool // by an earlier process
	stale    bool // its turn is over
	withdraw context.CancelFunc
}

func (b *Bridge) dial(s *session, turn bridges.Turn, name string, after bridges.Position) *link {
	ctx, stop := context.WithCancel(context.Background())
	l := &link{
		s: s, stop: stop, done: make(chan struct{}), turn: turn, name: name, after: after, last: s.fold.Next,
		changed: make(chan struct{}, 1), refused: make(chan struct{}), asks: map[string]*ask{},
	}
	l.conn = jsonrpc.New(jsonrpc.Options{
		Source: source{s.proc.Reader(s.fold.Next)}, Sink: l, Handler: l, Log: b.log, NextID: s.fold.LastID + 1, OmitVersion: true,
	})
	go func() {
		defer close(l.done)
		l.ended = l.conn.Run(ctx)
	}()
	return l
}

// failure is why the reading ended by itself; nil for the end of the output.
func (l *link) failure() error {
	if errors.Is(l.ended, io.EOF) {
		return nil
	}
	return fmt.Errorf("reading codex's output: %w", l.ended)
}

// close ends the reading, withdraws open questions, and waits for both.
func (l *link) close() {
	l.stop()
	<-l.done
	l.drain()
}

// WriteFrame implements jsonrpc.Sink. A frame is noted before it is written, so that
// its answer finds it.
func (l *link) WriteFrame(ctx context.Context, frame []byte) error {
	l.mu.Lock()
	l.outbox = append(l.outbox, bytes.Clone(frame))
	l.mu.Unlock()
	return l.s.proc.Write(ctx, frame)
}

// drain folds what was written.
func (l *link) drain() {
	l.mu.Lock()
	frames := l.outbox
	l.outbox = nil
	l.mu.Unlock()
	for _, frame := range frames {
		l.s.fold.Sent(frame)
	}
}

// Observe implements jsonrpc.Handler.
func (l *link) Observe(m *jsonrpc.Message) {
	select {
	case <-l.refused:
		return // the host is gone; this fold is given up
	default:
	}
	seq := l.s.proc.SentSeq() // before drain: a checkpoint may hold more than it says
	l.drain()
	f := l.s.fold
	f.Received(m, l.emit)
	switch {
	case m.Kind == jsonrpc.Request:
		l.request(m)
	case m.Method == "serverRequest/resolved":
		l.resolved(string(jsonrpc.Get(m.Params, "requestId")))
	}
	l.show()
	l.checkpoint(seq)
}

func (l *link) emit(e bridges.Event) {
	if l.turn == nil || !e.Pos.After(l.after) {
		return
	}
	select {
	case <-l.refused:
		return
	default:
	}
	if err := l.turn.Emit(e); err != nil {
		l.refusal = err
		close(l.refused)
	}
}

// show updates the view.
func (l *link) show() {
	now := view{}
	if t := l.s.fold.Turn; t != nil && t.ID == l.name {
		now = view{codex: t.Codex, over: t.End != nil || t.Refused != nil, unauthed: t.Unauthed}
	}
	l.mu.Lock()
	differs := now != l.view
	l.view = now
	l.mu.Unlock()
	if differs {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
}

func (l *link) look() view {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.view
}

// checkpoint stores the fold from time to time in a long turn, so that what a new
// process has to read again stays bounded, and so does the spool.
func (l *link) checkpoint(seq uint64) {
	f := l.s.fold
	if l.turn == nil || f.Next-l.last < checkpointEvery || len(f.Asked) > 0 {
		return // a question that is open has to be read again to be asked again
	}
	l.last = f.Next
	if l.pending != nil {
		// A failure costs space, nothing else: the older one still stands.
		if l.s.proc.SaveCheckpoint(context.Background(), *l.pending) == nil {
			l.s.proc.Consumed(l.pending.OutOffset)
		}
	}
	l.pending = nil
	if data, err := json.Marshal(f); err == nil {
		l.pending = &agentproc.Checkpoint{Data: data, OutOffset: f.Next, Sent: seq}
	}
}

// request makes a request of the agent ready for Answer, which is called next.
func (l *link) request(m *jsonrpc.Message) {
	f := l.s.fold
	id := string(m.ID)
	place, open := f.Asked[id]
	a := &ask{answered: !open}
	if open {
		var known *fold.Item
		if f.Turn != nil {
			known = f.Turn.Items[jsonrpc.GetString(m.Params, "itemId")]
		}
		a.Inquiry, a.served = fold.Inquire(m, fold.QuestionID(place, m.ID), known)
		if jsonrpc.GetString(m.Params, "threadId") == f.Thread && f.Current(m.Params) == nil {
			a.stale = true
		}
		for i := range a.Questions {
			a.Questions[i].Pos = bridges.Position{Offset: place, Part: i + 1}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks[id] = a
}

// resolved withdraws a question that codex does not want answered any more.
func (l *link) resolved(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.asks[id]; a != nil && a.withdraw != nil {
		a.withdraw()
	}
	delete(l.asks, id)
}

// Answer implements jsonrpc.Handler.
func (l *link) Answer(ctx context.Context, m *jsonrpc.Message) (any, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.mu.Lock()
	a := l.asks[string(m.ID)]
	if a != nil {
		a.withdraw = cancel
	}
	l.mu.Unlock()
	switch {
	case a == nil || a.answered:
		return nil, jsonrpc.ErrLeaveOpen
	case !a.served:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeNoMethod, Message: m.Method + " is not served here"}
	}
	answers := make([]bridges.Answer, len(a.Questions))
	for i, q := range a.Questions {
		if l.turn == nil || a.stale {
			continue // nobody to ask: the zero Answer denies
		}
		answer, err := l.turn.Ask(ctx, q)
		if err != nil || ctx.Err() != nil {
			return nil, jsonrpc.ErrLeaveOpen
		}
		answers[i] = answer
	}
	if ctx.Err() != nil {
		return nil, jsonrpc.ErrLeaveOpen
	}
	return a.Reply(answers), nil
}

// source is a session's spool as the connection reads it.
type source struct{ r *agentproc.Reader }

func (s source) ReadFrame(ctx context.Context, max int64) (jsonrpc.Frame, error) {
	f, err := s.r.ReadFrame(ctx, max)
	return jsonrpc.Frame{Offset: f.Offset, Data: f.Data, Oversize: f.Oversize, Size: f.Size}, err
}
