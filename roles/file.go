package roles

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/subspan-dev/subspan/core/ceiling"
	"github.com/subspan-dev/subspan/internal/strictjson"
)

// roleFile is the layout of a role file, and what role.schema.json is made from.
type roleFile struct {
	Schema          string       `json:"$schema,omitempty" jsonschema:"description=Where an editor finds this schema."`
	ID              string       `json:"id,omitempty" jsonschema:"description=The role's id. It is the file's name without .json\\, and is checked against it."`
	Description     string       `json:"description,omitempty" jsonschema:"description=When to use the role: one sentence for whoever chooses among roles."`
	Backend         string       `json:"backend,omitempty" jsonschema:"description=The agent to use. Leave it out to let the caller or the configuration choose."`
	PermissionMode  ceiling.Mode `json:"permissionMode,omitempty" jsonschema:"description=The most that the role asks for. Without it: readonly."`
	AllowDelegation bool         `json:"allowDelegation,omitempty" jsonschema:"description=Whether sessions in this role may start sessions of their own.,default=true"`
	Instructions    text         `json:"instructions,omitempty" jsonschema:"description=What the agent is told before its task."`
	Model           string       `json:"model,omitempty" jsonschema:"description=The model to ask the agent for."`
	Effort          string       `json:"effort,omitempty" jsonschema:"description=The reasoning effort to ask the agent for."`
	Overrides       overrides    `json:"overrides,omitempty" jsonschema:"description=What is different with one agent\\, by the agent's name."`
	Limits          fileLimits   `json:"limits,omitempty" jsonschema:"description=Bounds of the role's sessions\\, beside those of the configuration."`
}

type fileLimits struct {
	TurnTimeout strictjson.Duration `json:"turnTimeout,omitempty" jsonschema:"description=How long a turn may take."`
	IdleTimeout strictjson.Duration `json:"idleTimeout,omitempty" jsonschema:"description=How long the agent may be silent in a turn."`
	MaxDepth    int                 `json:"maxDepth,omitempty" jsonschema:"description=How deep sessions may start sessions.,minimum=1"`
	MaxChildren int                 `json:"maxChildren,omitempty" jsonschema:"description=How many sessions one session may have at work.,minimum=1"`
}

type fileOverride struct {
	Model        string `json:"model,omitempty" jsonschema:"description=In place of the role's model."`
	Effort       string `json:"effort,omitempty" jsonschema:"description=In place of the role's effort."`
	Instructions text   `json:"instructions,omitempty" jsonschema:"description=In place of the role's instructions."`
}

// text is a text in the file itself, or the name of a file beside it.
type text struct {
	inline string
	file   string
}

func (t *text) UnmarshalStrict(n strictjson.Node) {
	switch n.Kind() {
	case "string":
		n.Decode(&t.inline)
	case "object":
		var ref struct {
			File string `json:"file"`
		}
		switch ok := n.Decode(&ref); {
		case !ok:
		case ref.File == "":
			n.Reject(`must be a text, or {"file": "name"}`)
		case !fs.ValidPath(ref.File):
			n.Reject("file %q must be a path below the role file's folder, with slashes", ref.File)
		default:
			t.file = ref.File
		}
	default:
		n.Reject(`must be a text, or {"file": "name"}`)
	}
}

// read returns the text. Problems are with the key at path.
func (t text) read(fsys fs.FS, dir string, doc *strictjson.Document, path ...string) (string, *strictjson.Problem) {
	if t.file == "" {
		return t.inline, nil
	}
	shown := filepath.Join(dir, filepath.FromSlash(t.file))
	data, err := strictjson.ReadIn(fsys, t.file, shown)
	if err != nil {
		return "", doc.Problem(path, "%s %s", shown, unreadable(err))
	}
	s := strings.TrimPrefix(string(data), "\ufeff")
	switch {
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return "", doc.Problem(path, "%s is not UTF-8 text", shown)
	case strings.TrimSpace(s) == "":
		return "", doc.Problem(path, "%s is empty", shown)
	}
	return s, nil
}

