// Package survey looks at a folder of source code and says what is in it: enough
// for a person, or an agent, to know where to begin. It reads and never writes,
// follows no symbolic link, never leaves the folder, and stops at its limits.
package survey

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Limits bound a walk. Whichever is met first ends it.
type Limits struct {
	Files int           // files seen
	Bytes int64         // bytes read
	Time  time.Duration // since the walk began
}

// DefaultLimits are wide enough for almost every repository and keep a walk
// within seconds.
func DefaultLimits() Limits {
	return Limits{Files: 20_000, Bytes: 256 << 20, Time: 10 * time.Second}
}

// maxText is the size from which a file is counted but not read.
const maxText = 4 << 20

// File is one regular file of a walk.
type File struct {
	Path string // slash-separated, relative to the folder
	Size int64
	// Text is the content, valid until the visit returns. It is nil for binary files
	// and for those that are too large or cannot be read.
	Text []byte
}

// Seen is what a walk went through.
type Seen struct {
	Files, Folders int
	Bytes          int64    // read
	Unread         int      // files that could not be opened or were too large
	Left           []string // folders not entered, by rule, at most 20 of them
	Limit          string   // the limit that ended the walk; empty when it saw everything
}

// Note is one line on what a limited walk did not see; empty after a full one.
func (s Seen) Note() string {
	if s.Limit == "" {
		return ""
	}
	return fmt.Sprintf("(Not everything was looked at: stopped after %d files at the limit of %s.)", s.Files, s.Limit)
}

// errLimit ends a walk early.
var errLimit = errors.New("limit")

// Walk visits the regular files below dir in the order of their names. A visit may
// return fs.SkipAll to end the walk. It returns ctx's error when ctx ends.
func Walk(ctx context.Context, dir string, lim Limits, visit func(File) error) (Seen, error) {
	var seen Seen
	root, err := os.OpenRoot(dir)
	if err != nil {
		return seen, fmt.Errorf("opening the folder: %w", err)
	}
	defer root.Close()
	deadline := time.Now().Add(lim.Time)
	var buf []byte
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			seen.Limit = lim.Time.String()
			return errLimit
		case err != nil && path == ".":
			return fmt.Errorf("reading the folder: %w", err)
		case err != nil:
			seen.Unread++
			return nil // the rest can still be seen
		case d.IsDir():
			if path != "." && skipped(root, path, d.Name()) {
				if len(seen.Left) < 20 {
					seen.Left = append(seen.Left, path)
				}
				return fs.SkipDir
			}
			seen.Folders++
			return nil
		case !d.Type().IsRegular():
			return nil // links lead elsewhere, FIFOs and devices may never end
		case seen.Files >= lim.Files:
			seen.Limit = fmt.Sprintf("%d files", lim.Files)
			return errLimit
		case seen.Bytes >= lim.Bytes:
			seen.Limit = fmt.Sprintf("%d MiB read", lim.Bytes>>20)
			return errLimit
		}
		info, err := d.Info()
		if err != nil {
			return nil // removed meanwhile
		}
		seen.Files++
		f := File{Path: path, Size: info.Size()}
		if f.Size > maxText {
			seen.Unread++
		} else if buf, err = readText(root, path, buf); err != nil {
			seen.Unread++
		} else {
			seen.Bytes += int64(len(buf))
			if !binary(buf) {
				f.Text = buf
			}
		}
		return visit(f)
	})
	if errors.Is(err, errLimit) {
		err = nil
	}
	return seen, err
}

// readText reads at most maxText bytes into buf, which grows as needed. Of a binary
// file it reads the beginning only.
func readText(root *os.Root, path string, buf []byte) ([]byte, error) {
	f, err := root.Open(path)
	if err != nil {
		return buf, err
	}
	defer f.Close()
	b := bytes.NewBuffer(buf[:0])
	if _, err := io.CopyN(b, f, sniff); errors.Is(err, io.EOF) || binary(b.Bytes()) {
		return b.Bytes(), nil
	} else if err != nil {
		return b.Bytes(), err
	}
	_, err = io.Copy(b, io.LimitReader(f, maxText-sniff))
	return b.Bytes(), err
}

// sniff is how much of a file tells whether it is binary: as much as git looks at.
const sniff = 8000

func binary(b []byte) bool { return bytes.IndexByte(b[:min(len(b), sniff)], 0) >= 0 }

// skipped reports whether a folder is somebody else's work: dependencies, caches,
// a version control's own. Caches say so themselves (https://bford.info/cachedir/).
func skipped(root *os.Root, path, name string) bool {
	if slices.Contains([]string{
		".git", ".hg", ".svn", "node_modules", "vendor", ".venv", "__pycache__", ".tox", ".gradle",
	}, name) {
		return true
	}
	tag, err := root.ReadFile(path + "/CACHEDIR.TAG")
	return err == nil && strings.HasPrefix(string(tag), "Signature: 8a477f597d28d172789f06886806bc55")
}
