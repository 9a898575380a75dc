package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/config"
	"github.com/subspan-dev/subspan/core"
	"github.com/subspan-dev/subspan/plugins/host"
	"github.com/subspan-dev/subspan/registry"
	"github.com/subspan-dev/subspan/roles"
)

// app is everything a verb that touches sessions works with.
type app struct {
	*env
	ctx    context.Context
	self   string // this executable
	dirs   config.Dirs
	config config.Config
	agents *agentSource
	log    *slog.Logger
	core   *core.Core
}

// open reads the configuration. It starts nothing.
func (e *env) open(ctx context.Context) (*app, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program's own file: %w", err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return nil, fmt.Errorf("find this program's own file: %w", err)
	}
	dirs, err := config.FindDirs(e.getenv)
	if err != nil {
		return nil, err
	}
	if err := dirs.Make(); err != nil {
		return nil, err
	}
	conf, err := config.Load(dirs.ConfigFile())
	if err != nil {
		return nil, err
	}
	a := &app{env: e, ctx: ctx, self: self, dirs: dirs, config: conf, log: e.logger()}
	a.agents, err = newAgentSource(a)
	return a, err
}

// logger writes to stderr what SUBSPAN_LOG asks for: nothing by default.
func (e *env) logger() *slog.Logger {
	text, ok := e.getenv("SUBSPAN_LOG")
	var level slog.Level
	if !ok || level.UnmarshalText([]byte(text)) != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(e.stderr, &slog.HandlerOptions{Level: level}))
}

// closing is how long a command may take to end what it started. Agents need up to
// 3 s each, and are ended side by side.
const closing = 15 * time.Second

// withCore runs fn with a host of its own in this process.
func (e *env) withCore(ctx context.Context, flags turnFlags, fn func(context.Context, *app) error) (err error) {
	a, err := e.open(ctx)
	if err == nil {
		var reg *registry.Registry
		if reg, err = registry.Open(a.dirs.State); err == nil {
			return a.run(ctx, reg, flags, fn)
		}
	}
	if flags.json {
		a = &app{env: e}
		return a.fail(flags, core.Session{}, core.Turn{}, err)
	}
	return err
}

func (a *app) run(ctx context.Context, reg *registry.Registry, flags turnFlags, fn func(context.Context, *app) error) (err error) {
	pool, err := host.NewPool(host.Options{
		Self: a.self, Builtin: builtinNames(), Dropins: a.dropins().Program,
		Sockets: filepath.Join(a.dirs.Runtime, "p"), Log: a.log,
	})
	if err != nil {
		return err
	}
	var ask core.Asker
	if p := a.prompter(flags); p != nil {
		ask = p
	}
	a.core = core.New(core.Options{
		Registry: reg, Config: a.config, Dirs: a.dirs, Bridges: pool, Agents: a.agents,
		Roles: a.roles, Getenv: a.getenv, Ask: ask, Log: a.log,
	})
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
		defer cancel()
		if closeErr := errors.Join(a.core.Close(end), pool.Close(end)); closeErr != nil && err == nil {
			err = closeErr
		}
	}()
	return fn(ctx, a)
}

func (a *app) roles(cwd string) (*roles.Set, error) {
	return roles.Load(roles.Sources{
		User: a.dirs.RolesDir(), Cwd: cwd, ProjectMaximum: a.config.ProjectMaximum,
	})
}

// parent is the session that this process runs in, by the kernel's account of who
// started it; empty for a person or a harness. A process with the mark of a session
// whose keeper is dead still counts as that session's.
func (a *app) parent() string {
	id, _, _ := agentproc.Ancestor(os.Getpid(), func(id, dir string) bool {
		return dir == filepath.Join(a.dirs.Runtime, id)
	})
	return id
}

// complete adds shell completion of the flags that name things.
func (e *env) complete(cmd *cobra.Command) {
	words := func(list func(*app) []string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			a, err := e.open(cmd.Context())
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			return list(a), cobra.ShellCompDirectiveNoFileComp
		}
	}
	must := func(err error) {
		if err != nil {
			panic(err) // only for a flag that the command does not have
		}
	}
	if cmd.Flags().Lookup("agent") != nil {
		must(cmd.RegisterFlagCompletionFunc("agent", words(func(a *app) (names []string) {
			for _, entry := range a.agents.List() {
				if entry.Err == nil {
					names = append(names, entry.Agent.Name)
				}
			}
			return names
		})))
	}
	if cmd.Flags().Lookup("role") != nil {
		must(cmd.RegisterFlagCompletionFunc("role", words(func(a *app) (names []string) {
			set, err := a.roles(".")
			if err != nil {
				return nil
			}
			for _, r := range set.List() {
				names = append(names, r.ID)
			}
			return names
		})))
	}
	if cmd.Flags().Lookup("permission") != nil {
		must(cmd.RegisterFlagCompletionFunc("permission", cobra.FixedCompletions(
			[]string{"readonly", "default", "full"}, cobra.ShellCompDirectiveNoFileComp)))
	}
}
