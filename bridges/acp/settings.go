package acp

import (
	"context"
	"errors"
	"regexp"
	"sort"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/acp/internal/fold"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// unattended matches agents' names for modes that approve by themselves.
var unattended = regexp.MustCompile(`(?i)yolo|bypass|full.?access|autopilot|auto.?approve|allow.?all|dont.?ask|always.?approve|dangerous`)

// apply makes the session what Settings ask for: the model first, then the effort
// from the list that the model has, then the agent's own mode. Everything is
// confirmed; what the agent does not offer is an error before any task is sent.
func (l *link) apply(ctx context.Context, st bridges.Settings) error {
	if st.Model != "" {
		if err := l.applyModel(ctx, st.Model); err != nil {
			return err
		}
	}
	if st.Effort != "" {
		if err := l.applyEffort(ctx, st.Effort); err != nil {
			return err
		}
	}
	return l.applyMode(ctx, st)
}

// choice is a configuration option or its legacy, and how it is set.
type choice struct {
	fold.Choice
	option string // id of the configuration option; empty for the legacy method
	method string // of the legacy
	param  string
}

func (l *link) choice(category string) (choice, bool) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	c := &l.s.state.Config
	if o := c.Option(category); o != nil {
		return choice{Choice: o.Choice, option: o.ID}, true
	}
	switch {
	case category == fold.CategoryModel && len(c.Models.Values) > 0:
		return choice{Choice: c.Models, method: "session/set_model", param: "modelId"}, true
	case category == fold.CategoryMode && len(c.Modes.Values) > 0:
		return choice{Choice: c.Modes, method: "session/set_mode", param: "modeId"}, true
	}
	return choice{}, false
}

func (l *link) native() string {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.s.state.NativeID
}

// set sets a value that is offered, and sees to it that it holds.
func (l *link) set(ctx context.Context, category string, c choice, value string) error {
	if c.Current == value {
		return nil
	}
	var err error
	if c.option != "" {
		err = l.setOption(ctx, c.option, value)
	} else {
		_, err = l.call(ctx, l.s.b.limits.call, c.method, map[string]string{"sessionId": l.native(), c.param: value})
	}
	if err != nil {
		return err
	}
	if now, ok := l.choice(category); ok && now.Current != value {
		return bridges.Errorf(bridges.KindAgentProtocol, "the agent was told %s %q and stays with %q", category, value, now.Current)
	}
	return nil
}

func (l *link) setOption(ctx context.Context, id, value string) error {
	_, err := l.call(ctx, l.s.b.limits.call, "session/set_config_option",
		map[string]string{"sessionId": l.native(), "configId": id, "value": value})
	return err
}

func (l *link) applyModel(ctx context.Context, want string) error {
	c, ok := l.choice(fold.CategoryModel)
	if !ok {
		return bridges.Errorf(bridges.KindModelUnavailable, "the agent offers no choice of models, and %q was asked for", want).
			WithNext("leave the model out, or choose it in the agent's own configuration")
	}
	value, ok := c.Find(want)
	if !ok {
		return bridges.Errorf(bridges.KindModelUnavailable, "the agent offers no model %q", want).
			WithNext("choose one of: %s", list(c.Offered()))
	}
	if err := l.set(ctx, fold.CategoryModel, c, value); err != nil {
		return settingError(err, bridges.KindModelUnavailable, "model", want, c)
	}
	return nil
}

func (l *link) applyEffort(ctx context.Context, want string) error {
	c, ok := l.choice(fold.CategoryEffort)
	if !ok {
		return bridges.Errorf(bridges.KindEffortUnsupported, "the agent offers no choice of effort with this model, and %q was asked for", want).
			WithNext("leave the effort out, or choose a model that has one")
	}
	value, ok := c.Find(want)
	if !ok {
		return bridges.Errorf(bridges.KindEffortUnsupported, "the agent offers no effort %q", want).
			WithNext("choose one of: %s", list(c.Offered()))
	}
	if err := l.set(ctx, fold.CategoryEffort, c, value); err != nil {
		return settingError(err, bridges.KindEffortUnsupported, "effort", want, c)
	}
	return nil
}

