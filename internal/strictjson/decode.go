package strictjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"
)

// Document is a file that was parsed. It is read-only.
type Document struct {
	file string
	data []byte // without the byte order mark
	root hujson.Value
}

// Decode parses data and fills the struct that into points to. All that is wrong
// is in the error, which is of type Problems; into is then filled in part. The
// Document is nil when the file could not be parsed at all.
//
// Struct fields may be strings, booleans, numbers, structs, slices, maps with
// string keys, pointers, json.RawMessage, and types with UnmarshalStrict or
// UnmarshalText; the latter get strings alone. Other types panic.
func Decode(file string, data []byte, into any) (*Document, error) {
	doc, problem := parse(file, data)
	if problem != nil {
		return nil, Problems{problem}
	}
	d := &decoder{doc: doc}
	d.duplicates(&doc.root, nil)
	d.value(Node{d: d, v: &doc.root, at: doc.root.StartOffset}, reflect.ValueOf(into).Elem())
	if len(d.problems) == 0 {
		return doc, nil
	}
	slices.SortStableFunc(d.problems, func(a, b located) int { return a.offset - b.offset })
	var ps Problems
	for _, p := range d.problems[:min(len(d.problems), maxProblems)] {
		p.problem.Pos = doc.position(p.offset)
		p.problem.Nearest = Nearest(p.have, p.valid)
		ps = append(ps, p.problem)
	}
	if more := len(d.problems) - len(ps); more > 0 {
		ps = append(ps, &Problem{Pos: Position{File: file}, Text: fmt.Sprintf("has %d more problems", more)})
	}
	return doc, ps
}

// Unmarshaler is a type with rules of its own, such as one that may be written in
// two forms. It reports what is wrong through the Node.
type Unmarshaler interface{ UnmarshalStrict(Node) }

// maxProblems is how many are told: a file with more is not what it was meant to be.
const maxProblems = 100

// located is a problem whose Pos and Nearest are still to be set, which is only
// done for those that are told.
type located struct {
	offset  int
	problem *Problem
	have    string
	valid   []string
}

type decoder struct {
	doc      *Document
	problems []located
}

// Node is a value in a document, while it is being decoded.
type Node struct {
	d    *decoder
	v    *hujson.Value
	path []string
	at   int // where problems with it are reported: its key, if it has one
}

// Kind is one of string, number, boolean, object, list, null.
func (n Node) Kind() string {
	switch n.v.Value.Kind() {
	case '"':
		return "string"
	case '0':
		return "number"
	case 't', 'f':
		return "boolean"
	case '{':
		return "object"
	case '[':
		return "list"
	}
	return "null"
}

// Reject reports a problem with the value.
func (n Node) Reject(format string, args ...any) {
	n.d.problems = append(n.d.problems, located{offset: n.at, problem: &Problem{
		Key: strings.Join(n.path, "."), Text: fmt.Sprintf(format, args...),
	}})
}

// Decode fills what into points to by the usual rules, and reports whether the
// value was good.
func (n Node) Decode(into any) bool {
	before := len(n.d.problems)
	n.d.value(n, reflect.ValueOf(into).Elem())
	return len(n.d.problems) == before
}

// Members returns the members of an object in their order; none for other kinds.
func (n Node) Members() []Member {
	obj, ok := n.v.Value.(*hujson.Object)
	if !ok {
		return nil
	}
	members := make([]Member, len(obj.Members))
	for i := range obj.Members {
		m := &obj.Members[i]
		name := m.Name.Value.(hujson.Literal).String()
		members[i] = Member{name, Node{n.d, &m.Value, append(slices.Clip(n.path), name), m.Name.StartOffset}}
	}
	return members
}

// Member is one key of an object with its value.
type Member struct {
	Name  string
	Value Node
}

// duplicates reports every key that an object has twice, at any depth.
func (d *decoder) duplicates(v *hujson.Value, path []string) {
	n := Node{d: d, v: v, path: path}
	seen := map[string]bool{}
	for _, m := range n.Members() {
		if seen[m.Name] {
			m.Value.Reject("is given twice")
		}
		seen[m.Name] = true
		d.duplicates(m.Value.v, m.Value.path)
	}
	if arr, ok := v.Value.(*hujson.Array); ok {
		for i := range arr.Elements {
			d.duplicates(&arr.Elements[i], append(slices.Clip(path), strconv.Itoa(i)))
		}
	}
}

var rawMessage = reflect.TypeFor[json.RawMessage]()

