package bridgetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/plugins"
)

const (
	// hostSecretName is set in the environment that a plugin is launched from.
	hostSecretName = "SUBSPAN_CHECK_HOST_SECRET"
	describeLimit  = time.Second
	cookieLimit    = 5 * time.Second
	// orphanLimit is how long a plugin may outlive its host.
	orphanLimit = 2 * time.Second
)

func startChecks() []check {
	return []check{
		{name: "cookie", process: true, run: checkCookie,
			fix: "when the variable " + plugins.Handshake().MagicCookieKey + " does not have its value, print to standard error what the program is for and exit with 1"},
		{name: "handshake", process: true, run: checkHandshake,
			fix: "write nothing to standard output before the handshake line, answer Describe as plugin.json has it, and see PROTOCOL.md"},
		{name: "describe", run: checkDescribe,
			fix: "Describe answers within a second without credentials, an agent or the network"},
		{name: "create-twice", run: checkCreateTwice,
			fix: "Create is idempotent on the session id: end what an earlier call left and start afresh, or return the same session"},
	}
}

func endChecks() []check {
	return []check{
		{name: "unknown-session", run: checkUnknown,
			fix: "Submit to a session that is not there fails with session_gone or unknown_session; Reconnect answers gone; neither makes a new session"},
		{name: "dispose", run: checkDispose,
			fix: "Dispose succeeds again and for sessions that it does not know, and counts truly what it ended"},
		{name: "reconnect", run: checkReconnect,
			fix: "a new process continues a conversation from the handle alone"},
		{name: "death-in-a-turn", process: true, run: checkDeathInTurn,
			fix: "after a SIGKILL of the plugin, Reconnect says what became of the turn (attachable, not_sent or lost), and an attachable one ends with its Result"},
		{name: "host-death", process: true, run: checkHostDeath,
			fix: "watch standard input: when it ends, the host is gone, and the plugin exits within 2 s; a failed write to standard error must not kill it before"},
		{name: "nothing-left", process: true, run: checkNothingLeft,
			fix: "Dispose ends every process of the session, children of children included, also those that an earlier plugin process started"},
		{name: "files", process: true, run: checkFiles,
			fix: "write to the session's folders and below its working folder, and nowhere else"},
	}
}

func checkCookie(ctx context.Context, e *env) error {
	ctx, cancel := context.WithTimeout(ctx, cookieLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.program.Command[0], e.program.Command[1:]...)
	cmd.Dir, cmd.Env = e.program.Dir, e.program.Env
	stdin, err := cmd.StdinPipe() // held open: it shall not end for want of a host
	if err != nil {
		return err
	}
	defer stdin.Close()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("started without the cookie it went on for %s and printed %.100q", cookieLimit, stdout.String())
	case err == nil:
		return errors.New("started without the cookie it exited with 0")
	case !errors.As(err, &exit):
		return err
	case stdout.Len() > 0:
		return fmt.Errorf("started without the cookie it printed %.100q to standard output", stdout.String())
	case stderr.Len() == 0:
		return errors.New("started without the cookie it did not say what it is")
	}
	return nil
}

func checkHandshake(ctx context.Context, e *env) error {
	_, err := e.bridge(ctx)
	return err
}

