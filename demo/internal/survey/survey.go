package survey

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"path"
	"slices"
	"strings"
)

// Report is what a survey found. The functions of this package fill it step by
// step; Markdown shows what is there.
type Report struct {
	Name      string // of the folder
	Seen      Seen
	Languages []Language
	Biggest   []File // without Text
	Entries   []Entry
	Tests     Tests
	Readme    Readme
	Commits   []string
	Todos     Todos

	manifests map[string][]byte // what entry points and tests are read from, by path
	mains     []string          // folders of Go main packages
	scripts   []string          // other files that are entry points by their name
}

// Language is one language's share.
type Language struct {
	Name  string
	Files int
	Lines int
	Bytes int64
}

// Todos counts the notes that people left for later.
type Todos struct {
	Count  int
	Files  int
	Places []Todo // the first of each of the files with the most
}

// Todo is one such note.
type Todo struct {
	Path  string
	Line  int
	Text  string
	Count int // in this file
}

// How many of each the report names.
const (
	topFiles     = 8
	topLanguages = 12
	topTodos     = 6
	maxManifests = 200
	maxManifest  = 256 << 10
)

// Look walks the folder and gathers everything that its files say.
func Look(ctx context.Context, dir, name string, lim Limits) (*Report, error) {
	r := &Report{Name: name, manifests: make(map[string][]byte)}
	langs := make(map[string]*Language)
	var todos []Todo
	var files []File
	seen, err := Walk(ctx, dir, lim, func(f File) error {
		files = append(files, File{Path: f.Path, Size: f.Size})
		r.Tests.add(f.Path)
		r.note(f)
		name := language(f.Path)
		if name == "" || f.Text == nil {
			return nil
		}
		l := langs[name]
		if l == nil {
			l = &Language{Name: name}
			langs[name] = l
		}
		l.Files++
		l.Lines += lines(f.Text)
		l.Bytes += f.Size
		if t, ok := findTodos(f); ok {
			todos = append(todos, t)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.Seen = seen
	for l := range maps.Values(langs) {
		r.Languages = append(r.Languages, *l)
	}
	slices.SortFunc(r.Languages, func(a, b Language) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	slices.SortStableFunc(files, func(a, b File) int { return cmp.Compare(b.Size, a.Size) })
	r.Biggest = slices.Clone(files[:min(topFiles, len(files))])

	r.Todos.Files = len(todos)
	for _, t := range todos {
		r.Todos.Count += t.Count
	}
	slices.SortStableFunc(todos, func(a, b Todo) int { return cmp.Compare(b.Count, a.Count) })
	r.Todos.Places = slices.Clone(todos[:min(topTodos, len(todos))])
	return r, nil
}

// note keeps what later steps need of a file.
func (r *Report) note(f File) {
	base := path.Base(f.Path)
	switch {
	case f.Text == nil, strings.Contains("/"+f.Path, "/testdata/"):
		return
	case isManifest(f.Path) && len(f.Text) <= maxManifest && len(r.manifests) < maxManifests:
		r.manifests[f.Path] = bytes.Clone(f.Text)
	case strings.HasSuffix(base, ".go") && !strings.HasSuffix(base, "_test.go") &&
		hasLine(f.Text, "package main") && bytes.Contains(f.Text, []byte("\nfunc main()")):
		r.mains = append(r.mains, path.Dir(f.Path))
	case isScript(f.Path):
		r.scripts = append(r.scripts, f.Path)
	}
}

// hasLine reports whether a line of text begins with want.
func hasLine(text []byte, want string) bool {
	return bytes.HasPrefix(text, []byte(want)) || bytes.Contains(text, []byte("\n"+want))
}

func lines(b []byte) int {
	n := bytes.Count(b, []byte{'\n'})
	if len(b) > 0 && b[len(b)-1] != '\n' {
		n++
	}
	return n
}

// findTodos counts TODO and FIXME as words of their own.
func findTodos(f File) (Todo, bool) {
	t := Todo{Path: f.Path}
	first := len(f.Text)
	for _, word := range []string{"TODO", "FIXME"} {
		for at := 0; ; at += len(word) {
			i := bytes.Index(f.Text[at:], []byte(word))
			if i < 0 {
				break
			}
			at += i
			if at > 0 && wordByte(f.Text[at-1]) || at+len(word) < len(f.Text) && wordByte(f.Text[at+len(word)]) {
				continue
			}
			t.Count++
			first = min(first, at)
		}
	}
	if t.Count > 0 {
		t.Line = lines(f.Text[:first+1])
		rest, _, _ := bytes.Cut(f.Text[first:min(len(f.Text), first+200)], []byte{'\n'})
		t.Text = oneLine(string(rest), 100)
	}
	return t, t.Count > 0
}

func wordByte(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// oneLine shortens a text to n bytes on one line.
func oneLine(s string, n int) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "")), " ")
	if len(s) > n {
		s = strings.TrimSpace(strings.ToValidUTF8(s[:n], "")) + "…"
	}
	return s
}

// language names a file's language by its name; empty for what is none.
func language(file string) string {
	base := path.Base(file)
	switch base {
	case "Makefile", "GNUmakefile":
		return "Make"
	case "Dockerfile", "Containerfile":
		return "Dockerfile"
	case "CMakeLists.txt":
		return "CMake"
	}
	return languages[strings.ToLower(path.Ext(base))]
}

var languages = map[string]string{
	".go": "Go", ".mod": "Go module", ".rs": "Rust", ".c": "C", ".h": "C/C++ header", ".cc": "C++", ".cpp": "C++", ".cxx": "C++",
	".hpp": "C++", ".hh": "C++", ".m": "Objective-C", ".swift": "Swift", ".zig": "Zig", ".java": "Java", ".kt": "Kotlin",
	".kts": "Kotlin", ".scala": "Scala", ".groovy": "Groovy", ".gradle": "Gradle", ".cs": "C#", ".fs": "F#", ".vb": "Visual Basic",
	".py": "Python", ".pyi": "Python", ".ipynb": "Jupyter", ".rb": "Ruby", ".php": "PHP", ".pl": "Perl", ".pm": "Perl", ".lua": "Lua",
	".js": "JavaScript", ".mjs": "JavaScript", ".cjs": "JavaScript", ".jsx": "JavaScript", ".ts": "TypeScript", ".mts": "TypeScript",
	".cts": "TypeScript", ".tsx": "TypeScript", ".vue": "Vue", ".svelte": "Svelte", ".html": "HTML", ".htm": "HTML", ".css": "CSS",
	".scss": "CSS", ".sass": "CSS", ".less": "CSS", ".sh": "Shell", ".bash": "Shell", ".zsh": "Shell", ".fish": "Shell",
	".ps1": "PowerShell", ".sql": "SQL", ".proto": "Protocol Buffers", ".graphql": "GraphQL", ".tf": "Terraform", ".nix": "Nix",
	".hs": "Haskell", ".ml": "OCaml", ".mli": "OCaml", ".ex": "Elixir", ".exs": "Elixir", ".erl": "Erlang", ".clj": "Clojure",
	".dart": "Dart", ".r": "R", ".jl": "Julia", ".md": "Markdown", ".mdx": "Markdown", ".rst": "reStructuredText", ".adoc": "AsciiDoc",
	".tex": "TeX", ".json": "JSON", ".jsonc": "JSON", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".xml": "XML", ".mk": "Make",
	".cmake": "CMake", ".el": "Emacs Lisp", ".vim": "Vim script", ".sol": "Solidity", ".asm": "Assembly", ".s": "Assembly",
}