// unreadable says why a file could not be read, without its name.
func unreadable(err error) string {
	var problems strictjson.Problems
	var pathErr *fs.PathError
	switch {
	case errors.As(err, &problems):
		return problems[0].Text
	case errors.Is(err, fs.ErrNotExist):
		return "does not exist"
	case !errors.As(err, &pathErr):
		return err.Error()
	case strings.Contains(pathErr.Err.Error(), "escapes"):
		// An os.Root has no error value for this.
		return "is a link that leads out of its folder"
	}
	return pathErr.Err.Error()
}

// parseRole reads the role file name of a layer. Dir is the layer's folder as
// people know it.
func parseRole(layer Layer, fsys fs.FS, dir, name string) (Role, error) {
	shown := filepath.Join(dir, name)
	id := strings.TrimSuffix(name, ".json")
	r := Role{ID: id, Layer: layer, Path: shown, sources: map[string]string{}}
	data, err := strictjson.ReadIn(fsys, name, shown)
	if err != nil {
		return Role{}, strictjson.Problems{{Pos: strictjson.Position{File: shown}, Text: unreadable(err)}}
	}
	f := roleFile{AllowDelegation: true}
	doc, err := strictjson.Decode(shown, data, &f)
	if doc == nil {
		return Role{}, err
	}
	var problems strictjson.Problems
	errors.As(err, &problems)
	problems = append(problems, f.fill(&r, doc, fsys, dir)...)
	problems.Sort()
	if len(problems) > 0 {
		return Role{}, problems
	}
	r.trace(doc)
	f.Overrides.native.apply(&r)
	if r.Backend == nativeBackend {
		r.Backend = ""
		r.note("backend", "native is the caller's own kind of agent; here the choice is left open")
	}
	return r, nil
}

// fill makes a role of the file and reports what is wrong beyond single values.
func (f *roleFile) fill(r *Role, doc *strictjson.Document, fsys fs.FS, dir string) (ps strictjson.Problems) {
	if doc.Has("id") && f.ID != r.ID {
		ps = append(ps, doc.Problem([]string{"id"}, "is %q, but the file's name says %q", f.ID, r.ID))
	}
	r.Description, r.Backend, r.Model, r.Effort = f.Description, f.Backend, f.Model, f.Effort
	r.Mode, r.AllowDelegation = f.PermissionMode, f.AllowDelegation
	r.Limits = Limits{
		TurnTimeout: time.Duration(f.Limits.TurnTimeout), IdleTimeout: time.Duration(f.Limits.IdleTimeout),
		MaxDepth: f.Limits.MaxDepth, MaxChildren: f.Limits.MaxChildren,
	}
	for _, l := range []struct {
		key string
		n   int
	}{{"maxDepth", f.Limits.MaxDepth}, {"maxChildren", f.Limits.MaxChildren}} {
		if doc.Has("limits", l.key) && l.n < 1 {
			ps = append(ps, doc.Problem([]string{"limits", l.key}, "must be at least 1; to forbid delegation, set allowDelegation to false"))
		}
	}
	read := func(t text, path ...string) string {
		s, p := t.read(fsys, dir, doc, path...)
		if p != nil {
			ps = append(ps, p)
		}
		return s
	}
	r.Instructions = read(f.Instructions, "instructions")
	for agent, o := range f.Overrides.agents {
		if r.Overrides == nil {
			r.Overrides = map[string]Override{}
		}
		r.Overrides[agent] = Override{
			Model: o.Model, Effort: o.Effort,
			Instructions: read(o.Instructions, "overrides", agent, "instructions"),
		}
	}
	return ps
}

// trace records where each value comes from.
func (r *Role) trace(doc *strictjson.Document) {
	paths := [][]string{
		{"description"}, {"backend"}, {"permissionMode"}, {"allowDelegation"}, {"instructions"}, {"model"}, {"effort"},
		{"limits", "turnTimeout"}, {"limits", "idleTimeout"}, {"limits", "maxDepth"}, {"limits", "maxChildren"},
	}
	for agent := range r.Overrides {
		for _, key := range []string{"model", "effort", "instructions"} {
			paths = append(paths, []string{"overrides", agent, key})
		}
	}
	for _, path := range paths {
		if doc.Has(path...) {
			r.sources[strings.Join(path, ".")] = fmt.Sprintf("%s: %s", r.Layer, doc.At(path...))
		}
	}
}
