package stream

import (
	"hash/fnv"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/tidwall/gjson"
)

// message is the model's message in progress. It arrives up to twice: in pieces
// (stream_event) and whole, one assistant frame per content block. What was
// emitted is remembered by length and hash, so that the whole form adds what the
// pieces lacked and nothing twice, without keeping the text.
type message struct {
	ID     string  `json:"id,omitempty"`
	Blocks []block `json:"blocks,omitempty"`
}

type block struct {
	Type string `json:"type"`
	Size int    `json:"size,omitempty"` // bytes of text seen
	Hash uint64 `json:"hash,omitempty"` // FNV-1a of them
	Done bool   `json:"done,omitempty"` // the whole form was seen
	Wait string `json:"wait,omitempty"` // held back: a secret may begin here
	Idx  int64  `json:"idx"`            // the number that the pieces use
}

// grow notes more text of the block.
func (b *block) grow(text string) {
	b.Hash, b.Size = extend(b.Hash, b.Size, text), b.Size+len(text)
}

// extend continues an FNV-1a hash over size bytes with text.
func extend(hash uint64, size int, text string) uint64 {
	if size == 0 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(text))
		return h.Sum64()
	}
	const prime = 1099511628211
	for i := range len(text) {
		hash = (hash ^ uint64(text[i])) * prime
	}
	return hash
}

// rest returns what text has beyond what the block has shown, and whether text
// begins with exactly that.
func (b *block) rest(text string) (string, bool) {
	if len(text) < b.Size || b.Size > 0 && extend(0, 0, text[:b.Size]) != b.Hash {
		return "", false
	}
	return text[b.Size:], true
}

// kinds of content blocks that are text for us.
func textKind(blockType string) (bridges.Kind, bool) {
	switch blockType {
	case "text":
		return bridges.KindText, true
	case "thinking":
		return bridges.KindThought, true
	}
	return "", false
}

// partial folds one stream_event of the main conversation.
func (s *State) partial(event gjson.Result) {
	t := s.Turn
	switch event.Get("type").String() {
	case "message_start":
		s.flush()
		t.Message = message{ID: event.Get("message.id").String()}
		t.Answered = event.Get("message.model").String()
		t.Context = contextOf(event.Get("message.usage"))
	case "content_block_start":
		cb := event.Get("content_block")
		t.Message.Blocks = append(t.Message.Blocks, block{Type: cb.Get("type").String(), Idx: event.Get("index").Int()})
		switch cb.Get("type").String() {
		case "text", "thinking":
			s.piece(t.Message.at(event.Get("index").Int()), cb.Get(cb.Get("type").String()).String())
		case "tool_use", "server_tool_use":
			s.toolStarts(cb, bridges.ToolPending, "")
		}
	case "content_block_delta":
		b, d := t.Message.at(event.Get("index").Int()), event.Get("delta")
		switch d.Get("type").String() {
		case "text_delta":
			s.piece(b, d.Get("text").String())
		case "thinking_delta":
			s.piece(b, d.Get("thinking").String())
		}
	case "content_block_stop":
		if b := t.Message.at(event.Get("index").Int()); b != nil {
			s.release(b)
		}
	case "message_delta":
		if u := event.Get("usage"); u.Get("input_tokens").Exists() {
			t.Context = contextOf(u)
		}
	}
}

// at returns the latest block with the number that the pieces use.
func (m *message) at(index int64) *block {
	for i := len(m.Blocks) - 1; i >= 0; i-- {
		if m.Blocks[i].Idx == index {
			return &m.Blocks[i]
		}
	}
	return nil
}

// piece emits more text of a block.
func (s *State) piece(b *block, text string) {
	if b == nil || text == "" {
		return
	}
	kind, ok := textKind(b.Type)
	if !ok {
		return
	}
	b.grow(text)
	text = strings.ToValidUTF8(text, "\uFFFD")
	now, wait := s.scrub.Split(b.Wait + text)
	b.Wait = wait
	s.say(kind, now)
}

// release emits what was held back of a block that goes on no further.
func (s *State) release(b *block) {
	if kind, ok := textKind(b.Type); ok && b.Wait != "" {
		wait := b.Wait
		b.Wait = ""
		s.say(kind, s.scrub.Clean(wait))
	}
}

// flush releases every block of the message.
func (s *State) flush() {
	for i := range s.Turn.Message.Blocks {
		s.release(&s.Turn.Message.Blocks[i])
	}
}

func (s *State) say(kind bridges.Kind, text string) {
	if text == "" {
		return
	}
	if kind == bridges.KindText {
		s.Turn.Text = true
	}
	s.pieces(kind, s.Turn.Message.ID, text)
}

// assistant folds a whole content block, of the main conversation or a subagent.
func (s *State) assistant(root gjson.Result) {
	t, msg := s.Turn, root.Get("message")
	sub := root.Get("parent_tool_use_id").String()
	if sub == "" && msg.Get("model").String() == "<synthetic>" {
		s.synthetic(root)
		return
	}
	if id := msg.Get("id").String(); sub == "" && id != t.Message.ID {
		s.flush()
		t.Message = message{ID: id}
	}
	if sub == "" {
		t.Answered = msg.Get("model").String()
		t.Context = contextOf(msg.Get("usage"))
	}
	for _, cb := range msg.Get("content").Array() {
		switch typ := cb.Get("type").String(); typ {
		case "text", "thinking":
			if sub == "" {
				s.whole(typ, cb.Get(typ).String())
			}
		case "tool_use", "server_tool_use":
			s.toolStarts(cb, bridges.ToolRunning, sub)
		}
	}
}

// whole folds the complete text of a block: it emits what the pieces, or an
// earlier and shorter form of the same block, have not shown yet.
func (s *State) whole(typ, text string) {
	blocks := s.Turn.Message.Blocks
	for i := range blocks {
		if b := &blocks[i]; b.Type == typ && !b.Done {
			if rest, ok := b.rest(text); ok {
				s.piece(b, rest)
				s.release(b)
				b.Done = true
				return
			}
		}
	}
	for i := range blocks {
		if b := &blocks[i]; b.Type == typ && b.Done && b.Size > 0 {
			if rest, ok := b.rest(text); ok {
				s.piece(b, rest)
				s.release(b)
				return
			}
		}
	}
	s.Turn.Message.Blocks = append(blocks, block{Type: typ, Done: true, Idx: -1})
	b := &s.Turn.Message.Blocks[len(s.Turn.Message.Blocks)-1]
	s.piece(b, text)
	s.release(b)
}

// synthetic folds a message that the agent made up itself: an error, mostly.
func (s *State) synthetic(root gjson.Result) {
	var text strings.Builder
	for _, cb := range root.Get("message.content").Array() {
		text.WriteString(cb.Get("text").String())
	}
	if class := root.Get("error").String(); class != "" {
		s.Turn.Problem = &failure{Class: class, Text: s.scrub.Clean(clip(text.String(), 2000))}
		return
	}
	if body := text.String(); body != "" {
		s.flush()
		s.Turn.Message = message{ID: root.Get("message.id").String()}
		s.whole("text", body)
	}
}

// user folds what the agent says in the user's role: the echo of a task, tool
// results, and the note that it was interrupted.
func (s *State) user(root gjson.Result) {
	if root.Get("isReplay").Bool() {
		if root.Get("uuid").String() == s.Turn.ID {
			s.Turn.Seen, s.Echoes = true, true
		}
		return
	}
	sub := root.Get("parent_tool_use_id").String()
	for _, cb := range root.Get("message.content").Array() {
		if cb.Get("type").String() == "tool_result" {
			s.toolEnds(cb, sub)
		}
	}
}
