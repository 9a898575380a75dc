package claude

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/claude/internal/stream"
)

// Submit implements bridges.Bridge.
func (b *Bridge) Submit(ctx context.Context, req bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
	host := ctx
	ctx, s, leave, err := b.enter(ctx, req.SessionID)
	if err != nil {
		return bridges.Result{}, err
	}
	defer leave()
	h, err := decodeHandle(req.Handle)
	if err != nil {
		return bridges.Result{}, err
	}
	l := launch{session: req.SessionID, agent: req.Agent, settings: req.Settings, folders: req.Folders, keeping: req.Keeping, handle: h}
	if req.TurnID == "" {
		return bridges.Result{}, bridges.Errorf(bridges.KindInvalidArgument, "the request names no turn")
	}
	if l.settings.Cwd != h.Cwd {
		return bridges.Result{}, bridges.Errorf(bridges.KindInvalidArgument, "the session belongs to the folder %s, not %s", h.Cwd, l.settings.Cwd).
			WithNext("start a session in the other folder")
	}
	if err := b.check(ctx, &l); err != nil {
		return bridges.Result{}, err
	}
	r := &run{session: s, launch: l, turn: turn, message: messageID(req.SessionID, req.TurnID), task: req.Task, resume: req.Resume}
	result, err := r.run(ctx)
	if err != nil {
		s.drop() // what is folded here and what is written there may differ
		if errors.Is(context.Cause(ctx), errDisposed) && host.Err() == nil {
			return bridges.Result{Status: bridges.StatusCancelled, StopReason: "disposed"}, nil
		}
		return bridges.Result{}, err
	}
	if result.Error != nil && result.Error.Kind == bridges.KindAuthRequired && s.lives() {
		// It keeps the login that it was started with; the next task gets a new one.
		if _, err := s.proc.Stop(ctx, agentproc.StopOptions{Reason: "its login was refused", Interrupt: true}); err != nil {
			s.log.Warn("claude could not be ended", "error", err)
		}
	}
	return result, nil
}

// run is one Submit.
type run struct {
	*session
	launch  launch
	turn    bridges.Turn
	message string // the uuid of the task's message
	task    string
	resume  *bridges.Resume
}

func (r *run) run(ctx context.Context) (bridges.Result, error) {
	sent, err := r.open(ctx)
	if err != nil {
		return bridges.Result{}, err
	}
	if !sent {
		select {
		case <-r.turn.Cancelled(): // before the agent heard of it
			return bridges.Result{Status: bridges.StatusCancelled, StopReason: "not_sent"}, nil
		default:
		}
		if err := r.send(ctx, stream.Task(r.message, inert(r.task))); err != nil {
			return bridges.Result{}, err
		}
	}
	return r.follow(ctx)
}

// open makes the agent ready for the task, or finds it at work on it. It reports
// whether the task was sent before.
func (r *run) open(ctx context.Context) (sent bool, err error) {
	found := r.state != nil && r.lives()
	if !found || r.resume != nil {
		if found, err = r.attach(ctx, r.launch); err != nil {
			return false, err
		}
	}
	if found {
		if err := r.bring(); err != nil {
			return false, err
		}
	}
	if found && r.has(r.message) {
		if r.lives() {
			return true, nil
		}
		return r.after(ctx)
	}
	if r.resume != nil {
		taken, err := r.taken(r.launch, r.message)
		if err != nil {
			return false, err
		}
		if taken {
			return false, bridges.Errorf(bridges.KindOutcomeUnknown, "claude took the task up, and its output is gone").
				WithNext("look at what it did, then ask it in a new turn")
		}
	}
	if h := r.launch.handle; h.Begun && r.launch.home().transcript() == "" && !(found && r.lives()) {
		return false, bridges.Errorf(bridges.KindSessionGone, "claude has no conversation %s any more", h.NativeID).
			WithNext("start a new session")
	}
	if !found || !r.lives() || r.note.Key != r.launch.key() {
		return false, r.renew(ctx, found)
	}
	if err := r.settle(ctx); err != nil {
		return false, err
	}
	if !r.lives() {
		return false, r.renew(ctx, found)
	}
	if r.running() {
		return false, busy()
	}
	if err := r.late(); err != nil {
		return false, err
	}
	// The host has recorded the last turn before it gave us this one.
	return false, r.save(ctx)
}

