package core

import (
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
	"github.com/subspan-dev/subspan/registry"
)

// Session is what callers see of a session.
type Session struct {
	ID           string        `json:"session"`
	Title        string        `json:"title,omitempty"`
	Status       SessionStatus `json:"status"`
	Reason       string        `json:"reason,omitempty"`
	Agent        string        `json:"agent"`
	AgentVersion string        `json:"agent_version,omitempty"`
	Role         string        `json:"role"`
	Permission   ceiling.Mode  `json:"permission"`
	Hold         bridges.Hold  `json:"hold"`
	Cwd          string        `json:"cwd"`
	Model        Choice        `json:"model"`
	Effort       Choice        `json:"effort"`
	Parent       string        `json:"parent,omitempty"`
	Depth        int           `json:"depth"`
	ForkedFrom   string        `json:"forked_from,omitempty"`
	NativeID     string        `json:"native_id,omitempty"`
	Turns        int           `json:"turns"`
	Turn         string        `json:"turn,omitempty"` // the one under way
	Warnings     []string      `json:"warnings,omitempty"`
	Created      time.Time     `json:"created"`
	Updated      time.Time     `json:"updated"`
}

// Choice is what was asked for and what was seen to be used.
type Choice struct {
	Requested string `json:"requested,omitempty"`
	Observed  string `json:"observed,omitempty"`
}

// SessionStatus is a session's state as a caller needs it.
type SessionStatus string

const (
	SessionNew     SessionStatus = "new"
	SessionIdle    SessionStatus = "idle"
	SessionRunning SessionStatus = "running"
	// SessionInterrupted: a turn is open and no process drives it. Its agent may be
	// at work or dead; waiting for the turn finds out.
	SessionInterrupted SessionStatus = "interrupted"
	SessionLost        SessionStatus = "lost"
	SessionGone        SessionStatus = "gone"
	SessionEnded       SessionStatus = "ended"
)

// Turn is one turn as callers see it.
type Turn struct {
	Session  string        `json:"session"`
	ID       string        `json:"turn"`
	N        int           `json:"n"`
	Task     string        `json:"task"`
	Status   TurnStatus    `json:"status"`
	Started  time.Time     `json:"started"`
	Duration time.Duration `json:"duration,omitempty"`
	Cursor   int64         `json:"cursor"` // where its events begin in the log
	Ended    *Ended        `json:"ended,omitempty"`
	// ResultPath is the file with the final message; it exists once the turn ended.
	ResultPath string `json:"result_path,omitempty"`
}

// session makes the view of a record. driven says that some process holds its lock.
func (c *Core) session(rec registry.Record, driven bool) Session {
	s := Session{
		ID: rec.ID, Title: rec.Title, Reason: rec.Reason, Agent: rec.Agent, AgentVersion: rec.Info.AgentVersion,
		Role: rec.Role, Permission: rec.Mode, Hold: rec.Info.Hold, Cwd: rec.Cwd,
		Model:  Choice{rec.Model, rec.Info.Model},
		Effort: Choice{rec.Effort, rec.Info.Effort},
		Parent: rec.Parent, Depth: rec.Depth, ForkedFrom: rec.ForkedFrom, NativeID: rec.Info.NativeID,
		Turns: rec.Turns, Turn: rec.Turn, Warnings: rec.Warnings, Created: rec.Created, Updated: rec.Updated,
	}
	switch rec.State {
	case registry.StateNew:
		s.Status = SessionNew
	case registry.StateLost:
		s.Status = SessionLost
	case registry.StateGone:
		s.Status = SessionGone
	case registry.StateDisposed:
		s.Status = SessionEnded
	default:
		s.Status = SessionIdle
	}
	switch {
	case rec.Turn == "":
	case driven:
		s.Status = SessionRunning
	default:
		s.Status = SessionInterrupted
	}
	return s
}

func turnView(id, dir string, f *turnFold) Turn {
	t := Turn{
		Session: id, ID: f.ID, N: f.Accepted.N, Task: f.Accepted.Task, Status: TurnRunning,
		Started: f.At.At, Cursor: f.At.Cursor, Ended: f.Ended,
	}
	if f.Ended != nil {
		t.Status, t.Duration = f.Ended.Status, f.Ended.Duration
		t.ResultPath = resultPath(dir, f.Accepted.N)
	}
	return t
}
