package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/core/ceiling"
)

type target struct {
	Schema  string            `json:"$schema"`
	Name    string            `json:"name"`
	Mode    ceiling.Mode      `json:"permissionMode"`
	On      bool              `json:"on"`
	Count   int               `json:"count"`
	Small   uint8             `json:"small"`
	Ratio   float64           `json:"ratio"`
	Words   []string          `json:"words"`
	Env     map[string]string `json:"env"`
	Options json.RawMessage   `json:"options"`
	Wait    Duration          `json:"wait"`
	Inner   *inner            `json:"inner"`
	Hidden  string            `json:"-"`
}

type inner struct {
	Depth int     `json:"depth"`
	More  []inner `json:"more"`
}

func TestDecode(t *testing.T) {
	text := "\ufeff// who\r\n{\r\n" +
		`"$schema": "x", "name": "é\n\u00e9", /* how */ "permissionMode": "full", "on": true, "count": -3, "small": 255,` + "\r\n" +
		`"ratio": 1.5e3, "words": ["a", "b",], "env": {"K": "v", "k": ""}, "options": {"a" : [1, /* c */ 2,],},` + "\r\n" +
		`"wait": "1m30s", "inner": {"depth": 1, "more": [{"depth": 2}]},` + "\r\n" +
		"} // end without a line end"
	var have target
	have.Hidden = "kept"
	doc, err := Decode("f.json", []byte(text), &have)
	if err != nil {
		t.Fatal(err)
	}
	want := target{
		Schema: "x", Name: "é\né", Mode: ceiling.Full, On: true, Count: -3, Small: 255, Ratio: 1500,
		Words: []string{"a", "b"}, Env: map[string]string{"K": "v", "k": ""}, Options: json.RawMessage(`{"a":[1,2]}`),
		Wait: Duration(90 * time.Second), Inner: &inner{Depth: 1, More: []inner{{Depth: 2}}}, Hidden: "kept",
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("decoded (-want +have):\n%s", diff)
	}
	for _, c := range []struct {
		path string
		has  bool
		at   string
	}{
		{"", true, "f.json:2:1"},
		{"name", true, "f.json:3:17"},
		{"permissionMode", true, "f.json:3:48"}, // columns are characters
		{"inner", true, "f.json:5:18"},
		{"inner/more", true, "f.json:5:40"},
		{"inner/more/0/depth", true, "f.json:5:50"},
		{"inner/more/1", false, "f.json:5:40"},
		{"inner/none/x", false, "f.json:5:18"},
		{"none", false, "f.json:2:1"},
	} {
		var path []string
		if c.path != "" {
			path = strings.Split(c.path, "/")
		}
		if at := doc.At(path...).String(); at != c.at || doc.Has(path...) != c.has {
			t.Errorf("%q: has %v at %s, want %v at %s", c.path, doc.Has(path...), at, c.has, c.at)
		}
	}
}

func TestAbsentKeysKeepTheirValue(t *testing.T) {
	have := target{Name: "default", Count: 7, Words: []string{"w"}}
	if _, err := Decode("f", []byte(`{"count": 0}`), &have); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(target{Name: "default", Words: []string{"w"}}, have); diff != "" {
		t.Errorf("(-want +have):\n%s", diff)
	}
}

