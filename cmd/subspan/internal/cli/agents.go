package cli

import (
	"os/exec"
	"slices"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/acp"
	"github.com/subspan-dev/subspan/core"
)

// agentSource is what this program knows of agents: the built-in catalogue, the
// user's configuration over it, and trusted drop-ins beside it.
type agentSource struct {
	names   []string // in the order of preference
	entries map[string]unresolved
}

// unresolved is an agent before anybody looked for it on this machine.
type unresolved struct {
	agent   bridges.Agent
	bridge  string
	source  string
	note    string
	resolve func(bridges.Agent, func(string) (string, error)) (bridges.Agent, error)
}

var _ core.AgentSource = (*agentSource)(nil)

const (
	demoAgent = "demo"
	demoNote  = "this is the built-in demo agent: it has no model and works by rules"
)

func newAgentSource(a *app) (*agentSource, error) {
	s := &agentSource{entries: map[string]unresolved{}}
	for _, b := range builtins() {
		for _, agent := range b.agents() {
			s.add(unresolved{agent: agent, bridge: b.name, source: "built-in", resolve: b.resolve})
		}
	}
	s.add(unresolved{
		agent: bridges.Agent{
			Name: demoAgent, Command: []string{a.self, "demo-agent"},
			Options: acp.DemoOptions(),
		},
		bridge: "acp", source: "built-in", note: demoNote, resolve: acp.Resolve,
	})
	for name, c := range a.config.Agents {
		u := unresolved{agent: c.Agent, bridge: c.Bridge, source: "config.json", resolve: acp.Resolve}
		for _, b := range builtins() {
			if b.name == c.Bridge {
				u.resolve = b.resolve
			}
		}
		s.add(u)
		_ = name
	}
	return s, nil
}

// add puts an agent in, over one of the same name.
func (s *agentSource) add(u unresolved) {
	name := u.agent.Name
	if _, ok := s.entries[name]; !ok {
		s.names = append(s.names, name)
	}
	s.entries[name] = u
}

func (u unresolved) look() core.AgentEntry {
	e := core.AgentEntry{Agent: u.agent, Bridge: u.bridge, Source: u.source, Note: u.note}
	agent, err := u.resolve(u.agent, exec.LookPath)
	if err != nil {
		e.Err = err
		return e
	}
	e.Agent = agent
	e.Path = agent.Command[0]
	return e
}

// Resolve implements core.AgentSource.
func (s *agentSource) Resolve(name string) (core.AgentEntry, error) {
	u, ok := s.entries[name]
	if !ok {
		return core.AgentEntry{}, bridges.Errorf(bridges.KindAgentMissing, "there is no agent %q", name).
			WithNext("use one of %s, or add it to config.json (see subspan agents --help)", strings.Join(s.names, ", "))
	}
	e := u.look()
	return e, e.Err
}

// List implements core.AgentSource.
func (s *agentSource) List() []core.AgentEntry {
	out := make([]core.AgentEntry, 0, len(s.names))
	for _, name := range slices.Sorted(slices.Values(s.names)) {
		out = append(out, s.entries[name].look())
	}
	return out
}

// Default implements core.AgentSource: the first agent that is installed, and the
// demo agent when none is.
func (s *agentSource) Default() (core.AgentEntry, error) {
	for _, name := range s.names {
		if name == demoAgent {
			continue
		}
		if e := s.entries[name].look(); e.Err == nil {
			return e, nil
		}
	}
	e := s.entries[demoAgent].look()
	e.Note = "no agent is installed, so " + strings.TrimPrefix(demoNote, "this is ")
	return e, e.Err
}
