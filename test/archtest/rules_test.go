package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// module is the prefix of our own import paths.
const module = "github.com/subspan-dev/subspan"

// pkg is one package's non-test source, for every system.
type pkg struct {
	path  string // below module; empty for its top
	name  string
	doc   bool // some file has a package comment
	files []file
}

type file struct {
	name      string // below the module, slash-separated
	imports   []string
	lines     int
	generated bool
	lengthy   bool // has a comment "// Length: …" saying why it is long
}

// scope is what a rule is about: packages by path. "core" is that package alone,
// "core/..." it and all below.
type scope []string

func (s scope) has(path string) bool {
	return slices.ContainsFunc(s, func(pattern string) bool {
		if base, all := strings.CutSuffix(pattern, "/..."); all {
			return path == base || strings.HasPrefix(path, base+"/")
		}
		return path == pattern
	})
}

// layer says which packages of ours its packages may import: those listed, and parts
// of their own tree. The first layer that has a package counts.
type layer struct {
	name string
	of   scope
	may  scope
	why  string
}

var layers = []layer{
	{
		name: "the ceiling is a leaf", of: scope{"core/ceiling"},
		why: "everybody shares its meaning, so it may depend on nobody",
	},
	{
		name: "internal packages are leaves", of: scope{"internal/..."},
		may: scope{"internal/..."},
		why: "they are tools for all layers and may know none",
	},
	{
		name: "the demo agent stands alone", of: scope{"demo/..."},
		why: "it is an agent like any other, on the far side of a pipe: shared code would hide what the wire lacks",
	},
	{
		name: "the contract is below everything", of: scope{"bridges"},
		may: scope{"core/ceiling"},
		why: "host, plugins and products meet in it",
	},
	{
		name: "the products' tools know no product", of: scope{"bridges/agentproc/...", "bridges/jsonrpc/..."},
		may: scope{"bridges", "core/ceiling", "internal/..."},
		why: "they are shared by all products",
	},
	{
		name: "a product knows the contract and its tools", of: scope{"bridges/..."},
		may: scope{"bridges", "bridges/agentproc", "bridges/jsonrpc", "core/ceiling"},
		why: "a product that reached into the host or into another product could not become a plugin of its own",
	},
	{
		name: "state is below the host's rules", of: scope{"registry/...", "roles/...", "config/..."},
		may: scope{"bridges", "core/ceiling", "internal/..."},
		why: "core uses them; the reverse would be a circle",
	},
	{
		name: "the host's API stands on core", of: scope{"core/hostapi/..."},
		may: scope{"core", "core/ceiling", "bridges", "registry", "roles", "config", "proto/...", "internal/..."},
		why: "it carries core over a socket and knows no product",
	},
	{
		name: "core reaches agents through the contract only", of: scope{"core/..."},
		may: scope{"core", "core/ceiling", "bridges", "registry", "roles", "config", "internal/..."},
		why: "the rules have to hold for every product and every way to run it",
	},
	{
		name: "generated code stands alone", of: scope{"proto/..."},
		why: "the wire is described by its schema, not by our types",
	},
	{
		name: "plugins join contract and wire", of: scope{"plugins/..."},
		may: scope{"plugins/...", "bridges", "bridges/agentproc", "core/ceiling", "proto/...", "internal/..."},
		why: "a plugin may carry any product, so none is known here",
	},
	// cmd and test may import anything.
}

// reserved says that some import is for a few packages only.
type reserved struct {
	name    string
	imports scope // full import paths
	by      scope
	why     string
}

var reservations = []reserved{
	{
		name: "only plugins knows go-plugin", imports: scope{"github.com/hashicorp/go-plugin/..."},
		by:  scope{"plugins/..."},
		why: "how a bridge becomes a process is one package's business",
	},
	{
		name: "gRPC stays at the edges", imports: scope{"google.golang.org/grpc/..."},
		by:  scope{"plugins/...", "core/hostapi/...", "proto/..."},
		why: "the contract is Go; the wire is a way to carry it",
	},
	{
		name: "the wire's types stay at the edges", imports: scope{module + "/proto/...", "google.golang.org/protobuf/..."},
		by:  scope{"plugins/...", "core/hostapi/...", "proto/..."},
		why: "generated types would leak the wire's shape into everything",
	},
	{
		name: "nothing imports tests", imports: scope{module + "/test/..."},
		by:  scope{"test/..."},
		why: "fakes and scripted models must not end up in the program",
	},
	{
		name: "nothing imports the command", imports: scope{module + "/cmd/..."},
		by:  scope{"cmd/..."},
		why: "main wires the rest together; it holds no rule that others could need",
	},
	{
		name: "package testing is for tests", imports: scope{"testing/..."},
		why: "it brings test flags and panics into the program",
	},
}

// vagueNames say nothing about what a package is for.
var vagueNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "shared", "base"}

// maxLines is the length below which a file of source stays.
const maxLines = 400

// violations checks all packages against all rules. Each line names the file, the
// rule and its reason.
func violations(pkgs []pkg) []string {
	var out []string
	for _, p := range pkgs {
		for _, f := range p.files {
			for _, imp := range f.imports {
				out = append(out, importViolations(p, f, imp)...)
			}
			if f.lines >= maxLines && !f.generated && !f.lengthy {
				out = append(out, fmt.Sprintf("%s has %d lines: files stay below %d, to be read at one sitting; "+
					"split it, or say why not in a comment \"// Length: …\"", f.name, f.lines, maxLines))
			}
		}
		if len(p.files) == 0 {
			continue
		}
		if slices.Contains(vagueNames, p.name) {
			out = append(out, fmt.Sprintf("package %s is called %s: a name says what a package is for, this one gathers what has no place", p.path, p.name))
		}
		if !p.doc {
			out = append(out, fmt.Sprintf("package %s has no package comment: it is where a reader begins", p.path))
		}
	}
	return out
}

func importViolations(p pkg, f file, imp string) []string {
	var out []string
	if own, ok := strings.CutPrefix(imp, module+"/"); ok {
		for _, l := range layers {
			if !l.of.has(p.path) {
				continue
			}
			if !l.may.has(own) && !sameTree(p.path, own, l.of) {
				out = append(out, fmt.Sprintf("%s imports %s: %s, since %s", f.name, own, l.name, l.why))
			}
			break
		}
	}
	for _, r := range reservations {
		if r.imports.has(imp) && !r.by.has(p.path) {
			out = append(out, fmt.Sprintf("%s imports %s: %s, since %s", f.name, imp, r.name, r.why))
		}
	}
	return out
}

// sameTree reports whether a package imports a part of its own: both below the
// same folder, which is a pattern's folder or, for the products, the product's.
func sameTree(from, to string, of scope) bool {
	for _, pattern := range of {
		root, all := strings.CutSuffix(pattern, "/...")
		if !all {
			continue
		}
		if root == "bridges" { // each folder in it is a product of its own
			product, _, _ := strings.Cut(strings.TrimPrefix(from, "bridges/"), "/")
			root = "bridges/" + product
		}
		if tree := (scope{root + "/..."}); tree.has(from) && tree.has(to) {
			return true
		}
	}
	return false
}
