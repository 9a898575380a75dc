package codex

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
)

// Agent is what the bridge knows of codex before it is found on a machine: see
// Resolve.
func Agent() bridges.Agent {
	return bridges.Agent{
		Name:      "codex",
		Command:   []string{"codex"},
		PassEnv:   []string{"CODEX_API_KEY", "OPENAI_API_KEY", "OPENAI_ORGANIZATION", "OPENAI_PROJECT"},
		Login:     []string{".codex/auth.json"},
		LoginHint: "run `codex login` in a terminal",
	}
}

// Resolve finds the program that an agent's command names. lookPath is exec.LookPath
// or the like. The result is the native program where there is one: behind npm's
// launcher it would be a child of node's, and outlive it when that is killed.
// Nothing is executed.
//
// The error is of kind agent_missing when there is no such program.
func Resolve(agent bridges.Agent, lookPath func(string) (string, error)) (bridges.Agent, error) {
	if len(agent.Command) == 0 {
		agent.Command = Agent().Command
	}
	found, err := lookPath(agent.Command[0])
	if err != nil {
		return agent, bridges.Errorf(bridges.KindAgentMissing, "codex is not installed: %w", err).
			WithNext("run `npm install -g @openai/codex`, then `codex login`, in a terminal")
	}
	if abs, err := filepath.Abs(found); err == nil {
		found = abs
	}
	command := append([]string{found}, agent.Command[1:]...)
	if native := nativeBehind(found); native != "" {
		command[0] = native
	}
	agent.Command = command
	return agent, nil
}

// nativeBehind returns the native program that npm's launcher at path would start,
// or "" when path is no such launcher.
func nativeBehind(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	// On Windows npm writes a script beside node_modules instead of a link.
	roots := []string{filepath.Join(filepath.Dir(real), "node_modules", "@openai", "codex")}
	if filepath.Base(real) == "codex.js" {
		roots = []string{filepath.Dir(filepath.Dir(real))}
	} else if runtime.GOOS != "windows" {
		return ""
	}
	triple, platform := target(runtime.GOOS, runtime.GOARCH)
	name := "codex"
	if runtime.GOOS == "windows" {
		name = "codex.exe"
	}
	for _, root := range roots {
		if !isPackage(root) {
			continue
		}
		// Node looks upwards for the package of the platform; older versions have
		// the program in the package itself.
		places := []string{filepath.Join(root, "vendor")}
		for dir := root; ; dir = filepath.Dir(dir) {
			places = append(places, filepath.Join(dir, "node_modules", "@openai", "codex-"+platform, "vendor"))
			if dir == filepath.Dir(dir) {
				break
			}
		}
		for _, vendor := range places {
			for _, below := range []string{"bin", "codex"} {
				program := filepath.Join(vendor, triple, below, name)
				if info, err := os.Stat(program); err == nil && info.Mode().IsRegular() {
					return program
				}
			}
		}
	}
	return ""
}

// isPackage reports whether a folder is npm's @openai/codex.
func isPackage(root string) bool {
	b, err := os.ReadFile(filepath.Join(root, "package.json"))
	if err != nil {
		return false
	}
	var p struct {
		Name string `json:"name"`
	}
	return json.Unmarshal(b, &p) == nil && strings.EqualFold(p.Name, "@openai/codex")
}

// target returns the names that codex's releases and npm have for a system.
func target(goos, arch string) (triple, platform string) {
	cpu, short := "x86_64", "x64"
	if arch == "arm64" {
		cpu, short = "aarch64", "arm64"
	}
	switch goos {
	case "darwin":
		return cpu + "-apple-darwin", "darwin-" + short
	case "windows":
		return cpu + "-pc-windows-msvc", "win32-" + short
	}
	return cpu + "-unknown-linux-musl", "linux-" + short
}
