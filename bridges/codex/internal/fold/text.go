package fold

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// contentText joins the texts of MCP content.
func contentText(content []byte) string {
	var b strings.Builder
	for part := range jsonrpc.Elements(content) {
		if text := jsonrpc.Get(part, "text"); text != nil && b.Len() < maxOutput {
			b.WriteString(excerptOf(text))
		}
	}
	return b.String()
}

// excerpt keeps the beginning and the end of a text that comes in pieces.
type excerpt struct {
	Head string `json:"head,omitempty"`
	Tail string `json:"tail,omitempty"`
	Cut  bool   `json:"cut,omitempty"`
}

const (
	cut  = "\n[…]\n"
	half = (maxOutput - len(cut)) / 2
)

func (x *excerpt) add(s string) {
	if x.Tail == "" && !x.Cut {
		n := border(s, half-len(x.Head))
		x.Head, s = x.Head+s[:n], s[n:]
	}
	if x.Tail += s; len(x.Tail) > half {
		at := len(x.Tail) - half
		for at < len(x.Tail) && !utf8.RuneStart(x.Tail[at]) {
			at++
		}
		x.Tail, x.Cut = x.Tail[at:], true
	}
}

func (x *excerpt) String() string {
	if x.Cut {
		return x.Head + cut + x.Tail
	}
	return x.Head + x.Tail
}

// excerptOf is the excerpt of a JSON string literal of any length.
func excerptOf(literal []byte) string {
	var x excerpt
	for piece := range jsonrpc.Pieces(literal, maxOutput) {
		x.add(piece)
	}
	return x.String()
}

// Clip returns s, or its first limit bytes and a mark.
func Clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return s[:border(s, limit-len("…"))] + "…"
}

// border is the last place in s at or before n that cuts no character.
func border(s string, n int) int {
	if n >= len(s) {
		return len(s)
	}
	n = max(n, 0)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return n
}

// title is the first line of s, shortened.
func title(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return Clip(s, maxTitle)
}

func input(v map[string]any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil || len(b) > maxInput {
		return nil
	}
	return b
}

// rawJSON copies a raw value, or returns nil for one that is too long or no JSON.
func rawJSON(raw []byte, limit int) json.RawMessage {
	if len(raw) == 0 || len(raw) > limit || !json.Valid(raw) {
		return nil
	}
	return bytes.Clone(raw)
}

func size(n int64) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
