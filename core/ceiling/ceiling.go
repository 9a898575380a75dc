// Package ceiling is the permission algebra: three modes in one order, and the
// only functions that may combine them. It imports nothing and touches nothing,
// so that every layer (contract, host, roles, bridges) can share one meaning.
//
// The order is readonly < default < full. The zero Mode is Readonly, and every
// value that is not one of the three counts as Readonly: whatever goes wrong on
// the way to a Mode, it never comes out wider than it went in.
package ceiling

import "fmt"

// Mode is how much an agent may do. Compare Modes with Exceeds, combine them
// with Meet; never order them by their number or their text.
type Mode uint8

const (
	// Readonly lets the agent look and answer; it changes nothing of the user's.
	Readonly Mode = iota
	// Default lets the agent change files in its workspace; more is asked for.
	Default
	// Full lets the agent do whatever the user could.
	Full
)

// Modes lists the three modes from the narrowest to the widest.
func Modes() []Mode { return []Mode{Readonly, Default, Full} }

// Parse returns the Mode that s names. It takes the three names and nothing
// else: no other case, no surrounding space, no empty text. On error the Mode
// is Readonly.
func Parse(s string) (Mode, error) {
	switch s {
	case "readonly":
		return Readonly, nil
	case "default":
		return Default, nil
	case "full":
		return Full, nil
	}
	return Readonly, &ParseError{Text: s}
}

// ParseError reports a text that names no mode.
type ParseError struct{ Text string }

func (e *ParseError) Error() string {
	return fmt.Sprintf("unknown permission mode %q: write one of readonly, default, full", e.Text)
}

// String returns the mode's name; for a value that is no mode, "readonly".
func (m Mode) String() string {
	switch m {
	case Default:
		return "default"
	case Full:
		return "full"
	}
	return "readonly"
}

// MarshalText writes the mode's name.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText is Parse.
func (m *Mode) UnmarshalText(b []byte) error {
	v, err := Parse(string(b))
	*m = v
	return err
}

// known maps every value that is not a mode to Readonly.
func (m Mode) known() Mode {
	if m == Default || m == Full {
		return m
	}
	return Readonly
}

// Meet returns the narrowest of all given modes, and Readonly when none is
// given: nobody who granted nothing granted something.
func Meet(modes ...Mode) Mode {
	if len(modes) == 0 {
		return Readonly
	}
	low := Full
	for _, m := range modes {
		if m = m.known(); m < low {
			low = m
		}
	}
	return low
}

// Exceeds reports whether want allows anything that have does not.
func Exceeds(want, have Mode) bool { return want.known() > have.known() }

// ExceededError says that more was asked for than may be granted.
type ExceededError struct {
	Want, Have Mode
	// Bound names what set the limit, such as "the parent session s_1" or "the host's maximum".
	Bound string
}

func (e *ExceededError) Error() string {
	return fmt.Sprintf("permission %s exceeds the ceiling %s set by %s", e.Want, e.Have, e.Bound)
}
