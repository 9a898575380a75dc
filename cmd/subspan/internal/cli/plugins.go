package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/subspan-dev/subspan/plugins/dropin"
)

func (e *env) pluginsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugins",
		Short: "List, trust and check drop-in plugins",
		Long: `A drop-in plugin is a folder with a plugin.json: a bridge for another agent, or an
agent for a bridge that is there. It runs only after it was trusted by name, and only
as it was when it was trusted.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(e.pluginsListCmd(), e.pluginsTrustCmd(), e.pluginsForgetCmd())
	return cmd
}

func (e *env) pluginsListCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the plugins; nothing is executed",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := e.open(cmd.Context())
			if err != nil {
				return err
			}
			found, err := a.dropins().List()
			if err != nil {
				return err
			}
			if len(found) == 0 {
				fmt.Fprintf(e.stderr, "no plugins; one is a folder in %s\n", a.dirs.PluginsDir())
				return nil
			}
			w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "PLUGIN\tSTATE\tVERSION\tBRIDGE\tFOLDER")
			for _, f := range found {
				version, bridge := "-", "-"
				if f.Manifest != nil {
					version, bridge = orDash(f.Manifest.Version), f.Manifest.Bridge
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", f.Name, f.State, version, bridge, f.Dir)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			for _, f := range found {
				if f.State == dropin.Broken {
					fmt.Fprintln(e.stderr, f.Err)
				}
			}
			return nil
		},
	}
}

func (e *env) pluginsTrustCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "trust PLUGIN",
		Short: "Let a plugin run, exactly as it is now",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := e.open(cmd.Context())
			if err != nil {
				return err
			}
			f, err := a.dropins().Trust(args[0])
			if err != nil {
				return err
			}
			e.printf("%s %s in %s\n  content %s\n  it runs with your rights from now on; take it back with: subspan plugins forget %s\n",
				f.Name, f.Manifest.Version, f.Dir, f.Hash, f.Name)
			return nil
		},
	}
}

func (e *env) pluginsForgetCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "forget PLUGIN",
		Short: "Take the trust in a plugin back",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := e.open(cmd.Context())
			if err != nil {
				return err
			}
			return a.dropins().Forget(args[0])
		},
	}
}
