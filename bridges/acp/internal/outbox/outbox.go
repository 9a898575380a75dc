// Package outbox hands a turn's events to the host, in order, from one goroutine.
//
// It stands between the reader, which must not wait for the host longer than it has
// to, and the host, which may be slower than the agent. It is bounded in bytes: when
// it is full, Push waits, the reader stops reading, and the rest stays in the spool.
// Pieces of one text that pile up meanwhile leave as one event.
package outbox

import (
	"sync"

	"github.com/subspan-dev/subspan/bridges"
)

const (
	// Capacity is how many bytes wait at most before Push does.
	Capacity = 1 << 20
	// MaxText is the longest text of one event, by the contract.
	MaxText = 256 << 10
	// overhead is what an event counts for beside its text.
	overhead = 256
)

// Outbox is a bounded queue of events with one consumer. Push and Flush may be
// called from several goroutines.
type Outbox struct {
	emit func(bridges.Event) error

	mu      sync.Mutex
	changed *sync.Cond
	queue   []bridges.Event
	tail    []byte // the text of the last event in queue, while it grows
	size    int
	busy    bool // events were taken and not all of them are handed over
	closed  bool
	err     error

	failed chan struct{}
	done   sync.WaitGroup
}

// New starts an outbox that calls emit. Close ends it.
func New(emit func(bridges.Event) error) *Outbox {
	o := &Outbox{emit: emit, failed: make(chan struct{})}
	o.changed = sync.NewCond(&o.mu)
	o.done.Go(o.run)
	return o
}

// Push adds an event and waits while the outbox is full. It returns the error of
// the emit that failed, for this and every later event.
func (o *Outbox) Push(ev bridges.Event) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.size >= Capacity && o.err == nil && !o.closed {
		o.changed.Wait()
	}
	if o.err != nil {
		return o.err
	}
	if n := len(o.queue); n > 0 && o.joins(&o.queue[n-1], &ev) {
		if o.tail == nil {
			o.tail = append(make([]byte, 0, 4<<10), o.queue[n-1].Text...)
		}
		o.tail = append(o.tail, ev.Text...)
		o.queue[n-1].Pos = ev.Pos
		o.size += len(ev.Text)
		return nil
	}
	o.seal()
	o.queue = append(o.queue, ev)
	o.size += weight(&ev)
	o.changed.Broadcast()
	return nil
}

// joins reports whether b is only more of the text of a, which is the last event.
func (o *Outbox) joins(a, b *bridges.Event) bool {
	return a.Kind == b.Kind && a.ID == b.ID && (a.Kind == bridges.KindText || a.Kind == bridges.KindThought) &&
		max(len(a.Text), len(o.tail))+len(b.Text) <= MaxText
}

// seal gives the last event the text that it has grown to.
func (o *Outbox) seal() {
	if o.tail != nil {
		o.queue[len(o.queue)-1].Text = string(o.tail)
		o.tail = nil
	}
}

func weight(ev *bridges.Event) int {
	n := overhead + len(ev.Text) + len(ev.Raw)
	if ev.Tool != nil {
		n += len(ev.Tool.Output) + len(ev.Tool.Input)
	}
	return n
}

// Flush waits until everything that was pushed before has been handed over.
func (o *Outbox) Flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (len(o.queue) > 0 || o.busy) && o.err == nil {
		o.changed.Wait()
	}
	return o.err
}

// Failed is closed when an event could not be handed over, or after Abort.
func (o *Outbox) Failed() <-chan struct{} { return o.failed }

// Abort drops what waits: there is nobody to hand it to. err is what Push returns
// from then on.
func (o *Outbox) Abort(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fail(err)
}

func (o *Outbox) fail(err error) {
	if o.err == nil {
		o.err, o.queue, o.tail = err, nil, nil
		close(o.failed)
		o.changed.Broadcast()
	}
}

// Close hands over what is left, unless an emit failed, and ends the outbox.
func (o *Outbox) Close() error {
	o.mu.Lock()
	o.closed = true
	o.changed.Broadcast()
	o.mu.Unlock()
	o.done.Wait()
	return o.err
}

func (o *Outbox) run() {
	o.mu.Lock()
	defer o.mu.Unlock()
	var spare []bridges.Event
	for {
		for len(o.queue) == 0 && !o.closed && o.err == nil {
			o.changed.Wait()
		}
		if len(o.queue) == 0 {
			return
		}
		o.seal()
		batch := o.queue
		o.queue, o.size, o.busy = spare[:0], 0, true
		o.changed.Broadcast()
		o.mu.Unlock()
		err := o.hand(batch)
		clear(batch)
		spare = batch
		o.mu.Lock()
		o.busy = false
		if err != nil {
			o.fail(err)
		}
		o.changed.Broadcast()
	}
}

func (o *Outbox) hand(batch []bridges.Event) error {
	for _, ev := range batch {
		if err := o.emit(ev); err != nil {
			return err
		}
		select {
		case <-o.failed:
			return nil // aborted: the rest has nobody to go to
		default:
		}
	}
	return nil
}