// settingError gives a refusal by the agent, or its staying with what it had, the
// kind that callers look for. A failure to talk to it keeps its own.
func settingError(err error, kind bridges.ErrorKind, what, want string, c choice) error {
	if needsLogin(err) || !errors.As(err, new(*jsonrpc.Error)) && !errors.Is(err, bridges.ErrAgentProtocol) {
		return agentError(err)
	}
	return bridges.Errorf(kind, "the agent did not take %s %q: %w", what, want, err).
		WithNext("choose one of: %s", list(c.Offered()))
}

// applyMode sets the agent's own mode. Where the kernel holds the limit this is
// comfort; where it does not, it is part of the hold and must work.
func (l *link) applyMode(ctx context.Context, st bridges.Settings) error {
	held := l.s.hold.Strength == bridges.HoldKernel
	full := st.Mode.String() == "full"
	mode := l.s.profile.mode(st.Mode, held)
	c, offered := l.choice(fold.CategoryMode)
	unable := func(what string, err error) error {
		return bridges.Errorf(bridges.KindSandboxUnavailable, "the agent's own mode %s: %w", what, err).
			WithNext("use a system where the kernel holds the mode, or mode full")
	}
	for _, name := range mode.Session {
		value, ok := c.Find(name)
		if !ok {
			continue
		}
		err := l.set(ctx, fold.CategoryMode, c, value)
		if err != nil && !full {
			return unable("could not be set", err)
		}
		if err != nil {
			return agentError(err)
		}
		c.Current, mode.Session = value, nil
		break
	}
	if !held && !full {
		if len(mode.Session) > 0 {
			return unable("could not be set", errors.New("none of "+strings.Join(mode.Session, ", ")+" is offered"))
		}
		if offered && (unattended.MatchString(c.Current) || unattended.MatchString(nameOf(c.Choice))) {
			return unable("approves by itself", errors.New(c.Current))
		}
	}
	ids := make([]string, 0, len(mode.Options))
	for id := range mode.Options {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	for _, id := range ids {
		if err := l.applyOption(ctx, id, mode.Options[id]); err != nil {
			return unable("could not be set ("+id+")", err)
		}
	}
	return nil
}

func nameOf(c fold.Choice) string {
	for _, v := range c.Values {
		if v.Value == c.Current {
			return v.Name
		}
	}
	return ""
}

// applyOption sets an option of the profile. One that is not offered is left out:
// what it switches is not there either.
func (l *link) applyOption(ctx context.Context, id, value string) error {
	current := func() (string, bool) {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		for _, o := range l.s.state.Config.Options {
			if o.ID == id {
				return o.Current, true
			}
		}
		return "", false
	}
	if have, ok := current(); !ok || have == value {
		return nil
	}
	if err := l.setOption(ctx, id, value); err != nil {
		return err
	}
	if have, _ := current(); have != value {
		return errors.New("it stays " + have)
	}
	return nil
}

// list shortens a list for a message.
func list(all []string) string {
	const most = 40
	if len(all) == 0 {
		return "(nothing is offered)"
	}
	if len(all) > most {
		return strings.Join(all[:most], ", ") + ", …"
	}
	return strings.Join(all, ", ")
}

// info is what is known of the session now.
func (s *session) info(warnings ...string) bridges.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := bridges.Info{NativeID: s.state.NativeID, AgentVersion: s.state.Agent.Version, Hold: s.hold, Warnings: warnings}
	c := &s.state.Config
	if o := c.Option(fold.CategoryModel); o != nil {
		i.Model, i.Models = o.Current, o.Offered()
	} else {
		i.Model, i.Models = c.Models.Current, c.Models.Offered()
	}
	if o := c.Option(fold.CategoryEffort); o != nil {
		i.Effort, i.Efforts = o.Current, o.Offered()
	}
	return i
}
