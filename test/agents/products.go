package agents

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/subspan-dev/subspan/test/modelserver"
)

// Key is the API key that all agents send.
const Key = "sk-scripted"

// All returns the six agents, each with its own home.
func All(t TB, s *modelserver.Server) []Agent {
	t.Helper()
	return []Agent{Claude(t, s), Codex(t, s), Grok(t, s), OpenCode(t, s), Gemini(t, s), Qwen(t, s)}
}

// Claude returns Claude Code.
func Claude(t TB, s *modelserver.Server) Agent {
	t.Helper()
	bin := filepath.Join(Find(t), "@anthropic-ai", "claude-code", "bin", "claude.exe") // native, and so named on every system
	a := launch(t, "claude", bin,
		"ANTHROPIC_BASE_URL="+s.URL(),
		"ANTHROPIC_API_KEY="+Key,
		"ANTHROPIC_MODEL=claude-scripted-1",
		"DISABLE_AUTOUPDATER=1",
		"DISABLE_TELEMETRY=1",
		"DISABLE_ERROR_REPORTING=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		"CLAUDE_CODE_MAX_RETRIES=1", // ten by default, which takes minutes
		"IS_SANDBOX=1",              // without it root may not bypass permissions
	)
	a.Models = []string{"claude-scripted-1", "claude-scripted-2"}
	a.Model = a.Models[0]
	a.headless = func(task string) ([]string, string) {
		return []string{"-p", "--output-format", "json", "--permission-mode", "bypassPermissions", "--setting-sources", "user"}, task
	}
	return a
}

// Codex returns Codex. Its first model calls tools directly, the second one is a
// model for which Codex has the tools called from JavaScript ("code mode").
func Codex(t TB, s *modelserver.Server) Agent {
	t.Helper()
	dir := Find(t)
	var suffix, triple string
	switch platform := runtime.GOOS + "/" + runtime.GOARCH; platform {
	case "linux/amd64":
		suffix, triple = "linux-x64", "x86_64-unknown-linux-musl"
	case "linux/arm64":
		suffix, triple = "linux-arm64", "aarch64-unknown-linux-musl"
	case "darwin/amd64":
		suffix, triple = "darwin-x64", "x86_64-apple-darwin"
	case "darwin/arm64":
		suffix, triple = "darwin-arm64", "aarch64-apple-darwin"
	default:
		t.Fatalf("codex has no program for %s", platform)
	}
	// Killing the launcher script leaves its native child, so tests start the child.
	bin := filepath.Join(dir, "@openai", "codex-"+suffix, "vendor", triple, "bin", "codex")
	a := launch(t, "codex", bin, "SCRIPTED_API_KEY="+Key)
	a.Env = append(a.Env, "CODEX_HOME="+filepath.Join(a.Home, ".codex"))
	a.Models = []string{"gpt-5.5", "gpt-5.6-sol"}
	a.Model = a.Models[0]
	a.file(t, ".codex/config.toml", fmt.Sprintf(`model = %q
model_provider = "scripted"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "Scripted"
base_url = "%s/v1"
env_key = "SCRIPTED_API_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
`, a.Model, s.URL()))
	a.headless = func(task string) ([]string, string) {
		return []string{"exec", "--json", "--skip-git-repo-check", "-s", "danger-full-access", "-"}, task
	}
	return a
}

// Grok returns Grok Build.
func Grok(t TB, s *modelserver.Server) Agent {
	t.Helper()
	a := launch(t, "grok", filepath.Join(Find(t), "@xai-official", "grok", "bin", "grok"),
		"XAI_API_KEY="+Key,
		"GROK_DISABLE_AUTOUPDATER=1",
		"GROK_TELEMETRY_ENABLED=0",
	)
	a.Models = []string{"scripted-1", "scripted-2"}
	a.Model = a.Models[0]
	config := `[features]
telemetry = false
turn_summary = false
title_refresh = false
session_recap = false
[models]
default = "scripted-1"
session_summary = "scripted-1"
`
	for _, m := range a.Models {
		config += fmt.Sprintf("[model.%s]\nmodel = %q\nbase_url = \"%s/v1\"\nenv_key = \"XAI_API_KEY\"\n", m, m, s.URL())
	}
	a.file(t, ".grok/config.toml", config)
	a.ACP = []string{"agent", "--no-leader", "stdio"}
	a.headless = func(task string) ([]string, string) {
		return []string{"--single=" + task, "--output-format", "streaming-json", "--always-approve"}, ""
	}
	return a
}

