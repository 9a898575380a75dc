package cli

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/acp"
	"github.com/subspan-dev/subspan/core"
	"github.com/subspan-dev/subspan/plugins/dropin"
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
			// It reads directives as text, and counts the tokens of a turn as none.
			Options: json.RawMessage(`{"plain_text": true, "usage": "turn"}`),
		},
		bridge: "acp", source: "built-in", note: demoNote, resolve: acp.Resolve,
	})
	if err := s.addDropins(a); err != nil {
		return nil, err
	}
	for _, c := range a.config.Agents {
		u := unresolved{agent: c.Agent, bridge: c.Bridge, source: "config.json", resolve: acp.Resolve}
		for _, b := range builtins() {
			if b.name == c.Bridge {
				u.resolve = b.resolve
			}
		}
		s.add(u)
	}
	return s, nil
}

// addDropins puts the plugins folder's agents in. One that is not trusted is known,
// and cannot be used; a name of the catalogue stays the catalogue's.
func (s *agentSource) addDropins(a *app) error {
	found, err := a.dropins().List()
	if err != nil {
		return err
	}
	for _, f := range found {
		if _, taken := s.entries[f.Name]; taken {
			continue
		}
		u := unresolved{agent: bridges.Agent{Name: f.Name}, bridge: f.Name, source: f.Dir}
		u.resolve = func(agent bridges.Agent, _ func(string) (string, error)) (bridges.Agent, error) {
			if f.Manifest != nil && f.Manifest.IsAgent() {
				_, agent, err := a.dropins().Agent(f.Name)
				return agent, err
			}
			program, err := a.dropins().Program(f.Name)
			if err != nil {
				return agent, err
			}
			agent.PassEnv, agent.LoginHint = f.Manifest.Env, f.Manifest.LoginHint
			agent.Command = program.Command
			return agent, nil
		}
		if f.Manifest != nil && f.Manifest.IsAgent() {
			u.bridge = f.Manifest.Bridge
		}
		s.add(u)
	}
	return nil
}

// dropins is the user's folder of plugins.
func (a *app) dropins() dropin.Store {
	return dropin.Store{
		Dir:   a.dirs.PluginsDir(),
		Lock:  filepath.Join(a.dirs.Config, "plugins.lock.json"),
		Cache: filepath.Join(a.dirs.State, "plugins"),
	}
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
