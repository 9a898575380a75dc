package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
)

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	have, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Maximum: ceiling.Full, ProjectMaximum: ceiling.Default,
		Limits: Limits{MaxDepth: 3, MaxChildren: 8, MaxLive: 16, KeeperGrace: 30 * time.Minute},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("without a file (-want +have):\n%s", diff)
	}

	text := "\ufeff{\r\n" + `
  // mine
  "$schema": "x",
  "agents": {
    "opencode": {"command": ["opencode", "acp"]},
    "my-agent": {
      "command": ["/opt/my", "--flag"], "bridge": "codex", "env": {"A": "b"}, "passEnv": ["KEY"],
      "login": [".my/auth.json"], "loginHint": "my login", "options": {"x" : [1,],},
    },
  },
  "maximum": "default", "projectMaximum": "readonly", "defaultAgent": "opencode", "defaultRole": "explore",
  "policy": {"fetch": "ask", "execute": "deny", "edit": "allow"},
  "limits": {"maxDepth": 1, "turnTimeout": "1h", "idleTimeout": 300, "keeperGrace": 0},
}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if have, err = Load(path); err != nil {
		t.Fatal(err)
	}
	want = Config{
		Agents: map[string]Agent{
			"opencode": {Bridge: "acp", Agent: bridges.Agent{Name: "opencode", Command: []string{"opencode", "acp"}}},
			"my-agent": {Bridge: "codex", Agent: bridges.Agent{
				Name: "my-agent", Command: []string{"/opt/my", "--flag"}, Env: map[string]string{"A": "b"},
				PassEnv: []string{"KEY"}, Login: []string{".my/auth.json"}, LoginHint: "my login", Options: []byte(`{"x":[1]}`),
			}},
		},
		Maximum: ceiling.Default, ProjectMaximum: ceiling.Readonly, DefaultAgent: "opencode", DefaultRole: "explore",
		Policy: map[bridges.ToolKind]Rule{"fetch": RuleAsk, "execute": RuleDeny, "edit": RuleAllow},
		Limits: Limits{MaxDepth: 1, MaxChildren: 8, MaxLive: 16, TurnTimeout: time.Hour, IdleTimeout: 5 * time.Minute},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("with a file (-want +have):\n%s", diff)
	}
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	for _, c := range []struct {
		text string
		want []string
	}{
		{`{"maximum": "Full"}`, []string{`:1:2: key "maximum": unknown permission mode "Full": write one of readonly, default, full`}},
		{`{"maximun": "readonly"}`, []string{`:1:2: key "maximun": is not a key that is known here; did you mean "maximum"?`}},
		{`{"maximum": "full", "maximum": "readonly"}`, []string{`:1:21: key "maximum": is given twice`}},
		{`{"agents": {"x": {}}}`, []string{`:1:13: key "agents.x": has no command: the executable and its arguments`}},
		{`{"agents": {"x": {"command": []}}}`, []string{`:1:19: key "agents.x.command": must begin with the executable`}},
		{`{"agents": {"x": {"command": "sh"}}}`, []string{`:1:19: key "agents.x.command": must be a list, is a string`}},
		{`{"agents": {"../x": {"command": ["a"]}}}`, []string{`:1:13: key "agents.../x": an agent's name has lower-case letters, digits, dots and dashes`}},
		{`{"agents": {"x": {"command": ["a"], "env": {"A=B": ""}, "passEnv": ["", "K"], "login": ["/etc/passwd", "../x"]}}}`, []string{
			`:1:45: key "agents.x.env.A=B": is no name of an environment variable`,
			`:1:69: key "agents.x.passEnv.0": "" is no name of an environment variable`,
			`:1:89: key "agents.x.login.0": "/etc/passwd" must be a path below the home folder, with slashes`,
			`:1:104: key "agents.x.login.1": "../x" must be a path below the home folder, with slashes`,
		}},
		{`{"policy": {"exceute": "ask", "edit": "yes"}}`, []string{
			`:1:13: key "policy.exceute": is no kind of tool; did you mean "execute"?`,
			`:1:31: key "policy.edit": unknown rule "yes": write one of ask, allow, deny`,
		}},
		{`{"limits": {"maxDepth": 0, "maxChildren": -1, "maxLive": 1.5, "keeperGrace": "-1s"}}`, []string{
			`:1:13: key "limits.maxDepth": must be at least 1`,
			`:1:28: key "limits.maxChildren": must be at least 1`,
			`:1:47: key "limits.maxLive": must be a whole number that fits, is 1.5`,
			`:1:63: key "limits.keeperGrace": must not be negative`,
		}},
		{`{`, []string{`:1:2: the file ends too early (parsing value)`}},
		{"", []string{`:1:1: the file ends too early (parsing value)`}},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		have, err := Load(path)
		want := "configuration: " + path + strings.Join(c.want, "\n"+path)
		if err == nil || err.Error() != want || bridges.KindOf(err) != bridges.KindInvalidArgument {
			t.Errorf("%s\ngives %v\nwant  %s", c.text, err, want)
		}
		// Whoever forgets the error gets nothing that allows anything.
		if diff := cmp.Diff(Config{}, have); diff != "" {
			t.Errorf("%s: the Config is not empty:\n%s", c.text, diff)
		}
	}
	if _, err := Load(dir); bridges.KindOf(err) != bridges.KindInvalidArgument {
		t.Errorf("a folder: %v", err)
	}
}

func lookup(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestFindDirsRefuses(t *testing.T) {
	for name, vars := range map[string]map[string]string{
		"relative": {homeVariable: filepath.Join(t.TempDir()), "SUBSPAN_STATE_DIR": "state"},
		"no home":  {},
		"bad home": {homeVariable: "here"},
	} {
		d, err := FindDirs(lookup(vars))
		var e *bridges.Error
		if !errors.As(err, &e) || e.Kind != bridges.KindInvalidArgument || e.Next == "" || d != (Dirs{}) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
	// Without a home, but with every folder named, nothing is missing.
	dir := t.TempDir()
	vars := map[string]string{}
	for _, name := range []string{"STATE", "CONFIG", "RUNTIME", "DATA"} {
		vars["SUBSPAN_"+name+"_DIR"] = filepath.Join(dir, name)
	}
	d, err := FindDirs(lookup(vars))
	if err != nil {
		t.Fatal(err)
	}
	want := Dirs{filepath.Join(dir, "STATE"), filepath.Join(dir, "CONFIG"), filepath.Join(dir, "RUNTIME"), filepath.Join(dir, "DATA")}
	if d != want {
		t.Errorf("have %+v, want %+v", d, want)
	}
}
