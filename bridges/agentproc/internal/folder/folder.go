// Package folder is the layout of a session's folder: the names of its files, the
// records in them, and the few file operations that they need.
//
// Nothing here is synced to the disk. The records must survive the death of any
// process, which the page cache does; an agent survives no power failure either.
package folder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges/agentproc/internal/confine"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

// The files of a session's folder.
const (
	Spec       = "spec.json"    // what runs here; environment by name only
	In         = "in"           // the agent's input: a FIFO (a growing file on Windows)
	Out        = "out"          // the agent's output, append-only
	Err        = "err"          // the agent's stderr, append-only, old parts punched out
	Sent       = "sent"         // journal of what was written to In
	Checkpoint = "checkpoint"   // the bridge's own state as of some point of Sent and Out
	Orders     = "orders"       // orders to the keeper: a FIFO (a growing file on Windows)
	Keeper     = "keeper.json"  // who keeps and who is kept
	Exit       = "exit.json"    // how the agent's own process ended
	Receipt    = "receipt.json" // that its whole tree ended
	Lock       = "lock"         // locked as long as the keeper lives
	WriterLock = "writer.lock"  // locked by the one process that may write to In
	Log        = "keeper.log"   // the keeper's own stderr: empty unless it crashed
	Temp       = "tmp"          // the agent's TMPDIR when it is confined
)

// Version numbers the layout of the records.
const Version = 1

// StderrTail is how much of the agent's stderr goes into records and errors.
const StderrTail = 8 << 10

// SpecRecord is what spec.json holds.
type SpecRecord struct {
	Version   int           `json:"version"`
	SessionID string        `json:"session_id"`
	Command   []string      `json:"command"`
	EnvNames  []string      `json:"env_names,omitempty"`
	Cwd       string        `json:"cwd"`
	Rules     confine.Rules `json:"sandbox"`
	Lease     string        `json:"lease,omitempty"`
	Grace     time.Duration `json:"grace"`
	SpoolCap  int64         `json:"spool_cap"`
	Interrupt bool          `json:"interrupt,omitempty"`
}

// Config is what the keeper is told over its stdin. It never reaches the disk.
type Config struct {
	Spec SpecRecord `json:"spec"`
	Env  []string   `json:"env"`
}

// Status is the keeper's one answer: it runs, or why it does not.
type Status struct {
	OK     bool   `json:"ok"`
	Kind   string `json:"kind,omitempty"`
	Detail string `json:"detail,omitempty"`
	Next   string `json:"next,omitempty"`
}

// KeeperRecord is what keeper.json holds.
type KeeperRecord struct {
	Version   int         `json:"version"`
	SessionID string      `json:"session_id"`
	Dir       string      `json:"dir"` // the folder, as its starter named it
	Boot      string      `json:"boot"`
	Keeper    proctree.ID `json:"keeper"`
	Agent     proctree.ID `json:"agent"`
	Hold      string      `json:"hold,omitempty"` // how the sandbox is held; empty for none
	Started   time.Time   `json:"started"`
}

// Order is one line in Orders.
type Order struct {
	Stop       bool          `json:"stop,omitempty"`
	Reason     string        `json:"reason,omitempty"`
	Grace      time.Duration `json:"grace,omitempty"` // 0 = the spec's
	Interrupt  bool          `json:"interrupt,omitempty"`
	CloseInput bool          `json:"close_input,omitempty"`
}

// maxOrder keeps an order's line below PIPE_BUF of every system, so that lines of
// several writers never mix.
const maxOrder = 500

// Line returns the order as a line of its own, with as much of the reason as fits.
func (o Order) Line() ([]byte, error) {
	for {
		line, err := json.Marshal(o)
		if err != nil || len(line) < maxOrder {
			return append(line, '\n'), err
		}
		o.Reason = strings.ToValidUTF8(o.Reason[:len(o.Reason)*3/4], "")
	}
}

// WriteJSON replaces the file with v as JSON: a reader sees the old file, the new
// one or none, never a part.
func WriteJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", filepath.Base(path), err)
	}
	return WriteFile(path, data)
}

// WriteFile replaces the file as WriteJSON does.
func WriteFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// ReadJSON reads the file into v. A missing file is fs.ErrNotExist.
func ReadJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	return nil
}

// Tail returns the last n bytes of the file, less when it is shorter or older
// parts were punched out, and nothing when it cannot be read.
func Tail(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, size-n), n))
	if err != nil {
		return ""
	}
	return string(data)
}

// Exists reports whether the file is there.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Wake tells everybody who watches the folder that a record has changed: watchers
// have one watch, on Out, and this is the cheapest change of it.
func Wake(dir string) { _ = os.Chmod(filepath.Join(dir, Out), 0o600) }
