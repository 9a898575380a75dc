package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArchitecture(t *testing.T) {
	pkgs := load(t)
	for _, v := range violations(pkgs) {
		t.Error(v)
	}
	found := make(map[string]bool)
	for _, p := range pkgs {
		found[p.path] = true
	}
	for _, want := range []string{"bridges", "core", "core/ceiling", "demo", "plugins", "test/archtest"} {
		if !found[want] {
			t.Errorf("package %s was not looked at", want)
		}
	}
}

// load reads the packages that go list finds in this module.
func load(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Name,Module", module+"/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var l struct {
			ImportPath, Dir, Name string
			Module                *struct{ Dir string }
		}
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		if l.Module == nil || l.Dir == "" {
			t.Fatalf("go list does not know where %s is", l.ImportPath)
		}
		p := pkg{path: strings.TrimPrefix(strings.TrimPrefix(l.ImportPath, module), "/"), name: l.Name}
		// Not go list's own list of files: it leaves out those for other systems.
		names, err := filepath.Glob(filepath.Join(l.Dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(l.Module.Dir, name)
			if err != nil {
				t.Fatal(err)
			}
			f, doc, err := read(filepath.ToSlash(rel), src)
			if err != nil {
				t.Fatal(err)
			}
			p.files = append(p.files, f)
			p.doc = p.doc || doc
		}
		pkgs = append(pkgs, p)
	}
}

// read looks at one file.
func read(name string, src []byte) (f file, doc bool, err error) {
	tree, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return f, false, err
	}
	f = file{name: name, lines: bytes.Count(src, []byte("\n")), generated: ast.IsGenerated(tree)}
	for _, spec := range tree.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return f, false, err
		}
		f.imports = append(f.imports, path)
	}
	for line := range bytes.Lines(src) {
		if text, ok := strings.CutPrefix(string(line), "// Length:"); ok && strings.TrimSpace(text) != "" {
			f.lengthy = true
		}
	}
	return f, tree.Doc != nil && strings.TrimSpace(tree.Doc.Text()) != "", nil
}