// OpenCode returns opencode. Its configuration is in OPENCODE_CONFIG_CONTENT, so that
// it holds in any home.
func OpenCode(t TB, s *modelserver.Server) Agent {
	t.Helper()
	type object = map[string]any
	config, err := json.Marshal(object{
		"provider": object{"scripted": object{
			"npm": "@ai-sdk/openai-compatible", "name": "Scripted",
			"options": object{"baseURL": s.URL() + "/v1", "apiKey": Key},
			"models":  object{"scripted-1": object{}, "scripted-2": object{}},
		}},
		"enabled_providers": []string{"scripted"},
		"model":             "scripted/scripted-1",
		"small_model":       "scripted/scripted-2",
		"autoupdate":        false,
		"share":             "disabled",
	})
	if err != nil {
		t.Fatal(err)
	}
	a := launch(t, "opencode", filepath.Join(Find(t), "opencode-ai", "bin", "opencode.exe"), // so named on every system
		"OPENCODE_CONFIG_CONTENT="+string(config),
		"OPENCODE_DISABLE_AUTOUPDATE=1",
		"OPENCODE_DISABLE_MODELS_FETCH=1",
		"OPENCODE_DISABLE_LSP_DOWNLOAD=1",
	)
	a.Models = []string{"scripted/scripted-1", "scripted/scripted-2"}
	a.Model = a.Models[0]
	a.ACP = []string{"acp"}
	a.headless = func(task string) ([]string, string) {
		return []string{"run", "--format", "json"}, task // as an argument it would be quoted
	}
	return a
}

// Gemini returns Gemini CLI.
func Gemini(t TB, s *modelserver.Server) Agent {
	t.Helper()
	a := launch(t, "gemini", filepath.Join(Find(t), ".bin", "gemini"),
		"GEMINI_API_KEY="+Key,
		"GOOGLE_GEMINI_BASE_URL="+s.URL(),
		"GEMINI_MODEL=scripted-1",
		"GEMINI_TELEMETRY_ENABLED=false",
		"GEMINI_CLI_NO_RELAUNCH=true", // one process instead of a parent and a child
	)
	// With session retention on, the clean-up of one start deletes other sessions.
	a.file(t, ".gemini/settings.json", `{
  "security": {"auth": {"selectedType": "gemini-api-key"}},
  "privacy": {"usageStatisticsEnabled": false},
  "general": {"enableAutoUpdate": false, "sessionRetention": {"enabled": false}}
}`)
	a.Models = []string{"scripted-1", "scripted-2"}
	a.Model = a.Models[0]
	a.ACP = []string{"--acp", "--skip-trust"}
	a.headless = func(task string) ([]string, string) {
		return []string{"--prompt=" + task, "-o", "stream-json", "--skip-trust", "-y"}, ""
	}
	return a
}

// Qwen returns Qwen Code.
func Qwen(t TB, s *modelserver.Server) Agent {
	t.Helper()
	a := launch(t, "qwen", filepath.Join(Find(t), ".bin", "qwen"),
		"OPENAI_API_KEY="+Key,
		"OPENAI_BASE_URL="+s.URL()+"/v1",
		"OPENAI_MODEL=scripted-1",
		"QWEN_CODE_NO_RELAUNCH=true",
	)
	a.file(t, ".qwen/settings.json", `{
  "security": {"auth": {"selectedType": "openai"}},
  "privacy": {"usageStatisticsEnabled": false},
  "general": {"enableAutoUpdate": false}
}`)
	a.Models = []string{"scripted-1"}
	a.Model = a.Models[0]
	a.ACP = []string{"--acp"}
	a.headless = func(task string) ([]string, string) {
		return []string{"--prompt=" + task, "-o", "stream-json", "-y"}, ""
	}
	return a
}
