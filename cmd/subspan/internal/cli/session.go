package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core"
)

func (e *env) submitCmd() *cobra.Command {
	var (
		flags         turnFlags
		model, effort string
	)
	cmd := &cobra.Command{
		Use:   "submit [flags] SESSION TASK",
		Short: "Give a session its next task and wait for the answer",
		Long: `Give a session its next task and wait for the answer.

SESSION is an id or the beginning of one. The agent remembers the conversation;
where it does not any more, the command fails with session_gone (exit 6) and never
starts a fresh one in its place.`,
		Example: `  subspan submit s_4k7q2m "now fix the first finding"`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			task, err := e.task(args[1])
			if err != nil {
				return err
			}
			return e.withCore(cmd.Context(), flags, func(ctx context.Context, a *app) error {
				return a.delegate(ctx, flags, task, model, effort, func(ctx context.Context) (core.Session, error) {
					s, _, err := a.core.Show(ctx, args[0])
					return s, err
				})
			})
		},
	}
	cmd.Flags().StringVarP(&model, "model", "m", "", "the model for this turn (default: the session's)")
	cmd.Flags().StringVar(&effort, "effort", "", "the reasoning effort for this turn (default: the session's)")
	flags.add(cmd)
	return cmd
}

func (e *env) waitCmd() *cobra.Command {
	var (
		flags turnFlags
		turn  string
	)
	cmd := &cobra.Command{
		Use:   "wait [flags] SESSION",
		Short: "Wait for a session's turn and print its answer",
		Long: `Wait for a session's last turn, or the one named with --turn, and print its answer.

When the process that started the turn is gone, this one takes it over: what the
agent did meanwhile is read, nothing is run again.`,
		Example: `  subspan wait s_4k7q2m --timeout 10m`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.withCore(cmd.Context(), flags, func(ctx context.Context, a *app) error {
				t, err := a.core.Turn(args[0], turn)
				if err != nil {
					return a.fail(flags, core.Session{}, core.Turn{}, err)
				}
				s, err := a.core.Look(t.Session)
				if err != nil {
					return a.fail(flags, core.Session{}, t, err)
				}
				return a.await(ctx, flags, s, t.ID, t.Cursor)
			})
		},
	}
	cmd.Flags().StringVar(&turn, "turn", "", "the turn, such as t2 (default: the last)")
	flags.add(cmd)
	return cmd
}

func (e *env) forkCmd() *cobra.Command {
	var (
		flags turnFlags
		req   core.CreateRequest
	)
	cmd := &cobra.Command{
		Use:     "fork [flags] SESSION TASK",
		Short:   "Start a new session from another one's history, with a task",
		Example: `  subspan fork s_4k7q2m "try it the other way"`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			task, err := e.task(args[1])
			if err != nil {
				return err
			}
			req.Fork, req.Title = args[0], title(task)
			return e.withCore(cmd.Context(), flags, func(ctx context.Context, a *app) error {
				req.Parent = a.parent()
				return a.delegate(ctx, flags, task, "", "", func(ctx context.Context) (core.Session, error) {
					return a.core.Create(ctx, req)
				})
			})
		},
	}
	cmd.Flags().StringVarP(&req.Model, "model", "m", "", "the model (default: the other session's)")
	cmd.Flags().StringVar(&req.Effort, "effort", "", "the reasoning effort (default: the other session's)")
	flags.add(cmd)
	return cmd
}

