package confine

import (
	"errors"
	"fmt"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// configs are the strict levels by ABI. Level 3 is the first that stops truncation,
// so nothing below it is called readonly.
func configs() map[int]landlock.Config {
	return map[int]landlock.Config{
		3: landlock.V3, 4: landlock.V4, 5: landlock.V5, 6: landlock.V6, 7: landlock.V7,
		8: landlock.V8, 9: landlock.V9, 10: landlock.V10, 11: landlock.V11,
	}
}

// level returns the strictest configuration that the kernel has.
func level() (int, landlock.Config, error) {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0, landlock.Config{}, fmt.Errorf("%w: the kernel has no Landlock: %w", ErrUnavailable, err)
	}
	if abi < 3 {
		return 0, landlock.Config{}, fmt.Errorf("%w: the kernel's Landlock has ABI %d, and only 3 and later can stop truncation", ErrUnavailable, abi)
	}
	abi = min(abi, 11)
	cfg := configs()[abi]
	// The network stays open: an agent without its model is none.
	cfg.HandledAccessNet = 0
	return abi, cfg, nil
}

// Check reports how rules would be held here.
func Check() (detail string, err error) {
	abi, _, err := level()
	if err != nil {
		return "", err
	}
	if _, err := filter(); err != nil {
		return "", err
	}
	return fmt.Sprintf("landlock-%d+seccomp", abi), nil
}

// Confinement is a sandbox made ready for one thread.
type Confinement struct {
	ruleset int
	flags   uint32
	filter  []unix.SockFilter
}

// Prepare makes the rules ready; nothing is confined yet. The caller closes the
// result when the confined process has started.
func Prepare(r Rules) (*Confinement, error) {
	_, cfg, err := level()
	if err != nil {
		return nil, err
	}
	program, err := filter()
	if err != nil {
		return nil, err
	}
	rules, err := landlockRules(r)
	if err != nil {
		return nil, err
	}
	fd, flags, err := cfg.NewRulesetFD(rules...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if fd < 0 {
		return nil, fmt.Errorf("%w: the ruleset is empty", ErrUnavailable)
	}
	return &Confinement{fd, flags, program}, nil
}

func landlockRules(r Rules) ([]landlock.Rule, error) {
	read := r.Read
	if read == nil {
		read = []string{"/"}
	}
	rules := []landlock.Rule{
		landlock.RWFiles("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx").
			WithIoctlDev().IgnoreIfMissing(),
		landlock.RWDirs("/dev/pts").WithIoctlDev().IgnoreIfMissing(),
	}
	for _, path := range read {
		dir, err := isDir(path)
		switch {
		case err != nil:
			return nil, err
		case dir:
			rules = append(rules, landlock.RODirs(path))
		default:
			rules = append(rules, landlock.ROFiles(path))
		}
	}
	for _, path := range r.Folders() {
		dir, err := isDir(path)
		switch {
		case err != nil:
			return nil, err
		case dir:
			rules = append(rules, landlock.RWDirs(path).WithRefer())
		default:
			rules = append(rules, landlock.RWFiles(path))
		}
	}
	return rules, nil
}

func isDir(path string) (bool, error) {
	st, err := os.Stat(path)
	if err != nil {
		return false, fmt.Errorf("sandbox path: %w", err)
	}
	return st.IsDir(), nil
}

// Enter confines the calling thread, and with it every process that it starts,
// for ever. The caller has locked its goroutine to the thread and never unlocks it.
func (c *Confinement) Enter() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("%w: no_new_privs: %w", ErrUnavailable, err)
	}
	if err := ll.LandlockRestrictSelf(c.ruleset, c.flags); err != nil {
		if errors.Is(err, unix.E2BIG) {
			err = fmt.Errorf("too many sandboxes in each other: %w", err)
		}
		return fmt.Errorf("%w: landlock_restrict_self: %w", ErrUnavailable, err)
	}
	return install(c.filter)
}

// Wrap returns the command to start: here, the command itself.
func (c *Confinement) Wrap(command []string) []string { return command }

// Close frees what Prepare made. It does not lift the sandbox.
func (c *Confinement) Close() error { return unix.Close(c.ruleset) }
