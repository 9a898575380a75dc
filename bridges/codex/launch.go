package codex

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/codex/internal/fold"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// launch is everything that one start of codex, and each of its turns, runs under.
type launch struct {
	agent    bridges.Agent
	settings bridges.Settings
	folders  bridges.Folders
	keeping  bridges.Keeping
	limits   limits
	creds    credentials
	noCreds  error // why there are none; a process that runs already needs none
	options  options
}

// limits are how a mode is held: by one sandbox, ours or codex's, never both, for
// codex's dies inside of ours.
type limits struct {
	Sandbox  agentproc.SandboxMode `json:"sandbox"`
	Own      string                `json:"own"`    // codex's sandbox mode, for a thread
	Policy   map[string]any        `json:"policy"` // the same for a turn
	Approval string                `json:"approval"`
	strength bridges.Strength      // when the sandbox is not ours
	detail   string
	warning  string
}

var (
	ownOff = map[string]any{"type": "dangerFullAccess"}
	// TMPDIR is the session's own, so it may be written to; /tmp is everybody's.
	ownWorkspace = map[string]any{"type": "workspaceWrite", "writableRoots": []string{}, "networkAccess": false,
		"excludeSlashTmp": true, "excludeTmpdirEnvVar": false}
	ownReadonly = map[string]any{"type": "readOnly", "networkAccess": false}
)

// prepare works out the launch, and makes folders, configuration and login ready.
func (b *Bridge) prepare(ctx context.Context, agent bridges.Agent, settings bridges.Settings, folders bridges.Folders, keeping bridges.Keeping) (*launch, error) {
	l := &launch{agent: agent, settings: settings, folders: folders, keeping: keeping}
	if len(agent.Command) == 0 || !filepath.IsAbs(agent.Command[0]) {
		return nil, bridges.Errorf(bridges.KindAgentMissing, "agent %s has no absolute command", agent.Name).WithNext("resolve it first")
	}
	if st, err := os.Stat(settings.Cwd); err != nil || !st.IsDir() {
		// Codex itself takes any folder, also one that is not there.
		return nil, bridges.Errorf(bridges.KindInvalidArgument, "working folder %q is no folder", settings.Cwd).WithNext("give a working folder that exists")
	}
	var err error
	if l.options, err = optionsOf(agent); err != nil {
		return nil, err
	}
	if err := furnish(folders.State, l.options); err != nil {
		return nil, err
	}
	l.creds, err = b.credentialsFor(ctx, agent, settings, folders.State, l.options)
	if bridges.KindOf(err) == bridges.KindAuthRequired {
		l.noCreds, err = err, nil
	}
	if err != nil {
		return nil, err
	}
	if l.limits, err = b.limitsOf(ctx, l); err != nil {
		return nil, err
	}
	return l, nil
}

// limitsOf maps the mode; see the package comment for the reasons.
func (b *Bridge) limitsOf(ctx context.Context, l *launch) (limits, error) {
	accept := l.settings.Accept
	ours := func() error {
		_, err := b.ours(ctx)
		return err
	}
	theirs := func() error { return b.theirs(ctx, l) }
	lenient := accept != "" && accept != bridges.HoldKernel && accept != bridges.HoldProductSandbox
	switch l.settings.Mode {
	case ceiling.Full:
		return limits{Own: "danger-full-access", Policy: ownOff, Approval: "never", strength: bridges.HoldNone}, nil
	case ceiling.Default:
		own := limits{Own: "workspace-write", Policy: ownWorkspace, Approval: "on-request", strength: bridges.HoldProductSandbox, detail: "codex workspace-write"}
		var errs []error
		if accept != bridges.HoldKernel {
			err := theirs()
			if err == nil {
				return own, nil
			}
			errs = append(errs, err)
		}
		err := ours()
		if err == nil {
			return limits{Sandbox: agentproc.SandboxWorkspace, Own: "danger-full-access", Policy: ownOff, Approval: "never",
				warning: "what lies beyond the workspace is refused in this session, not asked for"}, nil
		}
		if lenient {
			own.strength = bridges.HoldProductPolicy
			return own, nil
		}
		return limits{}, noSandbox(append(errs, err))
	}
	err := ours()
	if err == nil {
		return limits{Sandbox: agentproc.SandboxReadOnly, Own: "danger-full-access", Policy: ownOff, Approval: "never"}, nil
	}
	errs := []error{err}
	own := limits{Own: "read-only", Policy: ownReadonly, Approval: "never", strength: bridges.HoldProductSandbox, detail: "codex read-only"}
	if accept != bridges.HoldKernel {
		if err = theirs(); err == nil {
			return own, nil
		}
		errs = append(errs, err)
	}
	if lenient {
		own.strength = bridges.HoldProductPolicy
		return own, nil
	}
	return limits{}, noSandbox(errs)
}

func noSandbox(errs []error) error {
	parts := make([]string, len(errs))
	for i, err := range errs {
		parts[i] = err.Error()
	}
	return bridges.Errorf(bridges.KindSandboxUnavailable, "nothing here can hold the permission mode: %s", strings.Join(parts, "; ")).
		WithNext("use a system with Landlock (Linux 6.2 or later) or user namespaces, or accept a weaker hold by name")
}