func (e *env) stopCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stop SESSION",
		Short: "End a session's turn and processes, with a receipt",
		Long: `End what a session is doing: its turn, politely first, then every process of it.

The receipt says what was ended and names whatever is still alive (exit 5 then).
The conversation is kept: subspan submit goes on with it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags := turnFlags{json: asJSON}
			return e.withCore(cmd.Context(), flags, func(ctx context.Context, a *app) error {
				stopped, err := a.core.Stop(ctx, args[0])
				if err != nil {
					return a.fail(flags, core.Session{}, core.Turn{}, err)
				}
				code := exitOK
				if stopped.Receipt.SurvivedCount > 0 {
					code = exitAgentFailed
				}
				if asJSON {
					return a.printJSON(stopped, code)
				}
				a.receipt(stopped)
				if code != exitOK {
					return exitStatus(code)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func (a *app) receipt(s core.Stopped) {
	what := "no turn was running"
	if s.Turn != "" {
		what = "turn " + s.Turn + " ended"
	}
	proof := ""
	if s.Receipt.EndedCount > 0 && s.Receipt.Proven {
		proof = ", none left"
	}
	a.printf("%s: %s, %d processes ended%s\n", s.Session, what, s.Receipt.EndedCount, proof)
	for _, p := range s.Receipt.Survived {
		a.printf("  still alive: pid %d %s\n", p.PID, oneLine(p.Command, 100))
	}
	for _, n := range s.Receipt.Notes {
		a.printf("  %s\n", oneLine(n, 200))
	}
}

func (e *env) lsCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List sessions",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.withCore(cmd.Context(), turnFlags{json: asJSON}, func(ctx context.Context, a *app) error {
				all, problems, err := a.core.List(ctx)
				if err != nil {
					return err
				}
				for _, p := range problems {
					fmt.Fprintf(a.stderr, "subspan: session %s cannot be read: %s\n", p.ID, p.Err)
				}
				if asJSON {
					if all == nil {
						all = []core.Session{}
					}
					return a.printJSON(all, exitOK)
				}
				if len(all) == 0 {
					fmt.Fprintln(a.stderr, "no sessions yet; start one with: subspan run TASK")
					return nil
				}
				w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "SESSION\tSTATUS\tAGENT\tROLE\tPERMISSION\tTURNS\tAGE\tTITLE")
				for _, s := range all {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", s.ID, s.Status, s.Agent, s.Role, s.Permission, s.Turns, age(s.Updated), oneLine(s.Title, 60))
				}
				return w.Flush()
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}

// age is a duration as a person says it.
func age(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func (e *env) showCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show SESSION",
		Short: "Show a session and its turns",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags := turnFlags{json: asJSON}
			return e.withCore(cmd.Context(), flags, func(ctx context.Context, a *app) error {
				s, turns, err := a.core.Show(ctx, args[0])
				if err != nil {
					return a.fail(flags, core.Session{}, core.Turn{}, err)
				}
				if asJSON {
					return a.printJSON(struct {
						core.Session
						List []core.Turn `json:"turn_list"`
					}{s, turns}, exitOK)
				}
				a.show(s, turns)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func (a *app) show(s core.Session, turns []core.Turn) {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	row := func(key, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", key, value)
		}
	}
	row("session", s.ID)
	row("status", string(s.Status))
	row("reason", oneLine(s.Reason, 300))
	row("agent", s.Agent+" "+s.AgentVersion)
	row("role", s.Role)
	row("permission", fmt.Sprintf("%s (%s)", s.Permission, s.Hold))
	row("folder", s.Cwd)
	row("model", choice(s.Model))
	row("effort", choice(s.Effort))
	row("parent", s.Parent)
	row("forked from", s.ForkedFrom)
	row("agent's own id", s.NativeID)
	for _, warning := range s.Warnings {
		row("warning", oneLine(warning, 300))
	}
	row("created", s.Created.Local().Format(time.DateTime))
	w.Flush()
	for _, t := range turns {
		a.printf("\n%s  %s  %s  %s\n", t.ID, t.Status, t.Duration.Round(time.Millisecond), oneLine(t.Task, 80))
		if t.Ended == nil {
			continue
		}
		if t.Ended.Error != nil {
			a.printf("    %s: %s\n", t.Ended.Error.Kind, oneLine(t.Ended.Error.Message, 300))
		}
		if u := usageText(t.Ended.Usage); u != "" {
			a.printf("    %s\n", u[2:])
		}
		for _, warning := range t.Ended.Warnings {
			a.printf("    ! %s\n", oneLine(warning, 300))
		}
		a.printf("    %s\n", t.ResultPath)
	}
}

func choice(c core.Choice) string {
	switch {
	case c.Requested == "" || c.Requested == c.Observed:
		return c.Observed
	case c.Observed == "":
		return c.Requested + " (asked for)"
	}
	return fmt.Sprintf("%s (asked for %s)", c.Observed, c.Requested)
}

func (e *env) readCmd() *cobra.Command {
	var (
		turn   string
		events bool
	)
	cmd := &cobra.Command{
		Use:   "read [flags] SESSION",
		Short: "Print a turn's answer, or its events",
		Example: `  subspan read s_4k7q2m
  subspan read s_4k7q2m --turn t1 --events`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.withCore(cmd.Context(), turnFlags{}, func(ctx context.Context, a *app) error {
				t, err := a.core.Turn(args[0], turn)
				if err != nil {
					return err
				}
				if events {
					return a.core.Entries(t.Session, t.ID, func(en core.Entry) error { return a.printJSON(en, exitOK) })
				}
				if t.Ended == nil {
					return bridges.Errorf(bridges.KindSessionBusy, "turn %s has not ended", t.ID).
						WithNext("wait for it: `subspan wait %s`", t.Session)
				}
				f, err := os.Open(t.ResultPath)
				if err != nil {
					return fmt.Errorf("read the answer: %w", err)
				}
				defer f.Close()
				if _, err := io.Copy(a.stdout, f); err != nil {
					return fmt.Errorf("print the answer: %w", err)
				}
				a.printf("\n")
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&turn, "turn", "", "the turn, such as t2 (default: the last)")
	cmd.Flags().BoolVar(&events, "events", false, "print every event as a line of JSON")
	return cmd
}

func (e *env) rmCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "rm SESSION…",
		Short: "Delete sessions with their results",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.withCore(cmd.Context(), turnFlags{}, func(ctx context.Context, a *app) error {
				for _, id := range args {
					if err := a.core.Remove(ctx, id); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}
