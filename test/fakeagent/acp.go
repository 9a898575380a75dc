package fakeagent

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// acp is the default behaviour of the dialect "acp": an agent that does as it should.
type acp struct {
	f *fake

	mu       sync.Mutex // guards what follows
	sessions map[string]*session
	latest   string // session created, loaded or prompted last
}

// session is one conversation, as the store has it.
type session struct {
	ID      string            `json:"id"`
	Cwd     string            `json:"cwd"`
	Options map[string]string `json:"options"`
	Turns   []string          `json:"turns"` // the tasks
}

// choices are the config options that the fake offers; the first is the default.
var choices = []struct {
	id, category string
	values       []string
}{
	{"model", "model", []string{"fake-small", "fake-large"}},
	{"effort", "thought_level", []string{"medium", "low", "high"}},
	{"mode", "mode", []string{"default", "plan", "yolo"}},
}

func newACP(f *fake) *acp { return &acp{f: f, sessions: make(map[string]*session)} }

// note keeps the books on an incoming message, whatever rule it then falls under.
func (a *acp) note(w *work) error {
	var p struct {
		SessionID string
		Prompt    []struct{ Text, URI string }
	}
	if json.Unmarshal(w.msg.Params, &p) != nil {
		return nil // the rule may like it
	}
	w.session = p.SessionID
	if w.name != "session/prompt" {
		return nil
	}
	var parts []string
	for _, b := range p.Prompt {
		parts = append(parts, b.Text+b.URI)
	}
	w.text = strings.Join(parts, "\n")
	a.f.mu.Lock()
	a.f.open[w] = true
	a.f.mu.Unlock()

	a.mu.Lock()
	defer a.mu.Unlock()
	r := Record{Event: "prompt", Session: p.SessionID, Text: w.text}
	if s := a.sessions[p.SessionID]; s != nil {
		a.latest = s.ID
		s.Turns = append(s.Turns, w.text)
		r.Turn, r.Options = len(s.Turns), maps.Clone(s.Options)
		if err := a.save(s); err != nil {
			return err
		}
	}
	return a.f.journal.add(r)
}

// sessionOf is the session that a message is about, or else the latest.
func (f *fake) sessionOf(w *work) string {
	if w.session != "" {
		return w.session
	}
	f.acp.mu.Lock()
	defer f.acp.mu.Unlock()
	return f.acp.latest
}

// answered takes a prompt off the list of open ones.
func (f *fake) answered(w *work) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for open := range f.open {
		if string(open.id) == string(w.id) {
			delete(f.open, open)
		}
	}
}

// afterwards sees to a prompt whose steps are done: while it is not answered, a
// cancel answers it.
func (a *acp) afterwards(w *work) error {
	a.f.mu.Lock()
	open := a.f.open[w]
	a.f.mu.Unlock()
	if !open {
		return nil
	}
	<-w.ctx.Done() // or the end of the process
	return a.f.answer(w, "result", mustJSON(map[string]string{"stopReason": "cancelled"}))
}

// handle does what an agent should about a message.
func (a *acp) handle(w *work) error {
	if len(w.id) == 0 {
		if w.name == "session/cancel" {
			a.cancel(w.session)
		}
		return nil
	}
	var result any = struct{}{}
	var err error
	switch w.name {
	case "initialize":
		result = initialized()
	case "session/new", "session/fork":
		result, err = a.create(w)
	case "session/load", "session/resume":
		result, err = a.attach(w)
	case "session/set_config_option", "session/set_mode":
		result, err = a.configure(w)
	case "session/list":
		result, err = a.list()
	case "session/close", "session/delete":
		a.cancel(w.session)
		err = a.drop(w)
	case "session/prompt":
		return a.prompt(w)
	default:
		err = &rpcError{-32601, "method not found: " + w.name}
	}
	var re *rpcError
	if errors.As(err, &re) {
		return a.f.answer(w, "error", mustJSON(map[string]any{"code": re.code, "message": re.text}))
	}
	if err != nil {
		return err
	}
	return a.f.answer(w, "result", mustJSON(result))
}

type rpcError struct {
	code int
	text string
}

func (e *rpcError) Error() string { return e.text }

func initialized() any {
	yes := struct{}{}
	return map[string]any{
		"protocolVersion": 1,
		"agentInfo":       map[string]string{"name": "fakeagent", "version": "1"},
		"authMethods":     []any{},
		"agentCapabilities": map[string]any{
			"loadSession":         true,
			"promptCapabilities":  map[string]bool{},
			"mcpCapabilities":     map[string]bool{},
			"sessionCapabilities": map[string]any{"list": yes, "resume": yes, "fork": yes, "close": yes, "delete": yes},
		},
	}
}

// cancel ends the steps of a session's prompts that are not answered yet.
func (a *acp) cancel(id string) {
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	for w := range a.f.open {
		if w.session == id {
			w.cancel()
		}
	}
}

