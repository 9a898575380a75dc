package plugins

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/subspan-dev/subspan/bridges"
	bridgev1 "github.com/subspan-dev/subspan/proto/bridge/v1"
)

// One message carries what was emitted while the last one was being sent, up to
// these bounds: batches form by themselves under load and nothing waits for one.
const (
	maxBatchEvents = 256
	maxBatchBytes  = 512 << 10
)

// The queue before the wire. When it is full Emit blocks, and with it the bridge's
// reading of the agent.
const (
	maxQueued      = 4096
	maxQueuedBytes = 1 << 20
)

// maxEvent bounds one event on the wire. Contract sizes are far below.
const maxEvent = 8 << 20

var errTurnOver = errors.New("the turn is over: Emit and Ask end with Submit")

// turn is the bridge's view of its host during one Submit. It is bridges.Turn.
type turn struct {
	ctx       context.Context // the stream's; lives as long as the Submit
	cancelled chan struct{}   // closed by the first cancel message

	mu       sync.Mutex
	changed  *sync.Cond // anything below changed
	queue    []queued
	bytes    int // of the queue
	closed   bool
	err      error // why nothing reaches the host any more
	asked    map[string]chan bridges.Answer
	recorded bridges.Position
}

// queued is an event or a question, with its size.
type queued struct {
	event    *bridgev1.Event
	question *bridgev1.Question
	size     int
}

var _ bridges.Turn = (*turn)(nil)

// newTurn returns a turn that fails when ctx ends.
func newTurn(ctx context.Context) *turn {
	t := &turn{ctx: ctx, cancelled: make(chan struct{}), asked: map[string]chan bridges.Answer{}}
	t.changed = sync.NewCond(&t.mu)
	context.AfterFunc(ctx, func() { t.fail(context.Cause(ctx)) })
	return t
}

// Emit queues one event. It blocks while the queue is full.
func (t *turn) Emit(e bridges.Event) error {
	m := eventToWire(&e)
	size := proto.Size(m)
	if size > maxEvent {
		return bridges.Errorf(bridges.KindInvalidArgument, "an event of kind %s has %d bytes, more than %d", e.Kind, size, maxEvent).
			WithNext("cut it: text into pieces of at most 256 KiB, tool output to 32 KiB")
	}
	return t.put(queued{event: m, size: size})
}

func (t *turn) put(q queued) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.err == nil && !t.closed && len(t.queue) > 0 &&
		(len(t.queue) >= maxQueued || t.bytes+q.size > maxQueuedBytes) {
		t.changed.Wait()
	}
	if t.err == nil && t.ctx.Err() != nil { // AfterFunc is still on its way
		t.err = context.Cause(t.ctx)
	}
	switch {
	case t.err != nil:
		return fmt.Errorf("hand over to the host: %w", t.err)
	case t.closed:
		return errTurnOver
	}
	t.queue = append(t.queue, q)
	t.bytes += q.size
	t.changed.Broadcast()
	return nil
}

// Ask sends a question after every event emitted before it and waits for its answer.
func (t *turn) Ask(ctx context.Context, q bridges.Question) (bridges.Answer, error) {
	answer := make(chan bridges.Answer, 1)
	t.mu.Lock()
	if _, open := t.asked[q.ID]; open || q.ID == "" {
		t.mu.Unlock()
		return bridges.Answer{}, bridges.Errorf(bridges.KindInvalidArgument, "question id %q is empty or already open in this turn", q.ID)
	}
	t.asked[q.ID] = answer
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		delete(t.asked, q.ID)
		t.mu.Unlock()
	}()

	m := questionToWire(q)
	if err := t.put(queued{question: m, size: proto.Size(m)}); err != nil {
		return bridges.Answer{}, err
	}
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
		return bridges.Answer{}, ctx.Err()
	case <-t.ctx.Done():
		return bridges.Answer{}, fmt.Errorf("wait for an answer: %w", context.Cause(t.ctx))
	}
}

// Cancelled is closed by an explicit cancel message, never by a lost stream.
func (t *turn) Cancelled() <-chan struct{} { return t.cancelled }

// Recorded returns the position of the last event that the host has taken over:
// output before it is not needed again. It is beyond bridges.Turn; a bridge that can
// use it asks with a type assertion to interface{ Recorded() bridges.Position }.
func (t *turn) Recorded() bridges.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.recorded
}

// receive handles what comes down until the stream ends. It returns when the
// handler does, since only then does the stream's Recv give up.
func (t *turn) receive(stream grpc.BidiStreamingServer[bridgev1.SubmitRequest, bridgev1.SubmitResponse]) {
	for {
		m, err := stream.Recv()
		if err != nil {
			return // a lost stream ends ctx; a host that has no more to say does not
		}
		switch m := m.GetMessage().(type) {
		case *bridgev1.SubmitRequest_Answer:
			t.mu.Lock()
			answer := t.asked[m.Answer.GetQuestionId()]
			delete(t.asked, m.Answer.GetQuestionId())
			t.mu.Unlock()
			if answer != nil { // else late or twice
				answer <- answerFromWire(m.Answer.GetAnswer())
			}
		case *bridgev1.SubmitRequest_Cancel_:
			select {
			case <-t.cancelled:
			default:
				close(t.cancelled)
			}
		case *bridgev1.SubmitRequest_Ack_:
			if p := positionFromWire(m.Ack.GetRecorded()); !p.IsZero() {
				t.mu.Lock()
				t.recorded = p
				t.mu.Unlock()
			}
		}
	}
}

// send writes the queue to the stream until the turn is closed and the queue empty,
// or the turn has failed.
func (t *turn) send(stream grpc.BidiStreamingServer[bridgev1.SubmitRequest, bridgev1.SubmitResponse]) {
	for {
		m := t.next()
		if m == nil {
			return
		}
		if err := stream.Send(m); err != nil {
			t.fail(err)
			return
		}
	}
}

// next waits for something to send: one question, or the events up to the next one.
func (t *turn) next() *bridgev1.SubmitResponse {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.queue) == 0 && !t.closed && t.err == nil {
		t.changed.Wait()
	}
	if len(t.queue) == 0 || t.err != nil {
		return nil
	}
	defer t.changed.Broadcast()
	if q := t.queue[0].question; q != nil {
		t.take(1)
		return &bridgev1.SubmitResponse{Message: &bridgev1.SubmitResponse_Question{Question: q}}
	}
	batch := &bridgev1.SubmitResponse_EventBatch{}
	size := 0
	for _, q := range t.queue {
		if q.event == nil || len(batch.Events) == maxBatchEvents || len(batch.Events) > 0 && size+q.size > maxBatchBytes {
			break
		}
		batch.Events = append(batch.Events, q.event)
		size += q.size
	}
	t.take(len(batch.Events))
	return &bridgev1.SubmitResponse{Message: &bridgev1.SubmitResponse_Events{Events: batch}}
}

// take removes the first n of the queue. The caller holds mu.
func (t *turn) take(n int) {
	for i, q := range t.queue[:n] {
		t.bytes -= q.size
		t.queue[i] = queued{}
	}
	t.queue = t.queue[n:]
}

// close ends the taking of events; what is queued is still sent.
func (t *turn) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.changed.Broadcast()
}

// fail records that nothing reaches the host any more; the first reason stays.
func (t *turn) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
	t.changed.Broadcast()
}

func (t *turn) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}
