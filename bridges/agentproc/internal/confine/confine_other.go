//go:build !linux && !darwin

package confine

import (
	"fmt"
	"runtime"
)

// Check refuses: an unmodified program cannot be confined to folders here.
func Check() (detail string, err error) {
	return "", fmt.Errorf("%w on %s", ErrUnavailable, runtime.GOOS)
}

// Confinement has no values here.
type Confinement struct{}

// Prepare refuses as Check does.
func Prepare(Rules) (*Confinement, error) {
	_, err := Check()
	return nil, err
}

// Enter does nothing.
func (c *Confinement) Enter() error { return nil }

// Wrap returns the command.
func (c *Confinement) Wrap(command []string) []string { return command }

// Close does nothing.
func (c *Confinement) Close() error { return nil }
