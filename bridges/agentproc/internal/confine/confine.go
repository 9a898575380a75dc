// Package confine is the sandbox that is put on an agent, and only on it: file
// writes go to named folders, nothing else.
//
// Linux holds it with Landlock and a seccomp filter, macOS with Seatbelt through
// sandbox-exec, and nothing holds it elsewhere, where Check refuses.
package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Mode says what the rules are for.
type Mode string

const (
	Off       Mode = ""          // no sandbox
	ReadOnly  Mode = "readonly"  // writes to Writable alone
	Workspace Mode = "workspace" // and to the workspace
)

// Rules are what the confined may do. Paths are absolute and exist.
type Rules struct {
	Mode      Mode     `json:"mode,omitempty"`
	Writable  []string `json:"writable,omitempty"`
	Workspace string   `json:"workspace,omitempty"`
	Read      []string `json:"read,omitempty"` // nil = everything
}

// ErrUnavailable says that this system cannot hold the rules.
var ErrUnavailable = errors.New("no sandbox can be enforced")

// Folders returns all that may be written to.
func (r Rules) Folders() []string {
	folders := r.Writable
	if r.Mode == Workspace {
		folders = append(folders[:len(folders):len(folders)], r.Workspace)
	}
	return folders
}

// Validate reports rules that mean nothing, or that would let the confined write
// into keep, the folder that holds the records about it.
func (r Rules) Validate(keep string) error {
	switch r.Mode {
	case Off:
		return nil
	case ReadOnly:
	case Workspace:
		if r.Workspace == "" {
			return errors.New("a workspace sandbox needs the workspace's folder")
		}
	default:
		return fmt.Errorf("unknown sandbox mode %q", r.Mode)
	}
	keep, err := filepath.EvalSymlinks(keep)
	if err != nil {
		return err
	}
	for _, path := range append(r.Folders(), r.Read...) {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("sandbox path %q is not absolute", path)
		}
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("sandbox path: %w", err)
		}
	}
	for _, path := range r.Folders() {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return fmt.Errorf("sandbox path: %w", err)
		}
		if within(keep, real) {
			return fmt.Errorf("%s is writable in the sandbox and holds the session's own records in %s", path, keep)
		}
	}
	return nil
}

// within reports whether path is folder or lies below it. Both are clean.
func within(path, folder string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}
