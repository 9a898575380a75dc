package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
)

// Kind is what a message is.
type Kind uint8

const (
	Noise        Kind = iota // a line, or a part of one, that is no message; Raw has it
	Notification             // Method, Params
	Request                  // Method, Params, ID
	Response                 // ID, and Result or Error
	Oversize                 // a frame longer than the limit; ID and Method if its beginning told
)

// Message is one message of the peer, or what stood in the place of one. All slices
// alias the frame and are valid until the next one is read.
type Message struct {
	Kind   Kind
	Offset int64 // where it begins in the peer's output
	Size   int64 // bytes
	Method string
	ID     ID
	Params []byte // raw; nil when absent
	Result []byte // raw; nil when absent
	Error  *Error
	Raw    []byte // the whole message, or the noise
}

// ID is a request's id as its sender wrote it: a raw JSON number, string or null.
type ID []byte

// Int returns the number that the id is, also when it is written as a string.
func (id ID) Int() (int64, bool) { return parseInt(id) }

func (id ID) String() string { return string(id) }

// Error is an error of the protocol, from the peer or for it.
type Error struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"` // raw, a copy
}

// Codes that the protocol itself defines.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeNoMethod       = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
)

func (e *Error) Error() string {
	if text := e.Text(); text != "" {
		return fmt.Sprintf("%s (%d)", text, e.Code)
	}
	return fmt.Sprintf("error %d", e.Code)
}

// Text is everything that the error says in words: its message, and what its data
// adds when that is a text or has a member that is known to hold one.
func (e *Error) Text() string {
	text := e.Message
	add := func(more string) {
		if more != "" && !bytes.Contains([]byte(text), []byte(more)) {
			if text != "" {
				text += ": "
			}
			text += more
		}
	}
	switch {
	case IsString(e.Data):
		add(Unquote(e.Data))
	case IsObject(e.Data):
		for _, name := range []string{"message", "details", "detail", "error", "code"} {
			if v := Get(e.Data, name); IsString(v) {
				add(Unquote(v))
			}
		}
	}
	return text
}

// maxStarts bounds how many opening braces of a line are tried in vain as the beginning
// of a message, so that a long line of noise costs a bounded number of passes.
const maxStarts = 16

// Messages yields what one frame holds, in order: nearly always one message, and
// besides it any noise before, between and behind. Nothing of a frame is left out.
func Messages(f Frame) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		if f.Oversize {
			yield(oversize(f))
			return
		}
		tries := maxStarts
		line := bytes.TrimRight(f.Data, "\r\n")
		offset := f.Offset
		for len(line) > 0 {
			m, at, end := next(line, &tries)
			if at < 0 {
				// Escapes may stand inside of the message. Without them its place is no
				// more exact than its line, and still the same for the same bytes.
				if clean := stripEscapes(line); len(clean) < len(line) {
					tries = maxStarts
					if _, at, _ := next(clean, &tries); at >= 0 {
						line = clean
						continue
					}
				}
				yieldNoise(yield, line, offset)
				return
			}
			if at > 0 && !yieldNoise(yield, line[:at], offset) {
				return
			}
			m.Offset, m.Size = offset+int64(at), int64(end-at)
			if !yield(m) {
				return
			}
			line, offset = line[end:], offset+int64(end)
		}
	}
}

// yieldNoise passes on what holds anything but space and a byte order mark.
func yieldNoise(yield func(Message) bool, b []byte, offset int64) bool {
	if len(bytes.TrimSpace(bytes.TrimPrefix(b, []byte("\uFEFF")))) == 0 {
		return true
	}
	return yield(Message{Kind: Noise, Offset: offset, Size: int64(len(b)), Raw: b})
}

// next finds the first message in line: where it begins and ends, or at = -1. It
// takes what it tries in vain off tries.
func next(line []byte, tries *int) (m Message, at, end int) {
	for at = bytes.IndexByte(line, '{'); at >= 0 && *tries > 0; *tries-- {
		if m, n := envelope(line[at:]); n > 0 {
			return m, at, at + n
		}
		step := bytes.IndexByte(line[at+1:], '{')
		if step < 0 {
			break
		}
		at += 1 + step
	}
	return Message{}, -1, 0
}

// envelope reads the object at the beginning of b. n is 0 when there is none, or
// when it is no message.
func envelope(b []byte) (m Message, n int) {
	var method, fault []byte
	var complete bool // a response without a result counts when it names the protocol
	n = members(b, func(key, value []byte) bool {
		switch string(key) {
		case "id":
			m.ID = ID(value)
		case "method":
			method = value
		case "params":
			m.Params = value
		case "result":
			m.Result, complete = value, true
		case "jsonrpc":
			complete = true
		case "error":
			fault = value
		}
		return true
	})
	if n <= 0 {
		return m, 0
	}
	m.Raw = b[:n]
	switch {
	case IsString(method):
		m.Method = Unquote(method)
		m.Kind = Notification
		if m.ID != nil {
			m.Kind = Request
		}
		return m, n
	case method != nil || m.ID == nil:
		return m, 0
	case fault != nil && string(fault) != "null":
		m.Kind, m.Error = Response, parseError(fault)
		return m, n
	case complete:
		m.Kind = Response
		return m, n
	}
	return m, 0
}

func parseError(raw []byte) *Error {
	e := &Error{Code: CodeInternal}
	if IsString(raw) {
		e.Message = Unquote(raw)
		return e
	}
	for key, value := range Members(raw) {
		switch string(key) {
		case "code":
			if n, ok := parseInt(value); ok {
				e.Code = n
			}
		case "message":
			e.Message = Unquote(value)
		case "data":
			if string(value) != "null" {
				e.Data = bytes.Clone(value)
			}
		}
	}
	return e
}

// oversize tells what the beginning of a frame that was too long says of it.
func oversize(f Frame) Message {
	m := Message{Kind: Oversize, Offset: f.Offset, Size: f.Size, Raw: f.Data}
	for key, value := range Members(f.Data) {
		switch string(key) {
		case "id":
			m.ID = ID(value)
		case "method":
			m.Method = Unquote(value)
		}
	}
	return m
}

// stripEscapes returns line without terminal escape sequences, except inside of
// strings. It returns line itself when there are none.
func stripEscapes(line []byte) []byte {
	if bytes.IndexByte(line, 0x1b) < 0 {
		return line
	}
	out := make([]byte, 0, len(line))
	for i := 0; i < len(line); {
		switch line[i] {
		case '"':
			end := skipString(line, i)
			if end < 0 {
				end = len(line)
			}
			out = append(out, line[i:end]...)
			i = end
		case 0x1b:
			i = skipEscape(line, i)
		default:
			out = append(out, line[i])
			i++
		}
	}
	return out
}

// skipEscape returns the index behind the escape sequence that begins at b[i].
func skipEscape(b []byte, i int) int {
	if i+1 >= len(b) {
		return len(b)
	}
	switch b[i+1] {
	case '[': // CSI: parameters, then one final byte
		for i += 2; i < len(b); i++ {
			if b[i] >= 0x40 && b[i] <= 0x7e {
				return i + 1
			}
		}
		return len(b)
	case ']', 'P', 'X', '^', '_': // a string, ended by BEL or ESC \
		for i += 2; i < len(b); i++ {
			if b[i] == 0x07 {
				return i + 1
			}
			if b[i] == 0x1b && i+1 < len(b) && b[i+1] == '\\' {
				return i + 2
			}
		}
		return len(b)
	}
	return i + 2
}
