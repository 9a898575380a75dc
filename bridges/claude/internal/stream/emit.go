package stream

import (
	"strings"
	"unicode/utf8"

	"github.com/subspan-dev/subspan/bridges"
)

// Sizes that the contract sets on events.
const (
	maxText   = 256 << 10
	maxInput  = 16 << 10
	maxOutput = 32 << 10
	maxRaw    = 16 << 10
)

// emitter numbers the events made from one frame.
type emitter struct {
	offset int64
	events []bridges.Event
}

func (s *State) emit(ev bridges.Event) {
	ev.Pos = bridges.Position{Offset: s.out.offset, Part: len(s.out.events) + 1}
	s.out.events = append(s.out.events, ev)
	s.Last = ev.Pos
}

func (s *State) notice(level, code, text string) {
	s.emit(bridges.Event{Kind: bridges.KindNotice, Text: s.scrub.Clean(text), Notice: &bridges.Notice{Level: level, Code: code}})
}

// warn adds a warning to the turn's result, once.
func (s *State) warn(text string) {
	for _, have := range s.Turn.Warnings {
		if have == text {
			return
		}
	}
	s.Turn.Warnings = append(s.Turn.Warnings, text)
}

// pieces emits a text in events of at most maxText bytes each.
func (s *State) pieces(kind bridges.Kind, id, text string) {
	for len(text) > 0 {
		n := len(text)
		if n > maxText {
			n = runeStart(text, maxText)
		}
		s.emit(bridges.Event{Kind: kind, ID: id, Text: text[:n]})
		text = text[n:]
	}
}

// runeStart returns the largest n <= limit at which text may be cut.
func runeStart(text string, limit int) int {
	for n := limit; n > limit-utf8.UTFMax && n > 0; n-- {
		if utf8.RuneStart(text[n]) {
			return n
		}
	}
	return limit
}

// clip shortens a text for a person to read.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return text[:runeStart(text, limit)] + "…"
}

// middleOut keeps the head and the tail of a text that is too long.
func middleOut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const mark = "\n[…]\n"
	head := runeStart(text, (limit-len(mark))*3/5)
	tail := len(text) - (limit - len(mark) - head)
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return text[:head] + mark + text[tail:]
}

// Scrubber removes secret values from texts. The nil Scrubber removes nothing.
type Scrubber struct {
	secrets []string
	replace *strings.Replacer
}

// scrubbed stands in the place of a secret value.
const scrubbed = "[secret removed]"

// minSecret is the length below which a value is too common to be looked for.
const minSecret = 8

// NewScrubber makes a Scrubber for the given values.
func NewScrubber(values []string) *Scrubber {
	sc := new(Scrubber)
	var pairs []string
	for _, v := range values {
		if len(v) < minSecret {
			continue
		}
		sc.secrets = append(sc.secrets, v)
		pairs = append(pairs, v, scrubbed)
	}
	if len(pairs) == 0 {
		return nil
	}
	sc.replace = strings.NewReplacer(pairs...)
	return sc
}

// Clean returns the text without secret values.
func (sc *Scrubber) Clean(text string) string {
	if sc == nil {
		return text
	}
	return sc.replace.Replace(text)
}

// Split cleans a text that will be continued. It returns what may be shown now
// and what must wait, because it may be the beginning of a secret.
func (sc *Scrubber) Split(text string) (now, wait string) {
	if sc == nil {
		return text, ""
	}
	text = sc.replace.Replace(text)
	keep := 0
	for _, secret := range sc.secrets {
		for n := min(len(secret)-1, len(text)); n > keep; n-- {
			if strings.HasPrefix(secret, text[len(text)-n:]) {
				keep = n
				break
			}
		}
	}
	return text[:len(text)-keep], text[len(text)-keep:]
}
