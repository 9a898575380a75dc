//go:build linux

package matrix

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/test/agents"
	"github.com/subspan-dev/subspan/test/modelserver"
)

// product is what the cells have to know of an agent.
type product struct {
	name string
	slow bool // needs seconds to start
	// launch is the agent on its own, for its environment; pass are the prefixes of
	// the variables that the user sets for it.
	launch func(agents.TB, *modelserver.Server) agents.Agent
	pass   []string
	// address is the variable with the address of the model, where launch writes it
	// into a file that the bridge's home does not have.
	address string
	// agent is the entry in config.json, for agents that do not take the address of
	// their model from a variable.
	agent func(url string) map[string]any
	// model is one beside the default, missing one that there is not, and asked what
	// the model server gets to see of it.
	model, asked, missing string
	// standard is the model of the role, for agents whose own default asks more than
	// one model about each task.
	standard string
	// sh and edit call the agent's tools by name, offered or not.
	sh   func(command string) string
	edit func(path, text string) string
	// question is a task that has the agent ask, under rules that ask about commands
	// and changes; the answer yes makes the file.
	question func(c *cell) (task, file string)
	// refuses are the behaviours that the agent cannot, by their names.
	refuses map[string]refusal
	// store names what holds the agent's conversations below its home.
	store string
	// repeats are the failures after which the agent tries again on its own for longer
	// than anybody waits, by the names of behaviours.
	repeats []string
}

// refusal is how the bridge answers what the agent cannot.
type refusal struct {
	kind bridges.ErrorKind
	why  string
}

// env is what the user has set for the agent.
func (p product) env(t *testing.T, s *modelserver.Server) (env []string) {
	t.Helper()
	for _, kv := range p.launch(t, s).Env {
		for _, prefix := range p.pass {
			if strings.HasPrefix(kv, prefix) {
				env = append(env, kv)
			}
		}
	}
	if p.address != "" {
		env = append(env, p.address+"="+s.URL()+"/v1")
	}
	return env
}

func call(tool, args string, values ...any) string {
	return fmt.Sprintf("[[call "+tool+" "+args+"]]", values...)
}

func products() []product {
	type object = map[string]any
	const noEffort = "effort_unsupported"
	return []product{
		{
			name: "claude", launch: agents.Claude, pass: []string{"ANTHROPIC_", "CLAUDE_CODE_MAX"},
			model: "claude-scripted-2", asked: "claude-scripted-2", missing: "missing-model", store: "*.jsonl",
			sh:   func(s string) string { return call("Bash", `{"command":%q}`, s) },
			edit: func(path, s string) string { return call("Write", `{"file_path":%q,"content":%q}`, path, s) },
			question: func(c *cell) (string, string) {
				return `[[sh python3 -c "open('asked','w').write('x')"]]`, filepath.Join(c.work, "asked")
			},
		},
		{
			name: "codex", launch: agents.Codex, pass: []string{"SCRIPTED_"},
			model: "gpt-5.6-sol", asked: "gpt-5.6-sol", missing: "missing-model", store: "rollout-*.jsonl",
			agent: func(url string) map[string]any {
				return object{"bridge": "codex", "command": []string{"codex"}, "passEnv": []string{"SCRIPTED_API_KEY"}, "options": object{"config": object{
					"model": "gpt-5.5", "model_provider": "scripted", "model_providers": object{"scripted": object{
						"name": "Scripted", "base_url": url + "/v1", "env_key": "SCRIPTED_API_KEY", "wire_api": "responses",
						"request_max_retries": 1, "stream_max_retries": 1,
					}},
				}}}
			},
			sh:   func(s string) string { return call("exec_command", `{"cmd":%q}`, s) },
			edit: func(path, s string) string { return fmt.Sprintf("[[write %s %s]]", path, s) }, // apply_patch is always offered
			question: func(c *cell) (string, string) {
				file := filepath.Join(c.out, "asked")
				return fmt.Sprintf("[[write %s x]]", file), file
			},
		},
		{
			name: "grok", launch: agents.Grok, pass: []string{"XAI_"}, address: "GROK_MODELS_BASE_URL",
			model: "scripted-2", asked: "scripted-2", missing: "missing-model", store: "summary.json",
			sh:   func(s string) string { return call("run_terminal_command", `{"command":%q,"description":"x"}`, s) },
			edit: func(path, s string) string { return call("write", `{"file_path":%q,"content":%q}`, path, s) },
			question: func(c *cell) (string, string) {
				return "[[sh echo x > asked]]", filepath.Join(c.work, "asked")
			},
			refuses: map[string]refusal{"effort": {noEffort, "its model has no effort to choose"}},
		},
		{
			name: "opencode", slow: true, launch: agents.OpenCode, pass: []string{"OPENCODE_"},
			model: "scripted/scripted-2", asked: "scripted-2", missing: "scripted/missing-model", store: "opencode.db*",
			repeats: []string{"500", "dropped stream"},
			sh:      func(s string) string { return call("bash", `{"command":%q,"description":"x"}`, s) },
			edit:    func(path, s string) string { return call("write", `{"filePath":%q,"content":%q}`, path, s) },
			question: func(c *cell) (string, string) {
				file := filepath.Join(c.out, "asked")
				return fmt.Sprintf("[[write %s x]]", file), file
			},
			refuses: map[string]refusal{"effort": {noEffort, "its model has no effort to choose"}},
		},
		{
			name: "gemini", slow: true, launch: agents.Gemini, pass: []string{"GEMINI_API", "GOOGLE_"}, standard: "gemini-2.5-pro",
			model: "gemini-3.5-flash-lite", asked: "gemini-3.5-flash-lite", missing: "missing-model", store: "session-*",
			repeats: []string{"429", "quota", "500", "dropped stream"},
			sh:      func(s string) string { return call("run_shell_command", `{"command":%q}`, s) },
			edit:    func(path, s string) string { return call("write_file", `{"file_path":%q,"content":%q}`, path, s) },
			question: func(c *cell) (string, string) {
				return "[[sh echo x > asked]]", filepath.Join(c.work, "asked")
			},
			refuses: map[string]refusal{"effort": {noEffort, "it has no effort to choose"}},
		},
		{
			name: "qwen", slow: true, launch: agents.Qwen, pass: []string{"OPENAI_"},
			model: "scripted-2", asked: "scripted-2", missing: "missing-model", store: "*.jsonl",
			sh:   func(s string) string { return call("run_shell_command", `{"command":%q,"is_background":false}`, s) },
			edit: func(path, s string) string { return call("write_file", `{"file_path":%q,"content":%q}`, path, s) },
			question: func(c *cell) (string, string) {
				return "[[sh echo x > asked]]", filepath.Join(c.work, "asked")
			},
			refuses: map[string]refusal{"effort": {noEffort, "it has no effort to choose"}},
		},
	}
}

// forget removes the agent's own record of its conversations.
func (p product) forget(c *cell) {
	removed := 0
	err := filepath.WalkDir(filepath.Join(c.u.dir, "state", "agents"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if is, _ := filepath.Match(p.store, d.Name()); is {
			removed++
			return os.Remove(path)
		}
		return nil
	})
	if err != nil || removed == 0 {
		c.fatalf("the agent's record: %d files removed, %v", removed, err)
	}
}
