// Package config reads what a user configured and finds the program's folders.
//
// The file is <config>/config.json: JSON with comments and trailing commas,
// checked strictly. A file with any problem is no configuration at all, since its
// good half without its bad half may allow more than its author wanted; one that
// is not there is the same as an empty one.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
	"github.com/subspan-dev/subspan/internal/strictjson"
)

// Config is the user's configuration with defaults filled in. It is read-only.
type Config struct {
	// Agents are agents that the user added, and built-in ones that they changed.
	Agents map[string]Agent
	// Maximum is the most that any session gets. Default: full.
	Maximum ceiling.Mode
	// ProjectMaximum is the most that a role file of a project may ask for.
	// Default: default.
	ProjectMaximum ceiling.Mode
	DefaultAgent   string
	DefaultRole    string
	// Policy answers questions of agents by the kind of tool; what is not in it
	// goes by the session's mode.
	Policy map[bridges.ToolKind]Rule
	Limits Limits
}

// Agent is a configured agent. Name and Bridge are always set.
type Agent struct {
	bridges.Agent
	Bridge string // default: acp
}

// Rule is what happens with a question.
type Rule string

const (
	RuleAsk   Rule = "ask"   // a person decides; nobody there means no
	RuleAllow Rule = "allow" // within the session's mode
	RuleDeny  Rule = "deny"
)

// UnmarshalText takes the three rules and nothing else.
func (r *Rule) UnmarshalText(b []byte) error {
	switch v := Rule(b); v {
	case RuleAsk, RuleAllow, RuleDeny:
		*r = v
		return nil
	}
	return fmt.Errorf("unknown rule %q: write one of ask, allow, deny", b)
}

// Limits bound all sessions together and each of them. 0 is no limit for the
// timeouts; the counts are at least 1.
type Limits struct {
	MaxDepth    int           // how deep sessions may ask for sessions; default 3
	MaxChildren int           // of one session, at work; default 8
	MaxLive     int           // of the user, at work; default 16
	TurnTimeout time.Duration // how long a turn may take; default none
	IdleTimeout time.Duration // how long an agent may be silent in a turn; default none
	KeeperGrace time.Duration // how long an agent outlives its host; default 30 min
}

// Default returns the configuration of a user who wrote none.
func Default() Config {
	return Config{
		Maximum:        ceiling.Full,
		ProjectMaximum: ceiling.Default,
		Limits:         Limits{MaxDepth: 3, MaxChildren: 8, MaxLive: 16, KeeperGrace: 30 * time.Minute},
	}
}

// file is the layout of config.json.
type file struct {
	Schema         string                    `json:"$schema"`
	Agents         map[string]fileAgent      `json:"agents"`
	Maximum        ceiling.Mode              `json:"maximum"`
	ProjectMaximum ceiling.Mode              `json:"projectMaximum"`
	DefaultAgent   string                    `json:"defaultAgent"`
	DefaultRole    string                    `json:"defaultRole"`
	Policy         map[bridges.ToolKind]Rule `json:"policy"`
	Limits         fileLimits                `json:"limits"`
}

type fileAgent struct {
	Command   []string          `json:"command"`
	Bridge    string            `json:"bridge"`
	Env       map[string]string `json:"env"`
	PassEnv   []string          `json:"passEnv"`
	Login     []string          `json:"login"`
	LoginHint string            `json:"loginHint"`
	Options   json.RawMessage   `json:"options"`
}

type fileLimits struct {
	MaxDepth    int                 `json:"maxDepth"`
	MaxChildren int                 `json:"maxChildren"`
	MaxLive     int                 `json:"maxLive"`
	TurnTimeout strictjson.Duration `json:"turnTimeout"`
	IdleTimeout strictjson.Duration `json:"idleTimeout"`
	KeeperGrace strictjson.Duration `json:"keeperGrace"`
}

// Load reads the configuration file at path. Its error has KindInvalidArgument and
// names file, line, column and key of every problem; the Config is then unusable.
func Load(path string) (Config, error) {
	data, err := strictjson.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	if err == nil {
		var c Config
		if c, err = parse(path, data); err == nil {
			return c, nil
		}
	}
	return Config{}, bridges.Errorf(bridges.KindInvalidArgument, "configuration: %w", err).
		WithNext("correct %s", path)
}

