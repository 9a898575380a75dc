package jsonrpc

import (
	"bytes"
	"iter"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Pieces yields the text of a JSON string literal in pieces of at most max bytes
// (at least 8), cut only between characters. The borders depend on nothing but the
// literal and max. What is no text becomes text: a lone surrogate or a byte that is
// no UTF-8 is U+FFFD, an escape that does not exist stays as it was written.
//
// At no time more than one piece is held beside the literal.
func Pieces(lit []byte, max int) iter.Seq[string] {
	return func(yield func(string) bool) {
		if !IsString(lit) {
			return
		}
		pieces(lit[1:len(lit)-1], max, yield)
	}
}

// Unquote returns the text of a JSON string literal, by the rules of Pieces; for
// anything else the empty text.
func Unquote(lit []byte) string {
	if !IsString(lit) {
		return ""
	}
	in := lit[1 : len(lit)-1]
	if bytes.IndexByte(in, '\\') < 0 && utf8.Valid(in) {
		return string(in)
	}
	var b strings.Builder
	// One byte of a literal is at most three bytes of text.
	for p := range Pieces(lit, 3*len(lit)+8) {
		b.WriteString(p)
	}
	return b.String()
}

func pieces(in []byte, max int, yield func(string) bool) {
	buf := make([]byte, 0, min(len(in), max))
	flush := func() bool {
		s := string(buf)
		buf = buf[:0]
		return yield(s)
	}
	for len(in) > 0 {
		run := bytes.IndexByte(in, '\\')
		if run < 0 {
			run = len(in)
		}
		// Text without escapes, as much of it as the piece holds.
		for run > 0 {
			n, whole := fit(in[:run], max-len(buf))
			if n > 0 {
				buf = append(buf, in[:n]...)
				in, run = in[n:], run-n
			}
			switch {
			case run == 0:
			case whole: // stopped at a byte that is no UTF-8
				if len(buf)+utf8.UTFMax-1 > max && !flush() {
					return
				}
				buf = utf8.AppendRune(buf, utf8.RuneError)
				in, run = in[1:], run-1
			default:
				if !flush() {
					return
				}
			}
		}
		if len(in) == 0 {
			break
		}
		r, n := unescape(in)
		size := utf8.RuneLen(r)
		if n == 0 { // no such escape: the backslash stands for itself
			r, n, size = '\\', 1, 1
		}
		if len(buf)+size > max && !flush() {
			return
		}
		buf = utf8.AppendRune(buf, r)
		in = in[n:]
	}
	if len(buf) > 0 {
		flush()
	}
}

// fit returns how many bytes of run, which holds no escapes, may be taken into room
// bytes without cutting a character. whole is true when it stopped at a byte that
// belongs to no character, false when room ended it.
func fit(run []byte, room int) (n int, whole bool) {
	cut := run
	if len(cut) > room {
		cut = cut[:max(room, 0)]
		// Leave out a character whose end is beyond the cut.
		for back := 1; back < utf8.UTFMax && back <= len(cut); back++ {
			i := len(cut) - back
			if utf8.RuneStart(cut[i]) {
				if _, size := utf8.DecodeRune(run[i:]); size > back {
					cut = cut[:i]
				}
				break
			}
		}
	}
	if utf8.Valid(cut) {
		return len(cut), false
	}
	for n < len(cut) {
		r, size := utf8.DecodeRune(cut[n:])
		if r == utf8.RuneError && size == 1 {
			return n, true
		}
		n += size
	}
	return n, false
}

// unescape decodes the escape at the beginning of in and says how long it was; 0
// when there is no such escape.
func unescape(in []byte) (rune, int) {
	if len(in) < 2 {
		return 0, 0
	}
	switch in[1] {
	case '"', '\\', '/':
		return rune(in[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r, ok := hex4(in[2:])
		if !ok {
			return 0, 0
		}
		if !utf16.IsSurrogate(r) {
			return r, 6
		}
		if len(in) >= 12 && in[6] == '\\' && in[7] == 'u' {
			if low, ok := hex4(in[8:]); ok {
				if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
					return full, 12
				}
			}
		}
		return utf8.RuneError, 6
	}
	return 0, 0
}

func hex4(in []byte) (rune, bool) {
	if len(in) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range in[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
