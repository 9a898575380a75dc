package acp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
)

// launch is how an agent process is started.
type launch struct {
	Spec agentproc.Spec
	Hold bridges.Hold
	// Digest tells whether a running process is what Settings ask for. It holds
	// nothing secret.
	Digest string
}

// inherited are the variables that an agent has from this process; LC_* besides.
var inherited = []string{
	"PATH", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
	"SystemRoot", "SystemDrive", "ComSpec", "PATHEXT", "WINDIR", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE",
}

// withheld reports whether a variable never reaches an agent: it would make the
// agent refuse to start, colour its protocol, or meddle with ours.
func withheld(name string) bool {
	switch name {
	case "CLAUDECODE", "FORCE_COLOR", "CLICOLOR_FORCE":
		return true
	}
	return strings.HasPrefix(name, "PLUGIN_") || strings.HasPrefix(name, "SUBSPAN_")
}

// plan decides how the agent of a session is started and held.
func (b *Bridge) plan(ctx context.Context, a ask, p *Profile) (launch, error) {
	agent, st := a.agent, a.settings
	held, sandbox, err := hold(ctx, p, st, b.probe)
	if err != nil {
		return launch{}, err
	}
	mode := p.mode(st.Mode, held.Strength == bridges.HoldKernel)
	home := a.home()
	if err := os.MkdirAll(home, 0o700); err != nil {
		return launch{}, fmt.Errorf("the agent's home: %w", err)
	}
	if err := linkLogin(agent.Login, home); err != nil {
		return launch{}, err
	}
	env, err := environment(agent, p, mode, st, home)
	if err != nil {
		return launch{}, err
	}
	l := launch{Hold: held, Spec: agentproc.Spec{
		SessionID: a.id,
		Dir:       a.folders.Run,
		Command:   append(slices.Clone(agent.Command), mode.Args...),
		Env:       env,
		Cwd:       st.Cwd,
		Sandbox:   agentproc.Sandbox{Mode: sandbox},
		Lease:     a.keeping.Lease,
		Grace:     a.keeping.Grace,
	}}
	if sandbox != agentproc.SandboxOff {
		l.Spec.Sandbox.Writable = []string{a.folders.State}
	}
	if sandbox == agentproc.SandboxWorkspace {
		l.Spec.Sandbox.Workspace = st.Cwd
	}
	l.Digest = digest(agent, p, mode, st, held)
	return l, nil
}

