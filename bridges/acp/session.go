package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/acp/internal/fold"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

const (
	// snapshotEvery is how much output lies between two snapshots of the state.
	snapshotEvery = 8 << 20
	// behind is how far a checkpoint stays behind what was handed to the host: more
	// than can be on its way in the outbox and on the wire, so that a host that dies
	// finds everything again that it had not recorded.
	behind = 16 << 20
	// maxPiece is the longest text of one event.
	maxPiece = 256 << 10
)

// session is what this process knows of a session. It is used by one call at a time;
// mu is between that call and the goroutines of its connection.
type session struct {
	b       *Bridge
	id      string
	proc    *agentproc.Proc
	profile *Profile
	hold    bridges.Hold
	digest  string
	ran     bool  // the session has had a turn
	begun   int64 // when the session began, in seconds since 1970
	// Of the call under way: names in the agent's environment, whether a key is among
	// them, and values that must not be shown.
	env      map[string]bool
	hasKey   bool
	secrets  []string
	home     string   // the agent's
	warnings []string // about how the session was opened

	disposing chan struct{} // closed when Dispose has come
	dispose   sync.Once

	mu    sync.Mutex
	state fold.State
	next  int64            // where the output begins that is not in state
	last  bridges.Position // of the last event made
	// journal holds frames that an earlier process sent, and that belong between
	// frames of output that this one has still to read.
	journal []agentproc.Sent
}

// record is what a checkpoint holds.
type record struct {
	State  fold.State   `json:"state"`
	Digest string       `json:"digest"`
	Hold   bridges.Hold `json:"hold"`
	Ran    bool         `json:"ran"`
	Begun  int64        `json:"begun,omitempty"`
	// Last is the position of the last event that State has made.
	Last bridges.Position `json:"last,omitzero"`
}

// snapshot composes a checkpoint of the state as it is. The caller holds mu.
func (s *session) snapshot() (agentproc.Checkpoint, error) {
	c := agentproc.Checkpoint{OutOffset: s.next, Sent: s.proc.SentSeq()}
	var err error
	c.Data, err = json.Marshal(record{s.state, s.digest, s.hold, s.ran, s.begun, s.last})
	if err != nil {
		return c, fmt.Errorf("encode the session's state: %w", err)
	}
	return c, nil
}

// checkpoint stores the state; the output before it is not needed any more.
func (s *session) checkpoint(ctx context.Context) error {
	s.mu.Lock()
	c, err := s.snapshot()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.proc.SaveCheckpoint(ctx, c); err != nil {
		return err
	}
	s.proc.Consumed(c.OutOffset)
	return nil
}

// errNoCheckpoint says that a process was started and its session never opened.
var errNoCheckpoint = errors.New("the session was never opened")

