package claude

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// limit is how a mode is held for one process.
type limit struct {
	mode    bridges.Mode
	hold    bridges.Hold
	sandbox agentproc.SandboxMode
}

// limitFor chooses how a mode is held. detail and failed are what the probe of
// the kernel's sandbox said.
func limitFor(s bridges.Settings, detail string, failed error) (limit, error) {
	l := limit{mode: ceiling.Meet(s.Mode)}
	if l.mode == ceiling.Full {
		l.hold = bridges.Hold{Strength: bridges.HoldNone}
		return l, nil
	}
	if failed == nil {
		l.hold = bridges.Hold{Strength: bridges.HoldKernel, Detail: detail}
		l.sandbox = agentproc.SandboxReadOnly
		if l.mode == ceiling.Default {
			l.sandbox = agentproc.SandboxWorkspace
		}
		return l, nil
	}
	switch s.Accept {
	case bridges.HoldProductPolicy, bridges.HoldAsked, bridges.HoldNone:
		l.hold = bridges.Hold{Strength: bridges.HoldProductPolicy, Detail: "claude's own permission rules"}
		return l, nil
	}
	return l, bridges.Errorf(bridges.KindSandboxUnavailable, "%s cannot be held by the system here: %w", l.mode, failed).
		WithNext("accept the weaker hold product-policy by name, or use a machine with Landlock (Linux 6.2 or newer)")
}

func (l limit) kernel() bool { return l.hold.Strength == bridges.HoldKernel }

// disallowed are tools that make no sense without a person in front: they change
// the mode or the folder of the session, or wake it up by themselves later.
const disallowed = "EnterPlanMode,ExitPlanMode,EnterWorktree,ExitWorktree,CronCreate,CronDelete,CronList,ScheduleWakeup"

// flags are the mode's part of the command line; all of it is passed at every
// start, so that nothing depends on what a configuration says.
//
//	readonly, kernel   default + Bash and reading tools; whatever is allowed cannot write
//	readonly, policy   dontAsk + reading tools only; every question is refused
//	default, kernel    acceptEdits: the workspace is writable, more is asked, and cannot write elsewhere
//	default, policy    default: every change is asked
//	full               bypassPermissions
func (l limit) flags() []string {
	switch {
	case l.mode == ceiling.Full:
		return []string{"--permission-mode", "bypassPermissions"}
	case l.mode == ceiling.Default && l.kernel():
		return []string{"--permission-mode", "acceptEdits"}
	case l.mode == ceiling.Default:
		return []string{"--permission-mode", "default"}
	case l.kernel():
		return []string{"--permission-mode", "default", "--tools=Bash,Read,Glob,Grep,WebFetch,WebSearch,AskUserQuestion"}
	}
	return []string{"--permission-mode", "dontAsk", "--tools=Read,Glob,Grep"}
}

// refuses says whether a question is answered here, without asking anybody.
func (l limit) refuses(tool string) (reason string, yes bool) {
	if l.mode != ceiling.Readonly {
		return "", false
	}
	if !l.kernel() {
		return "this session is readonly", true
	}
	switch tool {
	case "ExitPlanMode", "EnterPlanMode", "Edit", "MultiEdit", "Write", "NotebookEdit":
		return "this session is readonly", true
	}
	return "", false
}

// launch is everything that decides what a process may and will do.
type launch struct {
	session  string
	keeping  bridges.Keeping
	agent    bridges.Agent
	settings bridges.Settings
	folders  bridges.Folders
	handle   handle
	limit    limit
}

func (l launch) home() home { return homeOf(l.folders, l.handle.NativeID) }

// tmp is the TMPDIR of an agent without a sandbox. It must be writable: without
// that, Claude Code hangs for ever and says nothing.
func (l launch) tmp() string { return filepath.Join(l.folders.Run, "scratch") }

// spec is the process to start; environ is the bridge's own environment, offset
// where its output begins.
func (l launch) spec(environ []string, offset int64) agentproc.Spec {
	spec := agentproc.Spec{
		SessionID: l.session, Dir: l.folders.Run, Command: l.args(), Env: l.env(environ), Cwd: l.handle.Cwd,
		Lease: l.keeping.Lease, Grace: l.keeping.Grace, Interrupt: true, OutOffset: offset,
	}
	spec.Sandbox.Mode = l.limit.sandbox
	if spec.Sandbox.Mode != agentproc.SandboxOff {
		spec.Sandbox.Writable = []string{l.home().dir}
	}
	if spec.Sandbox.Mode == agentproc.SandboxWorkspace {
		spec.Sandbox.Workspace = l.handle.Cwd
	}
	return spec
}

// prepare makes the files of a start. The last process of the session has ended.
func (l launch) prepare(login loginFile) error {
	if err := os.MkdirAll(l.tmp(), 0o700); err != nil {
		return fmt.Errorf("make the agent's folder for temporary files: %w", err)
	}
	if err := l.writeMCP(); err != nil {
		return err
	}
	return l.home().prepare(login)
}

// info is what is known of a session without its process.
func (l launch) info() bridges.Info {
	return bridges.Info{NativeID: l.handle.NativeID, Effort: l.settings.Effort, Efforts: efforts[:], Hold: l.limit.hold}
}

// mcpFile is where the servers are described: their environment is not for the
// command line.
func (l launch) mcpFile() string { return filepath.Join(l.folders.Run, "mcp.json") }