// Each rule has to be able to fail.
func TestRules(t *testing.T) {
	for _, tc := range []struct {
		from, imports string
		want          string // the rule broken; empty for none
	}{
		{"core", module + "/bridges", ""},
		{"core", module + "/registry", ""},
		{"core", module + "/plugins/host", "core reaches agents through the contract only"},
		{"core", module + "/bridges/codex", "core reaches agents through the contract only"},
		{"core", module + "/bridges/agentproc", "core reaches agents through the contract only"},
		{"core", "google.golang.org/grpc/codes", "gRPC stays at the edges"},
		{"core/mcpserver", module + "/core", ""},
		{"core/mcpserver", module + "/proto/host/v1", "core reaches agents|the wire's types"},
		{"core/hostapi", module + "/proto/host/v1", ""},
		{"core/hostapi", "google.golang.org/grpc", ""},
		{"core/hostapi", module + "/bridges/acp", "the host's API stands on core"},
		{"core/ceiling", module + "/bridges", "the ceiling is a leaf"},
		{"bridges", module + "/core/ceiling", ""},
		{"bridges", module + "/core", "the contract is below everything"},
		{"bridges/acp", module + "/bridges/acp/internal/fold", ""},
		{"bridges/acp/internal/fold", module + "/bridges", ""},
		{"bridges/acp", module + "/bridges/jsonrpc", ""},
		{"bridges/acp", module + "/bridges/codex", "a product knows the contract"},
		{"bridges/acp", module + "/core", "a product knows the contract"},
		{"bridges/acp", module + "/registry", "a product knows the contract"},
		{"bridges/newcomer", module + "/bridges/claude", "a product knows the contract"},
		{"bridges/agentproc", module + "/bridges/acp", "the products' tools know no product"},
		{"bridges/agentproc", module + "/bridges/agentproc/internal/keeper", ""},
		{"bridges/codex", "github.com/hashicorp/go-plugin", "only plugins knows go-plugin"},
		{"bridges/codex", module + "/proto/bridge/v1", "a product knows|the wire's types"},
		{"registry", module + "/core", "state is below the host's rules"},
		{"roles", module + "/internal/strictjson", ""},
		{"internal/strictjson", module + "/roles", "internal packages are leaves"},
		{"plugins/host", module + "/plugins/internal/identity", ""},
		{"plugins/host", "github.com/hashicorp/go-plugin/runner", ""},
		{"plugins/host", module + "/bridges/claude", "plugins join contract and wire"},
		{"plugins", module + "/core", "plugins join contract and wire"},
		{"proto/bridge/v1", module + "/bridges", "generated code stands alone"},
		{"proto/bridge/v1", "google.golang.org/protobuf/proto", ""},
		{"demo", module + "/demo/internal/survey", ""},
		{"demo", module + "/bridges", "the demo agent stands alone"},
		{"cmd/subspan", module + "/bridges/claude", ""},
		{"cmd/subspan", module + "/test/fakeagent", "nothing imports tests"},
		{"core", module + "/cmd/subspan/internal/cli", "core reaches agents|nothing imports the command"},
		{"test/e2e", module + "/test/fakeagent", ""},
		{"registry", "testing", "package testing is for tests"},
		{"test/fakeagent", "testing/iotest", "package testing is for tests"},
		{"registry", "github.com/else/testing", ""},
	} {
		got := violations([]pkg{{path: tc.from, name: "x", doc: true, files: []file{{name: tc.from + "/x.go", imports: []string{tc.imports}}}}})
		var want []string
		if tc.want != "" {
			want = strings.Split(tc.want, "|")
		}
		ok := len(got) == len(want)
		for i := 0; ok && i < len(want); i++ {
			ok = strings.Contains(got[i], want[i])
		}
		if !ok {
			t.Errorf("%s imports %s: got %q, want %q", tc.from, tc.imports, got, want)
		}
	}
}

func TestRulesOnFilesAndNames(t *testing.T) {
	long := file{name: "a/long.go", lines: 400}
	generated, reasoned, short := long, long, long
	generated.generated, reasoned.lengthy, short.lines = true, true, 399
	for name, tc := range map[string]struct {
		pkg  pkg
		want int
	}{
		"long":           {pkg{name: "x", doc: true, files: []file{long}}, 1},
		"not too long":   {pkg{name: "x", doc: true, files: []file{generated, reasoned, short}}, 0},
		"vague":          {pkg{name: "util", doc: true, files: []file{short}}, 1},
		"no comment":     {pkg{name: "x", files: []file{short}}, 1},
		"only test code": {pkg{name: "util"}, 0},
	} {
		if got := violations([]pkg{tc.pkg}); len(got) != tc.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestReadOfAFile(t *testing.T) {
	for name, tc := range map[string]struct {
		src  string
		want file
		doc  bool
	}{
		"doc and imports": {
			"//go:build plan9\n\n// Package x is.\npackage x\n\nimport (\n\t\"io\"\n\ty \"a/b\"\n)\n",
			file{imports: []string{"io", "a/b"}, lines: 9}, true,
		},
		"constraint is no doc": {"//go:build plan9\n\npackage x\n", file{lines: 3}, false},
		"directive is no doc":  {"//go:generate x\npackage x\n", file{lines: 2}, false},
		"generated":            {"// Code generated by x. DO NOT EDIT.\n\npackage x\n", file{lines: 3, generated: true}, false},
		"reason for length":    {"package x\n\n// Length: a table that is read as one.\n", file{lines: 3, lengthy: true}, false},
		"no reason":            {"package x\n\n// Length:\n", file{lines: 3}, false},
	} {
		got, doc, err := read("", []byte(tc.src))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(file{})); diff != "" || doc != tc.doc {
			t.Errorf("%s: doc %v (-want +got):\n%s", name, doc, diff)
		}
	}
}
