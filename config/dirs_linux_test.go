package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/subspan-dev/subspan/bridges"
)

func TestFindDirs(t *testing.T) {
	tmp := fmt.Sprintf("/tmp/subspan-%d", os.Getuid())
	for name, c := range map[string]struct {
		vars map[string]string
		want Dirs
	}{
		"home alone": {
			map[string]string{"HOME": "/h"},
			Dirs{"/h/.local/state/subspan", "/h/.config/subspan", tmp, "/h/.local/share/subspan"},
		},
		"base folders": {
			map[string]string{"HOME": "/h", "XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "/c/", "XDG_RUNTIME_DIR": "/r", "XDG_DATA_HOME": "/d"},
			Dirs{"/s/subspan", "/c/subspan", "/r/subspan", "/d/subspan"},
		},
		"relative or empty base folders do not count": {
			map[string]string{"HOME": "/h", "XDG_STATE_HOME": "s", "XDG_CONFIG_HOME": "", "XDG_RUNTIME_DIR": "./r", "SUBSPAN_DATA_DIR": ""},
			Dirs{"/h/.local/state/subspan", "/h/.config/subspan", tmp, "/h/.local/share/subspan"},
		},
		"our own win": {
			map[string]string{"HOME": "/h", "XDG_STATE_HOME": "/s", "SUBSPAN_STATE_DIR": "/own/../mine"},
			Dirs{"/mine", "/h/.config/subspan", tmp, "/h/.local/share/subspan"},
		},
	} {
		if have, err := FindDirs(lookup(c.vars)); err != nil || have != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, have, err, c.want)
		}
	}
}

func TestMakeDirs(t *testing.T) {
	fresh := func(t *testing.T) Dirs {
		dir := t.TempDir()
		in := func(name string) string { return filepath.Join(dir, name) }
		return Dirs{State: in("a/b/state"), Config: in("config"), Runtime: in("run"), Data: in("data")}
	}
	d := fresh(t)
	for range 2 {
		if err := d.Make(); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{d.State, d.Runtime} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
	for _, dir := range []string{d.Config, d.Data} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s was made, although it is the user's: %v", dir, err)
		}
	}

	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string) error
		want  string // empty: accepted
	}{
		"group may write": {func(_ *testing.T, dir string) error { return mkdir(dir, 0o770) }, "others may write to it (mode 0770)"},
		"world may write": {func(_ *testing.T, dir string) error { return mkdir(dir, 0o703) }, "others may write to it (mode 0703)"},
		"others may read": {func(_ *testing.T, dir string) error { return mkdir(dir, 0o755) }, ""},
		"link to one's own": {func(_ *testing.T, dir string) error {
			if err := mkdir(dir+"-real", 0o700); err != nil {
				return err
			}
			return os.Symlink(dir+"-real", dir)
		}, ""},
		"link to an open folder": {func(_ *testing.T, dir string) error {
			if err := mkdir(dir+"-real", 0o777); err != nil {
				return err
			}
			return os.Symlink(dir+"-real", dir)
		}, "others may write to it (mode 0777)"},
		"another user's": {func(t *testing.T, dir string) error {
			if os.Getuid() != 0 {
				t.Skip("only root can give folders away")
			}
			if err := mkdir(dir, 0o700); err != nil {
				return err
			}
			return os.Chown(dir, 4242, -1)
		}, "it belongs to user 4242"},
		"another user's link": {func(t *testing.T, dir string) error {
			if os.Getuid() != 0 {
				t.Skip("only root can give links away")
			}
			if err := mkdir(dir+"-real", 0o700); err != nil {
				return err
			}
			if err := os.Symlink(dir+"-real", dir); err != nil {
				return err
			}
			return os.Lchown(dir, 4242, -1)
		}, "it belongs to user 4242"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, pick := range []func(*Dirs) string{
				func(d *Dirs) string { return d.State }, func(d *Dirs) string { return d.Config },
				func(d *Dirs) string { return d.Runtime }, func(d *Dirs) string { return d.Data },
			} {
				d := fresh(t)
				dir := pick(&d)
				if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := c.spoil(t, dir); err != nil {
					t.Fatal(err)
				}
				err := d.Make()
				if c.want == "" {
					if err != nil {
						t.Errorf("%s: %v", dir, err)
					}
					continue
				}
				if err == nil || !strings.Contains(err.Error(), dir+": "+c.want) || bridges.AsError(err).Next == "" {
					t.Errorf("%s: %v", dir, err)
				}
			}
		})
	}

	d = fresh(t)
	if err := os.WriteFile(d.Config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Make(); err == nil || !strings.Contains(err.Error(), "is not a folder") {
		t.Errorf("a file: %v", err)
	}
}

// mkdir makes a folder with exactly this mode, whatever the umask.
func mkdir(dir string, mode os.FileMode) error {
	if err := os.Mkdir(dir, mode); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}