func (a *acp) prompt(w *work) error {
	a.mu.Lock()
	s := a.sessions[w.session]
	turn := 0
	if s != nil {
		turn = len(s.Turns)
	}
	a.mu.Unlock()
	if s == nil {
		return a.f.answer(w, "error", mustJSON(map[string]any{"code": -32002, "message": "unknown session " + w.session}))
	}
	if err := a.f.update(w, chunk("agent_message_chunk", answerTo(turn, w.text))); err != nil {
		return err
	}
	return a.f.answer(w, "result", mustJSON(map[string]any{
		"stopReason": "end_turn",
		"usage":      map[string]int{"inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
	}))
}

func answerTo(turn int, task string) string { return fmt.Sprintf("fake answer %d to: %s", turn, task) }

func chunk(kind, text string) any {
	return map[string]any{"sessionUpdate": kind, "content": map[string]string{"type": "text", "text": text}}
}

func (a *acp) create(w *work) (any, error) {
	var p struct{ Cwd string }
	if err := json.Unmarshal(w.msg.Params, &p); err != nil || !filepath.IsAbs(p.Cwd) {
		return nil, &rpcError{-32602, "cwd is not an absolute path"}
	}
	s := &session{ID: "fake-" + strings.ToLower(rand.Text()), Cwd: p.Cwd, Options: make(map[string]string)}
	for _, c := range choices {
		s.Options[c.id] = c.values[0]
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.name == "session/fork" {
		from, err := a.find(w.session)
		if err != nil {
			return nil, err
		}
		s.Options, s.Turns = maps.Clone(from.Options), slices.Clone(from.Turns)
	}
	a.sessions[s.ID], a.latest = s, s.ID
	w.session = s.ID
	return map[string]any{"sessionId": s.ID, "configOptions": s.shown()}, a.save(s)
}

// attach finds a session again, after a load with its history.
func (a *acp) attach(w *work) (any, error) {
	a.mu.Lock()
	s, err := a.find(w.session)
	if err != nil {
		a.mu.Unlock()
		return nil, err
	}
	a.latest = s.ID
	turns, shown := slices.Clone(s.Turns), s.shown()
	a.mu.Unlock()
	if w.name == "session/load" {
		for i, task := range turns {
			for _, u := range []any{
				chunk("user_message_chunk", task),
				chunk("agent_message_chunk", answerTo(i+1, task)),
			} {
				if err := a.f.update(w, u); err != nil {
					return nil, err
				}
			}
		}
	}
	return map[string]any{"configOptions": shown}, nil
}

// find looks for a session in memory and in the store. The lock is held.
func (a *acp) find(id string) (*session, error) {
	if s := a.sessions[id]; s != nil {
		return s, nil
	}
	unknown := &rpcError{-32002, "unknown session " + id}
	if a.f.script.Store == "" || id != filepath.Base(id) {
		return nil, unknown
	}
	b, err := os.ReadFile(filepath.Join(a.f.script.Store, id+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, unknown
	}
	s := new(session)
	if err == nil {
		err = json.Unmarshal(b, s)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the store: %w", err)
	}
	a.sessions[id] = s
	return s, nil
}

// save keeps a session. The lock is held.
func (a *acp) save(s *session) error {
	if a.f.script.Store == "" || a.f.script.KeepPrompted && len(s.Turns) == 0 {
		return nil
	}
	if err := os.MkdirAll(a.f.script.Store, 0o700); err != nil {
		return fmt.Errorf("writing the store: %w", err)
	}
	if err := os.WriteFile(filepath.Join(a.f.script.Store, s.ID+".json"), mustJSON(s), 0o600); err != nil {
		return fmt.Errorf("writing the store: %w", err)
	}
	return nil
}

func (a *acp) drop(w *work) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.sessions, w.session)
	if w.name == "session/delete" && a.f.script.Store != "" && w.session == filepath.Base(w.session) {
		err := os.Remove(filepath.Join(a.f.script.Store, w.session+".json"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("deleting from the store: %w", err)
		}
	}
	return nil
}

func (a *acp) configure(w *work) (any, error) {
	var p struct{ ConfigID, Value, ModeID string }
	if err := json.Unmarshal(w.msg.Params, &p); err != nil {
		return nil, &rpcError{-32602, err.Error()}
	}
	if w.name == "session/set_mode" {
		p.ConfigID, p.Value = "mode", p.ModeID
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.find(w.session)
	if err != nil {
		return nil, err
	}
	for _, c := range choices {
		if c.id == p.ConfigID && slices.Contains(c.values, p.Value) {
			s.Options[p.ConfigID] = p.Value
			return map[string]any{"configOptions": s.shown()}, a.save(s)
		}
	}
	return nil, &rpcError{-32602, fmt.Sprintf("option %q has no value %q", p.ConfigID, p.Value)}
}

func (a *acp) list() (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	files, err := filepath.Glob(filepath.Join(a.f.script.Store, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("reading the store: %w", err)
	}
	for _, file := range files {
		if a.f.script.Store == "" {
			break
		}
		if _, err := a.find(strings.TrimSuffix(filepath.Base(file), ".json")); err != nil {
			return nil, err
		}
	}
	list := []any{}
	for _, id := range slices.Sorted(maps.Keys(a.sessions)) {
		list = append(list, map[string]string{"sessionId": id, "cwd": a.sessions[id].Cwd})
	}
	return map[string]any{"sessions": list}, nil
}

// shown is the list of config options with the session's values.
func (s *session) shown() []any {
	var out []any
	for _, c := range choices {
		var values []map[string]string
		for _, v := range c.values {
			values = append(values, map[string]string{"value": v, "name": v})
		}
		out = append(out, map[string]any{
			"id": c.id, "name": c.id, "category": c.category, "type": "select",
			"currentValue": s.Options[c.id], "options": values,
		})
	}
	return out
}
