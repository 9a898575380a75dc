package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"
)

const (
	// MaxBytes is the size of the largest file that is read.
	MaxBytes = 1 << 20
	// MaxDepth is how deep objects and arrays may be nested.
	MaxDepth = 64
)

// ReadFile reads a file for Decode. A file that is no regular one, or is larger
// than MaxBytes, is a Problem, and is not read.
func ReadFile(path string) ([]byte, error) {
	// Before opening it: opening a FIFO would wait for a writer.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := checkInfo(path, info); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return read(f, path)
}

// ReadIn is ReadFile for a file of fsys. Shown is its name in problems. With the FS
// of an os.Root, no link leads out of that.
func ReadIn(fsys fs.FS, name, shown string) ([]byte, error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, err
	}
	if err := checkInfo(shown, info); err != nil {
		return nil, err
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return read(f, shown)
}

// read reads at most MaxBytes from f; more is a Problem.
func read(f fs.File, shown string) ([]byte, error) {
	// What was looked at by name may be another file by now, or have grown.
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := checkInfo(shown, info); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxBytes {
		return nil, tooLarge(shown)
	}
	return data, nil
}

func checkInfo(shown string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return Problems{{Pos: Position{File: shown}, Text: "is a folder, not a file"}}
	case !info.Mode().IsRegular():
		return Problems{{Pos: Position{File: shown}, Text: "is not a regular file"}}
	case info.Size() > MaxBytes:
		return tooLarge(shown)
	}
	return nil
}

func tooLarge(shown string) error {
	return Problems{{Pos: Position{File: shown}, Text: fmt.Sprintf("is larger than %d KiB", MaxBytes>>10)}}
}

// parse makes a syntax tree of a file, or says what keeps it from being one.
func parse(file string, data []byte) (*Document, *Problem) {
	d := &Document{file: file}
	whole := Position{File: file, Line: 1, Col: 1}
	if name := otherEncoding(data); name != "" {
		return nil, &Problem{Pos: whole, Text: "the file is " + name + "; save it as UTF-8"}
	}
	if len(data) > MaxBytes {
		return nil, tooLarge(file).(Problems)[0]
	}
	d.data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if i := invalidUTF8(d.data); i >= 0 {
		return nil, &Problem{Pos: d.position(i), Text: "is not UTF-8 here; save the file as UTF-8"}
	}
	if i := tooDeep(d.data); i >= 0 {
		return nil, &Problem{Pos: d.position(i), Text: fmt.Sprintf("is nested more than %d levels deep", MaxDepth)}
	}
	// The parser wants a line end after every line comment, the last one too.
	root, err := hujson.Parse(append(bytes.Clone(d.data), '\n'))
	if err != nil {
		return nil, d.syntax(err)
	}
	d.root = root
	return d, nil
}

// syntax makes a problem of what the parser says. Its position is in its text alone.
func (d *Document) syntax(err error) *Problem {
	var line, col int
	fmt.Sscanf(err.Error(), "hujson: line %d, column %d:", &line, &col)
	inner := err
	if u := errors.Unwrap(err); u != nil {
		inner = u
	}
	text := inner.Error()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		text = "the file ends too early (" + strings.TrimSuffix(text, ": "+io.ErrUnexpectedEOF.Error()) + ")"
	}
	const longest = 120
	if runes := []rune(text); len(runes) > longest {
		text = string(runes[:longest]) + "…"
	}
	text = strings.Join(strings.Fields(text), " ")
	at := 0
	for ; line > 1; line-- {
		next := bytes.IndexByte(d.data[at:], '\n')
		if next < 0 {
			at, col = len(d.data), 1
			break
		}
		at += next + 1
	}
	return &Problem{Pos: d.position(min(at+max(col-1, 0), len(d.data))), Text: text}
}

// otherEncoding names the encoding of a file that is plainly not UTF-8. JSON
// begins with two ASCII characters, so zero bytes there tell even without a mark.
func otherEncoding(b []byte) string {
	switch {
	case bytes.HasPrefix(b, []byte{0xff, 0xfe, 0, 0}), bytes.HasPrefix(b, []byte{0, 0, 0xfe, 0xff}):
		return "UTF-32"
	case bytes.HasPrefix(b, []byte{0xff, 0xfe}), bytes.HasPrefix(b, []byte{0xfe, 0xff}):
		return "UTF-16"
	case len(b) >= 4 && (b[0] == 0 && b[1] == 0 && b[2] == 0 || b[1] == 0 && b[2] == 0 && b[3] == 0):
		return "UTF-32"
	case len(b) >= 2 && (b[0] == 0) != (b[1] == 0):
		return "UTF-16"
	}
	return ""
}

func invalidUTF8(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// tooDeep returns where the nesting exceeds MaxDepth, or -1. The parser recurses,
// so this is known before it starts.
func tooDeep(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '{', '[':
			if depth++; depth > MaxDepth {
				return i
			}
		case '}', ']':
			depth--
		case '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '/':
			rest := b[i:]
			end := ""
			switch {
			case bytes.HasPrefix(rest, []byte("//")):
				end = "\n"
			case bytes.HasPrefix(rest, []byte("/*")):
				end = "*/"
			default:
				continue
			}
			n := bytes.Index(rest[2:], []byte(end))
			if n < 0 {
				return -1
			}
			i += 2 + n + len(end) - 1
		}
	}
	return -1
}
