package codex

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/bridges/codex/internal/fold"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

const (
	helloLimit  = 60 * time.Second  // for initialize and the small calls after it
	threadLimit = 120 * time.Second // for reading a long conversation back
)

var threadID = regexp.MustCompile(`^[0-9a-zA-Z-]{8,64}$`)

// session is an app-server that runs, or has run, for a session.
type session struct {
	id   string
	proc *agentproc.Proc
	fold *fold.State
	// torn is the name of a turn whose turn/start was being written when its writer
	// died: codex may have it or not.
	torn   string
	models []model
	// secrets is launch.secrets of its start; empty in a process that did not start it.
	secrets string
}

// attach finds the process of a folder and folds what was sent to it. What it sent
// is for the reader. It returns nil when there is none, or one whose start was cut
// short.
func (b *Bridge) attach(ctx context.Context, id, dir string) (*session, error) {
	r, err := b.run()
	if err != nil {
		return nil, err
	}
	p, err := r.Attach(ctx, dir)
	if errors.Is(err, agentproc.ErrNoProcess) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &session{id: id, proc: p}
	if err := s.load(ctx); err != nil {
		p.Release()
		return nil, err
	}
	if s.fold == nil {
		return nil, b.end(ctx, s, "its start was cut short")
	}
	return s, nil
}

func (s *session) load(ctx context.Context) error {
	c, ok, err := s.proc.Checkpointed()
	if err != nil || !ok {
		return err
	}
	if s.fold, err = fold.Load(c.Data); err != nil {
		return err
	}
	sent, err := s.proc.Sent(ctx)
	if err != nil {
		return err
	}
	for _, one := range sent {
		if one.Committed {
			s.fold.Sent(one.Frame)
			continue
		}
		for m := range jsonrpc.Messages(jsonrpc.Frame{Data: one.Frame}) {
			if m.Method == "turn/start" {
				s.torn = jsonrpc.GetString(m.Params, "clientUserMessageId")
			}
		}
	}
	return nil
}

// end ends a session's process and removes its folder.
func (b *Bridge) end(ctx context.Context, s *session, why string) error {
	_, err := s.proc.Stop(ctx, agentproc.StopOptions{Reason: why})
	s.proc.Release()
	if err != nil {
		return fmt.Errorf("ending codex: %w", err)
	}
	return agentproc.Remove(s.proc.Dir())
}

// start starts an app-server and shakes hands with it. Its output begins at offset.
func (b *Bridge) start(ctx context.Context, l *launch, id string, offset int64) (*session, error) {
	if l.noCreds != nil {
		return nil, l.noCreds
	}
	r, err := b.run()
	if err != nil {
		return nil, err
	}
	if l.limits.Sandbox == agentproc.SandboxOff { // else it comes with the sandbox
		if err := os.MkdirAll(l.temp(), 0o700); err != nil {
			return nil, fmt.Errorf("the session's folder: %w", err)
		}
	}
	p, err := r.Start(ctx, l.spec(id, offset))
	if err != nil {
		return nil, err
	}
	s := &session{id: id, proc: p, fold: fold.New(l.print(), l.creds.Stamp, offset), secrets: l.secrets()}
	if err := b.shakeHands(ctx, s); err != nil {
		return nil, errors.Join(err, b.end(context.WithoutCancel(ctx), s, "it did not start well"))
	}
	return s, nil
}

func (b *Bridge) shakeHands(ctx context.Context, s *session) error {
	if err := s.checkpoint(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, helloLimit)
	defer cancel()
	l := b.dial(s, nil, "", bridges.Position{})
	defer l.close()
	_, err := l.conn.Call(ctx, "initialize", map[string]any{
		"clientInfo":   map[string]any{"name": "subspan", "title": "subspan", "version": b.version},
		"capabilities": map[string]any{"experimentalApi": true}, // for backgroundTerminals/clean
	})
	if err == nil {
		err = l.conn.Notify(ctx, "initialized", nil)
	}
	if err != nil {
		return s.explain("initialize", err)
	}
	s.models = listModels(ctx, l)
	return nil
}

// explain says why a call failed, with codex's own last words when it has died of it.
func (s *session) explain(method string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return bridges.Errorf(bridges.KindTimeout, "codex does not answer %s: %w", method, err).WithNext("try again; look at its log in its home folder")
	}
	if !jsonrpc.IsEnd(err) && !errors.Is(err, io.EOF) {
		return fold.CallError(method, err)
	}
	<-s.proc.Exited()
	exit, _ := s.proc.Exit()
	return died(exit, s.proc.Stderr())
}

// died describes the end of a process nobody had asked to end.
func died(exit bridges.Exit, stderr string) *bridges.Error {
	how := fmt.Sprintf("with code %d", exit.Code)
	if exit.Signal != "" {
		how = "by a signal (" + exit.Signal + ")"
	}
	if exit.Ordered != "" {
		how += ", " + exit.Ordered
	}
	text := "codex ended " + how
	if last := strings.TrimSpace(stderr); last != "" {
		text += ": " + fold.Clip(last, fold.MaxNotice)
	}
	return bridges.Errorf(bridges.KindAgentFailed, "%s", text).WithNext("submit the next task to start it again")
}

