package roles

import (
	"strings"

	"github.com/subspan-dev/subspan/core/ceiling"
	"github.com/subspan-dev/subspan/internal/strictjson"
)

// Role files of dsh-plugin-subagents load as they are. There, overrides hold
// settings for the caller's own kind of agent, "native", instead of settings by
// agent. Those have a meaning here only as far as they narrow; the rest is noted.
const nativeBackend = "native"

// nativeOverrides are the keys of overrides that are no agent's name.
type nativeOverrides struct {
	agentOptions bool
	persona      string
	toolFilter   bool
	maxDepth     int
}

// overrides are settings by agent, and the four native ones.
type overrides struct {
	agents map[string]fileOverride
	native nativeOverrides
}

func (o *overrides) UnmarshalStrict(n strictjson.Node) {
	if n.Kind() != "object" {
		n.Reject("must be an object of settings by agent")
		return
	}
	o.agents = map[string]fileOverride{}
	for _, m := range n.Members() {
		switch m.Name {
		case "agentOptions":
			var options struct {
				Provider  string `json:"provider"`
				Model     string `json:"model"`
				MaxTokens int    `json:"maxTokens"`
			}
			o.native.agentOptions = m.Value.Decode(&options)
		case "persona":
			m.Value.Decode(&o.native.persona)
		case "toolFilter":
			var filter struct {
				Allow []string `json:"allow"`
				Deny  []string `json:"deny"`
			}
			o.native.toolFilter = m.Value.Decode(&filter)
		case "maxDepth":
			if m.Value.Decode(&o.native.maxDepth) && o.native.maxDepth < 1 {
				m.Value.Reject("must be at least 1; to forbid delegation, set allowDelegation to false")
			}
		default:
			var agent fileOverride
			m.Value.Decode(&agent)
			o.agents[m.Name] = agent
		}
	}
}

// apply narrows a role by its native overrides.
func (o nativeOverrides) apply(r *Role) {
	if o.toolFilter {
		// Which tools another agent has, and what they are called, is its own
		// matter. Whoever took tools away meant less than all, and less is readonly.
		r.lower(ceiling.Readonly, "tool filter")
		r.note("overrides.toolFilter", "tools cannot be chosen by name here; the role is readonly instead")
	}
	if o.maxDepth > 0 {
		tighten(r, "limits.maxDepth", &r.Limits.MaxDepth, o.maxDepth, "native override")
	}
	switch {
	case strings.HasPrefix(o.persona, "@preset:"):
		r.note("overrides.persona", "presets are unknown here; left out")
	case o.persona != "":
		r.Instructions = strings.TrimSpace(o.persona + "\n\n" + r.Instructions)
	}
	if o.agentOptions {
		r.note("overrides.agentOptions", "is for native agents alone; left out")
	}
}
