package claude

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/claude/internal/stream"
)

// maxFrame is the longest line that is read. Answers come in pieces; what is
// longer is the echo of something huge.
const maxFrame = 64 << 20

var errDisposed = errors.New("the session is being disposed of")

// session is what this process knows of a session.
type session struct {
	runner *agentproc.Runner
	waits  waits
	log    *slog.Logger
	token  chan struct{} // whoever put the one element in owns the session

	gate    sync.Mutex // guards the next two
	evicted error
	cancel  context.CancelCauseFunc // of the call under way

	// The owner's. mu orders writes to the agent, which several goroutines of a turn
	// do, and the fold.
	proc   *agentproc.Proc
	reader *agentproc.Reader
	note   note
	at     int64            // where the output begins that is not folded yet
	seq    uint64           // of the newest frame in the journal that was there at attach
	queue  []agentproc.Sent // journaled frames that are not folded yet
	redo   [][]byte         // frames whose writer died over them
	mu     sync.Mutex
	state  *stream.State
}

// note is what the checkpoint keeps beside the fold: which launch this is.
type note struct {
	Key  string       `json:"key"`
	Mode bridges.Mode `json:"mode"`
}

func newSession(r *agentproc.Runner, w waits, log *slog.Logger) *session {
	return &session{runner: r, waits: w, log: log, token: make(chan struct{}, 1)}
}

// admit derives the context of a call.
func (s *session) admit(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.cancel = cancel; s.evicted != nil {
		cancel(s.evicted)
	}
	return ctx, cancel
}

// evict ends the call under way, and every later one until readmit.
func (s *session) evict(why error) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.evicted = why
	if s.cancel != nil {
		s.cancel(why)
	}
}

func (s *session) readmit() {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.evicted = nil
}

// drop forgets the process. It lives on.
func (s *session) drop() {
	if s.proc != nil {
		s.proc.Release()
	}
	s.proc, s.reader, s.state, s.queue, s.redo, s.note = nil, nil, nil, nil, nil, note{}
}

// attach finds the process that the session's folder tells of and takes up the
// fold from its checkpoint. It reports whether there is one, alive or ended, that
// is worth looking at.
func (s *session) attach(ctx context.Context, l launch) (bool, error) {
	s.drop()
	proc, err := s.runner.Attach(ctx, l.folders.Run)
	if errors.Is(err, agentproc.ErrNoProcess) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.proc = proc
	c, ok, err := proc.Checkpointed()
	if err != nil {
		s.drop()
		return false, fmt.Errorf("take up the session: %w", err)
	}
	if !ok { // it was never ready for a task
		return false, nil
	}
	state, err := stream.Unmarshal(c.Data)
	if err == nil {
		err = json.Unmarshal(state.Note, &s.note)
	}
	if err != nil {
		s.drop()
		return false, bridges.Errorf(bridges.KindOutcomeUnknown, "the state of the session is not readable: %w", err).
			WithNext("dispose of the session's process, then reconnect")
	}
	sent, err := proc.Sent(ctx)
	if err != nil {
		s.drop()
		return false, err
	}
	s.state, s.queue, s.at, s.seq = state, sent, c.OutOffset, c.Sent
	s.reader = proc.Reader(c.OutOffset)
	if n := len(sent); n > 0 {
		s.seq = sent[n-1].Seq
	}
	return true, nil
}

// fold applies the journaled frames that come before what is read next.
func (s *session) fold() {
	for len(s.queue) > 0 && s.queue[0].OutOffset <= s.at {
		s.state.Sent(s.queue[0].Frame)
		if !s.queue[0].Committed {
			s.redo = append(s.redo, s.queue[0].Frame)
		}
		s.queue = s.queue[1:]
	}
}

// next reads and folds one frame. io.EOF means that the agent has ended.
func (s *session) next(ctx context.Context) ([]bridges.Event, error) {
	s.mu.Lock()
	s.fold()
	s.mu.Unlock()
	f, err := s.reader.ReadFrame(ctx, maxFrame)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = f.End()
	var events []bridges.Event
	if f.Oversize {
		events = s.state.Oversize(f.Offset, f.Size)
	} else {
		events = s.state.Out(f.Offset, f.Data)
	}
	s.fold()
	return events, nil
}

// settle folds all that the agent has printed so far.
func (s *session) settle(ctx context.Context) error {
	end, err := s.proc.Size()
	if err != nil {
		return err
	}
	_, ended := s.proc.Exit()
	// A line may have been begun; the rest of it is waited for, but not long.
	late, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for s.at < end || ended {
		_, err := s.next(late)
		switch {
		case errors.Is(err, io.EOF), ctx.Err() == nil && late.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fold()
	return nil
}

// send folds and writes one frame. A frame that is folded and not written does no
// harm: every failure to write ends the turn.
func (s *session) send(ctx context.Context, frame []byte) error {
	ctx, cancel := context.WithTimeout(ctx, s.waits.write)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Sent(frame)
	return s.proc.Write(ctx, frame)
}

// again writes the frames whose writer died over them. The agent takes a task
// once for its uuid, and an answer once for its request.
func (s *session) again(ctx context.Context) error {
	s.mu.Lock()
	frames := s.redo
	s.redo = nil
	s.mu.Unlock()
	for _, frame := range frames {
		if err := s.send(ctx, frame); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint stores the fold and frees the output that is in it. The host must
// have recorded every event before.
func (s *session) checkpoint(ctx context.Context, data []byte, at int64, seq uint64) error {
	if err := s.proc.SaveCheckpoint(ctx, agentproc.Checkpoint{Data: data, OutOffset: at, Sent: seq}); err != nil {
		return err
	}
	s.proc.Consumed(at)
	return nil
}

// snapshot returns what a checkpoint of now would hold.
func (s *session) snapshot() (data []byte, at int64, seq uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, err = s.state.Marshal()
	return data, s.at, max(s.seq, s.proc.SentSeq()), err
}

// save checkpoints now.
func (s *session) save(ctx context.Context) error {
	data, at, seq, err := s.snapshot()
	if err != nil {
		return err
	}
	return s.checkpoint(ctx, data, at, seq)
}

func (s *session) lives() bool {
	if s.proc == nil {
		return false
	}
	_, ended := s.proc.Exit()
	return !ended
}

// running reports whether a turn is under way.
func (s *session) running() bool { return s.state != nil && s.state.Running() }

// has reports whether the task was written to this process, folded or not.
func (s *session) has(message string) bool {
	if s.state == nil {
		return false
	}
	if s.state.Turn != nil && s.state.Turn.ID == message {
		return true
	}
	for _, q := range s.queue {
		if stream.MessageID(q.Frame) == message {
			return true
		}
	}
	return false
}

// fate says what became of a turn that the host believes under way. The output
// has been folded.
func (s *session) fate(l launch, message string) (bridges.TurnState, error) {
	if s.has(message) && (!s.running() || s.lives()) {
		return bridges.TurnAttachable, nil
	}
	taken, err := s.taken(l, message)
	if err != nil {
		return "", err
	}
	if taken {
		return bridges.TurnLost, nil
	}
	return bridges.TurnNotSent, nil
}

// taken reports whether the agent ever took the task up.
func (s *session) taken(l launch, message string) (bool, error) {
	if s.has(message) && s.state.Turn != nil && s.state.Turn.Began {
		return true, nil
	}
	return l.home().holds(message)
}

// describe adds what the fold knows.
func (s *session) describe(info *bridges.Info) {
	if s.state == nil {
		return
	}
	info.AgentVersion, info.Model, info.Models = s.state.AgentVersion, s.state.Model, s.state.Models
}
