package bridgetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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
	// leftoverLimit is how long what was disposed of may take to be gone.
	leftoverLimit = 3 * time.Second
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
		return errors.New("Reconnect found a session that was never created")
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

// checkNothingLeft disposes of a session in the middle of its work and looks for what
// still has to do with it.
func checkNothingLeft(ctx context.Context, e *env) error {
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	if task, err := e.task("sleep", "seconds", "50"); err == nil {
		t := s.newTurn()
		working, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { defer close(ended); _, _ = s.submit(working, t, task, nil) }()
		select {
		case <-t.first:
		case <-ended:
		}
		defer func() { stop(); <-ended }()
	}
	if _, err := s.dispose(ctx); err != nil {
		return err
	}
	var left []string
	for deadline := time.Now().Add(leftoverLimit); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if left, err = e.processes(); err != nil || len(left) == 0 {
			return err
		}
	}
	return fmt.Errorf("left after Dispose: %s", strings.Join(left, ", "))
}

// processes lists those that this run started and that are no plugin process: the
// environment, command or folder of each names the run's root. Plugins are known.
func (e *env) processes() ([]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(dirs) == 0 {
		return nil, skip("this system has no /proc to look for processes in")
	}
	known := []string{fmt.Sprintf("/proc/%d", os.Getpid())}
	for _, l := range e.lives {
		if l.instance != nil {
			known = append(known, fmt.Sprintf("/proc/%d", l.instance.PID()))
		}
	}
	var left []string
	for _, dir := range dirs {
		if slices.Contains(known, dir) {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(cmdline) == 0 { // gone, or a zombie
			continue
		}
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		cwd, _ := os.Readlink(filepath.Join(dir, "cwd"))
		if all := cwd + "\x00" + string(environ) + "\x00" + string(cmdline); strings.Contains(all, e.root) {
			left = append(left, fmt.Sprintf("%s (%.60q)", filepath.Base(dir), strings.ReplaceAll(string(cmdline), "\x00", " ")))
		}
	}
	return left, nil
}

// checkFiles looks at what all checks before it have left.
func checkFiles(_ context.Context, e *env) error {
	var stray []string
	for _, dir := range []string{"home", "sock"} {
		err := filepath.WalkDir(filepath.Join(e.root, dir), func(p string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && !d.IsDir() && (dir == "home" || d.Type()&fs.ModeSocket == 0) {
				stray = append(stray, p)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	top, err := os.ReadDir(e.root)
	if err != nil {
		return err
	}
	for _, entry := range top {
		if !slices.Contains([]string{"home", "tmp", "work", "state", "run", "sock"}, entry.Name()) {
			stray = append(stray, filepath.Join(e.root, entry.Name()))
		}
	}
	if len(stray) > 0 {
		return fmt.Errorf("files where none belong: %s", strings.Join(stray[:min(len(stray), 5)], ", "))
	}
	return nil
}