// recall makes a session of a process that an earlier call, in this process or in
// another one, has left.
func (b *Bridge) recall(ctx context.Context, id string, p *Profile, proc *agentproc.Proc) (*session, error) {
	c, ok, err := proc.Checkpointed()
	if err != nil {
		return nil, fmt.Errorf("the session's checkpoint: %w", err)
	}
	if !ok {
		return nil, errNoCheckpoint
	}
	var r record
	if err := json.Unmarshal(c.Data, &r); err != nil {
		return nil, fmt.Errorf("the session's checkpoint: %w", err)
	}
	s := &session{
		b: b, id: id, proc: proc, profile: p, hold: r.Hold, digest: r.Digest, ran: r.Ran, begun: r.Begun,
		disposing: make(chan struct{}), state: r.State, next: c.OutOffset, last: r.Last,
	}
	if s.journal, err = proc.Sent(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// delivery is what the journal says of a turn's task.
type delivery int

const (
	notSent delivery = iota
	delivered
	over      // a turn before the newest one
	uncertain // its writing was cut short
)

// delivery tells what became of a turn's task.
func (s *session) delivery(turnID string) delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.state.Turn
	switch {
	case slices.Contains(s.state.Past, turnID):
		return over
	case t == nil || t.ID != turnID:
		return notSent // its checkpoint comes before its prompt, and there is none
	}
	d := notSent
	if t.Prompt != 0 {
		d = delivered
	}
	for _, sent := range s.journal {
		for m := range jsonrpc.Messages(jsonrpc.Frame{Data: sent.Frame}) {
			if m.Method != "session/prompt" {
				continue
			}
			if d = delivered; !sent.Committed {
				d = uncertain
			}
		}
	}
	return d
}

// catchUp folds the journal's frames that come before the output at offset. The
// caller holds mu.
func (s *session) catchUp(offset int64) {
	for len(s.journal) > 0 && s.journal[0].OutOffset <= offset {
		s.state.Sent(s.journal[0].Frame, s.journal[0].OutOffset)
		s.journal = s.journal[1:]
	}
}

// link is the connection to the agent for the time of one call.
type link struct {
	s    *session
	conn *jsonrpc.Conn
	run  *run // of the turn under way; nil between turns

	reader *agentproc.Reader
	end    int64 // of the frame that is being handled
	goal   int64 // where the output ended when the connection was made
	saved  int64 // offset of the newest snapshot
	kept   []agentproc.Checkpoint

	caught    chan struct{} // closed when everything up to goal is folded
	catchOnce sync.Once
	leave     chan struct{} // closed to leave requests open: the host is gone
	stop      context.CancelFunc
	asking    sync.WaitGroup
	done      chan struct{}
	result    error // of Run; valid once done is closed
}

// connect begins to read where the last call stopped. The caller calls close.
func (s *session) connect(ctx context.Context, r *run) (*link, error) {
	size, err := s.proc.Size()
	if err != nil {
		return nil, err
	}
	l := &link{s: s, run: r, reader: s.proc.Reader(s.next), end: s.next, goal: size, saved: s.next, caught: make(chan struct{}), leave: make(chan struct{}), done: make(chan struct{})}
	s.mu.Lock()
	l.conn = jsonrpc.New(jsonrpc.Options{
		Source: l, Sink: l, Handler: l, Log: s.b.log.With("session", s.id),
		MaxFrame: s.b.limits.frame, WriteLimit: s.b.limits.write, NextID: s.state.NextID,
	})
	for id := range s.state.Calls {
		l.conn.Adopt(id)
	}
	for _, sent := range s.journal {
		for m := range jsonrpc.Messages(jsonrpc.Frame{Data: sent.Frame}) {
			if id, ok := m.ID.Int(); ok && m.Kind == jsonrpc.Request {
				l.conn.Adopt(id)
			}
		}
	}
	open := slices.Clone(s.state.Open)
	s.mu.Unlock()
	// Not the caller's ctx: what is open when that ends is answered or left open by
	// what the end means, which only the call can tell. It closes the link.
	ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(l.done)
		l.result = l.conn.Run(ctx)
	}()
	for _, q := range open {
		l.asking.Go(func() { l.reopen(ctx, q) })
	}
	return l, nil
}

// close stops reading. Afterwards the session is as of a border between frames.
func (l *link) close() {
	l.stop()
	<-l.done
	l.asking.Wait()
}

// abandon closes without answering what the agent asks: another process will.
func (l *link) abandon() {
	close(l.leave)
	l.close()
}

// ReadFrame is jsonrpc.Source. When it is called, the frame before is folded.
func (l *link) ReadFrame(ctx context.Context, limit int64) (jsonrpc.Frame, error) {
	l.progress(ctx)
	f, err := l.reader.ReadFrame(ctx, limit)
	if err != nil {
		if errors.Is(err, io.EOF) {
			l.catch()
		}
		return jsonrpc.Frame{}, err
	}
	l.s.mu.Lock()
	l.end = f.End()
	l.s.mu.Unlock()
	return jsonrpc.Frame{Offset: f.Offset, Data: f.Data, Oversize: f.Oversize, Size: f.Size}, nil
}

