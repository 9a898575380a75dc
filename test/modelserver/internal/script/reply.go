package script

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// Reply is what the model answers to one request.
type Reply struct {
	Parts []Part
	Call  *Call // nil: the answer ends the turn
	End   End
	// Failure other than FailNone is the whole answer: no part is sent.
	Failure Failure
}

// Part is one delta of a reply.
type Part struct {
	Thought bool
	Text    string
	Delay   time.Duration // waited before it is sent
}

// End is how the stream of a reply ends.
type End int

const (
	EndWhole End = iota // properly
	EndHang             // never: nothing more comes, the connection stays open
	EndDrop             // the connection is cut after the parts
)

// Failure is an HTTP status that the provider answers with; each dialect writes
// it in its own words.
type Failure int

const (
	FailNone  Failure = 0
	FailQuota Failure = -1 // out of credit, which every provider words in its own way
)

// Text returns the visible text of the reply.
func (r Reply) Text() string {
	var b strings.Builder
	for _, p := range r.Parts {
		if !p.Thought {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// Thought returns the hidden text of the reply.
func (r Reply) Thought() string {
	var b strings.Builder
	for _, p := range r.Parts {
		if p.Thought {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// Summary says in a few words what the reply is, for logs.
func (r Reply) Summary() string {
	switch {
	case r.Failure == FailQuota:
		return "quota"
	case r.Failure != FailNone:
		return fmt.Sprintf("status %d", r.Failure)
	case r.End == EndHang:
		return "hang"
	case r.End == EndDrop:
		return "drop"
	case r.Call != nil:
		return "call " + r.Call.Name
	}
	return fmt.Sprintf("text %d", len(r.Text()))
}

// Unicode is what [[unicode]] says: characters of two, three and four bytes,
// combining marks, right-to-left text, line separators, and what terminals obey.
const Unicode = "é ß 漢字 한글 🙂 👩‍👩‍👧‍👦 e\u0301 שלום \u202eabc\u202c \u2028\u2029 \ufeff \"quoted\" \\back\\ \t tab \x1b[31mred\x1b[0m end"

// Errand is the answer to what an agent asks on its own behalf.
const Errand = "Scripted session"

// Filler returns n bytes of ASCII text without repetition, the same for the same n.
func Filler(n int) string {
	var b strings.Builder
	b.Grow(n + 80)
	for line := 0; b.Len() < n; line++ {
		sum := sha256.Sum256([]byte(fmt.Sprint(line)))
		fmt.Fprintf(&b, "%08d %s\n", line, hex.EncodeToString(sum[:]))
	}
	return b.String()[:n]
}

// Echo is the answer to a message without markers: its length and digest.
func Echo(text string) string {
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("received %d bytes, sha256 %s", len(text), hex.EncodeToString(sum[:6]))
}

// bigPart is how much of a [[big]] text goes into one delta.
const bigPart = 16 << 10

// Plan returns the next reply of the conversation.
func Plan(c Conversation) Reply {
	if c.Errand() {
		return say(Errand)
	}
	_, own := c.Task()
	markers, err := parse(own)
	if err != nil {
		return say("script error: " + err.Error())
	}
	if len(markers) == 0 {
		return say(Echo(own))
	}
	return plan(c, markers)
}

func say(text string) Reply { return Reply{Parts: []Part{{Text: text}}} }

// plan skips the markers that earlier replies played and turns those up to the
// next end of a reply into one. Every tool call, hang, drop and failure ends one;
// only the calls can be seen in the conversation, so only they move the script on.
func plan(c Conversation, markers []marker) Reply {
	done := c.rounds()
	var r Reply
	var delay time.Duration
	add := func(thought bool, text string) {
		r.Parts = append(r.Parts, Part{Thought: thought, Text: text, Delay: delay})
	}
	for _, m := range markers {
		if done > 0 {
			if m.calls() {
				done--
			}
			continue
		}
		switch m.name {
		case "slow":
			delay = m.delay
		case "say":
			add(false, m.text)
		case "think":
			add(true, m.text)
		case "unicode":
			add(false, Unicode)
		case "delta":
			text := Filler(m.num * m.size)
			for i := range m.num {
				add(false, text[i*m.size:(i+1)*m.size])
			}
		case "big":
			for text := Filler(m.num); text != ""; {
				n := min(bigPart, len(text))
				add(false, text[:n])
				text = text[n:]
			}
		case "empty":
			return Reply{}
		case "hang":
			r.End = EndHang
			return r
		case "drop":
			r.End = EndDrop
			return r
		case "status":
			return Reply{Failure: Failure(m.num)}
		case "quota":
			return Reply{Failure: FailQuota}
		default:
			call, err := c.call(m)
			if err != nil {
				add(false, "script error: "+err.Error())
				return r
			}
			r.Call = &call
			return r
		}
	}
	if len(r.Parts) == 0 {
		// The script ended with a tool call: report what the tool answered.
		results := c.Results()
		last := ""
		if len(results) > 0 {
			last = results[len(results)-1]
		}
		add(false, "done: "+clip(last, 400))
	}
	return r
}

func clip(s string, n int) string {
	s = strings.ToValidUTF8(head(s, n), "")
	return strings.TrimSpace(s)
}

func (m marker) calls() bool {
	switch m.name {
	case "sh", "write", "read", "mcp", "call":
		return true
	}
	return false
}
