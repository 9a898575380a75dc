package survey

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Entry is a place where the work of a project begins.
type Entry struct {
	Kind string // "Go program", "npm script", "make target", …
	Path string
	Text string // names or commands, one line
}

// Tests are a project's test files, and the commands that run them.
type Tests struct {
	Files int
	Kinds map[string]int // by pattern, such as *_test.go
	Run   []string
}

// Readme is the beginning of a README.
type Readme struct {
	Path  string
	Lines []string
}

var manifestNames = []string{
	"go.mod", "package.json", "Makefile", "GNUmakefile", "makefile", "justfile", "Dockerfile", "Containerfile",
	"compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml", "Procfile", "pyproject.toml", "setup.py", "tox.ini",
	"Cargo.toml", "Gemfile", "pom.xml", "build.gradle", "build.gradle.kts", "mix.exs", "pnpm-lock.yaml", "yarn.lock",
}

func isManifest(file string) bool {
	base := path.Base(file)
	return slices.Contains(manifestNames, base) ||
		path.Dir(file) == "." && strings.HasPrefix(strings.ToLower(base), "readme")
}

// isScript reports whether a file's name makes it an entry point.
func isScript(file string) bool {
	base := path.Base(file)
	return base == "__main__.py" || base == "manage.py" || strings.HasSuffix("/"+file, "/src/main.rs") ||
		strings.HasSuffix("/"+path.Dir(file), "/src/bin") && strings.HasSuffix(base, ".rs")
}

// add counts a file when its name says that it holds tests.
func (t *Tests) add(file string) {
	base := path.Base(file)
	stem, ext, _ := strings.Cut(base, ".")
	kind := ""
	switch {
	case strings.HasSuffix(base, "_test.go"):
		kind = "*_test.go"
	case strings.HasPrefix(base, "test_") && ext == "py", strings.HasSuffix(base, "_test.py"):
		kind = "test_*.py"
	case strings.HasPrefix(ext, "test.") || strings.HasPrefix(ext, "spec."):
		kind = "*." + ext
	case strings.HasSuffix(base, "_spec.rb"), strings.HasSuffix(base, "_test.rb"):
		kind = "*_spec.rb"
	case strings.HasSuffix(stem, "Test") && (ext == "java" || ext == "kt"):
		kind = "*Test." + ext
	case ext == "rs" && strings.Contains("/"+file, "/tests/"):
		kind = "tests/*.rs"
	default:
		return
	}
	if t.Kinds == nil {
		t.Kinds = make(map[string]int)
	}
	t.Files++
	t.Kinds[kind]++
}

// FindEntries reads entry points, test commands and the README out of what Look kept.
func (r *Report) FindEntries() {
	slices.SortFunc(r.mains, byDepth)
	for _, dir := range slices.Compact(r.mains) {
		r.Entries = append(r.Entries, Entry{"Go program", dir, "go run ./" + strings.TrimPrefix(dir, ".")})
	}
	for _, file := range r.scripts {
		r.Entries = append(r.Entries, Entry{"program", file, ""})
	}
	for _, file := range slices.SortedFunc(maps.Keys(r.manifests), byDepth) {
		text := r.manifests[file]
		switch base := path.Base(file); base {
		case "package.json":
			r.packageJSON(file, text)
		case "Makefile", "GNUmakefile", "makefile":
			if names := matches(makeTarget, text); len(names) > 0 {
				r.entry("make targets", file, strings.Join(names, ", "))
				if slices.Contains(names, "test") {
					r.runs(file, "make test")
				}
			}
		case "justfile":
			r.entry("just recipes", file, strings.Join(matches(makeTarget, text), ", "))
		case "Dockerfile", "Containerfile":
			r.entry("container", file, strings.Join(matches(dockerStart, text), "; "))
		case "compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml":
			r.entry("compose file", file, "docker compose up")
		case "Procfile":
			r.entry("processes", file, strings.Join(matches(procLine, text), ", "))
		case "go.mod":
			r.runs(file, "go test ./...")
		case "pyproject.toml", "setup.py", "tox.ini":
			if names := pyScripts(text); len(names) > 0 {
				r.entry("Python scripts", file, strings.Join(names, ", "))
			}
			if r.Tests.Kinds["test_*.py"] > 0 {
				r.runs(file, "python -m pytest")
			}
		case "Cargo.toml":
			r.runs(file, "cargo test")
		case "Gemfile":
			if r.Tests.Kinds["*_spec.rb"] > 0 {
				r.runs(file, "bundle exec rspec")
			}
		case "pom.xml":
			r.runs(file, "mvn test")
		case "build.gradle", "build.gradle.kts":
			r.runs(file, "./gradlew test")
		case "mix.exs":
			r.runs(file, "mix test")
		default:
			if strings.HasPrefix(strings.ToLower(base), "readme") && r.Readme.Path == "" {
				r.Readme = Readme{Path: file, Lines: beginning(text)}
			}
		}
	}
}