func digest(agent bridges.Agent, p *Profile, mode ModeProfile, st bridges.Settings, hold bridges.Hold) string {
	// Encoding these types cannot fail: they were decoded from JSON or are plain.
	b, _ := json.Marshal([]any{agent.Command, agent.Env, mode, p.Files, p.Meta, st.Mode, st.Cwd, st.MCPServers, hold.Strength})
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// hold decides how the mode is held, and refuses what is weaker than accepted. probe
// proves the kernel's hold.
func hold(ctx context.Context, p *Profile, st bridges.Settings, probe func(context.Context) (string, error)) (bridges.Hold, agentproc.SandboxMode, error) {
	sandbox := agentproc.SandboxReadOnly
	switch st.Mode.String() { // what is no mode reads as readonly
	case "full":
		return bridges.Hold{Strength: bridges.HoldNone}, agentproc.SandboxOff, nil
	case "default":
		sandbox = agentproc.SandboxWorkspace
	}
	detail, err := probe(ctx)
	if err == nil {
		return bridges.Hold{Strength: bridges.HoldKernel, Detail: detail}, sandbox, nil
	}
	if ctx.Err() != nil {
		return bridges.Hold{}, 0, context.Cause(ctx)
	}
	offered := bridges.Hold{Strength: bridges.HoldAsked, Detail: "every permission request is answered by the host"}
	if p.mode(st.Mode, false).Policy {
		offered = bridges.Hold{Strength: bridges.HoldProductPolicy, Detail: "the agent's own configuration"}
	}
	if weakness(offered.Strength) > weakness(st.Accept) {
		return bridges.Hold{}, 0, bridges.Errorf(bridges.KindSandboxUnavailable, "mode %s cannot be held by the kernel: %w", st.Mode, err).
			WithNext("accept the hold %q by name, or use a system with Landlock", offered.Strength)
	}
	return offered, agentproc.SandboxOff, nil
}

// weakness orders strengths; what is no strength is as strong as the kernel.
func weakness(s bridges.Strength) int {
	switch s {
	case bridges.HoldProductSandbox:
		return 1
	case bridges.HoldProductPolicy:
		return 2
	case bridges.HoldAsked:
		return 3
	}
	return 0
}

// environment is the agent's whole environment, by allow-list.
func environment(agent bridges.Agent, p *Profile, mode ModeProfile, st bridges.Settings, home string) ([]string, error) {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(inherited, name) || strings.HasPrefix(name, "LC_") {
			env[name] = value
		}
	}
	env["TERM"], env["NO_COLOR"] = "dumb", "1"
	env["HOME"] = home
	if runtime.GOOS == "windows" {
		env["USERPROFILE"] = home
		env["APPDATA"] = filepath.Join(home, "AppData", "Roaming")
		env["LOCALAPPDATA"] = filepath.Join(home, "AppData", "Local")
	}
	for name, value := range agent.Env {
		env[name] = value
	}
	for _, kv := range st.Env {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(agent.PassEnv, name) {
			env[name] = value
		}
	}
	for name, value := range mode.Env {
		env[name] = value
	}
	if len(mode.Config) > 0 {
		merged, err := overlay(env[p.ConfigEnv], mode.Config)
		if err != nil {
			return nil, bridges.Errorf(bridges.KindInvalidArgument, "%s does not hold a JSON object: %w", p.ConfigEnv, err).
				WithNext("correct the variable")
		}
		env[p.ConfigEnv] = merged
	}
	list := make([]string, 0, len(env))
	for name, value := range env {
		if !withheld(name) && name != "" && !strings.ContainsAny(name, "=\x00") && !strings.Contains(value, "\x00") {
			list = append(list, name+"="+value)
		}
	}
	sort.Strings(list)
	return list, nil
}

// overlay lays members over a JSON object, which may be empty.
func overlay(base string, over map[string]json.RawMessage) (string, error) {
	all := map[string]json.RawMessage{}
	if strings.TrimSpace(base) != "" {
		if err := json.Unmarshal([]byte(base), &all); err != nil {
			return "", err
		}
	}
	for name, value := range over {
		all[name] = value
	}
	b, err := json.Marshal(all)
	return string(b), err
}

// linkLogin makes the files that hold the user's login reachable in the agent's own
// home. They stay where they are: a token that the agent renews by writing the file
// in place is renewed for the user too, where the sandbox lets it.
func linkLogin(files []string, home string) error {
	if len(files) == 0 {
		return nil
	}
	user, err := os.UserHomeDir()
	if err != nil {
		return nil // nobody's home holds no login
	}
	for _, name := range files {
		name = filepath.FromSlash(name)
		if !filepath.IsLocal(name) {
			return bridges.Errorf(bridges.KindInvalidArgument, "login file %q is not below the home folder", name)
		}
		source, link := filepath.Join(user, name), filepath.Join(home, name)
		if source == link {
			continue
		}
		if _, err := os.Stat(source); err != nil {
			continue // not logged in that way
		}
		if have, err := os.Readlink(link); err == nil && have == source {
			continue
		}
		if _, err := os.Lstat(link); err == nil {
			continue // the agent's own, from a login or a renewal
		}
		if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
			return fmt.Errorf("the agent's login: %w", err)
		}
		if err := os.Symlink(source, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("the agent's login: %w", err)
		}
	}
	return nil
}
