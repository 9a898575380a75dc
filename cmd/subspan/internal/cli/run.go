package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/subspan-dev/subspan/core"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// turnFlags are the flags of every verb that waits for a turn.
type turnFlags struct {
	timeout time.Duration
	json    bool
	quiet   bool
}

func (f *turnFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "how long to wait, such as 90s or 10m; the turn goes on after it (exit 3)")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object instead of the answer")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "no progress")
}

func (e *env) runCmd() *cobra.Command {
	var (
		req        core.CreateRequest
		permission string
		flags      turnFlags
	)
	cmd := &cobra.Command{
		Use:   "run [flags] TASK",
		Short: "Start a session with a task and wait for the answer",
		Long: `Start a session, give it a task, and wait for the answer.

Progress goes to stderr and the agent's final message alone to stdout. TASK is one
argument, or "-" to read it from stdin; it reaches the agent as text, whatever it
begins with. Without --agent the role's agent is used, then the configured one,
then the first that is installed, then the built-in demo agent.`,
		Example: `  subspan run "map this repository"
  subspan run --agent opencode --permission readonly "why does TestParse fail?"
  git diff | subspan run --role review -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			task, err := e.task(args[0])
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("permission") {
				mode, err := ceiling.Parse(permission)
				if err != nil {
					return &usageError{fmt.Errorf("--permission: %w", err)}
				}
				req.Mode = &mode
			}
			req.Title = title(task)
			return e.withCore(cmd.Context(), flags, func(ctx context.Context, a *app) error {
				req.Parent = a.parent()
				return a.delegate(ctx, flags, task, "", "", func(ctx context.Context) (core.Session, error) {
					return a.core.Create(ctx, req)
				})
			})
		},
	}
	cmd.Flags().StringVarP(&req.Agent, "agent", "a", "", "the agent to use (see subspan agents)")
	cmd.Flags().StringVarP(&req.Role, "role", "r", "", "the role to work in (see subspan roles)")
	cmd.Flags().StringVarP(&permission, "permission", "p", "", "readonly, default or full; at most what the role allows")
	cmd.Flags().StringVarP(&req.Model, "model", "m", "", "the model, by the agent's own name for it")
	cmd.Flags().StringVar(&req.Effort, "effort", "", "the reasoning effort, by the agent's own name for it")
	cmd.Flags().StringVarP(&req.Cwd, "cwd", "C", "", "the folder to work in (default: this one)")
	flags.add(cmd)
	e.complete(cmd)
	return cmd
}

// task returns the text of a task argument, "-" being stdin.
func (e *env) task(arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	b, err := io.ReadAll(io.LimitReader(e.stdin, core.MaxTask+1))
	if err != nil {
		return "", fmt.Errorf("read the task from stdin: %w", err)
	}
	return string(b), nil
}

// title is the first line of a task, cut to what fits a list.
func title(task string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(task), "\n")
	if r := []rune(line); len(r) > 60 {
		line = string(r[:59]) + "…"
	}
	return line
}

// delegate gives a task to the session that open returns and reports on the turn.
func (a *app) delegate(ctx context.Context, flags turnFlags, task, model, effort string, open func(context.Context) (core.Session, error)) error {
	s, err := open(ctx)
	if err != nil {
		return a.fail(flags, core.Session{}, core.Turn{}, err)
	}
	ref, err := a.core.Submit(ctx, core.SubmitRequest{Session: s.ID, Task: task, Model: model, Effort: effort})
	if err != nil {
		return a.fail(flags, s, core.Turn{}, err)
	}
	return a.await(ctx, flags, s, ref.Turn, ref.Cursor)
}

// await follows a turn to its end, or for as long as the caller wants to wait, and
// prints how it came out.
func (a *app) await(ctx context.Context, flags turnFlags, s core.Session, turn string, from int64) error {
	p := a.progress(flags)
	p.start(s, turn)
	wait := ctx
	if flags.timeout > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, flags.timeout)
		defer cancel()
	}
	err := a.core.Follow(wait, s.ID, turn, from, func(en core.Entry) error {
		p.entry(en)
		return nil
	})
	p.finish()
	switch {
	case ctx.Err() != nil:
		// Interrupted by the user: the turn shall stop, and the user shall see that it did.
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
		defer cancel()
		p.say("stopping %s …", s.ID)
		stopped, stopErr := a.core.Stop(stopCtx, s.ID)
		if stopErr != nil {
			return errors.Join(a.fail(flags, s, core.Turn{}, stopErr), exitStatus(exitInterrupted))
		}
		if n := stopped.Receipt.SurvivedCount; n > 0 {
			p.say("%d processes are still alive: see subspan stop %s", n, s.ID)
		}
	case errors.Is(err, context.DeadlineExceeded):
		p.say("still running after %s; go on with: subspan wait %s", flags.timeout, s.ID)
	case err != nil:
		return a.fail(flags, s, core.Turn{}, err)
	}
	t, err := a.core.Turn(s.ID, turn)
	if err != nil {
		return a.fail(flags, s, core.Turn{}, err)
	}
	return a.report(flags, s, t, p)
}

// stopPatience is how long an interrupted command waits for its agent to end.
const stopPatience = 30 * time.Second

// isTerminal reports whether a stream is one that a person looks at.
func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