// args is the command line. No text of a task or role is in it.
func (l launch) args() []string {
	a := slices.Clone(l.agent.Command)
	a = append(a, "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose",
		"--include-partial-messages", "--replay-user-messages", "--permission-prompt-tool", "stdio",
		"--setting-sources", "user", "--strict-mcp-config", "--disallowedTools="+disallowed)
	a = append(a, l.limit.flags()...)
	switch h := l.home(); {
	case h.transcript() != "":
		a = append(a, "--resume", l.handle.NativeID)
	case l.handle.ForkOf != "":
		a = append(a, "--resume", l.handle.ForkOf, "--fork-session", "--session-id", l.handle.NativeID)
	default:
		a = append(a, "--session-id", l.handle.NativeID)
	}
	if l.settings.Model != "" {
		a = append(a, "--model="+l.settings.Model)
	}
	if l.settings.Effort != "" {
		a = append(a, "--effort="+l.settings.Effort)
	}
	if len(l.settings.MCPServers) > 0 {
		a = append(a, "--mcp-config="+l.mcpFile())
	}
	return a
}

// key tells whether a running process is still what the settings ask for. Values
// of the environment are not part of it: they are secret, and this is written down.
func (l launch) key() string {
	type part struct {
		Args         []string
		Mode         string
		Cwd          string
		Instructions string
		MCP          []bridges.MCPServer
		Hold         bridges.Hold
		Env          map[string]string
		Pass         []string
	}
	p := part{
		Args: append(slices.Clone(l.agent.Command), l.limit.flags()...), Mode: l.limit.mode.String(), Cwd: l.handle.Cwd,
		Instructions: l.settings.Instructions, MCP: l.settings.MCPServers, Hold: l.limit.hold, Env: l.agent.Env,
	}
	p.Args = append(p.Args, "model="+l.settings.Model, "effort="+l.settings.Effort)
	for _, kv := range l.settings.Env {
		name, _, _ := strings.Cut(kv, "=")
		p.Pass = append(p.Pass, name)
	}
	slices.Sort(p.Pass)
	data, err := json.Marshal(p)
	if err != nil {
		panic("claude: settings of strings cannot fail to encode: " + err.Error())
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// common are the variables of the bridge's own environment that every program
// may need. All others reach the agent by Agent.Env and PassEnv alone.
var common = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
	"SYSTEMROOT", "SystemRoot", "COMSPEC", "ComSpec", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA",
	"ProgramFiles", "ProgramData", "CLAUDE_CODE_GIT_BASH_PATH",
}

// never are variables by which Claude Code knows that it runs inside another one.
var never = []string{"CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT", "NODE_OPTIONS"}

// env is the agent's whole environment; environ is the bridge's own.
func (l launch) env(environ []string) []string {
	set := map[string]string{}
	for _, kv := range environ {
		name, value, ok := strings.Cut(kv, "=")
		if ok && (slices.Contains(common, name) || strings.HasPrefix(name, "LC_")) {
			set[name] = value
		}
	}
	for name, value := range l.agent.Env {
		set[name] = value
	}
	for _, kv := range l.settings.Env {
		if name, value, ok := strings.Cut(kv, "="); ok && slices.Contains(l.agent.PassEnv, name) {
			set[name] = value
		}
	}
	for _, name := range never {
		delete(set, name)
	}
	for name, value := range map[string]string{
		"CLAUDE_CONFIG_DIR": l.home().dir,
		"TMPDIR":            l.tmp(), "TMP": l.tmp(), "TEMP": l.tmp(), // the sandbox has its own instead
		"TERM": "dumb", "NO_COLOR": "1",
		"DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1", "DISABLE_ERROR_REPORTING": "1", "DISABLE_BUG_COMMAND": "1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
	} {
		set[name] = value
	}
	delete(set, "IS_SANDBOX")
	if l.limit.mode == ceiling.Full && runtime.GOOS != "windows" && os.Geteuid() == 0 {
		set["IS_SANDBOX"] = "1" // without it the agent refuses bypassPermissions as root
	}
	out := make([]string, 0, len(set))
	for name, value := range set {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return out
}

// login is the user's login file, unless a login came with the request: who pays
// is then said, and nobody else shall.
func (l launch) login() (loginFile, error) {
	for _, kv := range l.settings.Env {
		switch name, value, _ := strings.Cut(kv, "="); name {
		case "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN",
			"CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX":
			if value != "" && slices.Contains(l.agent.PassEnv, name) {
				return loginFile{}, nil
			}
		}
	}
	return readLogin(l.agent)
}

// secrets are the values that must not appear in anything the agent says.
func (l launch) secrets(login loginFile) []string {
	out := slices.Clone(login.secrets)
	for _, kv := range l.settings.Env {
		name, value, _ := strings.Cut(kv, "=")
		for _, word := range []string{"KEY", "TOKEN", "SECRET", "PASSWORD", "HEADERS"} {
			if strings.Contains(name, word) && !strings.HasSuffix(name, "_TOKENS") {
				out = append(out, value)
				break
			}
		}
	}
	return out
}

// writeMCP describes the servers in a file of the run folder.
func (l launch) writeMCP() error {
	if len(l.settings.MCPServers) == 0 {
		return nil
	}
	type server struct {
		Type    string            `json:"type"`
		Command string            `json:"command"`
		Args    []string          `json:"args"`
		Env     map[string]string `json:"env,omitempty"`
	}
	servers := map[string]server{}
	for _, m := range l.settings.MCPServers {
		if m.Name == "" || servers[m.Name].Type != "" {
			return bridges.Errorf(bridges.KindInvalidArgument, "the name of MCP server %q is empty or taken", m.Name).
				WithNext("give every server a name of its own")
		}
		servers[m.Name] = server{Type: "stdio", Command: m.Command, Args: append([]string{}, m.Args...), Env: m.Env}
	}
	data, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err != nil {
		return fmt.Errorf("describe the MCP servers: %w", err)
	}
	if err := os.WriteFile(l.mcpFile(), data, 0o600); err != nil {
		return fmt.Errorf("describe the MCP servers: %w", err)
	}
	return nil
}