func TestB67Problems(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"unknown key", `{"naem": "x"}`, []string{`f:1:2: key "naem": is not a key that is known here; did you mean "name"?`}},
		{"unknown key, nothing near", `{"zzzzzz": "x"}`, []string{`f:1:2: key "zzzzzz": is not a key that is known here`}},
		{"key in another case", `{"Name": "x"}`, []string{`f:1:2: key "Name": is not a key that is known here; did you mean "name"?`}},
		{"snake case", `{"permission_mode": "full"}`, []string{`f:1:2: key "permission_mode": is not a key that is known here; did you mean "permissionMode"?`}},
		{"field without a tag", `{"Hidden": ""}`, []string{`f:1:2: key "Hidden": is not a key that is known here`}},
		{"duplicate", "{\"count\": 1,\n \"count\": 2}", []string{`f:2:2: key "count": is given twice`}},
		{"duplicate by escape", `{"count": 1, "\u0063ount": 2}`, []string{`f:1:14: key "count": is given twice`}},
		{"duplicate in a map", `{"env": {"A": "1", "A": "2"}}`, []string{`f:1:20: key "env.A": is given twice`}},
		{"duplicate in raw", `{"options": {"l": [{"a": 1, "a": 1}]}}`, []string{`f:1:29: key "options.l.0.a": is given twice`}},
		{"null", `{"name": null}`, []string{`f:1:2: key "name": null is no value: leave the key out`}},
		{"mode in another case", `{"permissionMode": "Readonly"}`, []string{`f:1:2: key "permissionMode": unknown permission mode "Readonly": write one of readonly, default, full`}},
		{"mode with a space", `{"permissionMode": "full "}`, []string{`f:1:2: key "permissionMode": unknown permission mode "full ": write one of readonly, default, full`}},
		{"mode as a list", `{"permissionMode": ["full"]}`, []string{`f:1:2: key "permissionMode": must be a string, is a list`}},
		{"mode as a number", `{"permissionMode": 2}`, []string{`f:1:2: key "permissionMode": must be a string, is a number`}},
		{"mode as an object", `{"permissionMode": {}}`, []string{`f:1:2: key "permissionMode": must be a string, is an object`}},
		{"bool as a string", `{"on": "true"}`, []string{`f:1:2: key "on": must be a boolean, is a string`}},
		{"fraction", `{"count": 1.5}`, []string{`f:1:2: key "count": must be a whole number that fits, is 1.5`}},
		{"too large", `{"small": 256, "count": 9223372036854775808, "ratio": 1e999}`, []string{
			`f:1:2: key "small": must be a whole number that fits, is 256`,
			`f:1:16: key "count": must be a whole number that fits, is 9223372036854775808`,
			`f:1:46: key "ratio": the number is too large`,
		}},
		{"string as a list", `{"words": "a"}`, []string{`f:1:2: key "words": must be a list, is a string`}},
		{"in a list", `{"words": ["a", 1, null]}`, []string{
			`f:1:17: key "words.1": must be a string, is a number`,
			`f:1:20: key "words.2": null is no value: leave the key out`,
		}},
		{"zero character", `{"name": "a\u0000b"}`, []string{`f:1:2: key "name": must not contain the character \u0000`}},
		{"durations", `{"wait": "5"}`, []string{`f:1:2: key "wait": "5" is no duration: write it as "90s", "10m" or "1h30m"`}},
		{"durations, milliseconds", `{"wait": 600000}`, []string{`f:1:2: key "wait": 600000 seconds are more than a day; write the duration with its unit, such as "10m"`}},
		{"durations, negative", `{"wait": -1}`, []string{`f:1:2: key "wait": must not be negative`}},
		{"durations, negative text", `{"wait": "-1s"}`, []string{`f:1:2: key "wait": must not be negative`}},
		{"durations, list", `{"wait": []}`, []string{`f:1:2: key "wait": must be a duration such as "10m", or a number of seconds, is a list`}},
		{"several, in the file's order", "{\n\"inner\": {\"dept\": 1, \"depth\": \"x\"},\n\"naem\": 1,\n\"inner\": {}}", []string{
			`f:2:11: key "inner.dept": is not a key that is known here; did you mean "depth"?`,
			`f:2:22: key "inner.depth": must be a number, is a string`,
			`f:3:1: key "naem": is not a key that is known here; did you mean "name"?`,
			`f:4:1: key "inner": is given twice`,
		}},
		{"a list for the whole", `[]`, []string{`f:1:1: must be an object, is a list`}},
		{"empty", ``, []string{`f:1:1: the file ends too early (parsing value)`}},
		{"only a comment", "// x\n", []string{`f:2:1: the file ends too early (parsing value)`}},
		{"cut short", "{\n\"name\": \"x", []string{`f:2:11: the file ends too early (parsing string)`}},
		{"two values", `{} {}`, []string{`f:1:4: invalid character '{' after top-level value`}},
		{"missing comma", "{\"on\": true\n\"count\": 1}", []string{`f:2:1: invalid character '"' after object value (expecting ',' or '}')`}},
		{"single quotes", `{'name': 1}`, []string{`f:1:2: invalid character '\'' at start of value`}},
		{"literal in another case", `{"on": True}`, []string{`f:1:8: invalid literal: True`}},
		{"not UTF-8", "{\"name\":\n \"\xff\"}", []string{`f:2:3: is not UTF-8 here; save the file as UTF-8`}},
		{"latin 1 in a comment", "{} // \xe9", []string{`f:1:7: is not UTF-8 here; save the file as UTF-8`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var into target
			_, err := Decode("f", []byte(c.text), &into)
			var ps Problems
			if !errors.As(err, &ps) {
				t.Fatalf("error %v of type %T", err, err)
			}
			var have []string
			for _, p := range ps {
				have = append(have, p.Error())
			}
			if diff := cmp.Diff(c.want, have); diff != "" {
				t.Errorf("problems (-want +have):\n%s", diff)
			}
		})
	}
}

