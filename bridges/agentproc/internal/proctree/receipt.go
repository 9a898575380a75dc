package proctree

import (
	"runtime"

	"github.com/subspan-dev/subspan/bridges"
)

// listed bounds the processes that a receipt names.
const listed = 64

// Receipt sorts the processes of an end: those that were seen and are not left any
// more have ended.
func Receipt(seen map[ID]Process, left []Process) bridges.Receipt {
	var r bridges.Receipt
	lives := make(map[ID]bool, len(left))
	for _, p := range left {
		if lives[p.ID] {
			continue
		}
		lives[p.ID] = true
		r.SurvivedCount++
		if len(r.Survived) < listed {
			r.Survived = append(r.Survived, p.Contract())
		}
	}
	for id, p := range seen {
		if lives[id] {
			continue
		}
		r.EndedCount++
		if len(r.Ended) < listed {
			r.Ended = append(r.Ended, p.Contract())
		}
	}
	return r
}

// Contract returns the process as the contract names it.
func (p Process) Contract() bridges.Process {
	c := bridges.Process{PID: p.PID, Command: p.Command}
	if runtime.GOOS == "linux" {
		c.Start = p.Start
	}
	return c
}
