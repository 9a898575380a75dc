package codex

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/codex/internal/fold"
)

// Create implements bridges.Bridge. Codex chooses the thread's id itself and keeps
// nothing of a thread before its first turn.
func (b *Bridge) Create(ctx context.Context, req bridges.CreateRequest) (bridges.Created, error) {
	release, err := b.claim(req.SessionID)
	if err != nil {
		return bridges.Created{}, err
	}
	defer release()
	if err := b.clear(ctx, req.SessionID, req.Folders.Run); err != nil {
		return bridges.Created{}, err
	}
	l, err := b.prepare(ctx, req.Agent, req.Settings, req.Folders, req.Keeping)
	if err != nil {
		return bridges.Created{}, err
	}
	var parent *note
	var warnings []string
	if req.ForkFrom != nil {
		n, err := readNote(*req.ForkFrom)
		if err != nil {
			return bridges.Created{}, err
		}
		_, found := recordOf(req.Folders.State, n.Thread)
		switch {
		case found:
			parent = &n
		case n.Ran:
			return bridges.Created{}, bridges.Errorf(bridges.KindSessionGone, "codex has no record of the session to fork (thread %s)", n.Thread).
				WithNext("create a new session")
		default:
			warnings = append(warnings, "the session to fork has had no turn yet; this one starts empty")
		}
	}
	s, err := b.start(ctx, l, req.SessionID, 0)
	if err != nil {
		return bridges.Created{}, err
	}
	n, err := b.openThread(ctx, l, s, parent)
	if err != nil {
		return bridges.Created{}, errors.Join(err, b.end(context.WithoutCancel(ctx), s, "the session could not be made"))
	}
	if parent != nil {
		warnings = append(warnings, wrongRole(*parent, req.Settings))
	}
	b.keep(s)
	return bridges.Created{Handle: n.handle(), Info: s.info(l, n, warnings)}, nil
}

// clear ends what an earlier call left in a session's folder.
func (b *Bridge) clear(ctx context.Context, id, dir string) error {
	b.forget(id)
	r, err := b.run()
	if err != nil {
		return err
	}
	p, err := r.Attach(ctx, dir)
	if errors.Is(err, agentproc.ErrNoProcess) {
		return agentproc.Remove(dir)
	}
	if err != nil {
		return err
	}
	return b.end(ctx, &session{id: id, proc: p}, "the session is started anew")
}

// openThread starts a thread, or forks one, and checks that the settings can be
// honoured, before anybody learns of the session.
func (b *Bridge) openThread(ctx context.Context, l *launch, s *session, parent *note) (note, error) {
	ctx, cancel := context.WithTimeout(ctx, threadLimit)
	defer cancel()
	k := b.dial(s, nil, "", bridges.Position{})
	defer k.close()
	method, params, n := "thread/start", l.thread(), note{Role: roleOf(l.settings)}
	if l.settings.Instructions != "" {
		params["developerInstructions"] = l.settings.Instructions
	}
	if parent != nil {
		// Forked with its parent's model; the first turn may set another one.
		method, n.Role = "thread/fork", parent.Role
		params["threadId"], params["excludeTurns"] = parent.Thread, true
		if parent.Model != "" {
			params["model"] = parent.Model
		}
	} else if l.settings.Model != "" {
		params["model"] = l.settings.Model
	}
	if _, err := k.conn.Call(ctx, method, params); err != nil {
		return n, s.explain(method, err)
	}
	k.close()
	if s.fold.Thread == "" {
		return n, bridges.Errorf(bridges.KindAgentProtocol, "codex named no thread in its answer to %s", method)
	}
	if _, _, err := choose(l.settings, s.fold, s.models); err != nil {
		return n, err
	}
	n.Thread, n.Ran, n.Model, n.Out = s.fold.Thread, parent != nil, s.fold.Model, s.fold.Out
	return n, s.checkpoint(ctx)
}

// info tells what is known of a session.
func (s *session) info(l *launch, n note, warnings []string) bridges.Info {
	info := bridges.Info{
		NativeID: n.Thread, AgentVersion: s.fold.Version, Model: s.fold.Model, Effort: s.fold.Effort,
		Hold: s.hold(l), Models: offered(s.models),
	}
	if m := find(s.models, s.fold.Model); m != nil {
		info.Efforts = m.Efforts
	}
	for _, w := range append(warnings, l.limits.warning, l.creds.Warning) {
		if w != "" {
			info.Warnings = append(info.Warnings, w)
		}
	}
	return info
}

func (s *session) hold(l *launch) bridges.Hold {
	if l.limits.Sandbox != agentproc.SandboxOff {
		return s.proc.Hold()
	}
	return bridges.Hold{Strength: l.limits.strength, Detail: l.limits.detail}
}

