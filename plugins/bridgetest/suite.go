package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
	"github.com/subspan-dev/subspan/plugins/host"
)

// checkLimit bounds one check.
const checkLimit = time.Minute

// DefaultWords are the tasks of the suite's vocabulary. {text}, {seconds} and so on
// are replaced.
func DefaultWords() map[string]string {
	return map[string]string{
		"say":   "say {text}",           // answer with a text that contains {text}
		"ask":   "ask {text}",           // ask for a permission, then end the turn
		"sleep": "sleep {seconds}",      // work for so long, with a first event at once
		"spam":  "spam {count} {bytes}", // answer with {count} pieces of {bytes} bytes
		"crash": "crash",                // die without an answer
		"env":   "env {name}",           // answer with the value of a variable, if it is set
	}
}

// check is one rule and how to see that it is kept.
type check struct {
	name string
	// fix tells the author of a bridge that fails what to do.
	fix     string
	process bool // needs the bridge as a process of its own
	run     func(context.Context, *env) error
}

// checks are in the order in which they run: a failure early on explains later ones.
func checks() []check {
	var all []check
	for _, part := range [][]check{startChecks(), turnChecks(), endChecks()} {
		all = append(all, part...)
	}
	return all
}

// skipped is the error of a check that does not apply.
type skipped struct{ why string }

func (s skipped) Error() string { return s.why }

func skip(format string, args ...any) error { return skipped{fmt.Sprintf(format, args...)} }

// env is what one run of the suite works with. Everything it makes is below root.
type env struct {
	root     string
	program  host.Program // zero in process
	words    map[string]string
	agent    bridges.Agent
	launch   func(context.Context) (*live, error)
	shared   *live // opened by the first check that needs it
	lives    []*live
	sessions int        // made so far
	current  []*session // made by the check that runs
}

// live is a bridge that runs: in process, or with an instance.
type live struct {
	bridges.Bridge
	instance *host.Instance
}

func newEnv(words map[string]string, agent bridges.Agent) (*env, error) {
	root, err := os.MkdirTemp("", "bt") // short: sockets have to fit below it
	if err != nil {
		return nil, err
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, err
	}
	e := &env{root: root, words: DefaultWords(), agent: agent}
	maps.Copy(e.words, words)
	for _, dir := range []string{"home", "tmp", "work", "state", "run", "sock"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// open starts the bridge once more. It is stopped with the suite.
func (e *env) open(ctx context.Context) (*live, error) {
	l, err := e.launch(ctx)
	if err == nil {
		e.lives = append(e.lives, l)
	}
	return l, err
}

// bridge returns the bridge that checks share.
func (e *env) bridge(ctx context.Context) (*live, error) {
	if e.shared != nil && !e.shared.dead() {
		return e.shared, nil
	}
	l, err := e.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("start the bridge: %w", err)
	}
	e.shared = l
	return l, nil
}

func (l *live) dead() bool {
	if l.instance == nil {
		return false
	}
	select {
	case <-l.instance.Exited():
		return true
	default:
		return false
	}
}

// close stops every process and removes the folder.
func (e *env) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, l := range e.lives {
		if l.instance != nil {
			l.instance.Stop(ctx)
		}
	}
	return os.RemoveAll(e.root)
}

// task returns the task for a word, with its arguments in pairs of name and value.
func (e *env) task(word string, args ...string) (string, error) {
	t := e.words[word]
	if t == "" {
		return "", skip("the agent has no task for the word %q", word)
	}
	for i := 0; i+1 < len(args); i += 2 {
		args[i] = "{" + args[i] + "}"
	}
	return strings.NewReplacer(args...).Replace(t), nil
}

// run carries out one check. What it left running is disposed of.
func (e *env) run(ctx context.Context, c check) error {
	if c.process && e.program.Name == "" {
		return skip("it needs the bridge as a process of its own")
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	err := c.run(ctx, e)
	e.dispose()
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w (%w after %s)", err, ctx.Err(), checkLimit)
	}
	return err
}

// dispose ends the sessions of a check. What it fails to end, nothing-left finds.
func (e *env) dispose() {
	ctx, cancel := context.WithTimeout(context.Background(), checkLimit)
	defer cancel()
	for _, s := range e.current {
		b, err := e.bridge(ctx)
		if err != nil {
			break
		}
		s.bridge = b
		_, _ = s.dispose(ctx)
	}
	e.current = nil
}

// session is a session of the bridge under test.
type session struct {
	env      *env
	bridge   bridges.Bridge
	id       string
	handle   bridges.Handle
	folders  bridges.Folders
	settings bridges.Settings
	turns    int
}

// newSession prepares a session without creating it.
func (e *env) newSession(b bridges.Bridge) (*session, error) {
	e.sessions++
	s := &session{env: e, bridge: b, id: fmt.Sprintf("check-%d", e.sessions)}
	cwd := filepath.Join(e.root, "work", s.id)
	if err := os.Mkdir(cwd, 0o700); err != nil {
		return nil, err
	}
	s.folders = bridges.Folders{Run: filepath.Join(e.root, "run", s.id), State: filepath.Join(e.root, "state")}
	s.settings = bridges.Settings{
		Mode: ceiling.Default, Accept: bridges.HoldNone, Cwd: cwd,
		Env: []string{secretName + "=" + secretValue},
	}
	e.current = append(e.current, s)
	return s, nil
}

// create makes a session on the shared bridge.
func (e *env) create(ctx context.Context) (*session, error) {
	b, err := e.bridge(ctx)
	if err != nil {
		return nil, err
	}
	s, err := e.newSession(b)
	if err != nil {
		return nil, err
	}
	return s, s.create(ctx)
}

func (s *session) create(ctx context.Context) error {
	c, err := s.bridge.Create(ctx, bridges.CreateRequest{
		SessionID: s.id, Agent: s.env.agent, Settings: s.settings, Folders: s.folders,
	})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if len(c.Handle.Data) > 64<<10 {
		return fmt.Errorf("the handle has %d bytes, more than 64 KiB", len(c.Handle.Data))
	}
	s.handle = c.Handle
	return nil
}

func (s *session) reconnect(ctx context.Context, turnID string) (bridges.Reconnected, error) {
	r, err := s.bridge.Reconnect(ctx, bridges.ReconnectRequest{
		SessionID: s.id, Agent: s.env.agent, Handle: s.handle, Settings: s.settings, Folders: s.folders, TurnID: turnID,
	})
	if err == nil && r.Status == bridges.ReconnectSame {
		s.handle = r.Handle
	}
	return r, err
}

func (s *session) dispose(ctx context.Context) (bridges.Receipt, error) {
	return s.bridge.Dispose(ctx, bridges.DisposeRequest{
		SessionID: s.id, Agent: s.env.agent, Handle: s.handle, Settings: s.settings, Folders: s.folders,
		Grace: 500 * time.Millisecond,
	})
}
