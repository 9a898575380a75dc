package acp

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/subspan-dev/subspan/bridges"
)

//go:embed catalogue.json
var catalogue []byte

// known is one entry of the catalogue.
type known struct {
	bridges.Agent
	Install string `json:"install"`
}

func entries() []known {
	var all []known
	if err := json.Unmarshal(catalogue, &all); err != nil {
		panic(fmt.Sprintf("acp: the catalogue that is built in: %v", err))
	}
	return all
}

// Agents lists the agents that are known by name. Their commands are as they are
// typed: Command[0] is a name that Resolve finds.
func Agents() []bridges.Agent {
	var all []bridges.Agent
	for _, k := range entries() {
		all = append(all, k.Agent)
	}
	return all
}

// Resolve makes an agent's command absolute, without running anything. look finds a
// name, as exec.LookPath does, which is what nil means. A link, such as npm makes
// for every program, is followed to what it points at when that can be run: the
// program is then the same after the link has changed. An agent that is not there
// is KindAgentMissing, with the way to install it.
func Resolve(agent bridges.Agent, look func(name string) (string, error)) (bridges.Agent, error) {
	if look == nil {
		look = exec.LookPath
	}
	if len(agent.Command) == 0 || agent.Command[0] == "" {
		return bridges.Agent{}, bridges.Errorf(bridges.KindInvalidArgument, "agent %s has no command", agent.Name).
			WithNext("give the command that starts it in ACP mode")
	}
	path, err := look(agent.Command[0])
	if err == nil && !filepath.IsAbs(path) {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		e := bridges.Errorf(bridges.KindAgentMissing, "agent %s: %w", agent.Name, err).
			WithNext("install %s, or give the absolute path of its program", agent.Command[0])
		for _, k := range entries() {
			if k.Name == agent.Name && k.Install != "" {
				e = e.WithNext("install it (%s)", k.Install)
			}
		}
		return bridges.Agent{}, e
	}
	agent.Command = append([]string{target(path)}, agent.Command[1:]...)
	return agent, nil
}

// target follows a symbolic link to a file that can be run by itself. Programs that
// tell by the name they were called by what to do keep that name.
func target(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil || real == path {
		return path
	}
	st, err := os.Stat(real)
	if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return path
	}
	// busybox, volta, mise and the like: one program behind many names.
	if slices.Contains([]string{"busybox", "volta-shim", "mise", "asdf", "coreutils"}, filepath.Base(real)) {
		return path
	}
	return real
}
