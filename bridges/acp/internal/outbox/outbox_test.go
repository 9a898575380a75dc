package outbox

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
)

func text(id, s string, offset int64) bridges.Event {
	return bridges.Event{Kind: bridges.KindText, ID: id, Text: s, Pos: bridges.Position{Offset: offset, Part: 1}}
}

// gated is an outbox whose host takes one event for each value of its gate.
func gated() (o *Outbox, gate chan struct{}, got *[]bridges.Event) {
	gate, got = make(chan struct{}), new([]bridges.Event)
	return New(func(ev bridges.Event) error {
		<-gate
		*got = append(*got, ev)
		return nil
	}), gate, got
}

func TestPiecesJoinWhileTheHostIsBehind(t *testing.T) {
	o, gate, got := gated()
	tool := bridges.Event{Kind: bridges.KindTool, ID: "c", Tool: &bridges.Tool{}}
	thought := text("a", "t", 9)
	thought.Kind = bridges.KindThought
	for _, ev := range []bridges.Event{text("a", "0", 1), text("a", "1", 2), text("a", "2", 3), text("b", "3", 4), tool, text("b", "4", 5), text("b", "5", 6), thought} {
		if err := o.Push(ev); err != nil {
			t.Fatal(err)
		}
	}
	close(gate)
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	// The first may have left, joined or not, before the next came; what comes after
	// it waits behind the gate and is joined.
	joined := []bridges.Event{text("a", "012", 3), text("b", "3", 4), tool, text("b", "45", 6), thought}
	all := *got
	if len(all) > 1 && all[0].ID == "a" && all[1].ID == "a" {
		first := all[0]
		all = all[1:]
		all[0].Text = first.Text + all[0].Text
	}
	if diff := cmp.Diff(joined, all); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestJoinedTextKeepsToTheLimit(t *testing.T) {
	o, gate, got := gated()
	piece := strings.Repeat("x", 1000)
	for i := range 900 { // less than what makes Push wait
		if err := o.Push(text("a", piece, int64(i))); err != nil {
			t.Fatal(err)
		}
	}
	close(gate)
	o.Close()
	total := 0
	for _, ev := range *got {
		total += len(ev.Text)
		if len(ev.Text) > MaxText {
			t.Errorf("an event of %d bytes", len(ev.Text))
		}
	}
	if total != 900*1000 || len(*got) > 10 {
		t.Errorf("%d bytes in %d events", total, len(*got))
	}
}

func TestPushWaitsForASlowHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, gate, got := gated()
		pushed := 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 40 {
				if o.Push(text(strings.Repeat("i", i), strings.Repeat("x", 100<<10), int64(i))) != nil {
					return
				}
				pushed++
			}
		}()
		synctest.Wait()
		if pushed < 10 || pushed > 23 {
			t.Errorf("%d of 40 events of 100 KiB were taken by an outbox of 1 MiB", pushed)
		}
		close(gate)
		<-done
		if err := o.Flush(); err != nil || len(*got) != 40 {
			t.Errorf("%d events, %v", len(*got), err)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestHostThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		o := New(func(bridges.Event) error { return gone })
		o.Push(text("a", "x", 1))
		<-o.Failed()
		if err := o.Push(text("a", "y", 2)); !errors.Is(err, gone) {
			t.Errorf("push: %v", err)
		}
		if err := o.Flush(); !errors.Is(err, gone) {
			t.Errorf("flush: %v", err)
		}
		if err := o.Close(); !errors.Is(err, gone) {
			t.Errorf("close: %v", err)
		}
	})
}

func TestAbortWakesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		o, gate, got := gated()
		done := make(chan error)
		go func() {
			var err error
			for i := 0; err == nil; i++ {
				err = o.Push(text(strings.Repeat("i", i), strings.Repeat("x", 100<<10), int64(i)))
			}
			done <- err
		}()
		synctest.Wait()
		o.Abort(gone)
		if err := <-done; !errors.Is(err, gone) {
			t.Errorf("push: %v", err)
		}
		close(gate)
		if err := o.Close(); !errors.Is(err, gone) || len(*got) != 1 {
			t.Errorf("%d events, %v", len(*got), err)
		}
	})
}