// checkpoint stores the fold: nothing before it is needed any more.
func (s *session) checkpoint(ctx context.Context) error {
	seq := s.proc.SentSeq()
	data, err := json.Marshal(s.fold)
	if err != nil {
		return err
	}
	if err := s.proc.SaveCheckpoint(ctx, agentproc.Checkpoint{Data: data, OutOffset: s.fold.Next, Sent: seq}); err != nil {
		return fmt.Errorf("the session's journal: %w", err)
	}
	s.proc.Consumed(s.fold.Next)
	return nil
}

// catchUp folds what codex has written so far, without its events.
func (b *Bridge) catchUp(ctx context.Context, s *session) error {
	ctx, cancel := context.WithTimeout(ctx, helloLimit) // for the end of a half line
	defer cancel()
	r := s.proc.Reader(s.fold.Next)
	for {
		size, err := s.proc.Size()
		if err != nil || s.fold.Next >= size {
			return err
		}
		f, err := source{r}.ReadFrame(ctx, jsonrpc.DefaultMaxFrame)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for m := range jsonrpc.Messages(f) {
			s.fold.Received(&m, func(bridges.Event) {})
		}
		s.fold.Next = f.Offset + f.Size
	}
}

// model is one of codex's models.
type model struct {
	Name    string
	Hidden  bool
	Default string // effort
	Efforts []string
}

// listModels asks for the models. Without an answer nothing is known of them, which
// is no error: codex then passes on what it is told.
func listModels(ctx context.Context, l *link) []model {
	var models []model
	cursor := any(nil)
	for range 16 { // pages
		r, err := l.conn.Call(ctx, "model/list", map[string]any{"includeHidden": true, "cursor": cursor})
		if err != nil {
			return models
		}
		var page struct {
			Data []struct {
				Model   string `json:"model"`
				Hidden  bool   `json:"hidden"`
				Default string `json:"defaultReasoningEffort"`
				Efforts []struct {
					Effort string `json:"reasoningEffort"`
				} `json:"supportedReasoningEfforts"`
			} `json:"data"`
			Next *string `json:"nextCursor"`
		}
		if json.Unmarshal(r.Result, &page) != nil {
			return models
		}
		for _, d := range page.Data {
			m := model{Name: d.Model, Hidden: d.Hidden, Default: d.Default}
			for _, e := range d.Efforts {
				m.Efforts = append(m.Efforts, e.Effort)
			}
			models = append(models, m)
		}
		if page.Next == nil || *page.Next == "" {
			break
		}
		cursor = *page.Next
	}
	return models
}

// offered returns the names of the models that codex shows.
func offered(models []model) []string {
	var names []string
	for _, m := range models {
		if !m.Hidden {
			names = append(names, m.Name)
		}
	}
	return names
}

func find(models []model, name string) *model {
	i := slices.IndexFunc(models, func(m model) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &models[i]
}

// efforts that codex knows by name, for models that it does not list.
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"}

// choose returns the model and effort of the next turn, or why they cannot be had.
// Codex's list is the law for its own providers; of others it knows nothing, and
// what they do not have comes back from them as a failed turn.
func choose(s bridges.Settings, f *fold.State, models []model) (name, effort string, err error) {
	if name = s.Model; name == "" {
		name = f.Model
	}
	known := find(models, name)
	if known == nil && s.Model != "" && len(models) > 0 && (f.Provider == "openai" || f.Provider == keyProvider) {
		return "", "", bridges.Errorf(bridges.KindModelUnavailable, "codex has no model %q; it offers %s", name, strings.Join(offered(models), ", ")).
			WithNext("ask for one of these")
	}
	offers := efforts
	if known != nil && len(known.Efforts) > 0 {
		offers = known.Efforts
	}
	if s.Effort != "" && !slices.Contains(offers, s.Effort) {
		return "", "", bridges.Errorf(bridges.KindEffortUnsupported, "model %s has no effort %q; it offers %s", name, s.Effort, strings.Join(offers, ", ")).
			WithNext("ask for one of these")
	}
	switch {
	case s.Effort != "":
		effort = s.Effort
	case f.Default != "":
		effort = f.Default
	case known != nil:
		effort = known.Default
	case f.Effort != "":
		effort = "medium" // an earlier turn's would stick
	}
	return name, effort, nil
}

// record is what codex has on disk of a thread.
type record struct{ path string }

// recordOf finds a thread's record; ok is false when there is none. Archived ones are
// not found: they cannot be resumed.
func recordOf(home, thread string) (record, bool) {
	if !threadID.MatchString(thread) {
		return record{}, false
	}
	paths, err := filepath.Glob(filepath.Join(escapeGlob(home), "sessions", "*", "*", "*", "rollout-*-"+thread+".jsonl"))
	if err != nil || len(paths) == 0 {
		return record{}, false
	}
	return record{paths[0]}, true
}

func escapeGlob(path string) string {
	if os.PathSeparator == '\\' {
		return path // Windows has no escapes
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// holds reports whether the record has a turn, by the name that we gave it.
func (r record) holds(name string) (bool, error) {
	f, err := os.Open(r.path)
	if err != nil {
		return false, fmt.Errorf("codex's record of the session: %w", err)
	}
	defer f.Close()
	quoted, err := json.Marshal(name)
	if err != nil {
		return false, err
	}
	block := make([]byte, 256<<10)
	kept := 0 // of the block before, so that a name across the border is found
	for {
		n, err := f.Read(block[kept:])
		if bytes.Contains(block[:kept+n], quoted) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("codex's record of the session: %w", err)
		}
		have := kept + n
		kept = min(have, len(quoted)-1)
		copy(block, block[have-kept:have])
	}
}
