package agentproc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/confine"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/keeper"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

// Start starts the agent under a keeper and returns once it runs. When ctx ends
// before that, nothing is left running. Errors: KindAgentMissing for a program that
// is not there or cannot be run, KindInvalidArgument for a working folder that is
// not there (it names the folder), KindSandboxUnavailable, KindSessionBusy when the
// folder has a process already.
func (r *Runner) Start(ctx context.Context, spec Spec) (*Proc, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(spec.Dir) {
		return nil, bridges.Errorf(bridges.KindInvalidArgument, "session folder %q is not absolute", spec.Dir)
	}
	spec.Dir = filepath.Clean(spec.Dir)
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the session's folder: %w", err)
	}
	config, err := configure(spec)
	if err != nil {
		return nil, err
	}
	lock, err := folder.LockFileAt(spec.Dir, folder.Lock)
	if errors.Is(err, folder.ErrLocked) {
		return nil, bridges.Errorf(bridges.KindSessionBusy, "an agent runs in %s already", spec.Dir).
			WithNext("attach to it, or stop it first")
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if folder.Exists(filepath.Join(spec.Dir, folder.Spec)) {
		return nil, bridges.Errorf(bridges.KindSessionBusy, "%s still holds an earlier process of the session", spec.Dir).
			WithNext("read what it left, then remove it")
	}
	p, err := r.launch(ctx, spec, config, lock)
	if err != nil {
		// Nothing ran, or nothing is left of it: the folder is free again.
		return nil, errors.Join(err, clear(spec.Dir))
	}
	return p, nil
}

// configure checks the spec and turns it into what the keeper is told.
func configure(spec Spec) (folder.Config, error) {
	invalid := func(format string, args ...any) (folder.Config, error) {
		return folder.Config{}, bridges.Errorf(bridges.KindInvalidArgument, format, args...)
	}
	if spec.SessionID == "" || strings.ContainsAny(spec.SessionID, "\x00\n") {
		return invalid("session id %q cannot mark processes", spec.SessionID)
	}
	if len(spec.Command) == 0 || !filepath.IsAbs(spec.Command[0]) {
		return invalid("command %q does not begin with an absolute path", spec.Command)
	}
	for _, text := range slices.Concat(spec.Command, spec.Env) {
		if strings.Contains(text, "\x00") {
			return invalid("an argument or variable with a zero byte in it")
		}
	}
	if st, err := os.Stat(spec.Cwd); err != nil || !st.IsDir() || !filepath.IsAbs(spec.Cwd) {
		if err == nil {
			err = errors.New("it is no folder, or its path is not absolute")
		}
		return folder.Config{}, bridges.Errorf(bridges.KindInvalidArgument, "working folder %s: %w", spec.Cwd, err).
			WithNext("give a working folder that exists")
	}
	if _, err := exec.LookPath(spec.Command[0]); err != nil {
		return folder.Config{}, bridges.Errorf(bridges.KindAgentMissing, "the agent's program cannot be run: %w", err).
			WithNext("install it, or correct its path")
	}
	rules := confine.Rules{Writable: spec.Sandbox.Writable, Read: spec.Sandbox.Read}
	env := slices.DeleteFunc(slices.Clone(spec.Env), func(e string) bool {
		return strings.HasPrefix(e, proctree.Marker+"=") || spec.Sandbox.Mode != SandboxOff && isTemp(e)
	})
	env = append(env, proctree.Marker+"="+spec.SessionID)
	switch spec.Sandbox.Mode {
	case SandboxOff:
		rules = confine.Rules{}
	case SandboxReadOnly:
		rules.Mode = confine.ReadOnly
	case SandboxWorkspace:
		rules.Mode, rules.Workspace = confine.Workspace, spec.Sandbox.Workspace
	default:
		return invalid("unknown sandbox mode %d", spec.Sandbox.Mode)
	}
	if rules.Mode != confine.Off {
		if _, err := confine.Check(); err != nil {
			return folder.Config{}, bridges.Errorf(bridges.KindSandboxUnavailable, "the agent cannot be confined: %w", err).
				WithNext("accept a weaker hold by name, or use a system with Landlock (Linux 6.2 and later)")
		}
		if err := rules.Validate(spec.Dir); err != nil {
			return folder.Config{}, bridges.Errorf(bridges.KindSandboxUnavailable, "the agent cannot be confined: %w", err).
				WithNext("correct the folders of the sandbox")
		}
		temp := filepath.Join(spec.Dir, folder.Temp)
		rules.Writable = append(slices.Clone(rules.Writable), temp)
		env = append(env, "TMPDIR="+temp, "TMP="+temp, "TEMP="+temp)
	}
	names := make([]string, 0, len(env))
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		names = append(names, name)
	}
	grace, spoolCap := spec.Grace, spec.SpoolCap
	if grace <= 0 {
		grace = defaultGrace
	}
	if spoolCap <= 0 {
		spoolCap = defaultSpoolCap
	}
	return folder.Config{Env: env, Spec: folder.SpecRecord{
		Version: folder.Version, SessionID: spec.SessionID, Command: spec.Command, EnvNames: names, Cwd: spec.Cwd,
		Rules: rules, Lease: spec.Lease, Grace: grace, SpoolCap: spoolCap, Interrupt: spec.Interrupt,
	}}, nil
}

