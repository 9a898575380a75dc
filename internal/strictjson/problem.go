package strictjson

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Position is a place in a file. Line and Col count from 1, Col in characters. A
// Line of 0 stands for the file as a whole.
type Position struct {
	File string
	Line int
	Col  int
}

func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col)
}

// Problem is one thing that is wrong with a file.
type Problem struct {
	Pos Position
	// Key is the path of the key concerned, with dots; empty for the whole file.
	Key string
	// Text says what is wrong, on one line.
	Text string
	// Nearest is the valid key or word that was probably meant; empty for none.
	Nearest string
}

func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Pos.String())
	if p.Key != "" {
		fmt.Fprintf(&b, ": key %q", p.Key)
	}
	b.WriteString(": " + p.Text)
	if p.Nearest != "" {
		fmt.Fprintf(&b, "; did you mean %q?", p.Nearest)
	}
	return b.String()
}

// Problems are all that is wrong with a file. Its text has one line for each.
type Problems []*Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Sort puts the problems into the file's order.
func (ps Problems) Sort() {
	slices.SortStableFunc(ps, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Col, b.Pos.Col))
	})
}

// Unwrap returns the single problems.
func (ps Problems) Unwrap() []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}

// Nearest returns the word of valid that have was probably meant to be, or "".
func Nearest(have string, valid []string) string {
	best, bestDistance := "", 1+max(2, utf8.RuneCountInString(have)/3)
	for _, v := range valid {
		if strings.EqualFold(have, v) {
			return v
		}
		if d := distance(have, v, bestDistance); d < bestDistance {
			best, bestDistance = v, d
		}
	}
	if bestDistance >= utf8.RuneCountInString(best) {
		return "" // nothing of the word is left
	}
	return best
}

// distance is the number of characters to insert, delete, replace or swap with
// their neighbour to make b of a; limit when it is that or more.
func distance(a, b string, limit int) int {
	s, t := []rune(strings.ToLower(a)), []rune(strings.ToLower(b))
	if len(s)-len(t) >= limit || len(t)-len(s) >= limit {
		return limit
	}
	before, prev, row := make([]int, len(t)+1), make([]int, len(t)+1), make([]int, len(t)+1)
	for j := range row {
		row[j] = j
	}
	for i := range s {
		before, prev, row = prev, row, before
		row[0] = i + 1
		for j := range t {
			cost := 1
			if s[i] == t[j] {
				cost = 0
			}
			row[j+1] = min(prev[j+1]+1, row[j]+1, prev[j]+cost)
			if i > 0 && j > 0 && s[i] == t[j-1] && s[i-1] == t[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return min(row[len(t)], limit)
}
