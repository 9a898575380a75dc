package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/subspan-dev/subspan/bridges"
)

// Dirs are the program's folders, all absolute.
type Dirs struct {
	// State holds what must survive a reboot: sessions, agents' own homes.
	State string
	// Config holds what the user writes: config.json, roles.
	Config string
	// Runtime holds what a reboot may take: sockets, run folders of sessions.
	Runtime string
	// Data holds what is installed: drop-in plugins.
	Data string
}

// ConfigFile is the configuration file's path.
func (d Dirs) ConfigFile() string { return filepath.Join(d.Config, "config.json") }

// RolesDir is the folder of the user's role files.
func (d Dirs) RolesDir() string { return filepath.Join(d.Config, "roles") }

// PluginsDir is the folder of the user's drop-in plugins.
func (d Dirs) PluginsDir() string { return filepath.Join(d.Data, "plugins") }

// FindDirs returns the folders by the environment that lookup reads, which has
// os.LookupEnv's form. SUBSPAN_STATE_DIR, SUBSPAN_CONFIG_DIR, SUBSPAN_RUNTIME_DIR
// and SUBSPAN_DATA_DIR name them outright and must be absolute. Otherwise they are
// in the XDG base folders where those are set, and where the system keeps such
// things where not. It touches no file.
func FindDirs(lookup func(string) (string, bool)) (Dirs, error) {
	e := environment{lookup: lookup}
	d := Dirs{
		State:   e.dir("SUBSPAN_STATE_DIR", "XDG_STATE_HOME", e.stateHome),
		Config:  e.dir("SUBSPAN_CONFIG_DIR", "XDG_CONFIG_HOME", e.configHome),
		Runtime: e.dir("SUBSPAN_RUNTIME_DIR", "XDG_RUNTIME_DIR", e.runtimeDir),
		Data:    e.dir("SUBSPAN_DATA_DIR", "XDG_DATA_HOME", e.dataHome),
	}
	if e.err != nil {
		return Dirs{}, e.err
	}
	return d, nil
}

type environment struct {
	lookup func(string) (string, bool)
	err    error // the first
}

func (e *environment) get(name string) string {
	v, _ := e.lookup(name)
	return v
}

func (e *environment) dir(own, base string, fallback func() string) string {
	if v := e.get(own); v != "" {
		if !filepath.IsAbs(v) {
			e.fail(fmt.Errorf("%s is %q, which is not absolute", own, v), "set "+own+" to an absolute path")
		}
		return filepath.Clean(v)
	}
	// The XDG specification says to ignore what is not absolute.
	if v := e.get(base); filepath.IsAbs(v) {
		return filepath.Join(v, "subspan")
	}
	return fallback()
}

// home returns a folder below the user's home.
func (e *environment) home(elem ...string) string {
	home := e.get(homeVariable)
	if !filepath.IsAbs(home) {
		e.fail(fmt.Errorf("%s is not set to an absolute path", homeVariable), "set "+homeVariable)
		return ""
	}
	return filepath.Join(append([]string{home}, elem...)...)
}

func (e *environment) fail(err error, next string) {
	if e.err == nil {
		e.err = bridges.Errorf(bridges.KindInvalidArgument, "find folders: %w", err).WithNext("%s", next)
	}
}

// Make makes State and Runtime (0700) where they are missing, and checks that
// nobody but the user can write to any of the folders there are: whoever could
// would be the one who decides what runs.
func (d Dirs) Make() error {
	for _, dir := range []string{d.State, d.Runtime} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return bridges.Errorf(bridges.KindInternal, "make folder: %w", err).
				WithNext("make %s a folder that you can write to", dir)
		}
	}
	for _, dir := range []string{d.State, d.Config, d.Runtime, d.Data} {
		info, err := os.Lstat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && info.Mode()&fs.ModeSymlink != 0 {
			// A link is as good as who may replace it. In a folder that everybody
			// writes to that is its owner; elsewhere, whoever owns that folder.
			if err = ownedByUser(dir, info); err == nil {
				info, err = os.Stat(dir)
			}
		}
		if err == nil {
			err = private(dir, info)
		}
		if err != nil {
			return bridges.Errorf(bridges.KindInvalidArgument, "folder %s: %w", dir, err).
				WithNext("make it yours alone: chown it to your user and chmod go-w it, or name another folder")
		}
	}
	return nil
}

func private(dir string, info fs.FileInfo) error {
	if !info.IsDir() {
		return errors.New("is not a folder")
	}
	if err := ownedByUser(dir, info); err != nil {
		return err
	}
	if perm := info.Mode().Perm(); enforcesModes && perm&0o022 != 0 {
		return fmt.Errorf("others may write to it (mode %04o)", perm)
	}
	return nil
}
