package roles

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"

	"github.com/subspan-dev/subspan/core/ceiling"
	"github.com/subspan-dev/subspan/internal/strictjson"
)

//go:generate go test -run TestSchemaIsCurrent -update .

var update = flag.Bool("update", false, "write role.schema.json anew")

// generate makes the schema of role files. It lives in the test, so that programs
// carry the schema and not its generator.
func generate() ([]byte, error) {
	file := jsonschema.NewProperties()
	file.Set("file", &jsonschema.Schema{Type: "string", Description: "A text file below the role file's folder."})
	textSchema := &jsonschema.Schema{OneOf: []*jsonschema.Schema{
		{Type: "string"},
		{
			Type: "object", Required: []string{"file"}, AdditionalProperties: jsonschema.FalseSchema,
			Properties: file,
		},
	}}
	r := &jsonschema.Reflector{Anonymous: true, DoNotReference: true}
	r.Mapper = func(t reflect.Type) *jsonschema.Schema {
		switch t {
		case reflect.TypeFor[ceiling.Mode]():
			s := &jsonschema.Schema{Type: "string"}
			for _, m := range ceiling.Modes() {
				s.Enum = append(s.Enum, m.String())
			}
			return s
		case reflect.TypeFor[strictjson.Duration]():
			return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
				{Type: "string", Description: "A duration with its unit, such as 90s, 10m or 1h30m."},
				{Type: "number", Description: "Seconds.", Minimum: json.Number("0"), Maximum: json.Number("86400")},
			}}
		case reflect.TypeFor[text]():
			c := *textSchema
			return &c
		case reflect.TypeFor[overrides]():
			override := r.Reflect(fileOverride{})
			override.Version = ""
			native := map[string]*jsonschema.Schema{
				"agentOptions": {Type: "object"},
				"persona":      {Type: "string"},
				"toolFilter":   {Type: "object"},
				"maxDepth":     {Type: "integer", Minimum: json.Number("1")},
			}
			s := &jsonschema.Schema{Type: "object", AdditionalProperties: override, Properties: jsonschema.NewProperties()}
			for _, name := range []string{"agentOptions", "persona", "toolFilter", "maxDepth"} {
				native[name].Description = "Of role files for native agents; see the documentation of package roles."
				s.Properties.Set(name, native[name])
			}
			return s
		}
		return nil
	}
	s := r.Reflect(roleFile{})
	s.ID = "https://raw.githubusercontent.com/subspan-dev/subspan/main/roles/role.schema.json"
	s.Title = "subspan role"
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func TestSchemaIsCurrent(t *testing.T) {
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("role.schema.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(want), string(Schema())); diff != "" {
		t.Errorf("role.schema.json is out of date, run go generate ./roles (-want +have):\n%s", diff)
	}
}
