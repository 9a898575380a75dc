package fold

import (
	"strings"

	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// Categories of configuration options that a bridge sets.
const (
	CategoryModel  = "model"
	CategoryEffort = "thought_level"
	CategoryMode   = "mode"
)

// Agent is what an agent says of itself in its answer to initialize.
type Agent struct {
	Protocol int64        `json:"protocol,omitempty"`
	Name     string       `json:"name,omitempty"`
	Version  string       `json:"version,omitempty"`
	Load     bool         `json:"load,omitempty"`
	Resume   bool         `json:"resume,omitempty"`
	Fork     bool         `json:"fork,omitempty"`
	Close    bool         `json:"close,omitempty"`
	Auth     []AuthMethod `json:"auth,omitempty"`
	// DefaultAuth is the method that the agent itself proposes.
	DefaultAuth string `json:"default_auth,omitempty"`
}

// AuthMethod is a way to log in.
type AuthMethod struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// Terminal is set for methods that need a person at a terminal.
	Terminal bool `json:"terminal,omitempty"`
	// Key is set for methods that take a key from the environment, Vars are its names.
	Key  bool     `json:"key,omitempty"`
	Vars []string `json:"vars,omitempty"`
}

func parseAgent(result []byte) Agent {
	var a Agent
	a.Protocol, _ = jsonrpc.GetInt(result, "protocolVersion")
	a.Name = jsonrpc.GetString(result, "agentInfo", "name")
	a.Version = jsonrpc.GetString(result, "agentInfo", "version")
	caps := jsonrpc.Get(result, "agentCapabilities")
	a.Load = string(jsonrpc.Get(caps, "loadSession")) == "true"
	for key, value := range jsonrpc.Members(jsonrpc.Get(caps, "sessionCapabilities")) {
		if v := string(value); v == "null" || v == "false" {
			continue
		}
		switch string(key) {
		case "resume":
			a.Resume = true
		case "fork":
			a.Fork = true
		case "close":
			a.Close = true
		}
	}
	a.Auth = ParseAuth(result)
	a.DefaultAuth = jsonrpc.GetString(result, "_meta", "defaultAuthMethodId")
	return a
}

// ParseAuth reads the methods to log in from an answer or from an error's data.
func ParseAuth(obj []byte) []AuthMethod {
	var methods []AuthMethod
	for e := range jsonrpc.Elements(jsonrpc.Get(obj, "authMethods")) {
		m := AuthMethod{ID: jsonrpc.GetString(e, "id"), Name: jsonrpc.GetString(e, "name")}
		if m.ID == "" {
			continue
		}
		kind := jsonrpc.GetString(e, "type")
		meta := jsonrpc.Get(e, "_meta")
		m.Terminal = kind == "terminal" || jsonrpc.GetString(meta, "type") == "terminal" || jsonrpc.Get(meta, "terminal-auth") != nil
		m.Key = kind == "env_var" || jsonrpc.Get(meta, "api-key") != nil
		for v := range jsonrpc.Elements(jsonrpc.Get(e, "vars")) {
			if name := firstNonEmpty(jsonrpc.Unquote(v), jsonrpc.GetString(v, "name")); name != "" {
				m.Vars = append(m.Vars, name)
			}
		}
		methods = append(methods, m)
	}
	return methods
}

// Config is what can be chosen in a session, in the three ways that agents offer it.
type Config struct {
	Options []ConfigOption `json:"options,omitempty"`
	Models  Choice         `json:"models"`
	Modes   Choice         `json:"modes"`
}

// ConfigOption is one option of the session.
type ConfigOption struct {
	ID       string `json:"id"`
	Category string `json:"category,omitempty"`
	Choice
}

// Choice is a value out of a list.
type Choice struct {
	Current string  `json:"current,omitempty"`
	Values  []Value `json:"values,omitempty"`
}

// Value is something that can be chosen.
type Value struct {
	Value string `json:"value"`
	Name  string `json:"name,omitempty"`
}

// Find returns the offered value that is meant: by its exact value first, then by
// its exact name. The one that is set may be missing from the list of some agents.
func (c Choice) Find(want string) (string, bool) {
	if c.Current == want && want != "" {
		return want, true
	}
	for _, v := range c.Values {
		if v.Value == want {
			return v.Value, true
		}
	}
	for _, v := range c.Values {
		if v.Name == want {
			return v.Value, true
		}
	}
	return "", false
}

// Offered lists the values.
func (c Choice) Offered() []string {
	var all []string
	for _, v := range c.Values {
		all = append(all, v.Value)
	}
	return all
}

// Option returns the option of a category. Categories are for display and may be
// missing; then the option's id speaks for it.
func (c *Config) Option(category string) *ConfigOption {
	for i := range c.Options {
		if c.Options[i].Category == category {
			return &c.Options[i]
		}
	}
	for i := range c.Options {
		if o := &c.Options[i]; o.Category == "" && categoryOf(o.ID) == category {
			return o
		}
	}
	return nil
}

func categoryOf(id string) string {
	switch strings.ToLower(id) {
	case "model":
		return CategoryModel
	case "mode":
		return CategoryMode
	case "effort", "reasoning_effort", "thought_level", "thinking", "variant":
		return CategoryEffort
	}
	return ""
}

func (c *Config) setCurrent(category, value string) {
	if o := c.Option(category); o != nil && value != "" {
		o.Current = value
	}
}

// merge takes what an answer or an update says of the configuration. Lists are
// complete when they come; options of a type that we do not know are left out.
func (c *Config) merge(obj []byte) {
	if list := jsonrpc.Get(obj, "configOptions"); len(list) > 0 && list[0] == '[' {
		c.Options = nil
		for o := range jsonrpc.Elements(list) {
			if kind := jsonrpc.GetString(o, "type"); kind != "" && kind != "select" {
				continue
			}
			opt := ConfigOption{ID: jsonrpc.GetString(o, "id"), Category: jsonrpc.GetString(o, "category")}
			if opt.ID == "" {
				continue
			}
			opt.Current = jsonrpc.GetString(o, "currentValue")
			opt.Values = values(jsonrpc.Get(o, "options"), "value")
			c.Options = append(c.Options, opt)
		}
	}
	if models := jsonrpc.Get(obj, "models"); jsonrpc.IsObject(models) {
		c.Models = Choice{jsonrpc.GetString(models, "currentModelId"), values(jsonrpc.Get(models, "availableModels"), "modelId")}
	}
	if modes := jsonrpc.Get(obj, "modes"); jsonrpc.IsObject(modes) {
		c.Modes = Choice{jsonrpc.GetString(modes, "currentModeId"), values(jsonrpc.Get(modes, "availableModes"), "id")}
	}
}

// values reads a list that is flat or grouped.
func values(list []byte, key string) []Value {
	var all []Value
	for v := range jsonrpc.Elements(list) {
		if group := jsonrpc.Get(v, "options"); group != nil {
			all = append(all, values(group, key)...)
			continue
		}
		if value := jsonrpc.GetString(v, key); value != "" {
			all = append(all, Value{value, jsonrpc.GetString(v, "name")})
		}
	}
	return all
}
