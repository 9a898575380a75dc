package core

import (
	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/registry"
)

// fold is what a session's log says so far: everything that the next step needs,
// and nothing that grows with the length of a turn.
type fold struct {
	end   int64 // the cursor after the last entry
	turns []turnFold
	keys  map[string]int // idempotency key → index in turns
}

// turnFold is one turn's part of the fold.
type turnFold struct {
	ID       string
	Accepted Accepted
	At       Entry // the accepted entry's cursor and time
	Last     bridges.Position
	// answers holds what was answered, by question; a question that is asked again
	// by a new bridge process gets the same answer.
	answers map[string]bridges.Answer
	tools   map[string]bridges.ToolStatus
	denied  int
	warn    []string
	Ended   *Ended
}

func (f *fold) add(e Entry) {
	f.end = max(f.end, e.Cursor)
	if e.Accepted != nil {
		if f.keys == nil {
			f.keys = map[string]int{}
		}
		if e.Accepted.Key != "" {
			f.keys[e.Accepted.Key] = len(f.turns)
		}
		f.turns = append(f.turns, turnFold{
			ID: e.Turn, Accepted: *e.Accepted, At: Entry{Cursor: e.Cursor, At: e.At},
			answers: map[string]bridges.Answer{}, tools: map[string]bridges.ToolStatus{},
		})
		return
	}
	t := f.turn(e.Turn)
	switch {
	case t == nil:
		// The accepted entry was lost to damage; the registry has reported it.
	case e.Ended != nil:
		t.Ended = e.Ended
		t.answers, t.tools = nil, nil
	case e.Event != nil && t.Ended == nil:
		t.event(*e.Event)
	}
}

func (t *turnFold) event(ev bridges.Event) {
	if ev.Pos.After(t.Last) {
		t.Last = ev.Pos
	}
	switch {
	case ev.Answer != nil:
		t.answers[ev.ID] = *ev.Answer
		if ev.Answer.Decision == bridges.Deny {
			t.denied++
		}
	case ev.Tool != nil && ev.Kind == bridges.KindTool:
		if ev.Tool.Status != "" {
			t.tools[ev.ID] = ev.Tool.Status
		} else if _, ok := t.tools[ev.ID]; !ok {
			t.tools[ev.ID] = bridges.ToolPending
		}
	case ev.Notice != nil && ev.Notice.Level != "info":
		if len(t.warn) < maxWarnings {
			t.warn = append(t.warn, ev.Text)
		}
	}
}

// maxWarnings bounds what a result repeats of a turn's notices; all are in the log.
const maxWarnings = 16

// toolCounts sums the turn's tool calls by their last status.
func (t *turnFold) toolCounts() map[string]int {
	if len(t.tools) == 0 {
		return nil
	}
	counts := map[string]int{}
	for _, status := range t.tools {
		counts[string(status)]++
	}
	return counts
}

// turn returns the turn of an id, or nil.
func (f *fold) turn(id string) *turnFold {
	for i := len(f.turns) - 1; i >= 0; i-- {
		if f.turns[i].ID == id {
			return &f.turns[i]
		}
	}
	return nil
}

// open returns the turn that was accepted and has not ended, or nil.
func (f *fold) open() *turnFold {
	if n := len(f.turns); n > 0 && f.turns[n-1].Ended == nil {
		return &f.turns[n-1]
	}
	return nil
}

// into brings a record up to date with what the log has beyond it.
func (f *fold) into(rec *registry.Record) {
	if rec.Folded >= f.end {
		return
	}
	rec.Folded, rec.Turns, rec.Turn = f.end, len(f.turns), ""
	if t := f.open(); t != nil {
		begun(rec, t.ID)
	} else if len(f.turns) > 0 {
		ended(rec, f.turns[len(f.turns)-1].Ended)
	}
}

// begun and ended are what the two durable entries of a turn do to a record.
func begun(rec *registry.Record, turn string) {
	rec.Turn, rec.State, rec.Reason = turn, registry.StateRunning, ""
}

func ended(rec *registry.Record, e *Ended) {
	rec.Turn = ""
	rec.State, rec.Reason = stateAfter(e)
	if e.Receipt != nil {
		rec.Survivors = e.Receipt.SurvivedCount
	}
}
