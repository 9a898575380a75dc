package host

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/gofrs/flock"

	"github.com/subspan-dev/subspan/bridges"
)

// maxSocketPath is what a unix socket's path may have, without its final zero byte:
// 108 on Linux, 104 elsewhere.
func maxSocketPath() int {
	if runtime.GOOS == "linux" {
		return 107
	}
	return 103
}

// socketRoom is what goes after the pool's folder: go-plugin's own folder and socket.
const socketRoom = len("/plugin-dir4294967295/plugin4294967295")

// Options say what a Pool launches and where.
type Options struct {
	// Self is the absolute path of the subspan executable. A built-in bridge is the
	// process `Self bridge NAME`, and a plugin starts its keepers from it.
	Self string
	// Builtin names the bridges that Self has.
	Builtin []string
	// Dropins finds the program of a bridge that is not built in; nil for none. Its
	// error is returned as it is.
	Dropins func(name string) (Dropin, error)
	// Sockets is a folder for sockets. It is made 0700 and has to be short. Several
	// pools may share it; what dead ones left in it is removed.
	Sockets string
	// Env is the environment that plugins get the allowed part of; nil = os.Environ().
	Env []string
	// Set is added to every plugin's environment, KEY=VALUE.
	Set []string
	Log *slog.Logger
}

// Dropin is a plugin outside the executable, ready to run.
type Dropin struct {
	Command []string // absolute executable and arguments
	Dir     string   // to run in; empty for the root
	Env     []string // names that it may have of the host's environment
	// Version must be what the plugin says of itself.
	Version string
}

// Pool holds one supervised plugin process for each bridge in use. It is safe for
// concurrent use.
type Pool struct {
	opts    Options
	sockets string // this pool's own
	lock    *flock.Flock

	mu      sync.Mutex
	closed  bool
	members map[string]*member
}

// NewPool prepares the socket folder and starts nothing. Close the pool at the end.
func NewPool(opts Options) (*Pool, error) {
	if !filepath.IsAbs(opts.Self) {
		return nil, bridges.Errorf(bridges.KindInvalidArgument, "the path of the executable, %q, is not absolute", opts.Self)
	}
	if opts.Env == nil {
		opts.Env = os.Environ()
	}
	if err := os.MkdirAll(opts.Sockets, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for plugin sockets: %w", err)
	}
	removeStale(opts.Sockets)
	dir, err := os.MkdirTemp(opts.Sockets, "p") // 0700
	if err != nil {
		return nil, fmt.Errorf("make a folder for plugin sockets: %w", err)
	}
	if longest := len(dir) + socketRoom; longest > maxSocketPath() {
		os.Remove(dir)
		return nil, bridges.Errorf(bridges.KindInvalidArgument,
			"the folder for plugin sockets is too long: a socket in %s would have a path of %d bytes, the system takes %d",
			opts.Sockets, longest, maxSocketPath()).
			WithNext("set SUBSPAN_RUNTIME_DIR or XDG_RUNTIME_DIR to a shorter folder")
	}
	lock := flock.New(filepath.Join(dir, "lock"))
	if ok, err := lock.TryLock(); err != nil || !ok {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("lock the new folder %s: %w", dir, err)
	}
	return &Pool{opts: opts, sockets: dir, lock: lock, members: map[string]*member{}}, nil
}

// removeStale removes the folders of pools whose process is gone: those whose lock
// is free. A pool between making its folder and locking it has no lock file yet.
func removeStale(base string) {
	locks, err := filepath.Glob(filepath.Join(base, "p*", "lock"))
	if err != nil {
		return
	}
	for _, path := range locks {
		lock := flock.New(path)
		if ok, err := lock.TryLock(); err == nil && ok {
			os.RemoveAll(filepath.Dir(path))
			lock.Unlock()
		}
	}
}

// Open returns the bridge of that name, launching its plugin when it does not run.
// The bridge stays valid until the pool is closed: after a death of the process,
// calls under way fail with KindPluginFailed and the next one starts it again, at
// once the first time, then after 1 s, 2 s, … 30 s, and not more than five times in
// a row. Ctx bounds the launch alone.
func (p *Pool) Open(ctx context.Context, name string) (bridges.Bridge, error) {
	m, err := p.member(name)
	if err != nil {
		return nil, err
	}
	if _, err := m.running(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

func (p *Pool) member(name string) (*member, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed()
	}
	if m := p.members[name]; m != nil {
		return m, nil
	}
	m := newMember(p, name)
	p.members[name] = m
	return m, nil
}

func errClosed() error {
	return bridges.Errorf(bridges.KindPluginFailed, "the host is ending").AsRetryable()
}

// program finds what to launch. It is asked again for every launch, so that a trust
// that was taken back counts from the next one on. Built-ins win over drop-ins.
func (p *Pool) program(name string) (Program, error) {
	set := slices.Concat(p.opts.Set, []string{"SUBSPAN_KEEPER=" + p.opts.Self})
	if slices.Contains(p.opts.Builtin, name) {
		return Program{
			Name: name, Sockets: p.sockets, Command: []string{p.opts.Self, "bridge", name},
			Env:   Environment(p.opts.Env, nil, set),
			Check: func(d bridges.Description) error { return sameName(name, d) },
		}, nil
	}
	if p.opts.Dropins == nil {
		return Program{}, bridges.Errorf(bridges.KindInvalidArgument, "there is no bridge %q", name).
			WithNext("choose one of %s", strings.Join(p.opts.Builtin, ", "))
	}
	d, err := p.opts.Dropins(name)
	if err != nil {
		return Program{}, err
	}
	return Program{
		Name: name, Sockets: p.sockets, Command: d.Command, Dir: d.Dir,
		Env:   Environment(p.opts.Env, d.Env, set),
		Check: func(got bridges.Description) error { return Matches(got, name, d.Version) },
	}, nil
}

// Matches reports how a plugin's description differs from its manifest.
func Matches(d bridges.Description, name, version string) error {
	if d.Version != version {
		return fmt.Errorf("it says version %q of itself, its plugin.json says %q", d.Version, version)
	}
	return sameName(name, d)
}

func sameName(name string, d bridges.Description) error {
	if d.Name != name {
		return fmt.Errorf("it says name %q of itself and was started as %q", d.Name, name)
	}
	return nil
}

// Close ends every plugin, all at once, and waits for them: until ctx ends in peace,
// then by force. Calls fail from now on. Agents live on under their keepers.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	members := p.members
	p.mu.Unlock()

	var stopping sync.WaitGroup
	for _, m := range members {
		stopping.Go(func() { m.close(ctx) })
	}
	stopping.Wait()
	p.lock.Unlock()
	if err := os.RemoveAll(p.sockets); err != nil {
		return fmt.Errorf("remove the plugins' sockets: %w", err)
	}
	return nil
}
