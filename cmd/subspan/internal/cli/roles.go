package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/roles"
)

func (e *env) rolesCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "roles",
		Short: "List, check and make role files",
		Long: `A role is a JSON file that says how a worker works: its instructions, its agent, its
permission. Roles come from three places, the later over the earlier: built in, the
user's folder, and .subspan/roles in the project. A project's role can only narrow
what it replaces.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(e.rolesLsCmd(), e.rolesShowCmd(), e.rolesCheckCmd(), e.rolesNewCmd(), e.rolesSchemaCmd())
	return cmd
}

// loadRoles loads the roles that hold in the working folder.
func (e *env) loadRoles(cmd *cobra.Command) (*app, *roles.Set, error) {
	a, err := e.open(cmd.Context())
	if err != nil {
		return nil, nil, err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return nil, nil, fmt.Errorf("find the working folder: %w", err)
	}
	set, err := a.roles(cwd)
	return a, set, err
}

// complainRoles tells of role files that cannot be used and returns how many there are.
func (e *env) complainRoles(set *roles.Set) int {
	problems := set.Problems()
	for _, p := range problems {
		fmt.Fprintln(e.stderr, p.Err)
	}
	return len(problems)
}

func (e *env) rolesLsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the roles",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, set, err := e.loadRoles(cmd)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ROLE\tPERMISSION\tAGENT\tFROM\tDESCRIPTION")
			for _, r := range set.List() {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.ID, r.Mode, orDash(r.Backend), r.Layer, oneLine(r.Description, 70))
			}
			if err := w.Flush(); err != nil {
				return err
			}
			e.complainRoles(set)
			return nil
		},
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (e *env) rolesShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "show ROLE",
		Short: "Show a role, and where each of its values comes from",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, set, err := e.loadRoles(cmd)
			if err != nil {
				return err
			}
			r, err := set.Get(args[0])
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
			for _, row := range []struct{ key, value string }{
				{"description", r.Description},
				{"backend", orDash(r.Backend)},
				{"permissionMode", r.Mode.String()},
				{"allowDelegation", fmt.Sprint(r.AllowDelegation)},
				{"model", orDash(r.Model)},
				{"effort", orDash(r.Effort)},
				{"limits.turnTimeout", r.Limits.TurnTimeout.String()},
				{"limits.idleTimeout", r.Limits.IdleTimeout.String()},
				{"limits.maxDepth", fmt.Sprint(r.Limits.MaxDepth)},
				{"limits.maxChildren", fmt.Sprint(r.Limits.MaxChildren)},
				{"instructions", fmt.Sprintf("%d characters", len([]rune(r.Instructions)))},
			} {
				fmt.Fprintf(w, "%s\t%s\t%s\n", row.key, oneLine(row.value, 80), r.Source(row.key))
			}
			if err := w.Flush(); err != nil {
				return err
			}
			for _, n := range r.Notes {
				e.printf("note: %s\n", n)
			}
			e.printf("\n%s\n", strings.TrimRight(r.Instructions, "\n"))
			return nil
		},
	}
}

func (e *env) rolesCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check every role file; exit 2 when one cannot be used",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, set, err := e.loadRoles(cmd)
			if err != nil {
				return err
			}
			if n := e.complainRoles(set); n > 0 {
				return exitStatus(exitUsage)
			}
			e.printf("%d roles, no problem\n", len(set.List()))
			return nil
		},
	}
}

var roleID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func (e *env) rolesNewCmd() *cobra.Command {
	var project bool
	cmd := &cobra.Command{
		Use:   "new ROLE",
		Short: "Write a role file to start from",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[0]
			if !roleID.MatchString(id) {
				return usagef("a role's id has letters, digits, dots, dashes and underscores, at most 64")
			}
			a, err := e.open(cmd.Context())
			if err != nil {
				return err
			}
			dir := a.dirs.RolesDir()
			if project {
				dir = filepath.Join(".subspan", "roles")
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("make the folder for roles: %w", err)
			}
			path := filepath.Join(dir, id+".json")
			f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
			if errors.Is(err, fs.ErrExist) {
				return bridges.Errorf(bridges.KindInvalidArgument, "%s exists", path).WithNext("edit it, or choose another name")
			}
			if err != nil {
				return fmt.Errorf("write the role: %w", err)
			}
			template, err := roles.Template(id)
			if err == nil {
				_, err = f.Write(template)
			}
			if err = errors.Join(err, f.Close()); err != nil {
				return fmt.Errorf("write the role: %w", err)
			}
			e.printf("%s\n", path)
			return nil
		},
	}
	cmd.Flags().BoolVar(&project, "project", false, "in this folder's .subspan/roles instead of the user's")
	return cmd
}

func (e *env) rolesSchemaCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of role files",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			e.printf("%s", roles.Schema())
			return nil
		},
	}
}
