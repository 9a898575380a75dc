package core

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/subspan-dev/subspan/bridges"
)

// answer collects a turn's final message in a file as it streams in: the text of
// the last message. A message ends when the next text has another id; where texts
// have none, a tool call ends it. A turn of any length costs one buffer of memory.
//
// The file is not the truth but a copy of it: it is written again from the log
// when a turn is taken over from a dead process.
type answer struct {
	f    *os.File
	w    *bufio.Writer
	id   string
	cut  bool // a tool call came since the last text
	size int64
}

func newAnswer(path string) (*answer, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the turn's folder: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the turn's result file: %w", err)
	}
	return &answer{f: f, w: bufio.NewWriterSize(f, 64<<10)}, nil
}

func (a *answer) add(ev bridges.Event) error {
	switch ev.Kind {
	case bridges.KindTool:
		a.cut = true
		return nil
	case bridges.KindText:
	default:
		return nil
	}
	if ev.Text == "" {
		return nil
	}
	if a.size > 0 && (ev.ID != a.id || ev.ID == "" && a.cut) {
		if err := a.reset(); err != nil {
			return err
		}
	}
	a.cut, a.id = false, ev.ID
	n, err := a.w.WriteString(ev.Text)
	a.size += int64(n)
	if err != nil {
		return fmt.Errorf("write the turn's result file: %w", err)
	}
	return nil
}

func (a *answer) reset() error {
	a.w.Reset(a.f)
	a.size = 0
	if err := a.f.Truncate(0); err != nil {
		return fmt.Errorf("start the turn's result file again: %w", err)
	}
	if _, err := a.f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("start the turn's result file again: %w", err)
	}
	return nil
}

func (a *answer) close() error {
	return errors.Join(a.w.Flush(), a.f.Close())
}