// theirs proves codex's own sandbox, once per program: a command must run in it and
// must not be able to write.
func (b *Bridge) theirs(ctx context.Context, l *launch) error {
	program := l.agent.Command[0]
	b.probeMu.Lock()
	defer b.probeMu.Unlock()
	if err, known := b.probes[program]; known {
		return err
	}
	err := probe(ctx, l)
	if ctx.Err() != nil {
		return ctx.Err() // proves nothing
	}
	b.probes[program] = err
	return err
}

func probe(ctx context.Context, l *launch) error {
	if runtime.GOOS == "windows" {
		return fmt.Errorf("codex's sandbox is not proven on Windows")
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	dir, err := os.MkdirTemp(l.folders.State, "probe-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	canary := filepath.Join(dir, "canary")
	cmd := exec.CommandContext(ctx, l.agent.Command[0], append(slices.Clone(l.agent.Command[1:]),
		"sandbox", "--", "/bin/sh", "-c", `echo ran; : > "$1"`, "sh", canary)...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = environment(l.agent, l.folders.State, dir, nil), dir, time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // it fails, and that is the proof
	if strings.TrimSpace(stdout.String()) != "ran" {
		return fmt.Errorf("codex's sandbox runs nothing: %s", fold.Clip(strings.TrimSpace(stderr.String()), 300))
	}
	if _, err := os.Lstat(canary); err == nil {
		return fmt.Errorf("codex's sandbox let a command write")
	}
	return nil
}

// print tells launches apart that need a process of their own.
func (l *launch) print() string {
	b, err := json.Marshal(map[string]any{
		"command": l.agent.Command, "env": l.agent.Env, "options": l.agent.Options, "cwd": l.settings.Cwd,
		"mcp": l.settings.MCPServers, "limits": l.limits, "state": l.folders.State,
	})
	if err != nil {
		return "" // equals no other
	}
	return fingerprint(string(b))
}

// fits reports whether a session's process was started for this launch.
func (l *launch) fits(s *session) bool {
	if s.fold.Launch != l.print() {
		return false
	}
	if l.noCreds != nil {
		return true // it has what it was started with
	}
	return s.fold.Login == l.creds.Stamp && (s.secrets == "" || s.secrets == l.secrets())
}

// secrets tells values apart that must not be stored.
func (l *launch) secrets() string { return fingerprint(strings.Join(l.creds.Env, "\n")) }

func fingerprint(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:12])
}

func (l *launch) temp() string { return filepath.Join(l.folders.Run, "tmp") }

func (l *launch) spec(session string, offset int64) agentproc.Spec {
	s := agentproc.Spec{
		SessionID: session, Dir: l.folders.Run, Cwd: l.settings.Cwd, OutOffset: offset,
		Command: append(slices.Clone(l.agent.Command), "app-server"),
		Env:     environment(l.agent, l.folders.State, l.temp(), l.creds.Env),
		Lease:   l.keeping.Lease, Grace: l.keeping.Grace,
	}
	if l.limits.Sandbox != agentproc.SandboxOff {
		s.Sandbox = agentproc.Sandbox{Mode: l.limits.Sandbox, Writable: []string{l.folders.State}}
		if l.limits.Sandbox == agentproc.SandboxWorkspace {
			s.Sandbox.Workspace = l.settings.Cwd
		}
	}
	return s
}

// thread are the parameters that thread/start, resume and fork have in common.
func (l *launch) thread() map[string]any {
	config := overlay(map[string]any{
		// Never trusted: a trusted folder's own configuration would be obeyed, and
		// codex writes down by itself that a folder in which it may write is trusted.
		"projects": map[string]any{l.settings.Cwd: map[string]any{"trust_level": "untrusted"}},
	}, l.creds.Config)
	if len(l.settings.MCPServers) > 0 {
		servers := map[string]any{}
		for _, s := range l.settings.MCPServers {
			// Required: without that codex goes on without a server that does not start.
			server := map[string]any{"command": s.Command, "args": append([]string{}, s.Args...), "required": true}
			if len(s.Env) > 0 {
				server["env"] = s.Env
			}
			servers[s.Name] = server
		}
		config["mcp_servers"] = servers
	}
	p := map[string]any{
		"cwd": l.settings.Cwd, "sandbox": l.limits.Own, "approvalPolicy": l.limits.Approval, "approvalsReviewer": "user", "config": config,
	}
	if l.creds.Provider != "" {
		p["modelProvider"] = l.creds.Provider
	}
	return p
}

// turn are the parameters of a turn. Codex keeps what one turn sets for the next, so
// every one of them is sent every time.
func (l *launch) turn(thread, id, task, model, effort string) map[string]any {
	p := map[string]any{
		"threadId": thread, "clientUserMessageId": id, "cwd": l.settings.Cwd,
		"input":         []any{map[string]any{"type": "text", "text": task}},
		"sandboxPolicy": l.limits.Policy, "approvalPolicy": l.limits.Approval, "approvalsReviewer": "user",
	}
	if model != "" {
		p["model"] = model
	}
	if effort != "" {
		p["effort"] = effort
	}
	return p
}
