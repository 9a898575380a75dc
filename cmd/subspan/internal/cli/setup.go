package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/subspan-dev/subspan/bridges"
)

func (e *env) agentsCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "agents",
		Short: "List the agents that can be used, and why others cannot",
		Long: `List every agent that is known: where it was found, or what is missing.

Nothing is executed. An agent that is not listed and speaks ACP needs three lines in
config.json:

  {"agents": {"mine": {"command": ["mine-cli", "--acp"]}}}`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := e.open(cmd.Context())
			if err != nil {
				return err
			}
			type row struct {
				Name   string         `json:"name"`
				Bridge string         `json:"bridge"`
				Source string         `json:"source"`
				Path   string         `json:"path,omitempty"`
				Error  *bridges.Error `json:"error,omitempty"`
			}
			var rows []row
			for _, entry := range a.agents.List() {
				rows = append(rows, row{entry.Agent.Name, entry.Bridge, entry.Source, entry.Path, bridges.AsError(entry.Err)})
			}
			if asJSON {
				return a.printJSON(rows, exitOK)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "AGENT\tBRIDGE\tFROM\tWHERE")
			for _, r := range rows {
				where := r.Path
				if r.Error != nil {
					where = "- " + oneLine(r.Error.Next, 120)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Name, r.Bridge, r.Source, where)
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}

func (e *env) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(*cobra.Command, []string) {
			e.printf("subspan %s (contract %d, %s, %s/%s)\n", version(), bridges.ContractVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}

// version is what the module was built as.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "devel"
	}
	return info.Main.Version
}
