package codex

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
)

// options is what Agent.Options may hold.
type options struct {
	// Config is laid over the configuration that the bridge writes for codex, in
	// codex's own words: a provider of one's own, for example. It can loosen nothing:
	// sandbox, approvals and trust are sent with every thread and turn.
	Config map[string]any `json:"config,omitempty"`
}

func optionsOf(agent bridges.Agent) (options, error) {
	var o options
	if len(agent.Options) == 0 {
		return o, nil
	}
	d := json.NewDecoder(strings.NewReader(string(agent.Options)))
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode(&o); err != nil {
		return o, bridges.Errorf(bridges.KindInvalidArgument, "options of agent %s: %w", agent.Name, err).
			WithNext("codex knows one option, \"config\"")
	}
	return o, nil
}

// baseConfig is what codex's configuration holds before the agent's own is laid over
// it. What is switched off would reach beyond the task: tools of the account's apps
// and plugins, commands that files ask for (hooks, dependencies of skills), turns
// that codex starts by itself (goals), waiting for ever for a server that is not
// there, and talk with other servers than the model's. Variables with KEY, SECRET or
// TOKEN in their names stay with codex and are not handed to the commands it runs.
func baseConfig() map[string]any {
	return map[string]any{
		"cli_auth_credentials_store":  "file",
		"check_for_update_on_startup": false,
		"analytics":                   map[string]any{"enabled": false},
		"feedback":                    map[string]any{"enabled": false},
		"history":                     map[string]any{"persistence": "none"},
		"shell_environment_policy":    map[string]any{"inherit": "all", "ignore_default_excludes": false},
		"features": map[string]any{
			"apps": false, "plugins": false, "remote_plugin": false, "hooks": false, "goals": false,
			"skill_mcp_dependency_install": false, "unbounded_connection_retries": false,
			"browser_use": false, "computer_use": false, "daemon_auto_start": false,
		},
	}
}

// furnish makes the product's home ready: the folder and its configuration.
func furnish(home string, o options) error {
	if err := os.MkdirAll(home, 0o700); err != nil {
		return fmt.Errorf("codex's home: %w", err)
	}
	text := "# Written by subspan before each start of codex; changes made here are lost.\n" + encodeTOML(overlay(baseConfig(), o.Config))
	return replaceFile(filepath.Join(home, "config.toml"), []byte(text))
}

// overlay lays one configuration over another, table by table.
func overlay(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	for key, value := range over {
		table, ok := value.(map[string]any)
		below, both := out[key].(map[string]any)
		if ok && both {
			out[key] = overlay(below, table)
			continue
		}
		out[key] = value
	}
	return out
}

// replaceFile writes a private file in one step. A file that holds the same already
// is left alone, so that sessions that start together do not disturb each other.
func replaceFile(path string, content []byte) error {
	if have, err := os.ReadFile(path); err == nil && string(have) == string(content) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// encodeTOML writes a configuration, one line per key.
func encodeTOML(config map[string]any) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(config)) {
		b.WriteString(tomlKey(key) + " = " + tomlValue(config[key]) + "\n")
	}
	return b.String()
}

func tomlKey(key string) string {
	if bareKey.MatchString(key) {
		return key
	}
	return tomlString(key)
}

// tomlValue writes what JSON can hold; null, which TOML has not, is an empty table.
func tomlValue(v any) string {
	switch v := v.(type) {
	case string:
		return tomlString(v)
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return v.String()
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = tomlValue(e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		parts := make([]string, 0, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, tomlKey(key)+" = "+tomlValue(v[key]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return "{}"
}

func tomlString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// passed are the variables of our own environment that codex may have.
var passed = []string{
	"PATH", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SHELL",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
	"SystemRoot", "SYSTEMROOT", "ComSpec", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA",
}

// environment is all that codex gets to see. HOME stays the user's: the commands it
// runs want their settings and caches there, and codex itself is kept out of the
// user's own .codex by CODEX_HOME.
func environment(agent bridges.Agent, home, temp string, secrets []string) []string {
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if slices.Contains(passed, name) || strings.HasPrefix(name, "LC_") {
			env = append(env, e)
		}
	}
	user, err := os.UserHomeDir()
	if err != nil {
		user = home
	}
	env = append(env, "HOME="+user, "TERM=dumb", "NO_COLOR=1")
	for _, name := range slices.Sorted(maps.Keys(agent.Env)) {
		env = append(env, name+"="+agent.Env[name])
	}
	// Last, so that they win.
	env = append(env, "CODEX_HOME="+home, "TMPDIR="+temp)
	return append(env, secrets...)
}
