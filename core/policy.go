package core

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/config"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// Asker answers a worker's question in place of a person: a terminal prompt, an
// elicitation. It returns when ctx ends at the latest. The calling model is never
// behind it.
type Asker interface {
	Ask(ctx context.Context, session string, q bridges.Question) (bridges.Answer, error)
}

// verdict is what the rules say of a question before any person is asked.
type verdict struct {
	decision bridges.Decision
	ask      bool // a person may say otherwise; decision holds when nobody does
	reason   string
}

// judge applies the session's mode to a question. What the kernel (or the
// product's sandbox) holds anyway may be allowed freely; where only answers hold
// the line, everything that could write is denied in readonly and asked in default.
//
// A rule that the user configured for the kind of tool may forbid more or ask
// more. It may allow what would be asked, and never what the mode denies.
func judge(mode ceiling.Mode, hold bridges.Strength, cwd string, rules map[bridges.ToolKind]config.Rule, q bridges.Question) verdict {
	v := judgeMode(mode, hold, cwd, q)
	switch rules[q.Tool.Kind] {
	case config.RuleDeny:
		return verdict{decision: bridges.Deny, reason: fmt.Sprintf("the configured policy for %s is deny", q.Tool.Kind)}
	case config.RuleAsk:
		if v.decision == bridges.Allow {
			return verdict{decision: bridges.Deny, ask: true, reason: fmt.Sprintf("the configured policy for %s is ask", q.Tool.Kind)}
		}
	case config.RuleAllow:
		if v.ask {
			return verdict{decision: bridges.Allow, reason: fmt.Sprintf("the configured policy for %s is allow", q.Tool.Kind)}
		}
	}
	return v
}

func judgeMode(mode ceiling.Mode, hold bridges.Strength, cwd string, q bridges.Question) verdict {
	if mode == ceiling.Full {
		return verdict{decision: bridges.Allow, reason: "permission is full"}
	}
	held := hold == bridges.HoldKernel || hold == bridges.HoldProductSandbox
	kind := q.Tool.Kind
	switch kind {
	case bridges.ToolRead, bridges.ToolSearch, bridges.ToolThink, bridges.ToolFetch:
		return verdict{decision: bridges.Allow, reason: "reading is allowed"}
	}
	if ceiling.Meet(mode) == ceiling.Readonly {
		if kind == bridges.ToolExecute && held {
			return verdict{decision: bridges.Allow, reason: "the sandbox keeps commands from writing"}
		}
		return verdict{decision: bridges.Deny, reason: "permission is readonly"}
	}
	if outside := outsideOf(cwd, q.Tool.Locations); outside != "" {
		return verdict{decision: bridges.Deny, ask: true, reason: outside + " is outside the workspace"}
	}
	switch kind {
	case bridges.ToolEdit, bridges.ToolDelete, bridges.ToolMove:
		if held || len(q.Tool.Locations) > 0 {
			return verdict{decision: bridges.Allow, reason: "the workspace may be changed"}
		}
	case bridges.ToolExecute:
		if held {
			return verdict{decision: bridges.Allow, reason: "the sandbox keeps commands inside the workspace"}
		}
	}
	return verdict{decision: bridges.Deny, ask: true, reason: fmt.Sprintf("%s needs somebody's consent", describe(q))}
}

// outsideOf returns the first location that is not below cwd, or "".
func outsideOf(cwd string, locations []string) string {
	for _, l := range locations {
		if !filepath.IsAbs(l) {
			l = filepath.Join(cwd, l)
		}
		// A link in the workspace may lead out of it; a file that is still to be
		// written has no real path of its own, so its folder decides.
		real := l
		if r, err := filepath.EvalSymlinks(l); err == nil {
			real = r
		} else if r, err := filepath.EvalSymlinks(filepath.Dir(l)); err == nil {
			real = filepath.Join(r, filepath.Base(l))
		}
		if !within(cwd, real) {
			return l
		}
	}
	return ""
}

// describe names what a question is about, for one line of text.
func describe(q bridges.Question) string {
	switch {
	case q.Title != "":
		return q.Title
	case q.Tool.Title != "":
		return q.Tool.Title
	case q.Tool.Name != "":
		return q.Tool.Name
	}
	return "this step"
}
