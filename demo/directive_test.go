package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		task string
		want []string // nil for prose
	}{
		{"", nil},
		{"  \n ", nil},
		{"hello", nil},
		{"Read go.mod", nil},
		{"read go.mod", []string{"read go.mod"}},
		{"read go.mod 3-9", []string{"read go.mod 3-9"}},
		{"read go.mod and explain it", nil},
		{"read the README", nil},
		{"please write a file", nil},
		{"write a function that sorts", nil},
		{"write code", nil},
		{"write tests for the parser", nil},
		{"write a.txt", nil},
		{"write ./out hello", []string{"write ./out hello"}},
		{"run the tests", nil},
		{"run go test ./...", []string{"run go test ./..."}},
		{"list all files", nil},
		{"list", []string{"list"}},
		{"say the word", []string{"say the word"}},
		{"ask the user", []string{"ask the user"}},
		{"sleep well", nil},
		{"sleep -1", nil},
		{"sleep 1.5", []string{"sleep 1.5"}},
		{"kill the process", nil},
		{"history of the project", nil},
		{"crash 256", nil},
		{"grep [", nil},
		{"env A B", nil},
		{"spam 0 1", nil},
		{"big 4096", nil},
		{"say a; say b ;say c;", []string{"say a", "say b", "say c"}},
		{"say a; and b", []string{"say a; and b"}},
		{"run echo a; echo b; say c", []string{"run echo a; echo b", "say c"}},
		{`run sh -c "x; say y"; say z`, []string{`run sh -c "x; say y"`, "say z"}},
		{"say don't; say it", []string{"say don't", "say it"}},
		{"say a\r\nsay b\r\n", []string{"say a", "say b"}},
		{"say a\nand then some prose", nil},
		{"prose; say a", nil},
		{"write a.txt x; y", []string{"write a.txt x; y"}},
	} {
		steps, ok := parse(tc.task)
		var got []string
		for _, s := range steps {
			got = append(got, s.title)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || ok != (tc.want != nil) {
			t.Errorf("%q: %v (-want +got):\n%s", tc.task, ok, diff)
		}
	}
}

// A task may be long, and may be made to hurt.
func TestParseIsFast(t *testing.T) {
	for _, task := range []string{
		"say " + strings.Repeat("; read x y z w ", 200_000/15),
		"run " + strings.Repeat(";'", 100_000),
		strings.Repeat("say 'a\n", 50_000),
		"write a.txt " + strings.Repeat("x ", 1<<20),
	} {
		begin := time.Now()
		parse(task)
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%.20q: %v for %d bytes", task, took, len(task))
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("say a; run 'b; c'; read d 1-2")
	f.Add("grep \"a b\" c\nwrite \xff. \x00")
	f.Fuzz(func(t *testing.T, task string) {
		steps, ok := parse(task)
		if ok != (len(steps) > 0) {
			t.Errorf("%v with %d steps", ok, len(steps))
		}
		for _, s := range steps {
			if s.do == nil {
				t.Errorf("%q has nothing to do", s.title)
			}
		}
	})
}

func TestFirstWordsAndCut(t *testing.T) {
	if got := firstWords("äöü äöü", 3); got != "ä…" {
		t.Errorf("got %q", got)
	}
	if got := firstWords(" a\n b ", 10); got != "a b" {
		t.Errorf("got %q", got)
	}
	if got := cut("aä", 2); got != "a\n[cut: 2 of 3 bytes]" {
		t.Errorf("got %q", got)
	}
}

func TestTailKeepsBothEnds(t *testing.T) {
	var w tail
	for range 100 {
		if n, err := w.Write([]byte(strings.Repeat("m", 1000))); n != 1000 || err != nil {
			t.Fatal(n, err)
		}
	}
	_, _ = w.Write([]byte("END"))
	got := w.String()
	if !strings.HasPrefix(got, "mmm") || !strings.HasSuffix(got, "mEND") || !strings.Contains(got, "[67235 bytes left out]") {
		t.Errorf("%d bytes: %.20q … %q", len(got), got, got[len(got)-20:])
	}
}
