package jsonrpc

import (
	"bytes"
	"iter"
	"math"
	"strconv"
)

// The scanner finds where values begin and end and checks no more than that: strings
// are closed, brackets are balanced in number. Decoding is for whoever needs a value.

// Members yields the members of a JSON object as raw values, in order. It stops at
// the first thing that is no member, which for a truncated object is its end.
// Slices alias obj; a key that holds escapes is decoded into a copy.
func Members(obj []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		members(obj, yield)
	}
}

// members returns the index behind the object's closing brace, or -1 when it is
// malformed or yield stopped the walk.
func members(obj []byte, yield func(key, value []byte) bool) int {
	i := skipSpace(obj, 0)
	if i >= len(obj) || obj[i] != '{' {
		return -1
	}
	i = skipSpace(obj, i+1)
	if i < len(obj) && obj[i] == '}' {
		return i + 1
	}
	for {
		if i >= len(obj) || obj[i] != '"' {
			return -1
		}
		end := skipString(obj, i)
		if end < 0 {
			return -1
		}
		key := obj[i+1 : end-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			key = []byte(Unquote(obj[i:end]))
		}
		i = skipSpace(obj, end)
		if i >= len(obj) || obj[i] != ':' {
			return -1
		}
		i = skipSpace(obj, i+1)
		end = skipValue(obj, i)
		if end < 0 {
			return -1
		}
		if !yield(key, obj[i:end]) {
			return -1
		}
		i = skipSpace(obj, end)
		if i >= len(obj) {
			return -1
		}
		switch obj[i] {
		case ',':
			i = skipSpace(obj, i+1)
		case '}':
			return i + 1
		default:
			return -1
		}
	}
}

// Elements yields the raw values of a JSON array, in order.
func Elements(arr []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		i := skipSpace(arr, 0)
		if i >= len(arr) || arr[i] != '[' {
			return
		}
		i = skipSpace(arr, i+1)
		for i < len(arr) && arr[i] != ']' {
			end := skipValue(arr, i)
			if end < 0 || !yield(arr[i:end]) {
				return
			}
			i = skipSpace(arr, end)
			if i >= len(arr) || arr[i] != ',' {
				return
			}
			i = skipSpace(arr, i+1)
		}
	}
}

// Get returns the raw value at a path of member names, or nil. Of two members with
// one name the first counts.
func Get(obj []byte, path ...string) []byte {
	for _, name := range path {
		var found []byte
		for key, value := range Members(obj) {
			if string(key) == name {
				found = value
				break
			}
		}
		if found == nil {
			return nil
		}
		obj = found
	}
	return obj
}

// GetString returns the text at a path, or "" when there is none.
func GetString(obj []byte, path ...string) string { return Unquote(Get(obj, path...)) }

// GetInt returns the whole number at a path. Numbers with a fraction are cut, and a
// number in quotes counts.
func GetInt(obj []byte, path ...string) (int64, bool) { return parseInt(Get(obj, path...)) }

// IsString reports whether a raw value is a string literal.
func IsString(value []byte) bool {
	return len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"'
}

// IsObject reports whether a raw value is an object.
func IsObject(value []byte) bool { return len(value) >= 2 && value[0] == '{' }

func parseInt(value []byte) (int64, bool) {
	if IsString(value) {
		value = value[1 : len(value)-1]
	}
	if len(value) == 0 || len(value) > 32 {
		return 0, false
	}
	if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(string(value), 64)
	if err != nil || f != f || f >= 1<<62 || f <= -(1<<62) {
		return 0, false
	}
	return int64(f), true
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n') {
		i++
	}
	return i
}

// skipString returns the index behind the string that opens at b[i], or -1. Runs of
// backslashes are counted only in front of quotes, so that the work is linear.
func skipString(b []byte, i int) int {
	for j := i + 1; ; {
		q := bytes.IndexByte(b[j:], '"')
		if q < 0 {
			return -1
		}
		j += q
		n := 0
		for k := j - 1; k > i && b[k] == '\\'; k-- {
			n++
		}
		j++
		if n%2 == 0 {
			return j
		}
	}
}

// skipValue returns the index behind the value that begins at b[i], or -1.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		depth := 0
		for i < len(b) {
			switch b[i] {
			case '"':
				if i = skipString(b, i); i < 0 {
					return -1
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
		return -1
	}
	j := i
	for j < len(b) && isScalar(b[j]) {
		j++
	}
	if j == i {
		return -1
	}
	return j
}

// isScalar reports whether c may stand in a number, true, false or null.
func isScalar(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '+' || c == '.'
}

// GetFloat returns the number at a path.
func GetFloat(obj []byte, path ...string) (float64, bool) {
	f, err := strconv.ParseFloat(string(Get(obj, path...)), 64)
	return f, err == nil && !math.IsInf(f, 0) && !math.IsNaN(f)
}
