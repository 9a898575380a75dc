package roles

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// write makes files below a folder; names are slash-separated.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

func load(t *testing.T, src Sources) *Set {
	t.Helper()
	s, err := Load(src)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func get(t *testing.T, s *Set, id string) Role {
	t.Helper()
	r, err := s.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// problems maps each bad file's base name to its error, without the folder.
func problems(s *Set, dir string) map[string]string {
	out := map[string]string{}
	for _, p := range s.Problems() {
		out[filepath.Base(p.Path)] = strings.ReplaceAll(p.Err.Error(), dir+string(filepath.Separator), "")
	}
	return out
}

func TestBuiltInRoles(t *testing.T) {
	s := load(t, Sources{})
	if len(s.Problems()) > 0 {
		t.Fatal(s.Problems())
	}
	have := map[string]ceiling.Mode{}
	for _, r := range s.List() {
		have[r.ID] = r.Mode
		if r.Layer != Embedded || r.Description == "" || r.Backend != "" || len(r.Notes) > 0 {
			t.Errorf("%s: %+v", r.ID, r)
		}
		// They come with every task, so they have to be worth their tokens.
		if n := len(r.Instructions); n < 300 || n > 1500 {
			t.Errorf("%s: instructions of %d bytes", r.ID, n)
		}
	}
	want := map[string]ceiling.Mode{
		"general": ceiling.Default, "implement": ceiling.Default, "test": ceiling.Default, "debug": ceiling.Default,
		"explore": ceiling.Readonly, "review": ceiling.Readonly, "plan": ceiling.Readonly,
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("modes (-want +have):\n%s", diff)
	}
}

func TestRoleFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"db.json": `{
  // comments are fine
  "$schema": "x", "id": "db", "description": "Databases.", "backend": "codex", "permissionMode": "default",
  "allowDelegation": false,
  "instructions": {"file": "texts/db.md"},
  "model": "m", "effort": "high",
  "overrides": {
    "claude": {"model": "opus", "instructions": "For claude."},
    "grok": {"effort": "low"},
  },
  "limits": {"turnTimeout": "30m", "idleTimeout": 90, "maxDepth": 1, "maxChildren": 2},
}`,
		"texts/db.md": "\ufeffYou know databases.\r\n",
		"README.md":   "not a role",
		".db.json.sw": "{",
		".hid.json":   "{",
		"small.json":  "\ufeff{}\r\n",
	})
	s := load(t, Sources{User: dir})
	if len(s.Problems()) > 0 {
		t.Fatal(s.Problems())
	}
	have, path := get(t, s, "db"), filepath.Join(dir, "db.json")
	want := Role{
		ID: "db", Description: "Databases.", Backend: "codex", Mode: ceiling.Default, Instructions: "You know databases.\r\n",
		Model: "m", Effort: "high",
		Overrides: map[string]Override{"claude": {Model: "opus", Instructions: "For claude."}, "grok": {Effort: "low"}},
		Limits:    Limits{TurnTimeout: 30 * time.Minute, IdleTimeout: 90 * time.Second, MaxDepth: 1, MaxChildren: 2},
		Layer:     User, Path: path,
	}
	if diff := cmp.Diff(want, have, cmpopts.IgnoreUnexported(Role{})); diff != "" {
		t.Errorf("role (-want +have):\n%s", diff)
	}
	for key, want := range map[string]string{
		"backend": "user: " + path + ":3:60", "limits.maxDepth": "user: " + path + ":11:55",
		"overrides.claude.model": "user: " + path + ":8:16", "overrides.grok.model": "default",
	} {
		if src := have.Source(key); src != want {
			t.Errorf("Source(%s) = %q, want %q", key, src, want)
		}
	}
	for agent, want := range map[string]Applied{
		"codex":  {"m", "high", "You know databases.\r\n"},
		"claude": {"opus", "high", "For claude."},
		"grok":   {"m", "low", "You know databases.\r\n"},
	} {
		if diff := cmp.Diff(want, have.For(agent)); diff != "" {
			t.Errorf("For(%s) (-want +have):\n%s", agent, diff)
		}
	}
	// What a file does not say is the least, except for delegation, which never
	// gives more than the session itself has.
	small := get(t, s, "small")
	if small.Mode != ceiling.Readonly || !small.AllowDelegation || small.Source("permissionMode") != "default" {
		t.Errorf("the empty role is %+v", small)
	}
}

