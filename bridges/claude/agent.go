package claude

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/subspan-dev/subspan/bridges"
)

// Agent describes Claude Code as it is known before anybody looked for it on this
// machine: Command holds a bare name. Resolve finds it.
func Agent() bridges.Agent {
	return bridges.Agent{
		Name:    "claude",
		Command: []string{"claude"},
		PassEnv: []string{
			"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS",
			"ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL",
			"ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_BETAS",
			"CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_MAX_RETRIES", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "API_TIMEOUT_MS",
			"CLAUDE_CODE_USE_BEDROCK", "AWS_REGION", "AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID",
			"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
			"CLAUDE_CODE_USE_VERTEX", "CLOUD_ML_REGION", "ANTHROPIC_VERTEX_PROJECT_ID", "GOOGLE_APPLICATION_CREDENTIALS",
		},
		Login:     []string{".claude/.credentials.json"},
		LoginHint: "run `claude` and /login in a terminal",
	}
}

// Resolve finds the agent's executable with lookPath (exec.LookPath, mostly) and
// makes it absolute. Links are left as they are: behind them is one version, which
// the next update removes. Nothing is executed. A missing one is KindAgentMissing.
func Resolve(agent bridges.Agent, lookPath func(string) (string, error)) (bridges.Agent, error) {
	if len(agent.Command) == 0 {
		agent.Command = Agent().Command
	}
	agent.Command = slices.Clone(agent.Command)
	path, err := lookPath(agent.Command[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return bridges.Agent{}, bridges.Errorf(bridges.KindAgentMissing, "Claude Code is not installed: %w", err).
			WithNext("npm install -g @anthropic-ai/claude-code, or put `claude` on the PATH")
	}
	agent.Command[0] = path
	return agent, nil
}

// efforts are the values that --effort takes. Claude Code itself ignores others
// with a warning on stderr, which would be a setting silently not honoured.
var efforts = [...]string{"low", "medium", "high", "xhigh", "max"}

// space is the name space of the ids that this bridge derives.
var space = uuid.MustParse("7b1c8d1e-5a0f-5e0b-9c55-2f7f5a1f6a10")

// nativeID is Claude Code's id of a session: derived, so that Create is idempotent
// and Dispose needs no handle.
func nativeID(session string) string {
	return uuid.NewSHA1(space, []byte("session\x00"+session)).String()
}

// messageID is the uuid of the user message that carries a turn's task.
func messageID(session, turn string) string {
	return uuid.NewSHA1(space, []byte("turn\x00"+session+"\x00"+turn)).String()
}

// handleVersion is the layout of handle.
const handleVersion = 1

// handle is what the host keeps of a session for us.
type handle struct {
	NativeID string `json:"native_id"`
	Cwd      string `json:"cwd"`
	// Begun says that a task was sent, so that the agent must know the session.
	Begun bool `json:"begun,omitempty"`
	// ForkOf is the native id of the session whose history this one starts with,
	// until it has begun itself.
	ForkOf string `json:"fork_of,omitempty"`
}

func (h handle) encode() bridges.Handle {
	data, err := json.Marshal(h)
	if err != nil {
		panic("claude: a handle of strings cannot fail to encode: " + err.Error())
	}
	return bridges.Handle{Version: handleVersion, Data: data}
}

func decodeHandle(b bridges.Handle) (handle, error) {
	var h handle
	if b.Version != handleVersion {
		return h, bridges.Errorf(bridges.KindInvalidArgument, "the handle has version %d, this bridge knows %d", b.Version, handleVersion).
			WithNext("use the version of subspan that made the session")
	}
	if err := json.Unmarshal(b.Data, &h); err != nil {
		return h, bridges.Errorf(bridges.KindInvalidArgument, "the handle is not one of this bridge: %w", err).
			WithNext("start a new session")
	}
	if _, err := uuid.Parse(h.NativeID); err != nil || !filepath.IsAbs(h.Cwd) {
		return h, bridges.Errorf(bridges.KindInvalidArgument, "the handle is not one of this bridge: id %q, folder %q", h.NativeID, h.Cwd).
			WithNext("start a new session")
	}
	return h, nil
}

// inert returns the task as a text that Claude Code takes for nothing else. It
// reads a message that begins with a slash as a command of its own ("/compact",
// and "/nosuch" is answered with "Unknown command" and success); with a newline
// before it, it is text. Nothing else is special in stream-json.
func inert(task string) string {
	if strings.HasPrefix(task, "/") {
		return "\n" + task
	}
	return task
}
