package ceiling_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/subspan-dev/subspan/core/ceiling"
)

// anyMode draws a Mode of any number, most of which are no modes.
func anyMode(t *rapid.T, label string) ceiling.Mode {
	return ceiling.Mode(rapid.OneOf(rapid.Uint8Range(0, 3), rapid.Uint8()).Draw(t, label))
}

// rank is the order by definition, independent of the package.
func rank(m ceiling.Mode) int { return map[ceiling.Mode]int{ceiling.Default: 1, ceiling.Full: 2}[m] }

func TestMeetIsALowerBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		modes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ceiling.Mode { return anyMode(t, "mode") }), 1, 6).Draw(t, "modes")
		met := ceiling.Meet(modes...)
		if !slices.Contains(ceiling.Modes(), met) {
			t.Fatalf("Meet(%v) is no mode: %d", modes, met)
		}
		least := 2
		for _, m := range modes {
			if ceiling.Exceeds(met, m) {
				t.Fatalf("Meet(%v) = %v exceeds %v", modes, met, m)
			}
			least = min(least, rank(m))
		}
		if rank(met) != least {
			t.Fatalf("Meet(%v) = %v is lower than needed", modes, met)
		}
		if again := ceiling.Meet(append(slices.Clone(modes), modes...)...); again != met {
			t.Fatalf("not idempotent: %v, %v", met, again)
		}
		if shuffled := rapid.Permutation(modes).Draw(t, "shuffled"); ceiling.Meet(shuffled...) != met {
			t.Fatalf("not commutative: Meet(%v), Meet(%v)", modes, shuffled)
		}
		cut := rapid.IntRange(1, len(modes)).Draw(t, "cut")
		nested := ceiling.Meet(modes[:cut]...)
		if cut < len(modes) {
			nested = ceiling.Meet(nested, ceiling.Meet(modes[cut:]...))
		}
		if nested != met {
			t.Fatalf("not associative at %d of %v: %v, %v", cut, modes, nested, met)
		}
	})
}

func TestExceedsIsTheStrictOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyMode(t, "a"), anyMode(t, "b")
		if have, want := ceiling.Exceeds(a, b), rank(a) > rank(b); have != want {
			t.Fatalf("Exceeds(%d, %d) = %v", a, b, have)
		}
		if ceiling.Exceeds(a, b) == (ceiling.Meet(a, b) == ceiling.Meet(a)) {
			t.Fatalf("Exceeds and Meet disagree on %d, %d", a, b)
		}
	})
}

func TestNothingGrantedIsReadonly(t *testing.T) {
	var zero ceiling.Mode
	if ceiling.Meet() != ceiling.Readonly || zero != ceiling.Readonly {
		t.Errorf("Meet() = %v, zero value = %v", ceiling.Meet(), zero)
	}
}

func TestB47UnknownNumbersAreReadonly(t *testing.T) {
	for n := range 256 {
		m := ceiling.Mode(n)
		if slices.Contains(ceiling.Modes(), m) {
			continue
		}
		if m.String() != "readonly" || ceiling.Meet(m) != ceiling.Readonly || ceiling.Meet(m, ceiling.Full) != ceiling.Readonly ||
			ceiling.Exceeds(m, ceiling.Readonly) || !ceiling.Exceeds(ceiling.Default, m) {
			t.Errorf("Mode(%d) is more than readonly", n)
		}
		if b, err := json.Marshal(m); err != nil || string(b) != `"readonly"` {
			t.Errorf("Mode(%d) is written as %s, %v", n, b, err)
		}
	}
}