func TestB67BadFiles(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs links, and names that differ by case alone")
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"user/good.json":     `{"permissionMode": "full"}`,
		"user/mode.json":     "{\n  \"permissionMode\": \"Readonly\"\n}",
		"user/space.json":    `{"permissionMode": "full "}`,
		"user/list.json":     `{"permissionMode": []}`,
		"user/unknown.json":  `{"descripton": "x", "permisionMode": "readonly"}`,
		"user/twice.json":    `{"model": "a", "model": "b"}`,
		"user/id.json":       `{"id": "other"}`,
		"user/wide.json":     string([]byte{0xff, 0xfe}) + utf16le(`{}`),
		"user/limits.json":   `{"limits": {"maxDepth": 0, "maxChildren": -1, "turnTimeout": "soon"}}`,
		"user/ref.json":      `{"instructions": {"file": "none.md"}}`,
		"user/up.json":       `{"instructions": {"file": "../outside.md"}}`,
		"user/abs.json":      `{"instructions": {"file": "/etc/passwd"}}`,
		"user/linked.json":   `{"instructions": {"file": "outside.md"}}`,
		"user/blank.json":    `{"instructions": {"file": "blank.md"}}`,
		"user/binary.json":   `{"instructions": {"file": "binary.md"}}`,
		"user/override.json": `{"overrides": {"codex": {"permissionMode": "full"}}}`,
		"user/Same.json":     `{}`,
		"user/same.json":     `{"permissionMode": "full"}`,
		"user/a b.json":      `{}`,
		"user/jsonc.jsonc":   `{}`,
		"user/CAPS.JSON":     `{}`,
		"user/folder.json/x": ``,
		"user/blank.md":      " \n",
		"user/binary.md":     "a\x00b",
		"outside.md":         "secret",
		"outside.json":       `{"permissionMode": "full"}`,
	})
	huge, err := os.Create(filepath.Join(dir, "user", "huge.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(huge.Truncate(10<<20), huge.Close()); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{
		"escape.json": "../outside.json", "absolute.json": filepath.Join(dir, "outside.json"), "outside.md": "../outside.md",
		"dangling.json": "nowhere", "inside.json": "good.json",
	} {
		if err := os.Symlink(to, filepath.Join(dir, "user", link)); err != nil {
			t.Fatal(err)
		}
	}
	user := filepath.Join(dir, "user")
	s := load(t, Sources{User: user})
	want := map[string]string{
		"mode.json":  `mode.json:2:3: key "permissionMode": unknown permission mode "Readonly": write one of readonly, default, full`,
		"space.json": `space.json:1:2: key "permissionMode": unknown permission mode "full ": write one of readonly, default, full`,
		"list.json":  `list.json:1:2: key "permissionMode": must be a string, is a list`,
		"unknown.json": `unknown.json:1:2: key "descripton": is not a key that is known here; did you mean "description"?` + "\n" +
			`unknown.json:1:21: key "permisionMode": is not a key that is known here; did you mean "permissionMode"?`,
		"twice.json": `twice.json:1:16: key "model": is given twice`,
		"id.json":    `id.json:1:2: key "id": is "other", but the file's name says "id"`,
		"wide.json":  `wide.json:1:1: the file is UTF-16; save it as UTF-8`,
		"limits.json": `limits.json:1:13: key "limits.maxDepth": must be at least 1; to forbid delegation, set allowDelegation to false` + "\n" +
			`limits.json:1:28: key "limits.maxChildren": must be at least 1; to forbid delegation, set allowDelegation to false` + "\n" +
			`limits.json:1:47: key "limits.turnTimeout": "soon" is no duration: write it as "90s", "10m" or "1h30m"`,
		"ref.json":      `ref.json:1:2: key "instructions": none.md does not exist`,
		"up.json":       `up.json:1:2: key "instructions": file "../outside.md" must be a path below the role file's folder, with slashes`,
		"abs.json":      `abs.json:1:2: key "instructions": file "/etc/passwd" must be a path below the role file's folder, with slashes`,
		"linked.json":   `linked.json:1:2: key "instructions": outside.md is a link that leads out of its folder`,
		"blank.json":    `blank.json:1:2: key "instructions": blank.md is empty`,
		"binary.json":   `binary.json:1:2: key "instructions": binary.md is not UTF-8 text`,
		"override.json": `override.json:1:26: key "overrides.codex.permissionMode": is not a key that is known here`,
		"Same.json":     `Same.json: the same id in Same.json and same.json: keep one of them`,
		"same.json":     `same.json: the same id in Same.json and same.json: keep one of them`,
		"a b.json":      `a b.json: a role's id has letters, digits, dots, dashes and underscores, at most 64`,
		"jsonc.jsonc":   `jsonc.jsonc: a role file's name ends in .json`,
		"CAPS.JSON":     `CAPS.JSON: a role file's name ends in .json`,
		"folder.json":   `folder.json: is a folder, not a file`,
		"huge.json":     `huge.json: is larger than 1024 KiB`,
		"escape.json":   `escape.json: is a link that leads out of its folder`,
		"absolute.json": `absolute.json: is a link that leads out of its folder`,
		"dangling.json": `dangling.json: does not exist`,
	}
	if diff := cmp.Diff(want, problems(s, user)); diff != "" {
		t.Errorf("problems (-want +have):\n%s", diff)
	}
	for _, p := range s.Problems() {
		if p.ID == "" {
			continue
		}
		if r, err := s.Get(p.ID); !errors.Is(err, bridges.ErrUnknownRole) || !strings.Contains(err.Error(), strings.Split(p.Err.Error(), "\n")[0]) {
			t.Errorf("Get(%s) = %+v, %v", p.ID, r, err)
		}
	}
	// The good ones are all there.
	if good := get(t, s, "good"); good.Mode != ceiling.Full {
		t.Errorf("good is %+v", good)
	}
	get(t, s, "inside")
	if n := len(s.List()); n != 7+2 {
		t.Errorf("%d roles", n)
	}
}

