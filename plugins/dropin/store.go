package dropin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2/maybe"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/plugins/host"
)

// Store is where plugins are and which of them are trusted. It holds no state: every
// call reads the disk. It is safe for concurrent use, also by several processes.
type Store struct {
	Dir   string // one folder per plugin
	Lock  string // the file with the pins, plugins.lock.json
	Cache string // copies, named by hash
}

// State is what a plugin may do.
type State string

const (
	Broken    State = "broken"    // Found.Err says why
	Untrusted State = "untrusted" // never trusted
	Changed   State = "changed"   // other content than when it was trusted
	Trusted   State = "trusted"
)

// Found is one folder below Store.Dir.
type Found struct {
	Name     string // the folder's
	Dir      string
	Manifest *Manifest // nil when broken
	Hash     string    // of the content now
	State    State
	Pin      *Pin  // nil when never trusted
	Err      error // for Broken
}

// Pin is the record that a person trusted a content.
type Pin struct {
	Version string    `json:"version,omitempty"`
	Hash    string    `json:"hash"`
	At      time.Time `json:"trusted_at"`
}

// pins is the lock file.
type pins struct {
	Version int             `json:"version"`
	Plugins map[string]*Pin `json:"plugins"`
}

// List reads every folder and executes nothing. A broken one is a row with its
// reason; the error is for Dir and Lock themselves. A Dir that is missing is empty.
func (s Store) List() ([]Found, error) {
	locked, err := s.read()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the plugins: %w", err)
	}
	var found []Found
	for _, e := range entries {
		if dir := filepath.Join(s.Dir, e.Name()); isDir(dir) && !strings.HasPrefix(e.Name(), ".") {
			found = append(found, look(dir, locked))
		}
	}
	return found, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func look(dir string, locked *pins) Found {
	f := Found{Name: filepath.Base(dir), Dir: dir, State: Broken}
	f.Pin = locked.Plugins[f.Name]
	if f.Manifest, f.Err = ReadManifest(dir); f.Err != nil {
		return f
	}
	if f.Hash, f.Err = hash(dir); f.Err != nil {
		return f
	}
	switch {
	case f.Pin == nil:
		f.State = Untrusted
	case f.Pin.Hash != f.Hash:
		f.State = Changed
	default:
		f.State = Trusted
	}
	return f
}

// find returns the row of a name, without reading the others.
func (s Store) find(name string) (Found, error) {
	locked, err := s.read()
	if err != nil {
		return Found{}, err
	}
	if dir := filepath.Join(s.Dir, name); namePattern.MatchString(name) && isDir(dir) {
		return look(dir, locked), nil
	}
	return Found{}, bridges.Errorf(bridges.KindInvalidArgument, "there is no bridge and no plugin %q", name).
		WithNext("run `subspan plugins list`; a plugin is a folder in %s", s.Dir)
}

// Trust records the present content of a plugin as what may run, and returns it. Who
// calls it shows the row to a person before.
func (s Store) Trust(name string) (Found, error) {
	f, err := s.find(name)
	if err != nil {
		return f, err
	}
	if f.State == Broken {
		return f, broken(f)
	}
	_, sum, err := stage(f.Dir, s.Cache)
	if err != nil {
		return f, fmt.Errorf("trust %s: %w", name, err)
	}
	f.Hash = sum
	err = s.change(func(p *pins) {
		p.Plugins[name] = &Pin{Version: f.Manifest.Version, Hash: sum, At: time.Now().UTC().Truncate(time.Second)}
		f.Pin, f.State = p.Plugins[name], Trusted
	})
	return f, err
}

// Forget takes the trust in a plugin back. It succeeds when there was none.
func (s Store) Forget(name string) error {
	var sum string
	err := s.change(func(p *pins) {
		if pin := p.Plugins[name]; pin != nil {
			sum = pin.Hash
			delete(p.Plugins, name)
		}
	})
	if err != nil || sum == "" {
		return err
	}
	return remove(copyOf(s.Cache, sum))
}

// Program returns what to run for a trusted plugin, from its copy. It is for
// host.Options.Dropins.
func (s Store) Program(name string) (host.Dropin, error) {
	f, err := s.trusted(name)
	if err != nil {
		return host.Dropin{}, err
	}
	if f.Manifest.IsAgent() {
		return host.Dropin{}, bridges.Errorf(bridges.KindInvalidArgument, "%s is an agent for the bridge %s, not a bridge", name, f.Manifest.Bridge)
	}
	return f.Manifest.program(f.Dir)
}

// InPlace returns what to run for the plugin in a folder as it stands, without trust.
// It is for a person who asked for just that, such as the plugin's author.
func InPlace(dir string) (host.Dropin, *Manifest, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return host.Dropin{}, nil, err
	}
	m, err := ReadManifest(dir)
	if err != nil {
		return host.Dropin{}, nil, err
	}
	if m.IsAgent() {
		return host.Dropin{}, m, bridges.Errorf(bridges.KindInvalidArgument, "%s is an agent for the bridge %s, not a bridge", m.Name, m.Bridge)
	}
	d, err := m.program(dir)
	return d, m, err
}