func TestParseRoundTrip(t *testing.T) {
	for _, m := range ceiling.Modes() {
		if have, err := ceiling.Parse(m.String()); err != nil || have != m {
			t.Errorf("Parse(%q) = %v, %v", m, have, err)
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var back ceiling.Mode
		if err := json.Unmarshal(b, &back); err != nil || back != m {
			t.Errorf("%s became %v, %v", b, back, err)
		}
	}
}

// tricks are texts that some reader somewhere takes for a mode.
var tricks = []string{
	"", " ", "Full", "FULL", "full ", " full", "full\n", "\tfull", "full\x00", "\ufefffull", "full\u200b", "f\u00adull",
	"ｆｕｌｌ", "fuIl", "ful\u217c", "fu\u006c\u006c\u0301", "ꜰull", "default,full", "full;default", "[full]", `["full"]`, `"full"`,
	"2", "true", "null", "undefined", "*", "all", "any", "write", "yolo", "bypassPermissions", "danger-full-access", "auto",
	"__proto__", "constructor", "toString", "hasOwnProperty", "Default", "DEFAULT", "default\r", "read-only", "ReadOnly",
}

func TestB47TricksAreRefused(t *testing.T) {
	for _, s := range tricks {
		m, err := ceiling.Parse(s)
		var parseErr *ceiling.ParseError
		if m != ceiling.Readonly || !errors.As(err, &parseErr) || parseErr.Text != s {
			t.Errorf("Parse(%q) = %v, %v", s, m, err)
		}
		if !strings.Contains(parseErr.Error(), "readonly, default, full") || strings.ContainsFunc(parseErr.Error(), unicode.IsControl) {
			t.Errorf("error for %q is %q", s, parseErr)
		}
	}
}

// A value that was wide before must not stay wide when a bad text is read over it.
func TestB47BadTextLowersWhatWasThere(t *testing.T) {
	for _, s := range tricks {
		m := ceiling.Full
		if err := m.UnmarshalText([]byte(s)); err == nil || m != ceiling.Readonly {
			t.Errorf("UnmarshalText(%q) leaves %v, %v", s, m, err)
		}
	}
}

func TestB47OtherJSONIsRefused(t *testing.T) {
	for _, text := range []string{
		`2`, `0`, `-1`, `1.0`, `true`, `["full"]`, `[]`, `{}`, `{"mode": "full"}`, `"Full"`, `"full "`, `""`, `"fu\u006cl "`,
	} {
		for _, v := range []struct {
			what string
			mode func() (ceiling.Mode, error)
		}{
			{"alone", func() (m ceiling.Mode, err error) { err = json.Unmarshal([]byte(text), &m); return m, err }},
			{"in a struct", func() (ceiling.Mode, error) {
				var s struct{ Mode ceiling.Mode }
				err := json.Unmarshal([]byte(`{"Mode": `+text+`}`), &s)
				return s.Mode, err
			}},
		} {
			if m, err := v.mode(); err == nil || m != ceiling.Readonly {
				t.Errorf("%s %s: %v, %v", text, v.what, m, err)
			}
		}
	}
	// encoding/json skips null; what must not happen is that it grants something.
	var s struct{ Mode ceiling.Mode }
	if err := json.Unmarshal([]byte(`{"Mode": null}`), &s); err != nil || s.Mode != ceiling.Readonly {
		t.Errorf("null: %v, %v", s.Mode, err)
	}
}

func TestExceededErrorNamesTheBound(t *testing.T) {
	err := &ceiling.ExceededError{Want: ceiling.Full, Have: ceiling.Readonly, Bound: "the parent session s_1"}
	if want := "permission full exceeds the ceiling readonly set by the parent session s_1"; err.Error() != want {
		t.Errorf("error is %q", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range tricks {
		f.Add(s)
	}
	for _, m := range ceiling.Modes() {
		f.Add(m.String())
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ceiling.Parse(s)
		if err == nil && m.String() != s {
			t.Fatalf("Parse(%q) = %v", s, m)
		}
		if err != nil && m != ceiling.Readonly {
			t.Fatalf("Parse(%q) fails and grants %v", s, m)
		}
		quoted, err := json.Marshal(s)
		if err != nil {
			t.Skip()
		}
		decoded := ceiling.Full
		if err := json.Unmarshal(quoted, &decoded); err == nil && decoded.String() != s || err != nil && decoded != ceiling.Readonly {
			t.Fatalf("JSON %s gives %v, %v", quoted, decoded, err)
		}
	})
}
