package demo

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// keepText is how many bytes of a task or an answer a session's record keeps.
const keepText = 16 << 10

// session is the durable record of one session.
type session struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Cwd     string    `json:"cwd"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	// Options holds the chosen value of each config option that is not at its default.
	Options map[string]string `json:"options,omitempty"`
	Turns   []turnRecord      `json:"turns,omitempty"`
}

// turnRecord is one turn. Stop is empty while it runs, and stays empty when the
// agent died in it.
type turnRecord struct {
	Task   string `json:"task"`
	Answer string `json:"answer,omitempty"`
	Stop   string `json:"stop,omitempty"`
}

// title is the beginning of the first task, on one line.
func (s *session) title() string {
	if len(s.Turns) == 0 {
		return ""
	}
	return firstWords(s.Turns[0].Task, 80)
}

// configOption is one selectable setting, as ACP shows it.
type configOption struct {
	ID           string        `json:"id"`
	Name         string        `json:"name"`
	Description  string        `json:"description,omitempty"`
	Category     string        `json:"category"`
	Type         string        `json:"type"`
	CurrentValue string        `json:"currentValue"`
	Options      []configValue `json:"options"`
}

type configValue struct {
	Value       string `json:"value"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// The ids and values that the agent itself looks at.
const (
	optModel   = "model"
	optMode    = "mode"
	optThought = "thought_level"

	modelEcho    = "demo-echo"
	modeReadonly = "readonly"
	thoughtLow   = "low"
)

// options is the complete list with the session's values; the first value of each
// is its default.
func (s *session) options() []configOption {
	list := []configOption{
		{ID: optModel, Name: "Model", Category: "model", Description: "How prose is answered; neither is a model",
			Options: []configValue{{"demo-map", "Map", "A map of the folder"}, {modelEcho, "Echo", "The task itself"}}},
		{ID: optMode, Name: "Mode", Category: "mode", Description: "What directives may do",
			Options: []configValue{{"default", "Default", "Asks before it writes or runs"}, {modeReadonly, "Read only", "Never writes, never runs"}}},
		{ID: optThought, Name: "Thoughts", Category: "thought_level", Description: "Whether thoughts are shown",
			Options: []configValue{{"high", "High", "Thoughts between the steps"}, {thoughtLow, "Low", "No thoughts while making a map"}}},
	}
	for i := range list {
		list[i].Type = "select"
		list[i].CurrentValue = cmp.Or(s.Options[list[i].ID], list[i].Options[0].Value)
	}
	return list
}

// option returns the value of one option.
func (s *session) option(id string) string {
	for _, o := range s.options() {
		if o.ID == id {
			return o.CurrentValue
		}
	}
	return ""
}

// set chooses a value; only values that are offered are taken.
func (s *session) set(id, value string) error {
	var ids []string
	for _, o := range s.options() {
		ids = append(ids, o.ID)
		if o.ID != id {
			continue
		}
		var offered []string
		for _, v := range o.Options {
			if v.Value == value {
				if s.Options == nil {
					s.Options = make(map[string]string)
				}
				s.Options[id] = value
				return nil
			}
			offered = append(offered, v.Value)
		}
		return errf(codeInvalidParams, "%s %q is not offered; choose one of %s", id, value, strings.Join(offered, ", "))
	}
	return errf(codeInvalidParams, "there is no config option %q; there are %s", id, strings.Join(ids, ", "))
}

// store keeps sessions as files. It may be used from several goroutines.
type store struct {
	dir string
	mu  sync.Mutex // one writer at a time
}

func newStore() (*store, error) {
	home := os.Getenv("SUBSPAN_DEMO_HOME")
	if home == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("no place for sessions: %w; set SUBSPAN_DEMO_HOME to a folder", err)
		}
		home = filepath.Join(user, ".local", "state", "subspan-demo")
	}
	return &store{dir: filepath.Join(home, "sessions")}, nil
}

// validID keeps ids from naming anything outside the folder.
var validID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

func notFound(id string) error {
	return &rpcError{Code: codeNotFound, Message: fmt.Sprintf("no session %q", id), Data: map[string]string{"sessionId": id}}
}

func (st *store) path(id string) string { return filepath.Join(st.dir, id+".json") }

// create makes and saves a session; from may be nil.
func (st *store) create(cwd string, from *session) (*session, error) {
	now := time.Now().UTC()
	s := &session{Version: 1, ID: "demo-" + strings.ToLower(rand.Text()), Cwd: cwd, Created: now, Updated: now}
	if from != nil {
		s.Options, s.Turns = from.Options, from.Turns
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return s, st.save(s)
}

// load reads a session; an unknown id is codeNotFound.
func (st *store) load(id string) (*session, error) {
	if !validID.MatchString(id) {
		return nil, notFound(id)
	}
	b, err := os.ReadFile(st.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notFound(id)
	}
	if err != nil {
		return nil, fmt.Errorf("reading session %s: %w", id, err)
	}
	s := new(session)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("session file %s is damaged and was left as it is: %w", st.path(id), err)
	}
	if s.Version != 1 {
		return nil, fmt.Errorf("session file %s has version %d; this program knows version 1", st.path(id), s.Version)
	}
	return s, nil
}

// update changes a session that exists.
func (st *store) update(id string, change func(*session) error) (*session, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	s, err := st.load(id)
	if err != nil {
		return nil, err
	}
	if err := change(s); err != nil {
		return nil, err
	}
	s.Updated = time.Now().UTC()
	return s, st.save(s)
}

// list returns the sessions of a folder, or of all folders, newest first. Files
// that cannot be read are in bad.
func (st *store) list(cwd string) (found []*session, bad []error, err error) {
	entries, err := os.ReadDir(st.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("listing sessions: %w", err)
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || !validID.MatchString(id) {
			continue
		}
		s, err := st.load(id)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		if cwd == "" || s.Cwd == cwd {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b *session) int {
		return cmp.Or(b.Updated.Compare(a.Updated), cmp.Compare(a.ID, b.ID))
	})
	return found, bad, nil
}

// remove forgets a session; one that is not there is as good as removed.
func (st *store) remove(id string) error {
	if !validID.MatchString(id) {
		return nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := os.Remove(st.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deleting session %s: %w", id, err)
	}
	return nil
}

// save writes a session so that a crash leaves the old record or the new one.
func (st *store) save(s *session) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("saving session %s: %w; SUBSPAN_DEMO_HOME names a folder for sessions", s.ID, err)
		}
	}()
	if err := os.MkdirAll(st.dir, 0o700); err != nil {
		return err
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(st.dir, ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // gone already when all went well
	_, err = tmp.Write(b)
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), st.path(s.ID))
	}
	return err
}

// cut shortens text to at most n bytes, on a character border, and says so.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + fmt.Sprintf("\n[cut: %d of %d bytes]", n, len(text))
}

// firstWords is the beginning of a text on one line.
func firstWords(text string, n int) string {
	var b strings.Builder
	for w := range strings.FieldsSeq(text) {
		if b.Len() > 0 && b.Len()+1+len(w) > n {
			return b.String() + " …"
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		if len(w) > n {
			return b.String() + strings.ToValidUTF8(w[:n], "") + "…"
		}
		b.WriteString(w)
	}
	return b.String()
}
