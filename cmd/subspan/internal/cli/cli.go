// Package cli is the command: one file per verb, and the wiring of the parts that
// the verbs need. It holds no rule of its own.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/subspan-dev/subspan/demo"
)

// env is the process around a command, so that nothing below reaches for globals.
type env struct {
	stdin  *os.File
	stdout io.Writer
	stderr io.Writer
	getenv func(string) (string, bool)
}

// Main runs the command of this process and returns its exit code.
func Main() int {
	e := &env{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.LookupEnv}
	// The first signal asks the command to stop what it does, a second one ends it
	// at once: the agent is then its keeper's.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	root := e.root()
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && isUsage(err) {
		err = &usageError{err}
	}
	complain(e.stderr, err)
	if errors.As(err, new(*usageError)) {
		fmt.Fprintf(e.stderr, "  next: see %s --help\n", cmd.CommandPath())
	}
	return exitCode(err)
}

// isUsage recognises cobra's own complaints about a command line, which have no type.
func isUsage(err error) bool {
	var usage *usageError
	if errors.As(err, &usage) {
		return false
	}
	for _, prefix := range []string{"unknown command", "unknown flag", "unknown shorthand", "flag needs an argument", "invalid argument", "accepts ", "requires at least", "required flag"} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}

func (e *env) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "subspan",
		Short: "Hand work to another coding agent",
		Long: `subspan hands a task to a coding agent, follows it, and brings back the answer.

Each session is a conversation with one agent under one permission (readonly,
default or full) that it cannot raise. Sessions outlive this command: what was
accepted is on disk, and an agent goes on working when its caller dies.`,
		Example: `  subspan run "map this repository"
  subspan run --agent opencode --role review "review the last commit"
  subspan submit s_4k7q2m "now fix the first finding"
  subspan ls`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddGroup(
		&cobra.Group{ID: "work", Title: "Delegate:"},
		&cobra.Group{ID: "look", Title: "Look:"},
		&cobra.Group{ID: "setup", Title: "Set up:"},
	)
	for _, group := range []struct {
		id   string
		cmds []*cobra.Command
	}{
		{"work", []*cobra.Command{e.runCmd(), e.submitCmd(), e.waitCmd(), e.stopCmd(), e.forkCmd()}},
		{"look", []*cobra.Command{e.lsCmd(), e.showCmd(), e.readCmd(), e.rmCmd()}},
		{"setup", []*cobra.Command{e.agentsCmd(), e.rolesCmd(), e.pluginsCmd(), e.versionCmd()}},
	} {
		for _, cmd := range group.cmds {
			cmd.GroupID = group.id
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(e.bridgeCmd(), e.demoCmd())
	return root
}

// demoCmd is the built-in agent, for whoever has none installed. It speaks ACP on
// stdin and stdout like any other.
func (e *env) demoCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "demo-agent",
		Short:  "The built-in agent without a model, speaking ACP on stdio",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if code := demo.Main(cmd.Context(), e.stdin, e.stdout, e.stderr); code != 0 {
				return exitStatus(code)
			}
			return nil
		},
	}
}

// printf writes to stdout; a reader that went away is not an error of the command.
func (e *env) printf(format string, args ...any) { fmt.Fprintf(e.stdout, format, args...) }
