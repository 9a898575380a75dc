package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/plugins/bridgetest"
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
	cmd.AddCommand(e.pluginsListCmd(), e.pluginsTrustCmd(), e.pluginsForgetCmd(), e.pluginsCheckCmd())
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

func (e *env) pluginsCheckCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check FOLDER",
		Short: "Judge a plugin against the contract; executes it",
		Long: `Run the conformance suite on the plugin in FOLDER, trusted or not, in folders of its
own. Each check has a name, and a failure says which rule was broken.

A built-in bridge is checked by its name: subspan plugins check acp`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := e.open(cmd.Context())
			if err != nil {
				return err
			}
			opts := bridgetest.Options{Self: a.self, Log: a.log}
			report, err := a.check(cmd.Context(), args[0], opts)
			if err != nil {
				return err
			}
			code := exitOK
			if !report.OK() {
				code = exitAgentFailed
			}
			if asJSON {
				return a.printJSON(report, code)
			}
			if err := report.Write(e.stdout); err != nil {
				return err
			}
			if code != exitOK {
				return exitStatus(code)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// check judges a folder, or a built-in bridge by its name.
func (a *app) check(ctx context.Context, target string, opts bridgetest.Options) (bridgetest.Report, error) {
	if !slices.Contains(builtinNames(), target) {
		return bridgetest.Check(ctx, target, opts)
	}
	dir, err := os.MkdirTemp("", "subspan-check")
	if err != nil {
		return bridgetest.Report{}, fmt.Errorf("make a folder for the check: %w", err)
	}
	defer os.RemoveAll(dir)
	folder := filepath.Join(dir, target)
	manifest, err := json.Marshal(map[string]any{
		"schema": 1, "name": target, "version": version(), "contract": []int{bridges.ContractVersion},
		"exec": []string{"./subspan", "bridge", target},
	})
	if err == nil {
		err = os.Mkdir(folder, 0o700)
	}
	var self []byte // a plugin's program is a file of its folder
	if err == nil {
		self, err = os.ReadFile(a.self)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "subspan"), self, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, dropin.ManifestName), manifest, 0o600)
	}
	if err != nil {
		return bridgetest.Report{}, fmt.Errorf("describe the built-in bridge: %w", err)
	}
	return bridgetest.Check(ctx, folder, opts)
}
