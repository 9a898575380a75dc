package matrix

import (
	"bytes"
	"strings"
	"testing"
)

func TestRender(t *testing.T) {
	want := Results{
		Agents:     []string{"one", "two"},
		Behaviours: []Behaviour{{"answer", "a text | whole"}, {"fork", "a copy"}},
		Cells: []Cell{
			{Agent: "one", Behaviour: "answer", Verdict: Pass, Version: "1.2"},
			{Agent: "two", Behaviour: "answer", Verdict: Fails, Reason: "it\nbroke"},
			{Agent: "one", Behaviour: "fork", Verdict: Unsupported, Reason: "cannot; capability_unsupported"},
		},
	}
	var file bytes.Buffer
	if err := want.Write(&file); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Render(&out, got); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"4 cells: 1 pass, 1 not supported by the agent, 1 fail, 1 not run.",
		"| behaviour | one 1.2 | two |",
		`| answer: a text \| whole | yes | **fails** [^1] |`,
		"| fork: a copy | no [^2] | – |",
		"[^1]: it broke",
		"[^2]: cannot; capability_unsupported",
	} {
		if !strings.Contains(out.String(), line+"\n") {
			t.Errorf("no line %q in:\n%s", line, out.String())
		}
	}
}

func TestReadRefuses(t *testing.T) {
	for _, text := range []string{"", "{", `{"cells":[{"verdict":"maybe"}]}`, `{"rows":[]}`} {
		if r, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%q is taken as %+v", text, r)
		}
	}
}
