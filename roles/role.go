// Package roles knows what kinds of work there are: a role says who does it (agent,
// model, effort), how much they may do, and what they are told.
//
// A role is one JSON file, <id>.json. There are three layers, and a role of a later
// one replaces the whole role of that id in an earlier one: those built in, those
// of the user, those of the project. What a project says is not the user's word:
// its roles never get more than the user allows to projects, nor more than the
// role that they replace.
//
// Loading is strict, and never silent. A file with any problem makes its id
// unusable, with the file's problems as the error: neither its good half nor the
// role of an earlier layer takes its place, since either may allow more than was
// meant. All other roles still load.
package roles

import (
	"time"

	"github.com/subspan-dev/subspan/core/ceiling"
)

// Role is one role with its defaults filled in. It is read-only.
type Role struct {
	ID          string
	Description string // for whoever chooses among roles
	// Backend is the agent to use; empty leaves the choice to others.
	Backend string
	// Mode is what the role asks for, which is readonly when its file does not say.
	Mode            ceiling.Mode
	AllowDelegation bool
	Instructions    string
	Model           string
	Effort          string
	// Overrides are what is different with one agent, by its name.
	Overrides map[string]Override
	Limits    Limits

	Layer Layer
	Path  string // the role's file
	// Notes say, each in one line, what of the file holds in another way than
	// written: a mode that was lowered, a setting of another program.
	Notes []string

	sources map[string]string
}

// Override is what a role says for one agent alone. Empty fields change nothing.
type Override struct {
	Model        string
	Effort       string
	Instructions string // in place of the role's
}

// Limits bound what is done in a role; 0 is no limit of the role's own.
type Limits struct {
	TurnTimeout time.Duration
	IdleTimeout time.Duration
	MaxDepth    int
	MaxChildren int
}

// Layer is where a role comes from.
type Layer string

const (
	Embedded Layer = "embedded" // built in
	User     Layer = "user"
	Project  Layer = "project"
)

// Applied is a role as it holds with one agent.
type Applied struct {
	Model        string
	Effort       string
	Instructions string
}

// For returns what the role says for an agent.
func (r Role) For(agent string) Applied {
	a := Applied{Model: r.Model, Effort: r.Effort, Instructions: r.Instructions}
	o := r.Overrides[agent]
	if o.Model != "" {
		a.Model = o.Model
	}
	if o.Effort != "" {
		a.Effort = o.Effort
	}
	if o.Instructions != "" {
		a.Instructions = o.Instructions
	}
	return a
}

// Source tells where the value of a key comes from, such as
// "user: /home/u/.config/subspan/roles/review.json:3:5", or "default". Keys are
// those of the file, with dots: limits.maxDepth, overrides.codex.model.
func (r Role) Source(key string) string {
	if s, ok := r.sources[key]; ok {
		return s
	}
	return "default"
}

// narrow lowers a project's role to what holds for projects and to what it replaces.
func (r *Role) narrow(maximum ceiling.Mode, replaced *Role) {
	r.lower(maximum, "projectMaximum")
	if replaced == nil {
		return
	}
	by := string(replaced.Layer) + " role " + replaced.ID
	r.lower(replaced.Mode, by)
	if r.AllowDelegation && !replaced.AllowDelegation {
		r.AllowDelegation = false
		r.note("allowDelegation", "forbidden by the "+by)
	}
	tighten(r, "limits.turnTimeout", &r.Limits.TurnTimeout, replaced.Limits.TurnTimeout, by)
	tighten(r, "limits.idleTimeout", &r.Limits.IdleTimeout, replaced.Limits.IdleTimeout, by)
	tighten(r, "limits.maxDepth", &r.Limits.MaxDepth, replaced.Limits.MaxDepth, by)
	tighten(r, "limits.maxChildren", &r.Limits.MaxChildren, replaced.Limits.MaxChildren, by)
}

func (r *Role) lower(bound ceiling.Mode, by string) {
	if ceiling.Exceeds(r.Mode, bound) {
		r.Mode = ceiling.Meet(r.Mode, bound)
		r.note("permissionMode", "lowered to "+r.Mode.String()+" by the "+by)
	}
}

// tighten makes a limit at least as tight as a bound; 0 is none, for both.
func tighten[T int | time.Duration](r *Role, key string, limit *T, bound T, by string) {
	if bound > 0 && (*limit == 0 || *limit > bound) {
		*limit = bound
		r.note(key, "lowered by the "+by)
	}
}

// note records that a key holds in another way than written.
func (r *Role) note(key, what string) {
	r.Notes = append(r.Notes, key+": "+what)
	r.sources[key] = r.Source(key) + ", " + what
}