func busy() error {
	return bridges.Errorf(bridges.KindSessionBusy, "claude is still at an earlier task").
		WithNext("reconnect to take that one up, or dispose of the session")
}

// renew starts the process afresh, unless the last one is at a task.
func (r *run) renew(ctx context.Context, found bool) error {
	if found && r.lives() {
		if err := r.settle(ctx); err != nil {
			return err
		}
		if r.running() && r.lives() {
			return busy()
		}
	}
	if found && r.state.Turn != nil && r.launch.home().transcript() == "" {
		if err := r.notice("fresh_start", "claude ended before it had written anything down; it knows nothing of the earlier task"); err != nil {
			return err
		}
	}
	return r.start(ctx, r.launch)
}

// notice hands over a notice that comes from no output.
func (r *run) notice(code, text string) error {
	err := r.turn.Emit(bridges.Event{Kind: bridges.KindNotice, Text: text, Notice: &bridges.Notice{Level: "warning", Code: code}})
	if err != nil {
		return fmt.Errorf("hand over an event: %w", err)
	}
	return nil
}

// after decides about a task whose agent has ended: it is read to its end when it
// was taken up, and else sent to a new process, for the first time.
func (r *run) after(ctx context.Context) (sent bool, err error) {
	if err := r.settle(ctx); err != nil {
		return false, err
	}
	if r.running() {
		taken, err := r.taken(r.launch, r.message)
		if err != nil {
			return false, err
		}
		if !taken {
			return false, r.start(ctx, r.launch)
		}
	}
	_, err = r.attach(ctx, r.launch) // to fold it again, with its events
	return true, err
}

// bring gives a process that was found the user's newest login, and the fold what
// it has to keep to itself.
func (r *run) bring() error {
	login, err := r.launch.login()
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.state.Use(stream.NewScrubber(r.launch.secrets(login)))
	r.mu.Unlock()
	if !r.lives() {
		return nil
	}
	return r.launch.home().bring(login)
}

// late tells of words that came when no task was under way.
func (r *run) late() error {
	r.mu.Lock()
	n := r.state.Late
	r.state.Late = 0
	r.mu.Unlock()
	if n == 0 {
		return nil
	}
	return r.notice("late_update", fmt.Sprintf("claude went on by itself after its last task; %d messages of that are not shown", n))
}

// keepEvery is how much output is folded between two checkpoints of a long turn.
// The one before the last is used: what a host was given 8 MiB of output ago it has
// recorded, since events are handed to it in order and through a small queue.
const keepEvery = 8 << 20

// follow hands over the turn's events until it ends.
func (r *run) follow(ctx context.Context) (bridges.Result, error) {
	ctx, stop := context.WithCancel(ctx)
	m := newMinder(ctx, r)
	defer m.wait()
	defer stop()
	var after bridges.Position
	if r.resume != nil {
		after = r.resume.After
		if r.resume.Cancel {
			m.interrupt("cancel")
		}
	}
	type mark struct {
		data []byte
		at   int64
		seq  uint64
	}
	var last *mark
	from := r.at
	if r.gap(after) {
		if err := r.notice("gap", "some of the agent's output is gone; the turn's events have a gap"); err != nil {
			return bridges.Result{}, err
		}
	}
	for {
		if err := m.attend(); err != nil {
			return bridges.Result{}, err
		}
		result, over := r.result()
		if over && !r.launch.handle.Begun {
			r.launch.home().written(ctx)
		}
		if err := r.begin(); err != nil {
			return bridges.Result{}, fmt.Errorf("hand over an event: %w", err)
		}
		if over {
			return result, nil
		}
		events, err := r.next(ctx)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return r.died(m)
			}
			return bridges.Result{}, err
		}
		m.beat()
		for _, ev := range events {
			if !ev.Pos.After(after) {
				continue
			}
			r.dress(&ev)
			if err := r.turn.Emit(ev); err != nil {
				return bridges.Result{}, fmt.Errorf("hand over an event: %w", err)
			}
		}
		if r.at-from >= keepEvery {
			from = r.at
			if last != nil {
				if err := r.checkpoint(ctx, last.data, last.at, last.seq); err != nil {
					return bridges.Result{}, err
				}
			}
			last = new(mark)
			if last.data, last.at, last.seq, err = r.snapshot(); err != nil {
				return bridges.Result{}, err
			}
		}
	}
}