func checkDescribe(ctx context.Context, e *env) error {
	b, err := e.bridge(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	d, err := b.Describe(ctx)
	if err != nil {
		return err
	}
	if took := time.Since(begin); took > describeLimit {
		return fmt.Errorf("it took %s", took.Round(time.Millisecond))
	}
	if d.Name == "" || !slices.Contains(d.Contract, bridges.ContractVersion) {
		return fmt.Errorf("name %q, contract %v", d.Name, d.Contract)
	}
	return nil
}

func checkCreateTwice(ctx context.Context, e *env) error {
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	if err := s.create(ctx); err != nil {
		return fmt.Errorf("the second time: %w", err)
	}
	task, err := e.task("say", "text", "still-here")
	if err != nil {
		return err
	}
	_, err = s.complete(ctx, s.newTurn(), task)
	return err
}

func checkUnknown(ctx context.Context, e *env) error {
	b, err := e.bridge(ctx)
	if err != nil {
		return err
	}
	s, err := e.newSession(b)
	if err != nil {
		return err
	}
	s.handle = bridges.Handle{Version: 1}
	task, err := e.task("say", "text", "x")
	if err != nil {
		return err
	}
	res, err := s.submit(ctx, s.newTurn(), task, nil)
	switch {
	case err == nil && res.Status == bridges.StatusCompleted:
		return errors.New("a session that was never created answered")
	case errors.Is(err, bridges.ErrPluginFailed):
		return err
	}
	r, err := s.reconnect(ctx, "")
	if err == nil && r.Status == bridges.ReconnectSame {
		return errors.New("a session that was never created was found by Reconnect")
	}
	return nil
}

func checkDispose(ctx context.Context, e *env) error {
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	task, err := e.task("say", "text", "x")
	if err != nil {
		return err
	}
	if _, err := s.complete(ctx, s.newTurn(), task); err != nil {
		return err
	}
	for _, time := range []string{"first", "second"} {
		r, err := s.dispose(ctx)
		if err != nil {
			return fmt.Errorf("the %s time: %w", time, err)
		}
		if r.SurvivedCount > 0 {
			return fmt.Errorf("the %s time: %d processes survived, %v", time, r.SurvivedCount, r.Survived)
		}
	}
	b, err := e.bridge(ctx)
	if err != nil {
		return err
	}
	never, err := e.newSession(b)
	if err != nil {
		return err
	}
	if _, err := never.dispose(ctx); err != nil {
		return fmt.Errorf("of a session that was never created: %w", err)
	}
	return nil
}

// again returns the session on a new process, or a new value of the bridge.
func (s *session) again(ctx context.Context) error {
	if l, ok := s.bridge.(*live); ok && l.instance != nil {
		l.instance.Kill()
		<-l.instance.Exited()
	}
	l, err := s.env.open(ctx)
	if err != nil {
		return fmt.Errorf("start the bridge again: %w", err)
	}
	s.bridge, s.env.shared = l, l
	return nil
}

func checkReconnect(ctx context.Context, e *env) error {
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	d, err := s.bridge.Describe(ctx)
	if err != nil {
		return err
	}
	task, err := e.task("say", "text", "before-1")
	if err != nil {
		return err
	}
	if _, err := s.complete(ctx, s.newTurn(), task); err != nil {
		return err
	}
	if err := s.again(ctx); err != nil {
		return err
	}
	r, err := s.reconnect(ctx, "")
	if err != nil {
		return err
	}
	if !d.Has(bridges.CanReconnect) {
		if r.Status == bridges.ReconnectSame {
			return fmt.Errorf("it answers same and does not have the capability %s", bridges.CanReconnect)
		}
		return skip("the bridge does not have the capability %s", bridges.CanReconnect)
	}
	if r.Status != bridges.ReconnectSame {
		return fmt.Errorf("it answers %s: %s", r.Status, r.Reason)
	}
	if task, err = e.task("say", "text", "after-2"); err != nil {
		return err
	}
	t := s.newTurn()
	if _, err := s.complete(ctx, t, task); err != nil {
		return err
	}
	if !strings.Contains(t.text(), "after-2") {
		return fmt.Errorf("the answer after it is %.100q", t.text())
	}
	_, err = s.dispose(ctx)
	return err
}

func checkDeathInTurn(ctx context.Context, e *env) error {
	task, err := e.task("sleep", "seconds", "2")
	if err != nil {
		return err
	}
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	t := s.newTurn()
	ended := make(chan error, 1)
	go func() { _, err := s.submit(ctx, t, task, nil); ended <- err }()
	select {
	case <-t.first:
	case err := <-ended:
		return fmt.Errorf("the turn ended before its first event: %w", err)
	}
	s.bridge.(*live).instance.Kill()
	if err := <-ended; !errors.Is(err, bridges.ErrPluginFailed) {
		return fmt.Errorf("the turn whose plugin was killed ended with %w", err)
	}
	if err := s.again(ctx); err != nil {
		return err
	}
	r, err := s.reconnect(ctx, t.id)
	if err != nil {
		return fmt.Errorf("reconnect: %w", err)
	}
	if r.Status == bridges.ReconnectSame && (r.Turn == bridges.TurnAttachable || r.Turn == bridges.TurnNotSent) {
		rest := s.newTurn()
		rest.id, rest.lastPos = t.id, t.lastPos
		res, err := s.submit(ctx, rest, task, &bridges.Resume{After: t.lastPos})
		if err != nil {
			return fmt.Errorf("the turn was %s, and resuming it failed: %w", r.Turn, err)
		}
		if res.Status != bridges.StatusCompleted {
			return fmt.Errorf("the turn was %s, and ended with %s: %w", r.Turn, res.Status, causeOf(res))
		}
	} else if r.Turn == "" {
		return fmt.Errorf("reconnect answers %s and does not say what became of the turn", r.Status)
	}
	_, err = s.dispose(ctx)
	return err
}

func checkHostDeath(ctx context.Context, e *env) error {
	l, err := e.open(ctx)
	if err != nil {
		return err
	}
	l.instance.Abandon()
	select {
	case <-l.instance.Exited():
		return nil
	case <-time.After(orphanLimit):
		return fmt.Errorf("process %d is still there %s after its host's death", l.instance.PID(), orphanLimit)
	}
}