// byDepth puts what is nearer to the top first.
func byDepth(a, b string) int {
	return cmp.Or(
		cmp.Compare(strings.Count(a+"/", "/"), strings.Count(b+"/", "/")),
		cmp.Compare(a, b))
}

func (r *Report) entry(kind, file, text string) {
	r.Entries = append(r.Entries, Entry{kind, file, oneLine(text, 300)})
}

// runs notes a test command, with the folder it belongs to.
func (r *Report) runs(file, command string) {
	if dir := path.Dir(file); dir != "." {
		command = fmt.Sprintf("(cd %s && %s)", dir, command)
	}
	if !slices.Contains(r.Tests.Run, command) {
		r.Tests.Run = append(r.Tests.Run, command)
	}
}

func (r *Report) packageJSON(file string, text []byte) {
	var p struct {
		Name    string
		Bin     json.RawMessage // a string, or an object of names
		Scripts map[string]any
	}
	if json.Unmarshal(text, &p) != nil {
		return // not ours to mend
	}
	var bins map[string]string
	if json.Unmarshal(p.Bin, &bins) == nil && len(bins) > 0 {
		r.entry("npm programs", file, strings.Join(slices.Sorted(maps.Keys(bins)), ", "))
	} else if len(p.Bin) > 0 && p.Bin[0] == '"' {
		r.entry("npm program", file, p.Name)
	}
	if len(p.Scripts) > 0 {
		r.entry("npm scripts", file, strings.Join(slices.Sorted(maps.Keys(p.Scripts)), ", "))
	}
	if _, ok := p.Scripts["test"]; ok {
		tool := "npm"
		for lock, t := range map[string]string{"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn"} {
			if _, ok := r.manifests[path.Join(path.Dir(file), lock)]; ok {
				tool = t
			}
		}
		r.runs(file, tool+" test")
	}
}

var (
	makeTarget  = regexp.MustCompile(`(?m)^([A-Za-z0-9][A-Za-z0-9_-]*)[^:=\n]*:(?:[^=]|$)`)
	dockerStart = regexp.MustCompile(`(?m)^((?:ENTRYPOINT|CMD)\s.*)$`)
	procLine    = regexp.MustCompile(`(?m)^([A-Za-z0-9_-]+):`)
	pyScript    = regexp.MustCompile(`^([A-Za-z0-9_.-]+)\s*=\s*["']`)
)

// matches returns the first groups, each once, at most 20.
func matches(re *regexp.Regexp, text []byte) []string {
	var out []string
	for _, m := range re.FindAllSubmatch(text, 200) {
		if s := string(bytes.TrimSpace(m[1])); !slices.Contains(out, s) && len(out) < 20 {
			out = append(out, s)
		}
	}
	return out
}

// pyScripts reads the names in [project.scripts] of a pyproject.toml.
func pyScripts(text []byte) []string {
	var names []string
	inside := false
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if bytes.HasPrefix(line, []byte("[")) {
			inside = bytes.Equal(line, []byte("[project.scripts]"))
		} else if m := pyScript.FindSubmatch(line); inside && m != nil {
			names = append(names, string(m[1]))
		}
	}
	return names
}

// beginning is the first lines of a text that say something, at most 12.
func beginning(text []byte) []string {
	var out []string
	sc := bufio.NewScanner(bytes.NewReader(text)) // a line over 64 KiB ends it: no prose
	for sc.Scan() && len(out) < 12 {
		line := strings.TrimSpace(sc.Text())
		if line != "" && !strings.HasPrefix(line, "<") && !strings.HasPrefix(line, "[![") && !strings.HasPrefix(line, "![") {
			out = append(out, oneLine(line, 200))
		}
	}
	return out
}

// FindCommits asks git for the last commits; without git, or outside a
// repository, there are none. Nothing that the repository's configuration names
// is run: an unknown repository is not to be trusted.
func (r *Report) FindCommits(ctx context.Context, dir string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", "--no-pager", "--no-optional-locks",
		"-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "log.showSignature=false",
		"log", "-n", "8", "--no-show-signature", "--no-color", "--no-ext-diff", "--date=short", "--format=%h %ad %s", "--", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_NO_LAZY_FETCH=1", "GIT_TERMINAL_PROMPT=0")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return
	}
	for line := range strings.Lines(string(out)) {
		r.Commits = append(r.Commits, oneLine(line, 120))
	}
}
