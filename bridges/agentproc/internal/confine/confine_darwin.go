package confine

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const sandboxExec = "/usr/bin/sandbox-exec"

// Check reports how rules would be held here.
func Check() (detail string, err error) {
	if _, err := os.Stat(sandboxExec); err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return "seatbelt", nil
}

// Confinement is a sandbox made ready for one process.
type Confinement struct{ profile string }

// Prepare makes the rules ready.
func Prepare(r Rules) (*Confinement, error) {
	var b strings.Builder
	b.WriteString("(version 1)\n(allow default)\n(deny file-write*)\n(deny network-outbound (remote unix-socket))\n")
	b.WriteString("(allow file-write* (literal \"/dev/null\") (literal \"/dev/zero\") (literal \"/dev/tty\") (literal \"/dev/ptmx\") (regex #\"^/dev/ttys[0-9]+$\"))\n")
	for _, path := range r.Folders() {
		// Seatbelt compares real paths: /tmp is /private/tmp.
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return nil, fmt.Errorf("sandbox path: %w", err)
		}
		fmt.Fprintf(&b, "(allow file-write* (subpath %s))\n", strconv.Quote(real))
	}
	if r.Read != nil {
		b.WriteString("(deny file-read-data)\n")
		for _, path := range append(r.Folders(), r.Read...) {
			real, err := filepath.EvalSymlinks(path)
			if err != nil {
				return nil, fmt.Errorf("sandbox path: %w", err)
			}
			fmt.Fprintf(&b, "(allow file-read-data (subpath %s))\n", strconv.Quote(real))
		}
	}
	return &Confinement{b.String()}, nil
}

// Enter does nothing: Wrap does.
func (c *Confinement) Enter() error { return nil }

// Wrap returns the command that starts the given one confined.
func (c *Confinement) Wrap(command []string) []string {
	return append([]string{sandboxExec, "-p", c.profile}, command...)
}

// Close does nothing.
func (c *Confinement) Close() error { return nil }
