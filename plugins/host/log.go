package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// maxLogLine is how much of one line of a plugin's output is kept, in bytes.
const maxLogLine = 8 << 10

// readLines calls line for every line of r, shortened to maxLogLine bytes, until r
// ends. It always reads on, whatever the lines are, so that the writer never blocks.
func readLines(r io.Reader, line func(string)) {
	br := bufio.NewReaderSize(r, maxLogLine)
	for {
		chunk, err := br.ReadSlice('\n')
		text := strings.ToValidUTF8(string(bytes.TrimRight(chunk, "\r\n")), "\uFFFD")
		cut := 0
		for errors.Is(err, bufio.ErrBufferFull) {
			chunk, err = br.ReadSlice('\n')
			cut += len(bytes.TrimRight(chunk, "\r\n"))
		}
		if cut > 0 {
			text += fmt.Sprintf(" … (%d bytes cut)", cut)
		}
		if text != "" {
			line(text)
		}
		if err != nil {
			return
		}
	}
}

// logLine puts one line of a plugin's standard error into log. Lines of slog's and
// of hclog's JSON handlers keep their level, message and fields; everything else is
// text of level info. Nothing in a line is trusted to have the type it should have.
func logLine(log *slog.Logger, line string) {
	var fields map[string]any
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &fields) != nil {
		log.Info(line)
		return
	}
	message, ok := first(fields, "msg", "@message", "message")
	if !ok {
		log.Info(line)
		return
	}
	name, _ := first(fields, "level", "@level")
	attrs := make([]slog.Attr, 0, len(fields))
	for key, value := range fields {
		switch key {
		case "msg", "@message", "message", "level", "@level", "time", "@timestamp", "@module", "@caller":
		default:
			attrs = append(attrs, slog.Any(key, value))
		}
	}
	log.LogAttrs(context.Background(), level(name), message, attrs...)
}

func first(fields map[string]any, keys ...string) (string, bool) {
	for _, key := range keys {
		if s, ok := fields[key].(string); ok {
			return s, true
		}
	}
	return "", false
}

func level(name string) slog.Level {
	switch strings.ToLower(name) {
	case "trace", "debug":
		return slog.LevelDebug
	case "warn", "warning":
		return slog.LevelWarn
	case "error", "fatal":
		return slog.LevelError
	}
	return slog.LevelInfo
}

// tail keeps what of a plugin's standard error belongs in an error message: the
// line on which a Go program panicked, else the last one.
type tail struct{ last, panicked string }

const maxTail = 300

func (t *tail) add(line string) {
	if len(line) > maxTail {
		line = strings.ToValidUTF8(line[:maxTail], "") + " …"
	}
	t.last = line
	if t.panicked == "" && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")) {
		t.panicked = line
	}
}

func (t *tail) words() string {
	if t.panicked != "" {
		return t.panicked
	}
	return t.last
}
