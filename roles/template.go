package roles

import (
	"fmt"

	"github.com/subspan-dev/subspan/bridges"
)

const template = `{
  "$schema": "https://raw.githubusercontent.com/subspan-dev/subspan/main/roles/role.schema.json",

  // One sentence for whoever chooses among roles: when is this the right one?
  "description": "Describe when to use %s.",

  // The most that a session in this role may do: "readonly", "default" (change
  // files in its folder, ask for more) or "full". Callers may get less, never more.
  "permissionMode": "readonly",

  // Whether it may start sessions of its own.
  "allowDelegation": false,

  // What the agent is told before its task; or {"file": "%s.md"}, beside this file.
  "instructions": "You are …",

  // The agent to use, and what to ask it for. Left out: whatever is configured.
  // "backend": "codex",
  // "model": "…",
  // "effort": "high",

  // What is different with one agent.
  // "overrides": {"claude": {"model": "…"}},

  // Bounds, beside those of the configuration.
  // "limits": {"turnTimeout": "30m", "idleTimeout": "5m", "maxDepth": 1, "maxChildren": 2},
}
`

// Template returns the text of a new role file <id>.json, with every key explained.
// It fails with KindInvalidArgument when id is none.
func Template(id string) ([]byte, error) {
	if !validID.MatchString(id) {
		return nil, bridges.Errorf(bridges.KindInvalidArgument, "%q is no role id", id).
			WithNext("use letters, digits, dots, dashes and underscores, at most 64")
	}
	return fmt.Appendf(nil, template, id, id), nil
}