func (d *decoder) value(n Node, to reflect.Value) {
	if n.Kind() == "null" {
		n.Reject("null is no value: leave the key out")
		return
	}
	if to.Kind() == reflect.Pointer {
		if to.IsNil() {
			to.Set(reflect.New(to.Type().Elem()))
		}
		d.value(n, to.Elem())
		return
	}
	switch custom := to.Addr().Interface().(type) {
	case Unmarshaler:
		custom.UnmarshalStrict(n)
		return
	case encoding.TextUnmarshaler:
		var text string
		if n.Decode(&text) {
			if err := custom.UnmarshalText([]byte(text)); err != nil {
				n.Reject("%s", err)
			}
		}
		return
	}
	if to.Type() == rawMessage {
		plain := n.v.Clone()
		plain.Minimize()
		to.SetBytes(bytes.TrimSpace(plain.Pack()))
		return
	}
	switch to.Kind() {
	case reflect.Struct:
		if n.wants("object") {
			d.object(n, to)
		}
	case reflect.Map:
		if n.wants("object") {
			d.entries(n, to)
		}
	case reflect.Slice:
		if n.wants("list") {
			d.list(n, to)
		}
	case reflect.String:
		if n.wants("string") {
			text := n.v.Value.(hujson.Literal).String()
			if strings.ContainsRune(text, 0) {
				n.Reject("must not contain the character \\u0000")
			}
			to.SetString(text)
		}
	case reflect.Bool:
		if n.wants("boolean") {
			to.SetBool(n.v.Value.(hujson.Literal).Bool())
		}
	default:
		if n.wants("number") {
			d.number(n, to)
		}
	}
}

// wants reports whether the value is of a kind, and rejects it when not.
func (n Node) wants(kind string) bool {
	if have := n.Kind(); have != kind {
		n.Reject("must be %s, is %s", article(kind), article(have))
		return false
	}
	return true
}

func article(kind string) string {
	if kind == "object" {
		return "an object"
	}
	return "a " + kind
}

func (d *decoder) number(n Node, to reflect.Value) {
	text := string(n.v.Value.(hujson.Literal))
	switch {
	case to.CanInt():
		if i, err := strconv.ParseInt(text, 10, to.Type().Bits()); err == nil {
			to.SetInt(i)
			return
		}
	case to.CanUint():
		if u, err := strconv.ParseUint(text, 10, to.Type().Bits()); err == nil {
			to.SetUint(u)
			return
		}
	case to.CanFloat():
		if f, err := strconv.ParseFloat(text, to.Type().Bits()); err == nil {
			to.SetFloat(f)
		} else {
			n.Reject("the number is too large")
		}
		return
	default:
		panic("strictjson: cannot decode into " + to.Type().String())
	}
	n.Reject("must be a whole number that fits, is %s", text)
}

func (d *decoder) object(n Node, to reflect.Value) {
	fields := map[string]reflect.Value{}
	var names []string
	for _, f := range reflect.VisibleFields(to.Type()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = to.FieldByIndex(f.Index)
			names = append(names, name)
		}
	}
	for _, m := range n.Members() {
		field, ok := fields[m.Name]
		if !ok {
			m.Value.Reject("is not a key that is known here")
			last := &d.problems[len(d.problems)-1]
			last.have, last.valid = m.Name, names
			continue
		}
		d.value(m.Value, field)
	}
}

func (d *decoder) entries(n Node, to reflect.Value) {
	to.Set(reflect.MakeMap(to.Type()))
	for _, m := range n.Members() {
		v := reflect.New(to.Type().Elem()).Elem()
		d.value(m.Value, v)
		to.SetMapIndex(reflect.ValueOf(m.Name).Convert(to.Type().Key()), v)
	}
}

func (d *decoder) list(n Node, to reflect.Value) {
	elems := n.v.Value.(*hujson.Array).Elements
	to.Set(reflect.MakeSlice(to.Type(), len(elems), len(elems)))
	for i := range elems {
		d.value(Node{d, &elems[i], append(slices.Clip(n.path), strconv.Itoa(i)), elems[i].StartOffset}, to.Index(i))
	}
}

// Has reports whether the file has the key of this path.
func (doc *Document) Has(path ...string) bool {
	_, found := doc.find(path)
	return found
}

// At returns where the key of this path is, or else the innermost object around
// where it would be.
func (doc *Document) At(path ...string) Position {
	at, _ := doc.find(path)
	return doc.position(at)
}

// Problem makes a problem with the key of a path.
func (doc *Document) Problem(path []string, format string, args ...any) *Problem {
	return &Problem{Pos: doc.At(path...), Key: strings.Join(path, "."), Text: fmt.Sprintf(format, args...)}
}

func (doc *Document) find(path []string) (at int, found bool) {
	n := Node{v: &doc.root, at: doc.root.StartOffset}
step:
	for _, name := range path {
		for _, m := range n.Members() {
			if m.Name == name {
				n = m.Value
				continue step
			}
		}
		if arr, ok := n.v.Value.(*hujson.Array); ok {
			if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(arr.Elements) {
				n = Node{v: &arr.Elements[i], at: arr.Elements[i].StartOffset}
				continue
			}
		}
		return n.at, false
	}
	return n.at, true
}

func (doc *Document) position(offset int) Position {
	before := doc.data[:min(offset, len(doc.data))]
	line := bytes.LastIndexByte(before, '\n') + 1
	return Position{File: doc.file, Line: 1 + bytes.Count(before, []byte("\n")), Col: 1 + utf8.RuneCount(before[line:])}
}
