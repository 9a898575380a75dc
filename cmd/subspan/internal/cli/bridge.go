package cli

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/acp"
	"github.com/subspan-dev/subspan/plugins"
)

// builtin is a bridge that this program is when it is started as `subspan bridge NAME`.
type builtin struct {
	name    string
	agents  func() []bridges.Agent
	resolve func(bridges.Agent, func(string) (string, error)) (bridges.Agent, error)
	make    func(*slog.Logger) bridges.Bridge
}

// builtins is the bill of materials, in the order of preference of their agents.
func builtins() []builtin {
	return []builtin{
		{"acp", acp.Agents, acp.Resolve, func(log *slog.Logger) bridges.Bridge {
			return acp.New(acp.Options{Log: log, Version: version()})
		}},
	}
}

// bridgeCmd makes this process a plugin. The host starts it; by hand it only says
// so and ends.
func (e *env) bridgeCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "bridge NAME",
		Short:  "Be the plugin process of a built-in bridge",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var names []string
			for _, b := range builtins() {
				if b.name == args[0] {
					plugins.Serve(b.make)
					return nil
				}
				names = append(names, b.name)
			}
			return usagef("there is no built-in bridge %q, only %s", args[0], strings.Join(names, ", "))
		},
	}
}

var _ = fmt.Sprint