func isTemp(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	return name == "TMPDIR" || name == "TMP" || name == "TEMP"
}

// launch makes the files, starts the keeper and hears from it.
func (r *Runner) launch(ctx context.Context, spec Spec, config folder.Config, lock *os.File) (*Proc, error) {
	if err := lay(spec, config.Spec); err != nil {
		return nil, fmt.Errorf("preparing the session's folder: %w", err)
	}
	command := spec.Keeper
	if len(command) == 0 {
		path, err := keeperPath()
		if err != nil {
			return nil, err
		}
		command = []string{path}
	}
	status, process, err := r.spawn(ctx, command, config, lock)
	if err != nil {
		return nil, err
	}
	if !status.OK {
		r.waitFor(process)
		kind := bridges.ErrorKind(status.Kind)
		return nil, bridges.Errorf(kind, "%s", status.Detail).WithNext("%s", status.Next)
	}
	p, err := r.open(spec.Dir)
	if err != nil {
		_ = process.Kill() // the agent goes with its keeper
		r.waitFor(process)
		return nil, err
	}
	return p, nil
}

// keeperPath is the program that is a keeper when told to.
func keeperPath() (string, error) {
	if path := os.Getenv(KeeperEnv); path != "" {
		return path, nil
	}
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the keeper: %w", err)
	}
	return path, nil
}

// lay makes the files of a new session.
func lay(spec Spec, record folder.SpecRecord) error {
	at := func(name string) string { return filepath.Join(spec.Dir, name) }
	if err := os.Chmod(spec.Dir, 0o700); err != nil {
		return err
	}
	if err := folder.WriteJSON(at(folder.Spec), record); err != nil {
		return err
	}
	for _, name := range []string{folder.In, folder.Orders} {
		if err := folder.MakeInlet(at(name)); err != nil {
			return err
		}
	}
	if record.Rules.Mode != confine.Off {
		if err := os.Mkdir(at(folder.Temp), 0o700); err != nil {
			return err
		}
	}
	out, err := os.OpenFile(at(folder.Out), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(out.Truncate(spec.OutOffset), out.Close())
}

// spawn starts the keeper, tells it what to run and waits for its answer.
func (r *Runner) spawn(ctx context.Context, command []string, config folder.Config, lock *os.File) (folder.Status, *os.Process, error) {
	dir := filepath.Dir(lock.Name())
	fail := func(err error) (folder.Status, *os.Process, error) {
		return folder.Status{}, nil, fmt.Errorf("starting the keeper: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, folder.Log), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fail(err)
	}
	defer log.Close()
	tell, told, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	defer tell.Close()
	defer told.Close()
	answer, answered, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	defer answer.Close()
	defer answered.Close()

	cmd := exec.Command(command[0], append(slices.Clone(command[1:]), keeper.Verb, dir)...)
	cmd.Dir, cmd.Env = dir, append(keeperEnv(), keeper.Env+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tell, answered, log
	detach(cmd, lock)
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	r.adopt(cmd.Process)
	tell.Close()
	answered.Close()

	stop := context.AfterFunc(ctx, func() {
		_ = told.SetDeadline(time.Unix(1, 0))
		_ = answer.SetDeadline(time.Unix(1, 0))
	})
	defer stop()
	var status folder.Status
	err = json.NewEncoder(told).Encode(config)
	if err == nil {
		told.Close()
		err = json.NewDecoder(answer).Decode(&status)
	}
	if err == nil {
		return status, cmd.Process, nil
	}
	_ = cmd.Process.Kill() // the agent goes with its keeper
	r.waitFor(cmd.Process)
	if ctx.Err() != nil {
		return folder.Status{}, nil, ctx.Err()
	}
	said := strings.TrimSpace(folder.Tail(log.Name(), 2<<10))
	return folder.Status{}, nil, bridges.Errorf(bridges.KindInternal, "the keeper %s did not start: %w: %s", command[0], err, said).
		WithNext("its program must call agentproc.Main first; %s names another one", KeeperEnv)
}