// ready returns a session with a process that runs under the launch, and the note
// that belongs to it: the one that is there, or a new one for the same conversation.
func (b *Bridge) ready(ctx context.Context, l *launch, id string, n note) (*session, note, []string, error) {
	s := b.kept(id)
	if s == nil {
		var err error
		if s, err = b.attach(ctx, id, l.folders.Run); err != nil {
			return nil, n, nil, err
		}
		if s != nil {
			if err := b.catchUp(ctx, s); err != nil {
				s.proc.Release()
				return nil, n, nil, err
			}
		}
	}
	if s == nil {
		// Nothing is known of how much the last process wrote: leave room for it.
		return b.revive(ctx, l, id, n, n.Out+1<<32)
	}
	_, ended := s.proc.Exit()
	if !ended && l.fits(s) && s.fold.Thread == n.Thread && s.torn == "" {
		return s, n, nil, nil
	}
	size, err := s.proc.Size()
	if err != nil {
		s.proc.Release()
		return nil, n, nil, err
	}
	if err := b.end(ctx, s, "codex is started anew for the session's settings"); err != nil {
		return nil, n, nil, err
	}
	return b.revive(ctx, l, id, n, size)
}

// revive starts a process for a conversation that has none.
func (b *Bridge) revive(ctx context.Context, l *launch, id string, n note, offset int64) (*session, note, []string, error) {
	if err := b.clear(ctx, id, l.folders.Run); err != nil {
		return nil, n, nil, err
	}
	_, found := recordOf(l.folders.State, n.Thread)
	if !found && n.Ran {
		return nil, n, nil, bridges.Errorf(bridges.KindSessionGone, "codex has no record of the session any more (thread %s)", n.Thread).
			WithNext("create a new session")
	}
	s, err := b.start(ctx, l, id, offset)
	if err != nil {
		return nil, n, nil, err
	}
	fail := func(err error) (*session, note, []string, error) {
		return nil, n, nil, errors.Join(err, b.end(context.WithoutCancel(ctx), s, "the conversation could not be opened"))
	}
	if !found {
		fresh, err := b.openThread(ctx, l, s, nil)
		if err != nil {
			return fail(err)
		}
		return s, fresh, []string{"codex kept nothing of the session, which had had no turn; it was started anew"}, nil
	}
	if err := b.resume(ctx, l, s, n); err != nil {
		return fail(err)
	}
	n.Ran, n.Out = true, s.fold.Out
	if n.Model == "" {
		n.Model = s.fold.Model
	}
	return s, n, nil, nil
}

func (b *Bridge) resume(ctx context.Context, l *launch, s *session, n note) error {
	ctx, cancel := context.WithTimeout(ctx, threadLimit)
	defer cancel()
	k := b.dial(s, nil, "", bridges.Position{})
	defer k.close()
	params := l.thread()
	params["threadId"], params["excludeTurns"] = n.Thread, true
	if n.Model != "" {
		params["model"] = n.Model
	}
	if _, err := k.conn.Call(ctx, "thread/resume", params); err != nil {
		return s.explain("thread/resume", err)
	}
	k.close()
	if s.fold.Thread != n.Thread {
		return bridges.Errorf(bridges.KindAgentProtocol, "codex opened thread %q in place of %q", s.fold.Thread, n.Thread).WithNext("create a new session")
	}
	return s.checkpoint(ctx)
}

// Reconnect implements bridges.Bridge.
func (b *Bridge) Reconnect(ctx context.Context, req bridges.ReconnectRequest) (bridges.Reconnected, error) {
	release, err := b.claim(req.SessionID)
	if err != nil {
		return bridges.Reconnected{}, err
	}
	defer release()
	n, err := readNote(req.Handle)
	if err != nil {
		return bridges.Reconnected{}, err
	}
	b.forget(req.SessionID)
	out := bridges.Reconnected{Status: bridges.ReconnectSame, Handle: req.Handle}
	l, err := b.prepare(ctx, req.Agent, req.Settings, req.Folders, req.Keeping)
	if err != nil {
		return bridges.Reconnected{}, err
	}
	if req.TurnID != "" {
		s, state, err := b.stateOf(ctx, req, n)
		if err != nil {
			return bridges.Reconnected{}, err
		}
		out.Turn = state
		if s != nil { // it runs, or its end is there to be read: Submit reads it
			out.Info = s.info(l, n, []string{wrongRole(n, req.Settings)})
			s.proc.Release()
			return out, nil
		}
		n.Ran = n.Ran || state == bridges.TurnLost
	}
	s, n, warnings, err := b.ready(ctx, l, req.SessionID, n)
	switch bridges.KindOf(err) {
	case "":
	case bridges.KindSessionGone:
		out.Status, out.Reason = bridges.ReconnectGone, err.Error()
		return out, nil
	case bridges.KindSessionBusy:
		out.Status, out.Reason = bridges.ReconnectRefused, err.Error()
		return out, nil
	default:
		return bridges.Reconnected{}, err
	}
	b.keep(s)
	out.Handle = n.handle()
	out.Info = s.info(l, n, append(warnings, wrongRole(n, req.Settings)))
	return out, nil
}

