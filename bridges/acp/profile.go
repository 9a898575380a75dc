package acp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"

	"github.com/subspan-dev/subspan/bridges"
)

// Profile is what the bridge has to know of an agent beyond the protocol, as JSON
// in bridges.Agent.Options. The zero Profile is right for an agent that does what
// the protocol says.
type Profile struct {
	// Modes says how a permission mode is expressed, by its name. A mode that is not
	// here adds nothing.
	Modes map[string]ModeProfile `json:"modes,omitempty"`
	// ConfigEnv names the variable that holds the agent's configuration as a JSON
	// object. ModeProfile.Config is laid over what it holds.
	ConfigEnv string `json:"config_env,omitempty"`
	// Usage says what the agent's token counts are for: turn, last_call or session
	// (running totals). Empty means that nobody knows.
	Usage string `json:"usage,omitempty"`
	// LateUpdates is set for agents that send the end of an answer after they said
	// that it is complete; the result then waits for 50 ms of silence, 150 ms at most.
	LateUpdates bool `json:"late_updates,omitempty"`
	// ErrorText is a regular expression for answers that are errors in disguise. It
	// is matched against the beginning of the last message.
	ErrorText string `json:"error_text,omitempty"`
	// GoneText is a regular expression for errors that mean: no such session.
	GoneText string `json:"gone_text,omitempty"`
	// VerifyLoad is set for agents that load a session that they do not know, and
	// say that it went well: a load that brings no history is then taken as gone.
	VerifyLoad bool `json:"verify_load,omitempty"`
	// PlainText is set for agents that never read a task as a command.
	PlainText bool `json:"plain_text,omitempty"`
	// AuthMethod is the way to log in when the agent asks for one.
	AuthMethod string `json:"auth_method,omitempty"`
	// Auth lists ways to log in that need no person, the best first. Those whose
	// variable or file is there come before what the agent itself proposes.
	Auth []AuthWay `json:"auth,omitempty"`
	// Files are configuration files of the agent, by their paths below its home. They
	// are written before each start, whatever was there. A JSON string is a file's
	// text; any other value is written as the JSON that it is.
	Files map[string]json.RawMessage `json:"files,omitempty"`
	// Meta is sent as _meta with every request that opens a session.
	Meta map[string]json.RawMessage `json:"meta,omitempty"`
	// IDMeta names the member of _meta in which a new session is given its id, for
	// agents that let the client choose it: a UUID.
	IDMeta string `json:"id_meta,omitempty"`
	// InstructionsMeta names the member of _meta in which a new session is given its
	// instructions. Other agents get them before the first task.
	InstructionsMeta string `json:"instructions_meta,omitempty"`
	// LoadNextMinute is set for agents that destroy a session when they load it in the
	// same minute of the clock in which it began. The load waits for the next minute.
	LoadNextMinute bool `json:"load_next_minute,omitempty"`

	errorText, goneText *regexp.Regexp
}

// ModeProfile is how an agent is told a permission mode.
type ModeProfile struct {
	Args []string          `json:"args,omitempty"` // appended to the command
	Env  map[string]string `json:"env,omitempty"`
	// Meta is laid over Profile.Meta, member by member at the top.
	Meta map[string]json.RawMessage `json:"meta,omitempty"`
	// Config is laid over the configuration in ConfigEnv, member by member at the top.
	Config map[string]json.RawMessage `json:"config,omitempty"`
	// Session lists names of the agent's own mode; the first one offered is set.
	Session []string `json:"session,omitempty"`
	// Options are other configuration options to set, by their ids, when offered.
	Options map[string]string `json:"options,omitempty"`
	// Policy is set when with all this the agent itself promises to keep to the mode
	// without being asked (bridges.HoldProductPolicy).
	Policy bool `json:"policy,omitempty"`
	// Asked replaces all of the above where the kernel does not hold the mode.
	Asked *ModeProfile `json:"asked,omitempty"`
}

// AuthWay is a way to log in, and what has to be there for it: a variable in the
// agent's environment, a file below its home, or nothing.
type AuthWay struct {
	Method string `json:"method"`
	Env    string `json:"env,omitempty"`
	File   string `json:"file,omitempty"`
}

// parseProfile reads an agent's options. Members that do not exist are errors:
// a mistyped limit must not be no limit.
func parseProfile(agent bridges.Agent) (*Profile, error) {
	p := &Profile{}
	if len(bytes.TrimSpace(agent.Options)) > 0 {
		dec := json.NewDecoder(bytes.NewReader(agent.Options))
		dec.DisallowUnknownFields()
		err := dec.Decode(p)
		if err == nil && dec.More() {
			err = errors.New("more than one value")
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, invalidOptions(agent.Name, err)
		}
	}
	switch p.Usage {
	case "", "turn", "last_call", "session":
	default:
		return nil, invalidOptions(agent.Name, errors.New("usage is none of turn, last_call, session"))
	}
	for name, mode := range p.Modes {
		var m bridges.Mode
		if err := m.UnmarshalText([]byte(name)); err != nil {
			return nil, invalidOptions(agent.Name, err)
		}
		for _, mp := range []*ModeProfile{&mode, mode.Asked} {
			if mp != nil && len(mp.Config) > 0 && p.ConfigEnv == "" {
				return nil, invalidOptions(agent.Name, errors.New("config needs config_env"))
			}
		}
	}
	for name := range p.Files {
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return nil, invalidOptions(agent.Name, fmt.Errorf("file %q is not below the agent's home", name))
		}
	}
	var err error
	if p.errorText, err = compile(p.ErrorText); err == nil {
		p.goneText, err = compile(p.GoneText)
	}
	if err != nil {
		return nil, invalidOptions(agent.Name, err)
	}
	return p, nil
}

func compile(expr string) (*regexp.Regexp, error) {
	if expr == "" {
		return nil, nil
	}
	return regexp.Compile(expr)
}

func invalidOptions(name string, err error) error {
	return bridges.Errorf(bridges.KindInvalidArgument, "options of agent %s: %w", name, err).
		WithNext("correct the agent's options; bridges/acp documents them as Profile")
}

// mode returns what tells the agent a mode, given whether the kernel holds it.
func (p *Profile) mode(m bridges.Mode, held bool) ModeProfile {
	mp := p.Modes[m.String()]
	if !held && mp.Asked != nil {
		return *mp.Asked
	}
	return mp
}

// meta is what a request that opens a session has in _meta; nil for nothing.
func (p *Profile) meta(m bridges.Mode, held bool) map[string]any {
	all := map[string]any{}
	for name, value := range p.Meta {
		all[name] = value
	}
	for name, value := range p.mode(m, held).Meta {
		all[name] = value
	}
	return all
}
