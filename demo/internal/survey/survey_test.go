package survey

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// folder writes files; a content of "-> X" makes a symbolic link to X.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func walk(t *testing.T, dir string, lim Limits) (map[string]string, Seen) {
	t.Helper()
	got := make(map[string]string)
	seen, err := Walk(t.Context(), dir, lim, func(f File) error {
		got[f.Path] = fmt.Sprintf("%d %t", f.Size, f.Text != nil)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, seen
}

func TestWalkStaysInsideAndSkipsWhatIsNotOurs(t *testing.T) {
	outside := folder(t, map[string]string{"secret.txt": "secret"})
	dir := folder(t, map[string]string{
		"a.txt": "text", "sub/b.bin": "\x00\x01", "empty": "",
		"link.txt": "-> " + outside + "/secret.txt", "linkdir": "-> " + outside, "loop": "-> .",
		".git/config": "x", "node_modules/m/x.js": "x", "sub/vendor/v.go": "x",
		"cache/CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55\n", "cache/c.txt": "x",
	})
	got, seen := walk(t, dir, DefaultLimits())
	want := map[string]string{"a.txt": "4 true", "sub/b.bin": "2 false", "empty": "0 true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{".git", "cache", "node_modules", "sub/vendor"}, seen.Left); diff != "" {
		t.Errorf("not entered (-want +got):\n%s", diff)
	}
	if seen.Limit != "" || seen.Note() != "" {
		t.Errorf("limit %q", seen.Limit)
	}
}

func TestWalkStopsAtItsLimits(t *testing.T) {
	files := make(map[string]string)
	for i := range 30 {
		files[fmt.Sprintf("f%02d.txt", i)] = strings.Repeat("x", 1<<10)
	}
	dir := folder(t, files)
	wide := DefaultLimits()
	for _, tc := range []struct {
		name  string
		lim   Limits
		files int
	}{
		{"files", Limits{Files: 7, Bytes: wide.Bytes, Time: wide.Time}, 7},
		{"read", Limits{Files: wide.Files, Bytes: 3 << 10, Time: wide.Time}, 3},
		{"1ns", Limits{Files: wide.Files, Bytes: wide.Bytes, Time: 1}, 0},
	} {
		got, seen := walk(t, dir, tc.lim)
		if len(got) != tc.files || seen.Files != tc.files || !strings.Contains(seen.Limit, tc.name) || seen.Note() == "" {
			t.Errorf("%s: %d files, %+v", tc.name, len(got), seen)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	_, err := Walk(ctx, dir, wide, func(File) error { n++; cancel(); return nil })
	if !errors.Is(err, context.Canceled) || n != 1 {
		t.Errorf("cancelled: %v after %d files", err, n)
	}
	if _, err := Walk(t.Context(), filepath.Join(dir, "gone"), wide, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing folder: %v", err)
	}
}

func TestLargeFileIsCountedNotRead(t *testing.T) {
	dir := folder(t, map[string]string{"small.txt": "x"})
	f, err := os.Create(filepath.Join(dir, "large.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(maxText+1), f.Close()); err != nil {
		t.Fatal(err)
	}
	got, seen := walk(t, dir, DefaultLimits())
	if got["large.txt"] != fmt.Sprintf("%d false", maxText+1) || seen.Unread != 1 || seen.Bytes != 1 {
		t.Errorf("%v, %+v", got, seen)
	}
}

func TestReport(t *testing.T) {
	dir := folder(t, map[string]string{
		"README.md":                  "<img src=x>\n[![badge](x)](y)\n# Thing\n\nDoes `things`.\n",
		"go.mod":                     "module x\n",
		"main.go":                    "// Package main.\npackage main\n\nfunc main() {}\n",
		"lib/lib.go":                 "package lib\n\n// TODO(me): one\n// FIXME two\n// TODOs are not counted, MYTODO neither\n",
		"lib/lib_test.go":            "package lib // TODO",
		"lib/testdata/main.go":       "package main\n\nfunc main() {}\n",
		"web/package.json":           `{"name":"web","bin":{"w":"x.js"},"scripts":{"test":"vitest","build":"vite"}}`,
		"web/pnpm-lock.yaml":         "x: 1\n",
		"web/a.spec.ts":              "x\ny",
		"broken/package.json":        `{"name":`,
		"Makefile":                   "VAR := x\nall: build\nbuild test: x\n\techo a: b\n.PHONY: all\n",
		"Dockerfile":                 "FROM x\nENTRYPOINT [\"/x\"]\n",
		"py/pyproject.toml":          "[project.scripts]\ntool = \"a:b\"\n[other]\nnot = \"c\"\n",
		"py/test_a.py":               "pass\n",
		"rust/Cargo.toml":            "[package]\n",
		"rust/src/main.rs":           "fn main() {}\n",
		"rust/tests/it.rs":           "// x\n",
		"data.unknown":               strings.Repeat("z", 5000),
		"strange`name.txt":           "x",
		"docs/README.md":             "not the one",
		"deep/er/and/deeper/Go.java": "class Go {}\n",
	})
	r, err := Look(t.Context(), dir, "thing", DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	r.FindEntries()
	want := []Entry{
		{"Go program", ".", "go run ./"},
		{"program", "rust/src/main.rs", ""},
		{"container", "Dockerfile", `ENTRYPOINT ["/x"]`},
		{"make targets", "Makefile", "all, build"},
		{"Python scripts", "py/pyproject.toml", "tool"},
		{"npm programs", "web/package.json", "w"},
		{"npm scripts", "web/package.json", "build, test"},
	}
	if diff := cmp.Diff(want, r.Entries); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Tests{Files: 4, Kinds: map[string]int{"*_test.go": 1, "*.spec.ts": 1, "test_*.py": 1, "tests/*.rs": 1}, Run: []string{
		"go test ./...", "(cd py && python -m pytest)", "(cd rust && cargo test)", "(cd web && pnpm test)",
	}}, r.Tests); diff != "" {
		t.Errorf("tests (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Readme{"README.md", []string{"# Thing", "Does `things`."}}, r.Readme); diff != "" {
		t.Errorf("readme (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Todos{Count: 3, Files: 2, Places: []Todo{
		{"lib/lib.go", 3, "TODO(me): one", 2}, {"lib/lib_test.go", 1, "TODO", 1},
	}}, r.Todos); diff != "" {
		t.Errorf("todos (-want +got):\n%s", diff)
	}
	if len(r.Biggest) != topFiles || r.Biggest[0].Path != "data.unknown" {
		t.Errorf("biggest: %+v", r.Biggest)
	}
	for _, l := range r.Languages {
		if l.Name == "Go" && (l.Files != 4 || l.Lines != 4+5+1+3) {
			t.Errorf("Go: %+v", l)
		}
	}
	text := strings.Join(r.Markdown(), "")
	for _, line := range []string{"# Map of `thing`", "| Go | 4 | 13 |", "- `data.unknown` 4.9 KiB", "> # Thing", "- `lib/lib.go:3` (2): `TODO(me): one`"} {
		if !strings.Contains(text, line) {
			t.Errorf("the report lacks %q:\n%s", line, text)
		}
	}
}

func TestEmptyFolder(t *testing.T) {
	r, err := Look(t.Context(), t.TempDir(), "nothing", DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	r.FindEntries()
	if text := strings.Join(r.Markdown(), ""); !strings.Contains(text, "0 files") {
		t.Errorf("got %s", text)
	}
}

// The folder of a task may come from anywhere, its git configuration too.
func TestCommitsRunNothingOfTheRepositorys(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git")
	}
	dir := folder(t, map[string]string{"a.txt": "x"})
	trap := filepath.Join(dir, "trap")
	script := filepath.Join(dir, "evil.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\ntouch "+trap+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"init", "-q"}, {"add", "a.txt"}, {"commit", "-q", "-m", "first\tcommit"},
		{"config", "core.fsmonitor", script}, {"config", "core.pager", script}, {"config", "log.showSignature", "true"},
		{"config", "gpg.program", script}, {"config", "diff.external", script},
	} {
		cmd := exec.Command(git, append([]string{"-C", dir, "-c", "user.name=T", "-c", "user.email=t@example.org"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	var r Report
	r.FindCommits(t.Context(), dir)
	if len(r.Commits) != 1 || !strings.HasSuffix(r.Commits[0], " first commit") {
		t.Errorf("commits: %q", r.Commits)
	}
	if _, err := os.Stat(trap); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the repository's program ran: %v", err)
	}
	r = Report{}
	r.FindCommits(t.Context(), t.TempDir())
	if len(r.Commits) != 0 {
		t.Errorf("commits outside a repository: %q", r.Commits)
	}
}

func TestOneLineAndTodosInAnyBytes(t *testing.T) {
	if got := oneLine("ä\xff ö\n\tx", 3); got != "ä…" {
		t.Errorf("got %q", got)
	}
	for text, want := range map[string]Todo{
		"TODO":                      {Line: 1, Count: 1, Text: "TODO"},
		"\xffTODO\xff":              {Line: 1, Count: 1, Text: "TODO"},
		"TODOTODO xTODO TODO_":      {},
		"a\nFIXME\nTODO b\n":        {Line: 2, Count: 2, Text: "FIXME"},
		strings.Repeat("TODO\n", 9): {Line: 1, Count: 9, Text: "TODO"},
	} {
		got, ok := findTodos(File{Text: []byte(text)})
		if diff := cmp.Diff(want, got); diff != "" || ok != (want.Count > 0) {
			t.Errorf("%.20q: %v (-want +got):\n%s", text, ok, diff)
		}
	}
}