// stateOf finds out what became of a turn. A session comes back with TurnAttachable
// alone; for the other states its process is ended where there is doubt about it.
func (b *Bridge) stateOf(ctx context.Context, req bridges.ReconnectRequest, n note) (*session, bridges.TurnState, error) {
	name := clientID(req.SessionID, req.TurnID)
	s, err := b.attach(ctx, req.SessionID, req.Folders.Run)
	if err != nil {
		return nil, "", err
	}
	if s != nil {
		if err := b.catchUp(ctx, s); err != nil {
			s.proc.Release()
			return nil, "", err
		}
		_, ended := s.proc.Exit()
		t := s.fold.Turn
		mine := t != nil && t.ID == name
		switch {
		case mine && (!ended || t.End != nil || t.Refused != nil):
			return s, bridges.TurnAttachable, nil
		case s.torn == name:
			// Half of the task may be on its way. Without its reader it never arrives,
			// and what did arrive is in the record.
			if err := b.end(ctx, s, "the task was cut short on its way"); err != nil {
				return nil, "", err
			}
		default:
			s.proc.Release()
			if mine {
				return nil, bridges.TurnLost, nil
			}
		}
	}
	sent, err := arrived(req.Folders.State, n.Thread, name)
	if err != nil {
		return nil, "", err
	}
	if sent {
		return nil, bridges.TurnLost, nil
	}
	return nil, bridges.TurnNotSent, nil
}

// arrived reports whether codex has taken up a turn, by its own record.
func arrived(home, thread, name string) (bool, error) {
	r, found := recordOf(home, thread)
	if !found {
		return false, nil
	}
	return r.holds(name)
}

// Dispose implements bridges.Bridge. Asked to end, codex ends its commands and itself
// within a second.
func (b *Bridge) Dispose(ctx context.Context, req bridges.DisposeRequest) (bridges.Receipt, error) {
	r, err := b.run()
	if err != nil {
		return bridges.Receipt{}, err
	}
	var receipt bridges.Receipt
	p, err := r.Attach(ctx, req.Folders.Run)
	switch {
	case errors.Is(err, agentproc.ErrNoProcess):
		receipt = bridges.Receipt{Proven: true, Notes: []string{"no process of the session was found"}}
	case err != nil:
		return receipt, err
	default:
		receipt, err = p.Stop(ctx, agentproc.StopOptions{Reason: "the session was disposed of", Grace: req.Grace})
		p.Release()
		if err != nil {
			return receipt, err
		}
	}
	if receipt.SurvivedCount > 0 {
		return receipt, nil // its folder is what the next attempt goes by
	}
	// A Submit that runs sees its agent end; what it holds open goes with it.
	if s := b.kept(req.SessionID); s != nil {
		s.proc.Release()
	}
	if err := agentproc.Remove(req.Folders.Run); err != nil {
		return receipt, err
	}
	if req.Delete && req.Handle.Version != 0 {
		return receipt, remove(ctx, req)
	}
	return receipt, nil
}

// remove deletes the conversation through codex, which keeps indexes of it.
func remove(ctx context.Context, req bridges.DisposeRequest) error {
	n, err := readNote(req.Handle)
	if err != nil {
		return err
	}
	if _, found := recordOf(req.Folders.State, n.Thread); !found {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	temp, err := os.MkdirTemp(req.Folders.State, "delete-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	cmd := exec.CommandContext(ctx, req.Agent.Command[0], append(slices.Clone(req.Agent.Command[1:]), "delete", "--force", n.Thread)...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = environment(req.Agent, req.Folders.State, temp, nil), filepath.Clean(temp), time.Second
	said, err := cmd.CombinedOutput()
	if _, found := recordOf(req.Folders.State, n.Thread); found {
		return bridges.Errorf(bridges.KindAgentFailed, "codex did not delete thread %s: %s", n.Thread, fold.Clip(strings.TrimSpace(fmt.Sprint(string(said), " ", err)), fold.MaxNotice)).
			WithNext("run `codex delete --force %s` with CODEX_HOME=%s", n.Thread, req.Folders.State)
	}
	return nil
}