// program is the plugin of a manifest in a folder.
func (m *Manifest) program(dir string) (host.Dropin, error) {
	cmd, err := m.command(dir)
	if err != nil {
		return host.Dropin{}, bridges.Errorf(bridges.KindPluginFailed, "%w", err).WithNext("install the program, or the plugin for this system")
	}
	return host.Dropin{Command: cmd, Dir: dir, Env: m.Env, Version: m.Version}, nil
}

// Agent returns a trusted agent and the name of its bridge.
func (s Store) Agent(name string) (bridge string, agent bridges.Agent, err error) {
	f, err := s.trusted(name)
	if err != nil {
		return "", agent, err
	}
	if !f.Manifest.IsAgent() {
		return "", agent, bridges.Errorf(bridges.KindInvalidArgument, "%s is a bridge, not an agent for one", name)
	}
	cmd, err := f.Manifest.command(f.Dir)
	if err != nil {
		return "", agent, bridges.Errorf(bridges.KindAgentMissing, "%w", err).WithNext("install the program")
	}
	return f.Manifest.Bridge, bridges.Agent{
		Name: name, Command: cmd, Env: f.Manifest.Set, PassEnv: f.Manifest.Env,
		Login: f.Manifest.Login, LoginHint: f.Manifest.LoginHint,
	}, nil
}

// trusted returns the row of a trusted plugin, with Dir and Manifest those of its copy.
func (s Store) trusted(name string) (Found, error) {
	f, err := s.find(name)
	if err != nil {
		return f, err
	}
	switch f.State {
	case Broken:
		return f, broken(f)
	case Untrusted:
		return f, bridges.Errorf(bridges.KindPluginFailed, "plugin %s in %s is not trusted", name, f.Dir).
			WithNext("look at it, then run `subspan plugins trust %s`", name)
	case Changed:
		return f, bridges.Errorf(bridges.KindPluginFailed, "plugin %s has changed since it was trusted: %s then, %s now", name, f.Pin.Hash, f.Hash).
			WithNext("if you made the change, run `subspan plugins trust %s` again", name)
	}
	dir := copyOf(s.Cache, f.Pin.Hash)
	if !has(dir, f.Pin.Hash) {
		var staged string
		if dir, staged, err = stage(f.Dir, s.Cache); err != nil {
			return f, fmt.Errorf("copy plugin %s: %w", name, err)
		}
		if staged != f.Pin.Hash {
			return f, bridges.Errorf(bridges.KindPluginFailed, "plugin %s is being changed: %s was trusted, %s is there", name, f.Pin.Hash, staged).
				WithNext("run `subspan plugins trust %s` when it is complete", name)
		}
	}
	f.Dir = dir
	// The one that was hashed, not the one that was read first.
	if f.Manifest, err = readManifest(dir, name); err != nil {
		return f, fmt.Errorf("read the copy of plugin %s: %w", name, err)
	}
	return f, nil
}

func broken(f Found) error {
	return bridges.Errorf(bridges.KindPluginFailed, "plugin %s: %w", f.Name, f.Err).WithNext("mend it, then run `subspan plugins list`")
}

// read returns the pins. A damaged file trusts nothing and is left as it is.
func (s Store) read() (*pins, error) {
	p := &pins{Version: 1, Plugins: map[string]*Pin{}}
	data, err := os.ReadFile(s.Lock)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(data, p)
	}
	if err == nil && p.Version != 1 {
		err = fmt.Errorf("it has version %d, this program knows 1", p.Version)
	}
	if err != nil {
		return nil, bridges.Errorf(bridges.KindPluginFailed, "read the trusted plugins from %s: %w", s.Lock, err).
			WithNext("mend the file, or move it away and trust your plugins again")
	}
	for name, pin := range p.Plugins {
		if pin == nil || pin.Hash == "" {
			delete(p.Plugins, name)
		}
	}
	if p.Plugins == nil {
		p.Plugins = map[string]*Pin{}
	}
	return p, nil
}

// change rewrites the lock file, one process at a time.
func (s Store) change(edit func(*pins)) error {
	if err := os.MkdirAll(filepath.Dir(s.Lock), 0o700); err != nil {
		return fmt.Errorf("make the folder of %s: %w", s.Lock, err)
	}
	guard := flock.New(s.Lock + ".lock")
	if err := guard.Lock(); err != nil {
		return fmt.Errorf("lock %s: %w", s.Lock, err)
	}
	defer guard.Unlock()
	p, err := s.read()
	if err != nil {
		return err
	}
	edit(p)
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if err := maybe.WriteFile(s.Lock, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", s.Lock, err)
	}
	return nil
}