func TestB67OtherEncodings(t *testing.T) {
	const text = `{"name": "x"}`
	encode := func(mark bool, wide int, little bool) []byte {
		units := utf16.Encode([]rune(text))
		if mark {
			units = append([]uint16{0xfeff}, units...)
		}
		var out []byte
		for _, u := range units {
			b := make([]byte, wide)
			if little {
				b[0], b[1] = byte(u), byte(u>>8)
			} else {
				b[wide-1], b[wide-2] = byte(u), byte(u>>8)
			}
			out = append(out, b...)
		}
		return out
	}
	for _, mark := range []bool{true, false} {
		for _, little := range []bool{true, false} {
			for wide, name := range map[int]string{2: "UTF-16", 4: "UTF-32"} {
				_, err := Decode("f", encode(mark, wide, little), &target{})
				if want := "f:1:1: the file is " + name + "; save it as UTF-8"; err == nil || err.Error() != want {
					t.Errorf("%s, mark %v, little %v: %v", name, mark, little, err)
				}
			}
		}
	}
}

func TestDepth(t *testing.T) {
	nest := func(n int) []byte {
		return []byte(`{"options": ` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + "}")
	}
	if _, err := Decode("f", nest(MaxDepth), &target{}); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	_, err := Decode("f", nest(MaxDepth+1), &target{})
	if want := "f:1:76: is nested more than 64 levels deep"; err == nil || err.Error() != want {
		t.Errorf("over the limit: %v", err)
	}
	// Braces in texts and comments are none.
	deep := strings.Repeat("[{", 100)
	text := fmt.Sprintf("{\"name\": \"\\\"%s\" /* %s */ } // %s", deep, deep, deep)
	if _, err := Decode("f", []byte(text), &target{}); err != nil {
		t.Errorf("not nested: %v", err)
	}
	if _, err := Decode("f", []byte(strings.Repeat("[", 1<<20)), &target{}); err == nil {
		t.Error("a megabyte of brackets is accepted")
	}
}

func TestManyProblemsAreCounted(t *testing.T) {
	var b strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&b, `"%d":1,`, i)
	}
	_, err := Decode("f", []byte("{"+b.String()+"}"), &target{})
	var ps Problems
	if !errors.As(err, &ps) || len(ps) != maxProblems+1 || ps[maxProblems].Error() != "f: has 19900 more problems" {
		t.Fatalf("%d problems, last %v", len(ps), ps[len(ps)-1])
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, size := range map[string]int64{"limit": MaxBytes, "over": MaxBytes + 1, "huge": 10 << 40} {
		f, err := os.Create(path(name))
		if err != nil {
			t.Fatal(err)
		}
		// Sparse: the largest would not fit into memory, were it read.
		if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
			t.Skipf("no sparse files here: %v", err)
		}
	}
	if err := os.Symlink(path("limit"), path("link")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"limit": "", "link": "", "over": "is larger than 1024 KiB", "huge": "is larger than 1024 KiB", ".": "is a folder, not a file",
	} {
		for _, read := range []func() ([]byte, error){
			func() ([]byte, error) { return ReadFile(path(name)) },
			func() ([]byte, error) { return ReadIn(os.DirFS(dir), name, path(name)) },
		} {
			data, err := read()
			if want == "" {
				if err != nil || len(data) != MaxBytes {
					t.Errorf("%s: %d bytes, %v", name, len(data), err)
				}
			} else if err == nil || err.Error() != path(name)+": "+want {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := ReadFile(path("none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

func TestNearest(t *testing.T) {
	valid := []string{"description", "backend", "permissionMode", "model", "id", "limits"}
	for have, want := range map[string]string{
		"desciption": "description", "Backend": "backend", "PERMISSIONMODE": "permissionMode", "mdoel": "model",
		"modle": "model", "limit": "limits", "permission": "", "x": "", "": "", "di": "id", "identity": "", "permision-mode": "permissionMode",
	} {
		if got := Nearest(have, valid); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", have, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name": "x", "inner": {"more": [{"depth": 1}]}, "options": {"a": [null]}} // c`))
	f.Add([]byte("\ufeff{\"wait\": 1.5, \"permissionMode\": \"full\", \"env\": {\"a\": \"b\",},}"))
	f.Add([]byte(`{"a": 1, "a": {"b": null}, "$schema": "\ud800"}`))
	f.Add([]byte("\xff\xfe{\x00}\x00"))
	f.Add([]byte(`/*`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var into target
		doc, err := Decode("f", data, &into)
		if err == nil {
			// What is good as a whole is good as a part, where any JSON may stand.
			part := fmt.Appendf(nil, "{\"options\": %s\n}", doc.data)
			_, err := Decode("f", part, &into)
			if err != nil && len(part) <= MaxBytes && !strings.Contains(err.Error(), "levels deep") {
				t.Fatalf("good alone, bad inside: %v", err)
			}
			if !json.Valid(into.Options) {
				t.Fatalf("made into %s", into.Options)
			}
			return
		}
		var ps Problems
		if !errors.As(err, &ps) || len(ps) == 0 {
			t.Fatalf("error %v of type %T", err, err)
		}
		for _, p := range ps {
			if p.Text == "" || strings.Contains(p.Text, "\n") || p.Pos.Line < 0 {
				t.Fatalf("problem %#v", p)
			}
		}
	})
}
