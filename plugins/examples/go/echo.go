package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
)

// echo keeps each session in a file of the state folder. A real bridge starts the
// product below a keeper (package agentproc) and lets the product keep its sessions.
type echo struct{}

var _ bridges.Bridge = (*echo)(nil)

// session is a conversation on disk: the turns that ended, by id.
type session struct {
	Turns map[string]turn `json:"turns"`
	Next  int64           `json:"next"` // where the next turn's events begin
}

// turn is what a turn emitted and how it ended, for a host that asks again.
type turn struct {
	Events []bridges.Event `json:"events"`
	Result bridges.Result  `json:"result"`
}

func (*echo) Describe(context.Context) (bridges.Description, error) {
	return bridges.Description{
		Name: "echo", Version: "1.0.0", Contract: []int{bridges.ContractVersion},
		Capabilities: []bridges.Capability{bridges.CanReconnect, bridges.CanAsk, bridges.CanDelete},
	}, nil
}

func (*echo) Create(_ context.Context, req bridges.CreateRequest) (bridges.Created, error) {
	if req.ForkFrom != nil {
		return bridges.Created{}, bridges.Errorf(bridges.KindCapabilityUnsupported, "echo cannot fork a conversation")
	}
	// Create may come twice for one id: what the first call left is replaced.
	if err := save(req.Folders, req.SessionID, session{}); err != nil {
		return bridges.Created{}, err
	}
	return bridges.Created{Handle: bridges.Handle{Version: 1}, Info: info()}, nil
}

// info says how the permission mode is held. There is no agent here that could do
// anything; a real bridge reports what its sandbox or product holds.
func info() bridges.Info {
	return bridges.Info{Model: "echo", Hold: bridges.Hold{Strength: bridges.HoldKernel, Detail: "no agent"}}
}

func (*echo) Submit(ctx context.Context, req bridges.SubmitRequest, host bridges.Turn) (bridges.Result, error) {
	s, err := load(req.Folders, req.SessionID)
	if err != nil {
		return bridges.Result{}, err
	}
	if req.Resume != nil {
		return replay(s, req, host)
	}
	// The next turn's events continue the count, so that positions order all events of
	// a session. A real bridge takes them from the offsets in the product's output.
	t := recorder{host: host, pos: bridges.Position{Offset: s.Next}}
	res, err := perform(ctx, req.Task, &t)
	if err != nil {
		return bridges.Result{}, err
	}
	if s.Turns == nil {
		s.Turns = map[string]turn{}
	}
	s.Turns[req.TurnID] = turn{Events: t.events, Result: res}
	s.Next = t.pos.Offset + 1
	return res, save(req.Folders, req.SessionID, s)
}

// replay answers for a turn that was submitted before. It never runs it again.
func replay(s session, req bridges.SubmitRequest, host bridges.Turn) (bridges.Result, error) {
	t, ok := s.Turns[req.TurnID]
	if !ok {
		return bridges.Result{}, bridges.Errorf(bridges.KindOutcomeUnknown, "turn %s was under way when its process ended", req.TurnID)
	}
	for _, e := range t.Events {
		if e.Pos.After(req.Resume.After) {
			if err := host.Emit(e); err != nil {
				return bridges.Result{}, err
			}
		}
	}
	return t.Result, nil
}

// recorder hands events to the host and keeps them.
type recorder struct {
	host   bridges.Turn
	pos    bridges.Position
	events []bridges.Event
}

func (r *recorder) say(text string) error {
	r.pos = bridges.Position{Offset: r.pos.Offset + 1, Part: 1}
	e := bridges.Event{Kind: bridges.KindText, ID: "answer", Text: text, Pos: r.pos}
	r.events = append(r.events, e)
	return r.host.Emit(e)
}