// progress notes how far the fold has come, and frees what is not needed any more.
func (l *link) progress(ctx context.Context) {
	s := l.s
	s.mu.Lock()
	s.next = l.end
	if s.next-l.saved >= snapshotEvery && l.run != nil {
		l.saved = s.next
		if c, err := s.snapshot(); err == nil {
			l.kept = append(l.kept, c)
		}
	}
	s.mu.Unlock()
	if l.end >= l.goal {
		l.catch()
	}
	for len(l.kept) > 0 && l.end-l.kept[0].OutOffset >= behind {
		if err := s.proc.SaveCheckpoint(ctx, l.kept[0]); err != nil {
			s.b.log.Warn("no checkpoint", "session", s.id, "error", err)
			return
		}
		s.proc.Consumed(l.kept[0].OutOffset)
		l.kept = l.kept[1:]
	}
}

// catch is called once everything that an earlier process can have seen is folded.
func (l *link) catch() {
	l.catchOnce.Do(func() {
		l.s.mu.Lock()
		l.s.catchUp(1<<63 - 1)
		l.s.mu.Unlock()
		close(l.caught)
	})
}

// WriteFrame is jsonrpc.Sink. The frame is folded before the agent can answer it.
// The lock is held while the agent takes the frame, so that what it says meanwhile
// is folded after. Nothing is written before the journal is folded: see drained.
func (l *link) WriteFrame(ctx context.Context, frame []byte) error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.state.Sent(frame, l.end)
	return l.s.proc.Write(ctx, frame)
}

// Observe is jsonrpc.Handler.
func (l *link) Observe(m *jsonrpc.Message) {
	s := l.s
	s.mu.Lock()
	s.catchUp(m.Offset)
	step := s.state.Received(m)
	s.mu.Unlock()
	if l.run != nil {
		l.run.take(step)
	}
}

// Answer is jsonrpc.Handler: of all that an agent may ask of a client only
// permission is offered. What an earlier process has answered is not answered again.
func (l *link) Answer(ctx context.Context, m *jsonrpc.Message) (any, error) {
	select {
	case <-l.caught:
	case <-ctx.Done():
		return nil, jsonrpc.ErrLeaveOpen
	}
	l.s.mu.Lock()
	q, open := l.s.state.Unanswered(m.ID)
	l.s.mu.Unlock()
	if !open {
		return nil, jsonrpc.ErrLeaveOpen
	}
	return l.answer(ctx, q)
}

// reopen answers a request that was open when the connection was made.
func (l *link) reopen(ctx context.Context, q fold.Question) {
	result, err := l.Answer(ctx, &jsonrpc.Message{ID: q.ID})
	if errors.Is(err, jsonrpc.ErrLeaveOpen) {
		return
	}
	if err := l.conn.Reply(context.WithoutCancel(ctx), q.ID, result, err); err != nil {
		l.s.b.log.Warn("an answer did not reach the agent", "session", l.s.id, "error", err)
	}
}

func (l *link) answer(ctx context.Context, q fold.Question) (any, error) {
	if q.Method != "session/request_permission" {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeNoMethod, Message: "not offered by this client: " + q.Method}
	}
	return l.permission(ctx, q)
}

// drained waits until everything that the agent had said by now is folded. A line
// that the agent has begun and does not end is not waited for.
func (l *link) drained(ctx context.Context) error {
	select {
	case <-l.caught:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, l.s.b.limits.call)
	defer cancel()
	wait := time.NewTimer(l.s.b.limits.settle)
	defer wait.Stop()
	for last := int64(-1); ; {
		select {
		case <-l.caught:
			return nil
		case <-l.done:
			return nil // the next thing to be done will say why
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-wait.C:
			l.s.mu.Lock()
			now := l.s.next
			l.s.mu.Unlock()
			if now == last {
				return nil
			}
			last = now
			wait.Reset(l.s.b.limits.settle)
		}
	}
}
