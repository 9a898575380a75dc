// Package proctree finds, names and signals the processes of one session.
//
// A pid alone names nobody: it is reused. An ID is a pid with the time its process
// started, valid for one boot; nothing here signals a process whose ID it has not
// just compared.
package proctree

import (
	"errors"
	"os"
)

// Marker is the environment variable that every process of a session inherits.
const Marker = "SUBSPAN_SESSION"

// ErrGone says that there is no such process any more.
var ErrGone = errors.New("no such process")

// ID names a process beyond doubt, until the next boot.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // the system's own unit; only compared
}

// Process is a living process as it was when it was looked at.
type Process struct {
	ID
	Parent  int
	Command string // the program alone: arguments may hold secrets
}

// Alive reports whether the process still runs. A zombie does not.
func Alive(id ID) bool {
	p, err := Lookup(id.PID)
	return err == nil && p.ID == id
}

// Below returns the processes of all that are below root, without root itself.
func Below(root int, all []Process) []Process {
	below := map[int]bool{root: true}
	var found []Process
	// Children may be listed before their parents: go on until nothing is added.
	for grew := true; grew; {
		grew = false
		for _, p := range all {
			if below[p.Parent] && !below[p.PID] {
				below[p.PID] = true
				found = append(found, p)
				grew = true
			}
		}
	}
	return found
}

// Session returns the living processes of a session: those below root, and those
// whose environment carries the session's mark, as far as this user may read it.
// Neither root nor this process is among them. Processes that come and go meanwhile
// may be missed.
func Session(session string, root int) ([]Process, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	found := Below(root, all)
	if session == "" { // every process without a mark would be of it
		return found, nil
	}
	known := map[int]bool{root: true, os.Getpid(): true}
	for _, p := range found {
		known[p.PID] = true
	}
	for _, p := range all {
		if !known[p.PID] && MarkOf(p.PID) == session {
			found = append(found, p)
		}
	}
	return found, nil
}