// perform does what the task says. The words are those of the conformance suite.
func perform(ctx context.Context, task string, r *recorder) (bridges.Result, error) {
	completed := bridges.Result{Status: bridges.StatusCompleted, StopReason: "end_turn"}
	word, rest, _ := strings.Cut(task, " ")
	switch word {
	case "ask":
		a, err := r.host.Ask(ctx, bridges.Question{ID: "question-1", Title: rest, Tool: bridges.Tool{Title: rest, Kind: bridges.ToolOther}})
		if err != nil {
			return bridges.Result{}, err
		}
		if a.Decision == bridges.Cancel {
			return bridges.Result{Status: bridges.StatusCancelled}, nil
		}
		if a.Decision != bridges.Allow {
			completed.Denied++
		}
		return completed, r.say(string(a.Decision))
	case "sleep":
		seconds, err := strconv.ParseFloat(rest, 64)
		if err != nil {
			return bridges.Result{}, bridges.Errorf(bridges.KindInvalidArgument, "sleep %q: %w", rest, err)
		}
		if err := r.say("sleeping"); err != nil {
			return bridges.Result{}, err
		}
		select {
		case <-time.After(time.Duration(seconds * float64(time.Second))):
			return completed, r.say("slept")
		case <-r.host.Cancelled(): // somebody wants the turn to stop: say so in a Result
			return bridges.Result{Status: bridges.StatusCancelled}, nil
		case <-ctx.Done(): // nobody listens any more: leave the agent as it is
			return bridges.Result{}, ctx.Err()
		}
	case "spam":
		var count, size int
		if _, err := fmt.Sscan(rest, &count, &size); err != nil || size > 256<<10 {
			return bridges.Result{}, bridges.Errorf(bridges.KindInvalidArgument, "spam wants a count and a size of at most 256 KiB: %q", rest)
		}
		for range count {
			if err := r.say(strings.Repeat("x", size)); err != nil {
				return bridges.Result{}, err
			}
		}
		return completed, nil
	case "say":
		task = rest
	}
	return completed, r.say(task)
}

func (*echo) Reconnect(_ context.Context, req bridges.ReconnectRequest) (bridges.Reconnected, error) {
	s, err := load(req.Folders, req.SessionID)
	if errors.Is(err, bridges.ErrSessionGone) {
		return bridges.Reconnected{Status: bridges.ReconnectGone, Reason: err.Error(), Turn: bridges.TurnLost}, nil
	}
	if err != nil {
		return bridges.Reconnected{}, err
	}
	r := bridges.Reconnected{Status: bridges.ReconnectSame, Handle: req.Handle, Info: info()}
	if req.TurnID != "" {
		// A turn that ended can be read again; one that was under way is lost, since
		// nothing but this bridge's own process was doing it.
		r.Turn = bridges.TurnLost
		if _, ended := s.Turns[req.TurnID]; ended {
			r.Turn = bridges.TurnAttachable
		}
	}
	return r, nil
}

func (*echo) Dispose(_ context.Context, req bridges.DisposeRequest) (bridges.Receipt, error) {
	if req.Delete {
		if err := os.Remove(file(req.Folders, req.SessionID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return bridges.Receipt{}, fmt.Errorf("delete the conversation: %w", err)
		}
	}
	return bridges.Receipt{Proven: true}, os.RemoveAll(req.Folders.Run)
}

// file is a session's file. Session ids are the host's and fit for a file name.
func file(f bridges.Folders, id string) string { return filepath.Join(f.State, id+".json") }

func load(f bridges.Folders, id string) (session, error) {
	var s session
	data, err := os.ReadFile(file(f, id))
	if errors.Is(err, fs.ErrNotExist) {
		return s, bridges.Errorf(bridges.KindSessionGone, "echo has no conversation %s", id).WithNext("start a new session")
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("read the conversation: %w", err)
	}
	return s, nil
}

// save replaces the file in one step, so that a kill leaves the old or the new one.
func save(f bridges.Folders, id string, s session) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.State, 0o700); err != nil {
		return fmt.Errorf("make the state folder: %w", err)
	}
	tmp := file(f, id) + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return fmt.Errorf("write the conversation: %w", err)
	}
	return os.Rename(tmp, file(f, id))
}
