package script

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A marker is one [[name arguments]] of a user message.
type marker struct {
	name  string
	text  string          // the arguments as written
	words []string        // leading words that the marker's form asks for
	json  json.RawMessage // the JSON argument of mcp and call
	num   int
	size  int
	delay time.Duration
}

// forms names the markers and how their arguments are written.
var forms = map[string]func(*marker, string) error{
	"say":     (*marker).takeText,
	"think":   (*marker).takeText,
	"sh":      (*marker).takeText,
	"read":    (*marker).takeText,
	"write":   func(m *marker, s string) error { return m.takeWords(s, 1) },
	"delta":   (*marker).takeProduct,
	"big":     (*marker).takeNumber,
	"status":  (*marker).takeStatus,
	"slow":    (*marker).takeDelay,
	"mcp":     func(m *marker, s string) error { return m.takeJSON(s, 2) },
	"call":    func(m *marker, s string) error { return m.takeJSON(s, 1) },
	"hang":    (*marker).takeNothing,
	"drop":    (*marker).takeNothing,
	"quota":   (*marker).takeNothing,
	"unicode": (*marker).takeNothing,
	"empty":   (*marker).takeNothing,
}

// parse returns the markers of text in their order. Text around them, and double
// brackets whose first word is no marker's name, is passed over. A marker with
// wrong arguments is an error: a test that misspells one must not pass.
func parse(text string) ([]marker, error) {
	var found []marker
	for {
		_, rest, ok := strings.Cut(text, "[[")
		if !ok {
			return found, nil
		}
		text = rest
		name := rest
		if i := strings.IndexFunc(rest, func(r rune) bool { return r < 'a' || r > 'z' }); i >= 0 {
			name = rest[:i]
		}
		take, ok := forms[name]
		if !ok {
			continue
		}
		m := marker{name: name}
		body, after, ok := cutBody(name, rest[len(name):])
		if !ok {
			return nil, fmt.Errorf("marker [[%s is not closed by ]]", name)
		}
		if err := take(&m, body); err != nil {
			return nil, fmt.Errorf("marker [[%s%s]]: %w", name, body, err)
		}
		found = append(found, m)
		text = after
	}
}

// cutBody splits after the marker's end. For the markers that carry JSON the end
// is looked for behind the JSON value, which may hold ]] itself.
func cutBody(name, s string) (body, after string, ok bool) {
	if name != "mcp" && name != "call" {
		return strings.Cut(s, "]]")
	}
	open := strings.IndexByte(s, '{')
	end := strings.Index(s, "]]")
	if open < 0 || end >= 0 && end < open {
		return strings.Cut(s, "]]")
	}
	dec := json.NewDecoder(strings.NewReader(s[open:]))
	var v json.RawMessage
	if err := dec.Decode(&v); err != nil {
		return strings.Cut(s, "]]")
	}
	tail := open + int(dec.InputOffset())
	rest, found := strings.CutPrefix(strings.TrimLeft(s[tail:], " \t\n"), "]]")
	return s[:tail], rest, found
}

func (m *marker) takeText(s string) error {
	m.text = strings.TrimPrefix(s, " ")
	if m.text == "" {
		return fmt.Errorf("wants a text")
	}
	return nil
}

func (m *marker) takeNothing(s string) error {
	if strings.TrimSpace(s) != "" {
		return fmt.Errorf("takes no argument")
	}
	return nil
}

// takeWords takes n words and leaves the rest as text.
func (m *marker) takeWords(s string, n int) error {
	for range n {
		s = strings.TrimLeft(s, " ")
		word, rest, _ := strings.Cut(s, " ")
		if word == "" {
			return fmt.Errorf("wants %d words before its text", n)
		}
		m.words = append(m.words, word)
		s = rest
	}
	m.text = s
	return nil
}

func (m *marker) takeJSON(s string, n int) error {
	if err := m.takeWords(s, n); err != nil {
		return err
	}
	m.json = json.RawMessage("{}")
	if strings.TrimSpace(m.text) == "" {
		return nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(m.text)); err != nil {
		return fmt.Errorf("the argument is not JSON: %w", err)
	}
	m.json = b.Bytes()
	return nil
}

// maxText bounds what one marker may produce: 64 MiB.
const maxText = 64 << 20

func (m *marker) takeNumber(s string) (err error) {
	m.num, err = strconv.Atoi(strings.TrimSpace(s))
	if err == nil && (m.num < 0 || m.num > maxText) {
		err = fmt.Errorf("the number is not in 0…%d", maxText)
	}
	return err
}

// takeProduct takes "N x SIZE"; "N" alone means a size of 16 bytes.
func (m *marker) takeProduct(s string) error {
	count, size, both := strings.Cut(s, "x")
	if err := m.takeNumber(count); err != nil {
		return err
	}
	n := m.num
	m.num = 16
	if both {
		if err := m.takeNumber(size); err != nil {
			return err
		}
	}
	m.num, m.size = n, m.num
	if m.num*m.size > maxText {
		return fmt.Errorf("more than %d bytes", maxText)
	}
	return nil
}

func (m *marker) takeStatus(s string) error {
	if err := m.takeNumber(s); err != nil {
		return err
	}
	known := []int{400, 401, 403, 404, 429, 500, 503, 529}
	if !slices.Contains(known, m.num) {
		return fmt.Errorf("the status is none of %v", known)
	}
	return nil
}

func (m *marker) takeDelay(s string) error {
	if err := m.takeNumber(s); err != nil {
		return err
	}
	m.delay = time.Duration(m.num) * time.Millisecond
	return nil
}
