// Package dropin finds plugins that are not built in: folders with a plugin.json,
// each trusted by a person and pinned to its content.
//
// A folder below the plugins folder is read and never executed until `subspan
// plugins trust NAME` has recorded its hash. After that it runs from a copy that is
// named by that hash, so that a change on disk neither reaches a running host nor
// slips between the check and the start; a changed folder is refused until it is
// trusted again. The hash covers the folder and not the interpreter that a script
// needs. All of this is against agents, which run as the same user and may be able
// to write to the plugins folder: what they leave there must not run by itself.
package dropin

import (
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/subspan-dev/subspan/internal/strictjson"
)

// ManifestName is the file that makes a folder a plugin.
const ManifestName = "plugin.json"

// Manifest is a plugin.json. A manifest whose bridge is its own name (or absent) is
// a plugin that carries that bridge. One that names another bridge, such as acp, is
// an agent for that bridge: data, and no plugin process.
type Manifest struct {
	Schema   int    `json:"schema"` // 1; absent is 1
	Name     string `json:"name"`   // the folder's name
	Version  string `json:"version"`
	Contract []int  `json:"contract"`
	Bridge   string `json:"bridge"`
	// Exec is the command: a list, or one list per system ("linux/amd64", "linux",
	// "*"). Its first word is a file of the folder ("./x") or a name on PATH; later
	// words that begin with "./" are files of the folder too.
	Exec Exec `json:"exec"`
	// Env names the variables that a plugin may have of the host's environment, or an
	// agent of its caller's.
	Env []string `json:"env"`
	// Set is set for an agent as it stands; not for plugins, and not for secrets.
	Set         map[string]string `json:"set"`
	Login       []string          `json:"login"`      // see bridges.Agent
	LoginHint   string            `json:"login_hint"` // see bridges.Agent
	Description string            `json:"description"`
	Homepage    string            `json:"homepage"`
	Check       Check             `json:"check"`
}

// Check tells the conformance suite how to exercise a plugin.
type Check struct {
	// Agent is the command of the agent to drive; absent for the built-in demo agent.
	Agent []string `json:"agent"`
	// Words replaces tasks of the suite's vocabulary, by name (see bridgetest.Words).
	Words map[string]string `json:"words"`
}

// Exec maps systems to commands.
type Exec map[string][]string

// UnmarshalStrict takes one list for all systems or an object of lists.
func (e *Exec) UnmarshalStrict(n strictjson.Node) {
	if n.Kind() == "list" {
		var all []string
		if n.Decode(&all) {
			*e = Exec{"*": all}
		}
		return
	}
	n.Decode((*map[string][]string)(e))
}

// For returns the command for a system, nil for none.
func (e Exec) For(goos, goarch string) []string {
	for _, key := range []string{goos + "/" + goarch, goos, "*"} {
		if cmd, ok := e[key]; ok {
			return cmd
		}
	}
	return nil
}

// IsAgent reports whether the manifest describes an agent for another bridge.
func (m *Manifest) IsAgent() bool { return m.Bridge != m.Name }

