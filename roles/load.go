package roles

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
	"github.com/subspan-dev/subspan/internal/strictjson"
)

//go:embed defaults/*.json
var defaults embed.FS

//go:embed role.schema.json
var schema []byte

// Schema returns the JSON Schema of role files.
func Schema() []byte { return slices.Clone(schema) }

// Sources are where roles come from, beside those built in.
type Sources struct {
	// User is the folder of the user's role files; empty for none.
	User string
	// Cwd is the folder that is worked in; empty for none. The project's role files
	// are in its .subspan/roles or, when there is none, in that of the top folder
	// of its git repository.
	Cwd string
	// ProjectMaximum is the most that a project's role gets. The zero value is
	// readonly.
	ProjectMaximum ceiling.Mode
}

// Problem is a role file that cannot be used.
type Problem struct {
	ID    string // what is unusable because of it; empty when the name is no id
	Layer Layer
	Path  string
	// Err has a line for each thing that is wrong: file, line, column, key.
	Err error
}

// Set is the roles that hold in one folder. It is read-only.
type Set struct {
	roles    map[string]Role  // by lower-case id
	broken   map[string]error // likewise; never in roles as well
	problems []Problem
}

// Load reads all roles. Bad files are not its error but in Problems. Its error is
// a folder that is there and cannot be read: nobody knows what it would forbid.
func Load(src Sources) (*Set, error) {
	s := &Set{roles: map[string]Role{}, broken: map[string]error{}}
	builtIn, err := fs.Sub(defaults, "defaults")
	if err != nil {
		return nil, fmt.Errorf("load roles: %w", err)
	}
	if err := s.add(Embedded, builtIn, "defaults", src.ProjectMaximum); err != nil {
		return nil, err
	}
	for _, l := range []struct {
		layer Layer
		dir   string
	}{{User, src.User}, {Project, projectDir(src.Cwd)}} {
		if err := s.addDir(l.layer, l.dir, src.ProjectMaximum); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// projectDir returns the folder of a project's role files, or "".
func projectDir(cwd string) string {
	if cwd == "" {
		return ""
	}
	in := func(dir string) string { return filepath.Join(dir, ".subspan", "roles") }
	if !missing(in(cwd)) {
		return in(cwd)
	}
	for dir := cwd; ; dir = filepath.Dir(dir) {
		if !missing(filepath.Join(dir, ".git")) {
			return in(dir)
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

// missing reports whether there is certainly nothing at path.
func missing(path string) bool {
	_, err := os.Lstat(path)
	return notThere(err)
}

func notThere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

func (s *Set) addDir(layer Layer, dir string, maximum ceiling.Mode) error {
	if dir == "" || missing(dir) {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err == nil {
		defer root.Close()
		err = s.add(layer, root.FS(), dir, maximum)
	}
	if err != nil {
		return bridges.Errorf(bridges.KindInvalidArgument, "load %s roles: %w", layer, err).
			WithNext("make %s a folder that you can read, or remove it", dir)
	}
	return nil
}

var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// add puts a layer over what is there.
func (s *Set) add(layer Layer, fsys fs.FS, dir string, maximum ceiling.Mode) error {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return err
	}
	names := map[string][]string{} // by lower-case id
	for _, e := range entries {
		name := e.Name()
		id, isRole := strings.CutSuffix(name, ".json")
		switch ext := strings.ToLower(filepath.Ext(name)); {
		case strings.HasPrefix(name, "."):
			// Left behind by editors.
		case !isRole && (ext == ".json" || ext == ".jsonc" || ext == ".json5"):
			// Its author believes in it, so it makes the id unusable too.
			s.breakID(layer, filepath.Join(dir, name), strings.TrimSuffix(name, filepath.Ext(name)), "a role file's name ends in .json")
		case !isRole:
		case !validID.MatchString(id):
			s.breakID(layer, filepath.Join(dir, name), "", "a role's id has letters, digits, dots, dashes and underscores, at most 64")
		default:
			names[strings.ToLower(id)] = append(names[strings.ToLower(id)], name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(names)) {
		files := names[key]
		if len(files) > 1 {
			for _, name := range files {
				s.breakID(layer, filepath.Join(dir, name), strings.TrimSuffix(name, ".json"),
					fmt.Sprintf("the same id in %s: keep one of them", strings.Join(files, " and ")))
			}
			continue
		}
		s.addFile(layer, fsys, dir, files[0], maximum)
	}
	return nil
}

func (s *Set) addFile(layer Layer, fsys fs.FS, dir, name string, maximum ceiling.Mode) {
	id := strings.TrimSuffix(name, ".json")
	key := strings.ToLower(id)
	r, err := parseRole(layer, fsys, dir, name)
	if err != nil {
		s.broke(Problem{ID: id, Layer: layer, Path: filepath.Join(dir, name), Err: err})
		return
	}
	if _, ok := s.broken[key]; ok {
		// What it replaces is unknown, so nobody can say that it is not wider; or
		// this layer has a second file for the id that is bad.
		return
	}
	if layer == Project {
		var replaced *Role
		if below, ok := s.roles[key]; ok {
			replaced = &below
		}
		r.narrow(maximum, replaced)
	}
	s.roles[key] = r
}

// breakID makes an id unusable for the sake of a file's name.
func (s *Set) breakID(layer Layer, path, id, why string) {
	s.broke(Problem{ID: id, Layer: layer, Path: path, Err: strictjson.Problems{{Pos: strictjson.Position{File: path}, Text: why}}})
}

func (s *Set) broke(p Problem) {
	s.problems = append(s.problems, p)
	if p.ID == "" {
		return
	}
	key := strings.ToLower(p.ID)
	delete(s.roles, key)
	s.broken[key] = errors.Join(s.broken[key], p.Err)
}

// Get returns the role of an id. It fails with KindUnknownRole when there is none,
// or when its file has problems, which are then in the error.
func (s *Set) Get(id string) (Role, error) {
	key := strings.ToLower(id)
	if err, ok := s.broken[key]; ok {
		return Role{}, bridges.Errorf(bridges.KindUnknownRole, "role %q cannot be used: %w", id, err).
			WithNext("correct the file; until then no role of this id is used")
	}
	if r, ok := s.roles[key]; ok && r.ID == id {
		return r, nil
	}
	var ids []string
	for _, r := range s.List() {
		ids = append(ids, r.ID)
	}
	e := bridges.Errorf(bridges.KindUnknownRole, "unknown role %q", id)
	if near := strictjson.Nearest(id, ids); near != "" {
		return Role{}, e.WithNext("did you mean %q? The roles are %s", near, strings.Join(ids, ", "))
	}
	return Role{}, e.WithNext("the roles are %s", strings.Join(ids, ", "))
}

// List returns the usable roles, sorted by id.
func (s *Set) List() []Role {
	return slices.SortedFunc(maps.Values(s.roles), func(a, b Role) int { return strings.Compare(a.ID, b.ID) })
}

// Problems returns the files that cannot be used, layer by layer.
func (s *Set) Problems() []Problem { return slices.Clone(s.problems) }