func utf16le(s string) string {
	var b strings.Builder
	for _, u := range utf16.Encode([]rune(s)) {
		b.WriteByte(byte(u))
		b.WriteByte(byte(u >> 8))
	}
	return b.String()
}

// A bad file hides its id in all layers below, and nothing else.
func TestB67BadFileNeverUncoversAWiderRole(t *testing.T) {
	for name, c := range map[string]struct {
		user, project map[string]string
		broken        string
	}{
		"user over built-in":    {user: map[string]string{"implement.json": `{"permissionMode": "readonly`}, broken: "implement"},
		"project over built-in": {project: map[string]string{"implement.json": `{"permissionMode": 1}`}, broken: "implement"},
		"project over user":     {user: map[string]string{"own.json": `{"permissionMode": "full"}`}, project: map[string]string{"own.json": `{"x": 1}`}, broken: "own"},
		"in another case":       {user: map[string]string{"Implement.json": `{"x": 1}`}, broken: "implement"},
		"other ending":          {user: map[string]string{"implement.jsonc": `{"permissionMode": "readonly"}`}, broken: "implement"},
		"good over bad":         {user: map[string]string{"own.json": `{"x": 1}`}, project: map[string]string{"own.json": `{"permissionMode": "default"}`}, broken: "own"},
		"two in a layer":        {user: map[string]string{"implement.json": `{}`, "IMPLEMENT.json": `{}`}, broken: "implement"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "two in a layer" && runtime.GOOS != "linux" {
				t.Skip("needs names that differ by case alone")
			}
			dir := t.TempDir()
			write(t, filepath.Join(dir, "user"), c.user)
			write(t, filepath.Join(dir, "work", ".subspan", "roles"), c.project)
			s := load(t, Sources{User: filepath.Join(dir, "user"), Cwd: filepath.Join(dir, "work"), ProjectMaximum: ceiling.Full})
			r, err := s.Get(c.broken)
			if bridges.KindOf(err) != bridges.KindUnknownRole || !strings.Contains(err.Error(), "cannot be used") {
				t.Errorf("Get = %+v, %v", r, err)
			}
			for _, r := range s.List() {
				if strings.EqualFold(r.ID, c.broken) {
					t.Errorf("listed: %+v", r)
				}
			}
			get(t, s, "explore")
		})
	}
}

