package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/acp"
	"github.com/subspan-dev/subspan/bridges/claude"
	"github.com/subspan-dev/subspan/bridges/codex"
	"github.com/subspan-dev/subspan/plugins"
)

// builtin is a bridge that this program is when it is started as `subspan bridge NAME`.
type builtin struct {
	name    string
	agents  func() []bridges.Agent
	resolve func(bridges.Agent, func(string) (string, error)) (bridges.Agent, error)
	make    func() bridges.Bridge
}

// builtins is the bill of materials, in the order of preference of their agents.
func builtins() []builtin {
	return []builtin{
		{"claude", one(claude.Agent), claude.Resolve, func() bridges.Bridge {
			return claude.New(claude.Options{Version: version()})
		}},
		{"codex", one(codex.Agent), codex.Resolve, func() bridges.Bridge {
			return codex.New(codex.Options{Version: version()})
		}},
		{"acp", acp.Agents, acp.Resolve, func() bridges.Bridge {
			return acp.New(acp.Options{Version: version()})
		}},
	}
}

// one is the list of a bridge's single agent.
func one(agent func() bridges.Agent) func() []bridges.Agent {
	return func() []bridges.Agent { return []bridges.Agent{agent()} }
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
			for _, b := range builtins() {
				if b.name == args[0] {
					plugins.Serve(b.make())
					return nil
				}
			}
			return usagef("there is no built-in bridge %q, only %s", args[0], strings.Join(builtinNames(), ", "))
		},
	}
}

func builtinNames() (names []string) {
	for _, b := range builtins() {
		names = append(names, b.name)
	}
	return names
}