// gap reports whether events after the given position are in no output any more.
func (r *run) gap(after bridges.Position) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.state.Turn
	return r.resume != nil && t != nil && t.ID == r.message && r.state.Last.After(after)
}

// result returns the turn's result once all that was written is folded.
func (r *run) result() (bridges.Result, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fold()
	t := r.state.Turn
	if t == nil || t.ID != r.message || t.Result == nil {
		return bridges.Result{}, false
	}
	result := *t.Result
	if e := result.Error; e != nil && e.Kind == bridges.KindAuthRequired && r.launch.agent.LoginHint != "" {
		result.Error = e.WithNext("%s", r.launch.agent.LoginHint)
	}
	return result, true
}

// dress adds to an event on the session what the fold does not know.
func (r *run) dress(ev *bridges.Event) {
	if ev.Kind != bridges.KindSession || ev.Session == nil || ev.Session.Info == nil {
		return
	}
	info := r.launch.info()
	ev.Session.Info.Hold, ev.Session.Info.Effort, ev.Session.Info.Efforts = info.Hold, info.Effort, info.Efforts
}

// begin tells the host, once, that the agent has the conversation on its disk: from
// then on it must know it. That is a moment after the first task was taken up.
func (r *run) begin() error {
	if r.launch.handle.Begun || r.launch.home().transcript() == "" {
		return nil
	}
	r.launch.handle.Begun = true
	h := r.launch.handle.encode()
	return r.turn.Emit(bridges.Event{Kind: bridges.KindSession, Session: &bridges.SessionUpdate{Handle: &h}})
}

// died makes a result of the agent's end in the middle of the turn.
func (r *run) died(m *minder) (bridges.Result, error) {
	exit, _ := r.proc.Exit()
	r.mu.Lock()
	t := *r.state.Turn
	r.mu.Unlock()
	result := bridges.Result{
		Status: bridges.StatusFailed, StopReason: "exit", Model: t.Answered, Denied: t.Denied, Warnings: t.Warnings,
	}
	how := ended(exit)
	if t.Interrupted == "cancel" || m.stopped() {
		result.Status = bridges.StatusCancelled
		result.Warnings = append(result.Warnings, "claude did not report the end of the turn: "+how)
		return result, nil
	}
	if taken, err := r.taken(r.launch, r.message); err != nil {
		return bridges.Result{}, err
	} else if !taken {
		return bridges.Result{}, bridges.Errorf(bridges.KindAgentFailed, "claude did not take the task: %s: %s", how, r.proc.Stderr()).
			WithNext("submit it again").AsRetryable()
	}
	result.Error = bridges.Errorf(bridges.KindAgentFailed, "claude ended in the middle of the turn: %s: %s", how, r.proc.Stderr()).
		WithNext("look at what it did; the conversation goes on with the next task")
	return result, nil
}

// silence is how long nothing is worth a notice: a tool may take its time.
func (r *run) silence() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state.Turn != nil && r.state.Turn.Working() {
		return 5 * r.waits.silent
	}
	return r.waits.silent
}