func TestProjectOnlyNarrows(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"user/mine.json": `{"permissionMode": "readonly", "allowDelegation": false,
			"limits": {"turnTimeout": "1m", "idleTimeout": "1m", "maxDepth": 2, "maxChildren": 2}}`,
		"user/free.json":                `{"permissionMode": "full"}`,
		"work/.subspan/roles/mine.json": `{"permissionMode": "full", "backend": "codex", "limits": {"turnTimeout": "2m", "idleTimeout": "30s", "maxDepth": 9}}`,
		"work/.subspan/roles/free.json": `{"permissionMode": "full"}`,
		"work/.subspan/roles/new.json":  `{"permissionMode": "full"}`,
		"work/.subspan/roles/less.json": `{"permissionMode": "readonly"}`,
		// The name of a role that is known for changing nothing.
		"work/.subspan/roles/explore.json": `{"permissionMode": "default", "instructions": "Write!"}`,
	})
	for _, maximum := range ceiling.Modes() {
		s := load(t, Sources{User: filepath.Join(dir, "user"), Cwd: filepath.Join(dir, "work"), ProjectMaximum: maximum})
		want := map[string]ceiling.Mode{
			"mine": ceiling.Readonly, "free": maximum, "new": maximum, "less": ceiling.Readonly, "explore": ceiling.Readonly,
		}
		have := map[string]ceiling.Mode{}
		for id := range want {
			r := get(t, s, id)
			have[id] = r.Mode
			lowered := strings.Contains(r.Source("permissionMode"), "lowered to "+r.Mode.String())
			if asked := map[string]ceiling.Mode{"less": ceiling.Readonly, "explore": ceiling.Default}; lowered != ceiling.Exceeds(first(asked, id), r.Mode) {
				t.Errorf("maximum %s, %s: source is %q", maximum, id, r.Source("permissionMode"))
			}
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("maximum %s: modes (-want +have):\n%s", maximum, diff)
		}
		mine := get(t, s, "mine")
		if mine.AllowDelegation || mine.Layer != Project || mine.Backend != "codex" {
			t.Errorf("mine is %+v", mine)
		}
		if diff := cmp.Diff(Limits{TurnTimeout: time.Minute, IdleTimeout: 30 * time.Second, MaxDepth: 2, MaxChildren: 2}, mine.Limits); diff != "" {
			t.Errorf("limits (-want +have):\n%s", diff)
		}
		if len(mine.Notes) < 4 {
			t.Errorf("notes are %q", mine.Notes)
		}
	}
}

// first is what a role file asks for: full, unless listed.
func first(asked map[string]ceiling.Mode, id string) ceiling.Mode {
	if m, ok := asked[id]; ok {
		return m
	}
	return ceiling.Full
}

func TestProjectFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"repo/.git/HEAD":                        "",
		"repo/.subspan/roles/top.json":          `{}`,
		"repo/sub/deep/x":                       "",
		"repo/own/.subspan/roles/own.json":      `{}`,
		"repo/worktree/.git":                    "gitdir: elsewhere",
		"repo/worktree/.subspan/roles/wt.json":  `{}`,
		"repo/worktree/in/x":                    "",
		"plain/.subspan/roles/outside.json":     `{}`,
		"plain/in/x":                            "",
		"repo/file/.subspan":                    "a file of somebody else's",
		"repo/other/.subspan/settings.json":     "",
		"repo/sub/.subspan/roles/not-this.json": `{}`,
	})
	builtIn := len(load(t, Sources{}).List())
	for cwd, want := range map[string]string{
		"repo": "top", "repo/sub/deep": "top", "repo/own": "own", "repo/worktree": "wt", "repo/worktree/in": "wt",
		"plain": "outside", "plain/in": "", "repo/file": "top", "repo/other": "top",
	} {
		s := load(t, Sources{Cwd: filepath.Join(dir, filepath.FromSlash(cwd))})
		var have []string
		for _, r := range s.List() {
			if r.Layer == Project {
				have = append(have, r.ID)
			}
		}
		if strings.Join(have, ",") != want || len(s.List())-len(have) != builtIn {
			t.Errorf("in %s: %v, want %q", cwd, have, want)
		}
	}
}

