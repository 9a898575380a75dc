package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/demo/internal/survey"
)

// The most that read, grep and list show.
const (
	maxReadLines = 400
	maxReadBytes = 64 << 10
	maxHits      = 200
	maxEntries   = 500
)

// path makes a directive's file absolute.
func (t *turn) path(file string) string {
	if filepath.IsAbs(file) {
		return filepath.Clean(file)
	}
	return filepath.Join(t.cwd, file)
}

func locations(path string) map[string]any {
	return map[string]any{"locations": []any{map[string]string{"path": path}}}
}

// openRegular opens a file to read. A FIFO or a device is refused: reading one may
// never end.
func openRegular(path string) (*os.File, error) {
	if fi, err := os.Stat(path); err != nil {
		return nil, err
	} else if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return os.Open(path)
}

func (t *turn) read(file, lines string) (out string, err error) {
	path := t.path(file)
	c := t.begin("read", strings.TrimSpace("Read "+file+" "+lines), "in_progress", locations(path))
	defer func() { c.end(out, err) }()
	from, to := 1, maxReadLines
	if lines != "" {
		a, b, both := strings.Cut(lines, "-")
		from, _ = strconv.Atoi(a) // digits by its grammar
		to = from
		if both {
			to, _ = strconv.Atoi(b)
		}
		if to < from {
			return "", fmt.Errorf("lines %s run backwards", lines)
		}
	}
	f, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b strings.Builder
	n, more := 0, false
	err = eachLine(f, func(line []byte) bool {
		n++
		if n < from {
			return true
		}
		if more = n > to || n-from >= maxReadLines || b.Len() > maxReadBytes; more {
			return false
		}
		fmt.Fprintf(&b, "%6d  %s\n", n, cut(string(line), maxReadBytes))
		return true
	})
	if err != nil {
		return "", err
	}
	if more && (lines == "" || n <= to) {
		fmt.Fprintf(&b, "[more follows from line %d]\n", n)
	}
	if b.Len() == 0 {
		return fmt.Sprintf("%s has %d lines, none of them asked for", file, n), nil
	}
	return fence(b.String()), nil
}

// eachLine hands out lines of any length until visit returns false.
func eachLine(r io.Reader, visit func([]byte) bool) error {
	br := newConn(r, io.Discard).in
	for {
		line, err := br.ReadBytes('\n')
		if len(line) > 0 && !visit(bytes.TrimRight(line, "\r\n")) {
			return nil
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// fence makes a code block that the text itself cannot end.
func fence(text string) string {
	ticks := "```"
	for strings.Contains(text, ticks) {
		ticks += "`"
	}
	return ticks + "\n" + strings.TrimSuffix(text, "\n") + "\n" + ticks
}

func (t *turn) grep(re *regexp.Regexp, dir string) (out string, err error) {
	c := t.begin("search", "Search for "+re.String(), "in_progress", locations(t.path(dir)))
	defer func() { c.end(out, err) }()
	var b strings.Builder
	hits := 0
	seen, err := survey.Walk(t.ctx, t.path(dir), survey.DefaultLimits(), func(f survey.File) error {
		n := 0
		for line := range bytes.Lines(f.Text) {
			n++
			if line = bytes.TrimRight(line, "\r\n"); !re.Match(line) {
				continue
			}
			if hits++; hits > maxHits {
				return fs.SkipAll
			}
			fmt.Fprintf(&b, "%s:%d: %s\n", filepath.ToSlash(filepath.Join(dir, f.Path)), n, cut(string(line), 300))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if hits > maxHits {
		fmt.Fprintf(&b, "[stopped after %d hits]\n", maxHits)
	}
	if b.Len() == 0 {
		return strings.TrimSpace(fmt.Sprintf("no line matches `%s` %s", re, seen.Note())), nil
	}
	return strings.TrimSpace(fence(b.String()) + "\n" + seen.Note()), nil
}

func (t *turn) list(dir string) (out string, err error) {
	path := t.path(dir)
	c := t.begin("read", "List "+dir, "in_progress", locations(path))
	defer func() { c.end(out, err) }()
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", err
	}
	if len(entries) == 0 {
		return dir + " is empty", nil
	}
	var b strings.Builder
	for i, e := range entries {
		if i == maxEntries {
			fmt.Fprintf(&b, "[and %d more]\n", len(entries)-maxEntries)
			break
		}
		switch fi, err := e.Info(); {
		case err != nil:
			fmt.Fprintf(&b, "%10s  %s\n", "?", e.Name())
		case fi.IsDir():
			fmt.Fprintf(&b, "%10s  %s/\n", "-", e.Name())
		case fi.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(filepath.Join(path, e.Name())) // shown empty when it is gone again
			fmt.Fprintf(&b, "%10s  %s -> %s\n", "-", e.Name(), target)
		default:
			fmt.Fprintf(&b, "%10d  %s\n", fi.Size(), e.Name())
		}
	}
	return fence(b.String()), nil
}

func (t *turn) write(file, text string) (out string, err error) {
	path := t.path(file)
	diff := map[string]any{"type": "diff", "path": path, "oldText": nil, "newText": text + "\n"}
	fi, serr := os.Stat(path)
	if serr == nil && fi.Mode().IsRegular() && fi.Size() <= maxReadBytes {
		if old, err := os.ReadFile(path); err == nil {
			diff["oldText"] = string(old)
		}
	}
	more := locations(path)
	more["rawInput"] = map[string]string{"path": path, "text": text}
	more["content"] = []any{diff}
	c := t.begin("edit", "Write "+file, "pending", more)
	defer func() { c.end(out, err) }()
	if serr == nil && !fi.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	if err := c.permit(); err != nil {
		return "", err
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %d bytes to %s", len(text)+1, file), nil
}

func (t *turn) command(line string) (out string, err error) {
	c := t.begin("execute", line, "pending", map[string]any{"rawInput": map[string]string{"command": line}})
	defer func() { c.end(out, err) }()
	if err := c.permit(); err != nil {
		return "", err
	}
	var output tail
	cmd := shell(t.ctx, line)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.cwd, &output, &output
	cmd.WaitDelay = time.Second // a child in the background may hold the pipe for ever
	err = cmd.Run()
	text := fence(output.String()) + "\n"
	var exit *exec.ExitError
	switch {
	case t.ctx.Err() != nil:
		return text, context.Cause(t.ctx)
	case errors.Is(err, exec.ErrWaitDelay):
		return text + "exit 0; something it started still runs", nil
	case errors.As(err, &exit):
		return text + exit.String(), nil
	case err != nil:
		return "", err
	}
	return text + "exit 0", nil
}

// tail is a writer that keeps the first and the last 16 KiB.
type tail struct {
	head, end []byte
	lost      int
}

func (w *tail) Write(p []byte) (int, error) {
	n := len(p)
	room := min(keepText-len(w.head), n)
	w.head = append(w.head, p[:room]...)
	w.end = append(w.end, p[room:]...)
	if over := len(w.end) - keepText; over > keepText { // not for every small write
		w.lost += over
		w.end = append(w.end[:0], w.end[over:]...)
	}
	return n, nil
}

func (w *tail) String() string {
	end, lost := w.end, w.lost
	if over := len(end) - keepText; over > 0 {
		end, lost = end[over:], lost+over
	}
	if lost == 0 {
		return strings.ToValidUTF8(string(w.head)+string(end), "\uFFFD")
	}
	return strings.ToValidUTF8(fmt.Sprintf("%s\n[%d bytes left out]\n%s", w.head, lost, end), "\uFFFD")
}
