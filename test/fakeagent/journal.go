package fakeagent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
)

// Record is one line of a journal.
type Record struct {
	// Event is start, in, line, eof, prompt, reply, signal or child.
	Event string `json:"event"`
	PID   int    `json:"pid"`

	Argv []string `json:"argv,omitempty"` // start
	Env  []string `json:"env,omitempty"`  // start
	Cwd  string   `json:"cwd,omitempty"`  // start

	Line   string          `json:"line,omitempty"`   // in, line: as it came, without its newline
	Name   string          `json:"name,omitempty"`   // in: the method or type; reply: the method asked; signal: which
	Params json.RawMessage `json:"params,omitempty"` // reply: the whole reply

	Session string            `json:"session,omitempty"` // prompt
	Text    string            `json:"text,omitempty"`    // prompt
	Turn    int               `json:"turn,omitempty"`    // prompt: of the session, from 1
	Options map[string]string `json:"options,omitempty"` // prompt: the config options in force
}

// Journal is what a fake agent wrote about itself, over all its processes.
type Journal []Record

// ReadJournal reads a journal. A file that is not there yet is an empty journal, and
// an unfinished last line is left out: the agent may be at it.
func ReadJournal(path string) (Journal, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the journal: %w", err)
	}
	var j Journal
	for line := range bytes.Lines(b) {
		if line[len(line)-1] != '\n' {
			break
		}
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			return j, fmt.Errorf("journal %s, line %d: %w", path, len(j)+1, err)
		}
		j = append(j, r)
	}
	return j, nil
}

// Of returns the records of one event.
func (j Journal) Of(event string) Journal {
	var out Journal
	for _, r := range j {
		if r.Event == event {
			out = append(out, r)
		}
	}
	return out
}

// Named returns the incoming messages of one method or type.
func (j Journal) Named(name string) Journal {
	var out Journal
	for _, r := range j.Of("in") {
		if r.Name == name {
			out = append(out, r)
		}
	}
	return out
}

// journal appends records. It may be used from several goroutines and processes.
type journal struct {
	mu   sync.Mutex
	file *os.File // nil for none
}

func openJournal(path string) (*journal, error) {
	if path == "" {
		return &journal{}, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the journal: %w", err)
	}
	return &journal{file: f}, nil
}

func (j *journal) add(r Record) error {
	if j.file == nil {
		return nil
	}
	r.PID = os.Getpid()
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.file.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	return nil
}