var (
	namePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	execPattern = regexp.MustCompile(`^(\*|[a-z0-9]+(/[a-z0-9]+)?)$`)
	envPattern  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// ReadManifest reads and checks the manifest of a folder. Its errors name file, line
// and key of everything that is wrong.
func ReadManifest(dir string) (*Manifest, error) {
	return readManifest(dir, filepath.Base(dir))
}

// readManifest is ReadManifest for a copy, whose folder has another name.
func readManifest(dir, folder string) (*Manifest, error) {
	file := filepath.Join(dir, ManifestName)
	data, err := strictjson.ReadFile(file)
	if err != nil {
		return nil, err
	}
	m := &Manifest{Schema: 1}
	doc, err := strictjson.Decode(file, data, m)
	if err != nil {
		return nil, err
	}
	if m.Bridge == "" {
		m.Bridge = m.Name
	}
	if problems := m.problems(doc, folder); len(problems) > 0 {
		return nil, problems
	}
	return m, nil
}

// problems applies the rules that go beyond a single value.
func (m *Manifest) problems(doc *strictjson.Document, folder string) strictjson.Problems {
	var ps strictjson.Problems
	bad := func(path []string, format string, args ...any) {
		ps = append(ps, doc.Problem(path, format, args...))
	}
	if m.Schema != 1 {
		bad([]string{"schema"}, "is %d, this host knows 1: update subspan, or take an older version of the plugin", m.Schema)
	}
	switch {
	case !namePattern.MatchString(m.Name):
		bad([]string{"name"}, "must begin with a small letter and have small letters, digits and hyphens, at most 32")
	case m.Name != folder:
		bad([]string{"name"}, "must be the folder's name, %q", folder)
	}
	if !namePattern.MatchString(m.Bridge) {
		bad([]string{"bridge"}, "is no name of a bridge")
	}
	if m.IsAgent() {
		m.agentProblems(doc, bad)
	} else {
		m.pluginProblems(doc, bad)
	}
	if len(m.Exec) == 0 {
		bad([]string{"exec"}, "is missing: write the command as a list, such as [\"./bridge\"]")
	}
	for key, cmd := range m.Exec {
		at := []string{"exec"}
		if doc.Has("exec", key) {
			at = append(at, key)
		}
		if !execPattern.MatchString(key) {
			bad(at, "names no system: write linux/amd64, linux or *")
		}
		if why := commandProblem(cmd, m.IsAgent()); why != "" {
			bad(at, "%s", why)
		}
	}
	for i, name := range m.Env {
		if !envPattern.MatchString(name) || strings.HasPrefix(name, "PLUGIN_") || strings.HasPrefix(name, "SUBSPAN_") {
			bad([]string{"env", fmt.Sprint(i)}, "is no variable that a plugin may ask for")
		}
	}
	return ps
}

func (m *Manifest) pluginProblems(doc *strictjson.Document, bad func([]string, string, ...any)) {
	if m.Version == "" {
		bad([]string{"version"}, "is missing: write the version that the plugin's Describe gives")
	}
	if len(m.Contract) == 0 {
		bad([]string{"contract"}, "is missing: write the contract versions that the plugin speaks, such as [1]")
	}
	for _, key := range []string{"set", "login", "login_hint"} {
		if doc.Has(key) {
			bad([]string{key}, "is for agents, and this is a plugin: its requests carry the agent's")
		}
	}
}

func (m *Manifest) agentProblems(doc *strictjson.Document, bad func([]string, string, ...any)) {
	for _, key := range []string{"contract", "check"} {
		if doc.Has(key) {
			bad([]string{key}, "is for plugins, and this is an agent for the bridge %s", m.Bridge)
		}
	}
	for name := range m.Set {
		if !envPattern.MatchString(name) {
			bad([]string{"set", name}, "is no name of a variable")
		}
	}
	for i, file := range m.Login {
		if !filepath.IsLocal(filepath.FromSlash(file)) {
			bad([]string{"login", fmt.Sprint(i)}, "must be a file below the home folder, without a leading slash or ..")
		}
	}
}

// commandProblem says what is wrong with a command; empty for nothing.
func commandProblem(cmd []string, agent bool) string {
	if len(cmd) == 0 || cmd[0] == "" {
		return "must have the program as its first word"
	}
	for i, arg := range cmd {
		if strings.HasPrefix(arg, "./") && !filepath.IsLocal(filepath.FromSlash(path.Clean(arg))) {
			return fmt.Sprintf("word %d, %q, leaves the folder", i+1, arg)
		}
	}
	first := cmd[0]
	switch {
	case strings.HasPrefix(first, "./"):
	case !strings.ContainsAny(first, `/\`) && first != "." && first != "..":
	case agent && path.IsAbs(first) && path.Clean(first) == first:
	default:
		return fmt.Sprintf("%q must be a file of the folder, such as ./bridge, or a program's name", first)
	}
	return ""
}

// command returns the command for this system with the folder's files made absolute.
func (m *Manifest) command(dir string) ([]string, error) {
	cmd := m.Exec.For(runtime.GOOS, runtime.GOARCH)
	if cmd == nil {
		return nil, fmt.Errorf("%s has no command for %s/%s in its exec", m.Name, runtime.GOOS, runtime.GOARCH)
	}
	return m.absolute(cmd, dir)
}

// CheckAgent returns the command of the agent that the conformance suite shall use.
func (m *Manifest) CheckAgent(dir string) ([]string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return m.absolute(m.Check.Agent, dir)
}

func (m *Manifest) absolute(cmd []string, dir string) ([]string, error) {
	cmd = slices.Clone(cmd)
	for i, arg := range cmd {
		if strings.HasPrefix(arg, "./") {
			cmd[i] = filepath.Join(dir, filepath.FromSlash(arg))
		}
	}
	if !filepath.IsAbs(cmd[0]) {
		found, err := exec.LookPath(cmd[0])
		if err != nil {
			return nil, fmt.Errorf("find the program of %s: %w", m.Name, err)
		}
		if cmd[0], err = filepath.Abs(found); err != nil {
			return nil, fmt.Errorf("find the program of %s: %w", m.Name, err)
		}
	}
	return cmd, nil
}
