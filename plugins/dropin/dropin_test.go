package dropin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
)

const acme = `{
  "schema": 1, "name": "acme", "version": "1.2.0", "contract": [1],
  "exec": {"linux": ["./bridge", "--fast", "./data/model.txt"], "*": ["./bridge"]},
  "env": ["ACME_KEY"],
}`

// plugin writes a folder and returns its path.
func plugin(t *testing.T, base, name string, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(base, name)
	for file, content := range files {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func newStore(t *testing.T) Store {
	t.Helper()
	base := t.TempDir()
	s := Store{Dir: filepath.Join(base, "plugins"), Lock: filepath.Join(base, "config", "plugins.lock.json"), Cache: filepath.Join(base, "cache")}
	t.Cleanup(func() { remove(s.Cache) }) // read-only folders stop TempDir's own removal
	return s
}

func acmePlugin(t *testing.T, s Store) string {
	return plugin(t, s.Dir, "acme", map[string]string{
		"plugin.json": acme, "bridge": "#!/bin/sh\ntouch " + filepath.Join(s.Dir, "executed") + "\n", "data/model.txt": "m",
	})
}

func TestManifestProblemsNameFileLineAndKey(t *testing.T) {
	for name, tc := range map[string]struct{ json, want string }{
		"not JSON":          {`{`, "plugin.json"},
		"unknown key":       {`{"name":"acme","exce":["./b"]}`, `did you mean "exec"`},
		"wrong type":        {"{\n\"name\":7}", "plugin.json:2:1"},
		"no version":        {`{"name":"acme","contract":[1],"exec":["./b"]}`, `key "version"`},
		"no contract":       {`{"name":"acme","version":"1","exec":["./b"]}`, `key "contract"`},
		"no exec":           {`{"name":"acme","version":"1","contract":[1]}`, `key "exec"`},
		"empty exec":        {`{"name":"acme","version":"1","contract":[1],"exec":[]}`, "first word"},
		"other folder":      {`{"name":"other","version":"1","contract":[1],"exec":["./b"]}`, "the folder's name"},
		"name with a path":  {`{"name":"../x","version":"1","contract":[1],"exec":["./b"]}`, "small letter"},
		"future schema":     {`{"schema":2,"name":"acme","version":"1","contract":[1],"exec":["./b"]}`, "update subspan"},
		"leaves the folder": {`{"name":"acme","version":"1","contract":[1],"exec":["./../b"]}`, "leaves the folder"},
		"absolute program":  {`{"name":"acme","version":"1","contract":[1],"exec":["/bin/sh"]}`, "must be a file of the folder"},
		"relative, no dot":  {`{"name":"acme","version":"1","contract":[1],"exec":["bin/b"]}`, "must be a file of the folder"},
		"bad system":        {`{"name":"acme","version":"1","contract":[1],"exec":{"Linux":["./b"]}}`, "names no system"},
		"reserved variable": {`{"name":"acme","version":"1","contract":[1],"exec":["./b"],"env":["SUBSPAN_KEEPER"]}`, `"env.0"`},
		"agent with check":  {`{"name":"acme","bridge":"acp","exec":["x"],"check":{}}`, "is for plugins"},
		"agent login":       {`{"name":"acme","bridge":"acp","exec":["x"],"login":["../secret"]}`, "below the home folder"},
		"plugin with set":   {`{"name":"acme","version":"1","contract":[1],"exec":["./b"],"set":{}}`, "is for agents"},
	} {
		dir := plugin(t, t.TempDir(), "acme", map[string]string{"plugin.json": tc.json})
		m, err := ReadManifest(dir)
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %+v, %v; want %q", name, m, err, tc.want)
		}
	}
	if _, err := ReadManifest(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder without a manifest: %v", err)
	}
}

func TestListExecutesNothingAndKeepsBrokenRows(t *testing.T) {
	s := newStore(t)
	acmePlugin(t, s)
	plugin(t, s.Dir, "broken", map[string]string{"plugin.json": "{"})
	plugin(t, s.Dir, "empty", map[string]string{"README": "x"})
	plugin(t, s.Dir, "open", map[string]string{"plugin.json": strings.ReplaceAll(acme, "acme", "open"), "bridge": "x"})
	plugin(t, s.Dir, "link", map[string]string{"plugin.json": strings.ReplaceAll(acme, "acme", "link")})
	os.WriteFile(filepath.Join(s.Dir, "stray"), nil, 0o600)
	if runtime.GOOS != "windows" {
		if err := os.Chmod(filepath.Join(s.Dir, "open", "bridge"), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/bin/sh", filepath.Join(s.Dir, "link", "bridge")); err != nil {
			t.Fatal(err)
		}
	}
	found, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range found {
		got[f.Name] = string(f.State)
		if (f.Err != nil) != (f.State == Broken) {
			t.Errorf("%s: %s, %v", f.Name, f.State, f.Err)
		}
		if _, err := s.Trust(f.Name); (err == nil) != (f.State == Untrusted) {
			t.Errorf("trust %s: %v", f.Name, err)
		}
	}
	want := map[string]string{"acme": "untrusted", "broken": "broken", "empty": "broken", "open": "broken", "link": "broken"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := os.Stat(filepath.Join(s.Dir, "executed")); err == nil {
		t.Error("something was executed")
	}
	if empty, err := newStore(t).List(); err != nil || len(empty) != 0 {
		t.Errorf("a missing folder: %v, %v", empty, err)
	}
}

func TestTrustPinsTheContent(t *testing.T) {
	s := newStore(t)
	dir := acmePlugin(t, s)

	_, err := s.Program("acme")
	if !errors.Is(err, bridges.ErrPluginFailed) || !strings.Contains(bridges.AsError(err).Next, "plugins trust acme") {
		t.Fatalf("untrusted: %v", err)
	}
	first, err := s.Trust("acme")
	if err != nil || !strings.HasPrefix(first.Hash, "h1:") {
		t.Fatalf("%+v, %v", first, err)
	}
	d, err := s.Program("acme")
	if err != nil {
		t.Fatal(err)
	}
	if d.Version != "1.2.0" || !cmp.Equal(d.Env, []string{"ACME_KEY"}) || filepath.Dir(d.Dir) != s.Cache {
		t.Errorf("%+v", d)
	}
	want := []string{filepath.Join(d.Dir, "bridge"), "--fast", filepath.Join(d.Dir, "data/model.txt")}
	if runtime.GOOS == "linux" && !cmp.Equal(d.Command, want) {
		t.Errorf("command %q, want %q", d.Command, want)
	}
	for _, file := range want[:1] {
		if info, err := os.Stat(file); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o500 {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}

	// A change is refused, told with both hashes, and allowed after another trust.
	if err := os.WriteFile(filepath.Join(dir, "data/model.txt"), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err = s.Program("acme"); !errors.Is(err, bridges.ErrPluginFailed) || strings.Count(err.Error(), "h1:") != 2 {
		t.Errorf("changed: %v", err)
	}
	second, err := s.Trust("acme")
	if err != nil || second.Hash == first.Hash {
		t.Errorf("%+v, %v", second, err)
	}
	if d, err = s.Program("acme"); err != nil {
		t.Fatal(err)
	}

	// A copy that somebody changed is replaced, not run.
	copied := filepath.Join(d.Dir, "bridge")
	os.Chmod(d.Dir, 0o700)
	os.Chmod(copied, 0o700)
	if err := os.WriteFile(copied, []byte("evil"), 0o700); err != nil {
		t.Fatal(err)
	}
	if d, err = s.Program("acme"); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(d.Dir, "bridge")); err != nil || string(b) == "evil" {
		t.Errorf("the changed copy is still there: %v", err)
	}

	if err := s.Forget("acme"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Program("acme"); err == nil {
		t.Error("runs after Forget")
	}
	if err := s.Forget("acme"); err != nil {
		t.Errorf("forget twice: %v", err)
	}
	if _, err := s.Program("nobody"); !errors.Is(err, bridges.ErrInvalidArgument) {
		t.Errorf("unknown: %v", err)
	}
	if _, err := s.Program("../plugins/acme"); !errors.Is(err, bridges.ErrInvalidArgument) {
		t.Errorf("a path for a name: %v", err)
	}
}

func TestThreeLinesMakeAnAgent(t *testing.T) {
	s := newStore(t)
	plugin(t, s.Dir, "fast", map[string]string{"plugin.json": `{
  "name": "fast",
  "bridge": "acp", "exec": ["sh", "-c", "x", "./agent.js"], "env": ["FAST_KEY"], "set": {"NO_COLOR": "1"}
}`, "agent.js": "x"})
	if _, _, err := s.Agent("fast"); !errors.Is(err, bridges.ErrPluginFailed) {
		t.Fatalf("untrusted: %v", err)
	}
	if _, err := s.Trust("fast"); err != nil {
		t.Fatal(err)
	}
	bridge, agent, err := s.Agent("fast")
	if err != nil || bridge != "acp" {
		t.Fatalf("%s, %v", bridge, err)
	}
	if !filepath.IsAbs(agent.Command[0]) || !filepath.IsAbs(agent.Command[3]) || agent.Command[1] != "-c" {
		t.Errorf("command %q", agent.Command)
	}
	if agent.Name != "fast" || !cmp.Equal(agent.PassEnv, []string{"FAST_KEY"}) || agent.Env["NO_COLOR"] != "1" {
		t.Errorf("%+v", agent)
	}
	if _, err := s.Program("fast"); !errors.Is(err, bridges.ErrInvalidArgument) {
		t.Errorf("an agent as a bridge: %v", err)
	}
}

func TestDamagedLockTrustsNothingAndIsKept(t *testing.T) {
	for name, content := range map[string]string{
		"half": `{"version":1,"plugins":{"acme":{"ha`, "other version": `{"version":9}`, "list": `[]`,
	} {
		s := newStore(t)
		acmePlugin(t, s)
		os.MkdirAll(filepath.Dir(s.Lock), 0o700)
		os.WriteFile(s.Lock, []byte(content), 0o600)
		if _, err := s.Program("acme"); !errors.Is(err, bridges.ErrPluginFailed) {
			t.Errorf("%s: program: %v", name, err)
		}
		if _, err := s.Trust("acme"); err == nil || !strings.Contains(err.Error(), s.Lock) {
			t.Errorf("%s: trust: %v", name, err)
		}
		if b, _ := os.ReadFile(s.Lock); string(b) != content {
			t.Errorf("%s: the file was changed to %q", name, b)
		}
	}
	s := newStore(t)
	acmePlugin(t, s)
	os.MkdirAll(filepath.Dir(s.Lock), 0o700)
	os.WriteFile(s.Lock, []byte(`{"version":1,"plugins":{"acme":null}}`), 0o600)
	if _, err := s.Program("acme"); !errors.Is(err, bridges.ErrPluginFailed) {
		t.Errorf("null pin: %v", err)
	}
}

func TestTrustAtTheSameTimeLosesNothing(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	for i := range 8 {
		name := fmt.Sprint("p", i)
		plugin(t, s.Dir, name, map[string]string{"plugin.json": strings.ReplaceAll(acme, "acme", name), "bridge": "same"})
		for range 2 {
			wg.Go(func() {
				if _, err := s.Trust(name); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	wg.Wait()
	found, err := s.List()
	if err != nil || len(found) != 8 {
		t.Fatalf("%d, %v", len(found), err)
	}
	for _, f := range found {
		if f.State != Trusted {
			t.Errorf("%s is %s", f.Name, f.State)
		}
	}
}
