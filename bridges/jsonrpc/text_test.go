package jsonrpc

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestPieces(t *testing.T) {
	tests := []struct {
		name string
		lit  string
		max  int
		want []string
	}{
		{"empty", `""`, 8, nil},
		{"no literal", `17`, 8, nil},
		{"short", `"abc"`, 8, []string{"abc"}},
		{"exact", `"abcdefgh"`, 8, []string{"abcdefgh"}},
		{"cut", `"abcdefghi"`, 8, []string{"abcdefgh", "i"}},
		{"no cut in a character", `"abcdefgé"`, 8, []string{"abcdefg", "é"}},
		{"no cut in four bytes", `"abcde😀z"`, 8, []string{"abcde", "😀z"}},
		{"no cut in an escape", `"abcdefg\n\nx"`, 8, []string{"abcdefg\n", "\nx"}},
		{"no cut in a pair", `"abcde\ud83d\ude00"`, 8, []string{"abcde", "😀"}},
		{"lone high", `"a\ud83dz"`, 16, []string{"a\ufffdz"}},
		{"lone low", `"a\ude00z"`, 16, []string{"a\ufffdz"}},
		{"high, then another escape", `"\ud83d\n"`, 16, []string{"\ufffd\n"}},
		{"bytes that are no text", "\"a\xffb\xe2\x82c\"", 32, []string{"a\ufffdb\ufffd\ufffdc"}},
		{"escape that does not exist", `"a\qb"`, 16, []string{`a\qb`}},
		{"short unicode escape", `"a\u12"`, 16, []string{`a\u12`}},
		{"all simple escapes", `"\"\\\/\b\f\n\r\t\u0041"`, 16, []string{"\"\\/\b\f\n\r\tA"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for p := range Pieces([]byte(tt.lit), tt.max) {
				got = append(got, p)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("pieces (-want +got):\n%s", d)
			}
			if got, want := Unquote([]byte(tt.lit)), strings.Join(tt.want, ""); got != want {
				t.Errorf("Unquote = %q, want %q", got, want)
			}
		})
	}
}

// FuzzPieces holds Pieces against encoding/json wherever that accepts the literal.
func FuzzPieces(f *testing.F) {
	for _, s := range []string{"", "abc", `a\nb`, `\ud83d\ude00`, `\ud83d`, "\xff\xfe", strings.Repeat("é", 20), `\\\"`, `\u0000`} {
		f.Add([]byte(s), 8)
	}
	f.Fuzz(func(t *testing.T, in []byte, max int) {
		if max < 8 || max > 1<<20 {
			max = 8 + len(in)%64
		}
		lit := append(append([]byte{'"'}, in...), '"')
		var all strings.Builder
		for p := range Pieces(lit, max) {
			if len(p) > max || len(p) == 0 || !utf8.ValidString(p) {
				t.Fatalf("piece %q of at most %d", p, max)
			}
			all.WriteString(p)
		}
		var want string
		if json.Unmarshal(lit, &want) == nil && all.String() != want {
			t.Fatalf("literal %q: got %q, encoding/json %q", lit, all.String(), want)
		}
	})
}

// TestPiecesHoldOnePiece proves that a large text is not held twice.
func TestPiecesHoldOnePiece(t *testing.T) {
	lit := []byte(`"` + strings.Repeat(`line of text é\n`, 2<<20) + `"`)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	n := 0
	var peak uint64
	for p := range Pieces(lit, 256<<10) {
		n += len(p)
		if n%(8<<20) < len(p) {
			runtime.GC()
			runtime.ReadMemStats(&after)
			peak = max(peak, after.HeapAlloc)
		}
	}
	if want := len(lit) - 2 - 2<<20; n != want {
		t.Errorf("%d bytes of text, want %d", n, want)
	}
	if grown := int64(peak) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("heap grew by %d bytes beside the literal", grown)
	}
	runtime.KeepAlive(lit)
}