func parse(path string, data []byte) (Config, error) {
	d := Default()
	f := file{
		Maximum: d.Maximum, ProjectMaximum: d.ProjectMaximum,
		Limits: fileLimits{
			MaxDepth: d.Limits.MaxDepth, MaxChildren: d.Limits.MaxChildren, MaxLive: d.Limits.MaxLive,
			KeeperGrace: strictjson.Duration(d.Limits.KeeperGrace),
		},
	}
	doc, err := strictjson.Decode(path, data, &f)
	if doc == nil {
		return Config{}, err
	}
	var problems strictjson.Problems
	errors.As(err, &problems)
	problems = append(problems, f.check(doc)...)
	problems.Sort()
	if len(problems) > 0 {
		return Config{}, problems
	}
	c := Config{
		Maximum: f.Maximum, ProjectMaximum: f.ProjectMaximum,
		DefaultAgent: f.DefaultAgent, DefaultRole: f.DefaultRole, Policy: f.Policy,
		Limits: Limits{
			MaxDepth: f.Limits.MaxDepth, MaxChildren: f.Limits.MaxChildren, MaxLive: f.Limits.MaxLive,
			TurnTimeout: time.Duration(f.Limits.TurnTimeout), IdleTimeout: time.Duration(f.Limits.IdleTimeout),
			KeeperGrace: time.Duration(f.Limits.KeeperGrace),
		},
		Agents: make(map[string]Agent, len(f.Agents)),
	}
	for name, a := range f.Agents {
		if a.Bridge == "" {
			a.Bridge = "acp"
		}
		c.Agents[name] = Agent{Bridge: a.Bridge, Agent: bridges.Agent{
			Name: name, Command: a.Command, Env: a.Env, PassEnv: a.PassEnv,
			Login: a.Login, LoginHint: a.LoginHint, Options: a.Options,
		}}
	}
	return c, nil
}

var (
	agentName   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	envName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	policyKinds = []bridges.ToolKind{
		bridges.ToolRead, bridges.ToolEdit, bridges.ToolDelete, bridges.ToolMove, bridges.ToolSearch,
		bridges.ToolExecute, bridges.ToolThink, bridges.ToolFetch, bridges.ToolSwitchMode, bridges.ToolOther,
	}
)

// check finds what is wrong beyond single values.
func (f *file) check(doc *strictjson.Document) (ps strictjson.Problems) {
	bad := func(format string, path []string, args ...any) {
		ps = append(ps, doc.Problem(path, format, args...))
	}
	for _, name := range slices.Sorted(maps.Keys(f.Agents)) {
		a, at := f.Agents[name], []string{"agents", name}
		if !agentName.MatchString(name) {
			bad("an agent's name has lower-case letters, digits, dots and dashes", at)
		}
		switch {
		case !doc.Has("agents", name, "command"):
			bad("has no command: the executable and its arguments", at)
		case a.Command != nil && (len(a.Command) == 0 || a.Command[0] == ""):
			bad("must begin with the executable", append(at[:2:2], "command"))
		}
		for _, key := range slices.Sorted(maps.Keys(a.Env)) {
			if !envName.MatchString(key) {
				bad("is no name of an environment variable", append(at[:2:2], "env", key))
			}
		}
		for i, key := range a.PassEnv {
			if !envName.MatchString(key) {
				bad("%q is no name of an environment variable", append(at[:2:2], "passEnv", fmt.Sprint(i)), key)
			}
		}
		for i, login := range a.Login {
			if !filepath.IsLocal(filepath.FromSlash(login)) || strings.Contains(login, `\`) {
				bad("%q must be a path below the home folder, with slashes", append(at[:2:2], "login", fmt.Sprint(i)), login)
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(f.Policy)) {
		if !slices.Contains(policyKinds, kind) {
			p := doc.Problem([]string{"policy", string(kind)}, "is no kind of tool")
			names := make([]string, len(policyKinds))
			for i, k := range policyKinds {
				names[i] = string(k)
			}
			p.Nearest = strictjson.Nearest(string(kind), names)
			ps = append(ps, p)
		}
	}
	for _, l := range []struct {
		key string
		n   int
	}{{"maxDepth", f.Limits.MaxDepth}, {"maxChildren", f.Limits.MaxChildren}, {"maxLive", f.Limits.MaxLive}} {
		if l.n < 1 {
			bad("must be at least 1", []string{"limits", l.key})
		}
	}
	return ps
}