// A folder that is there and cannot be read may forbid anything.
func TestUnreadableFolderIsAnError(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"roles": "a file"})
	if _, err := Load(Sources{User: filepath.Join(dir, "roles")}); bridges.KindOf(err) != bridges.KindInvalidArgument {
		t.Errorf("a file for a folder: %v", err)
	}
	if _, err := Load(Sources{User: filepath.Join(dir, "none")}); err != nil {
		t.Errorf("no folder: %v", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Sources{User: filepath.Join(dir, "dangling")}); bridges.KindOf(err) != bridges.KindInvalidArgument {
		t.Errorf("a link to nowhere: %v", err)
	}
}

func TestUnknownRole(t *testing.T) {
	s := load(t, Sources{})
	for id, near := range map[string]string{"exlpore": "explore", "Explore": "explore", "": "", "../general": "", "zzz": ""} {
		_, err := s.Get(id)
		var e *bridges.Error
		if !errors.As(err, &e) || e.Kind != bridges.KindUnknownRole || !strings.Contains(e.Next, "debug, explore, general") {
			t.Errorf("Get(%q): %v", id, err)
			continue
		}
		if near != "" && !strings.Contains(e.Next, fmt.Sprintf("did you mean %q", near)) {
			t.Errorf("Get(%q) says %q", id, e.Next)
		}
	}
}

// Role files of dsh-plugin-subagents load as they are, and never get more than
// they got there.
func TestNativeRoleFiles(t *testing.T) {
	s := load(t, Sources{User: filepath.Join("testdata", "native")})
	if len(s.Problems()) > 0 {
		t.Fatal(s.Problems())
	}
	type outline struct {
		Backend      string
		Mode         ceiling.Mode
		Delegation   bool
		Instructions string
		MaxDepth     int
		Noted        []string
	}
	have := map[string]outline{}
	for _, r := range s.List() {
		if r.Layer != User {
			continue
		}
		b := outline{r.Backend, r.Mode, r.AllowDelegation, r.Instructions, r.Limits.MaxDepth, nil}
		for _, n := range r.Notes {
			key, _, _ := strings.Cut(n, ":")
			b.Noted = append(b.Noted, key)
		}
		have[r.ID] = b
	}
	want := map[string]outline{
		"explore":    {"", ceiling.Readonly, false, "You are an exploration agent.", 1, []string{"overrides.toolFilter", "limits.maxDepth", "backend"}},
		"codex-full": {"codex", ceiling.Full, true, "You are the engineering agent.", 0, nil},
		"general":    {"", ceiling.Full, true, "You are the general-purpose agent.", 0, nil},
		"debug":      {"", ceiling.Default, true, "A patient one.\n\nYou are a debugging agent.", 0, []string{"overrides.agentOptions", "backend"}},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("roles (-want +have):\n%s", diff)
	}
}

func TestTemplateIsAGoodRole(t *testing.T) {
	dir := t.TempDir()
	text, err := Template("My.role-1")
	if err != nil {
		t.Fatal(err)
	}
	// With everything that is commented out, too.
	full := strings.NewReplacer(`// "`, `"`).Replace(string(text))
	write(t, dir, map[string]string{"My.role-1.json": string(text), "full.json": full})
	s := load(t, Sources{User: dir})
	if len(s.Problems()) > 0 {
		t.Fatalf("%+v\n%s", s.Problems(), full)
	}
	if r := get(t, s, "My.role-1"); r.Mode != ceiling.Readonly || r.AllowDelegation || r.Backend != "" {
		t.Errorf("the template's role is %+v", r)
	}
	r := get(t, s, "full")
	if keys := slices.Sorted(maps.Keys(r.sources)); len(keys) != 12 {
		t.Errorf("the template has only %v", keys)
	}
	for _, id := range []string{"", "a/b", "..", ".x", "a b", strings.Repeat("x", 65)} {
		if _, err := Template(id); bridges.KindOf(err) != bridges.KindInvalidArgument {
			t.Errorf("Template(%q): %v", id, err)
		}
	}
}
