package claude

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/claude/internal/stream"
)

// start starts the process afresh and waits until it is ready for a task.
func (s *session) start(ctx context.Context, l launch) error {
	var offset int64
	if s.proc != nil {
		_, err := s.proc.Stop(ctx, agentproc.StopOptions{Reason: "started anew", Interrupt: true})
		if err != nil {
			return fmt.Errorf("end the agent's last process: %w", err)
		}
		if offset, err = s.proc.Size(); err != nil {
			return err
		}
	}
	s.drop()
	if err := agentproc.Remove(l.folders.Run); err != nil {
		return err
	}
	login, err := l.login()
	if err != nil {
		return err
	}
	if err := login.usable(time.Now()); err != nil {
		return err
	}
	if err := l.prepare(login); err != nil {
		return err
	}
	if s.proc, err = s.runner.Start(ctx, l.spec(os.Environ(), offset)); err != nil {
		return err
	}
	s.note = note{Key: l.key(), Mode: l.limit.mode}
	s.state, s.at, s.seq = new(stream.State), offset, 0
	s.state.Use(stream.NewScrubber(l.secrets(login)))
	s.reader = s.proc.Reader(offset)
	if s.state.Note, err = json.Marshal(s.note); err != nil {
		return fmt.Errorf("note the launch: %w", err)
	}
	if err := s.greet(ctx, l); err != nil {
		return err
	}
	return s.save(ctx)
}

// greet shakes hands. An agent that cannot start says why, or nothing at all.
func (s *session) greet(ctx context.Context, l launch) error {
	soon, cancel := context.WithTimeout(ctx, s.waits.start)
	defer cancel()
	err := s.send(soon, stream.Initialize("start", l.settings.Instructions))
	for err == nil && !s.state.Ready && s.state.Refused == "" {
		_, err = s.next(soon)
	}
	switch {
	case err == nil && s.state.Refused != "":
		return bridges.Errorf(bridges.KindAgentProtocol, "claude refused to be driven: %s", s.state.Refused).
			WithNext("use a version of Claude Code that this program knows, such as 2.1")
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case soon.Err() != nil:
		_, stopErr := s.proc.Stop(ctx, agentproc.StopOptions{Reason: "it did not start"})
		return errors.Join(bridges.Errorf(bridges.KindTimeout, "claude did not get ready within %v: %s", s.waits.start, s.proc.Stderr()).
			WithNext("try `claude -p hello` in a terminal").AsRetryable(), stopErr)
	}
	_ = s.settle(ctx) // its last words; what it failed with is the better error
	return s.startFailure(err)
}

// startFailure says why an agent ended before it was ready.
func (s *session) startFailure(err error) error {
	text := strings.TrimSpace(s.proc.Stderr())
	if s.state.Failed != "" {
		text = s.state.Failed
	}
	if strings.Contains(text, "No conversation found") {
		return bridges.Errorf(bridges.KindSessionGone, "%s", text).WithNext("start a new session")
	}
	how := "it ended"
	if e, ok := s.proc.Exit(); ok {
		how = ended(e)
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return bridges.Errorf(bridges.KindAgentFailed, "claude did not start: %s: %s", how, text).
		WithNext("try `claude -p hello` in a terminal")
}

// end ends the process of a run folder and removes the folder.
func (s *session) end(ctx context.Context, run string, grace time.Duration) (bridges.Receipt, error) {
	receipt := bridges.Receipt{Proven: true}
	if run == "" {
		return receipt, nil
	}
	proc, err := s.runner.Attach(ctx, run)
	switch {
	case errors.Is(err, agentproc.ErrNoProcess):
		receipt.Notes = []string{"the session had no process"}
	case err != nil:
		return bridges.Receipt{}, err
	default:
		defer proc.Release()
		receipt, err = proc.Stop(ctx, agentproc.StopOptions{Reason: "disposed", Grace: grace, Interrupt: true})
		if err != nil {
			return receipt, err
		}
	}
	if err := agentproc.Remove(run); err != nil {
		receipt.Notes = append(receipt.Notes, err.Error())
	}
	return receipt, nil
}

// ended says how a process ended, for a person.
func ended(e bridges.Exit) string {
	how := fmt.Sprintf("it ended with code %d", e.Code)
	if e.Signal != "" {
		how = "it ended by signal: " + e.Signal
	}
	if e.Ordered != "" {
		how += " (" + e.Ordered + ")"
	}
	return how
}
