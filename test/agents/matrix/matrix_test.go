//go:build linux

package matrix

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/test/agents"
)

var file = flag.String("matrix", os.Getenv("SUBSPAN_MATRIX"), "write the results as JSON to this `file`, absolute")

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		if os.Getenv("SUBSPAN_AGENTS") != "1" {
			return m.Run() // to say that everything is skipped
		}
		dir, err := os.MkdirTemp("", "subspan-matrix")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "subspan")
		build := exec.Command("go", "build", "-o", binary, "github.com/subspan-dev/subspan/cmd/subspan")
		build.Stdout, build.Stderr = os.Stdout, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build subspan:", err)
			return 1
		}
		return m.Run()
	}())
}

// behaviour is one row of the table.
type behaviour struct {
	name  string
	about string
	limit time.Duration // of one cell; 0 for the usual
	run   func(*cell)
}

// usual is how long a cell may take. Agents need seconds to start, and half a minute
// on a busy machine.
const usual = 90 * time.Second

func TestRealMatrix(t *testing.T) {
	agents.Find(t)
	var mu sync.Mutex
	var all Results
	rows := behaviours()
	for _, p := range products() {
		all.Agents = append(all.Agents, p.name)
	}
	for _, b := range rows {
		all.Behaviours = append(all.Behaviours, Behaviour{b.name, b.about})
	}
	t.Cleanup(func() {
		if *file == "" {
			return
		}
		f, err := os.Create(*file)
		if err == nil {
			err = all.Write(f)
			if closed := f.Close(); err == nil {
				err = closed
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
	for key := range knownFailures {
		if agent, name, _ := strings.Cut(key, "/"); !hasCell(all, agent, name) {
			t.Errorf("knownFailures has %q, which is no cell", key)
		}
	}
	for _, p := range slowest(products()) {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			l := &lane{u: newUser(t, p)}
			for _, b := range rows {
				t.Run(b.name, func(t *testing.T) {
					r := l.try(t, p, b)
					mu.Lock()
					all.Cells = append(all.Cells, r)
					mu.Unlock()
					judge(t, r)
				})
			}
		})
	}
}

func hasCell(r Results, agent, name string) bool {
	for _, a := range r.Agents {
		for _, b := range r.Behaviours {
			if a == agent && b.Name == name {
				return true
			}
		}
	}
	return false
}

// slowest orders the agents for a short run: those that take long begin.
func slowest(all []product) []product {
	sorted := make([]product, 0, len(all))
	for _, slow := range []bool{true, false} {
		for _, p := range all {
			if p.slow == slow {
				sorted = append(sorted, p)
			}
		}
	}
	return sorted
}

// judge makes the test red for what is not as known.
func judge(t *testing.T, r Cell) {
	why, known := knownFailures[r.Agent+"/"+r.Behaviour]
	switch {
	case r.Verdict == Fails && known:
		t.Logf("known failure (%s): %s", why, r.Reason)
	case r.Verdict == Fails:
		t.Error(r.Reason)
	case known:
		t.Errorf("does not fail any more: take it out of knownFailures (%s)", why)
	case r.Reason != "":
		t.Log(r.Verdict, ": ", r.Reason)
	}
}

// try runs a cell on a goroutine of its own, which ends when the behaviour has been
// seen, has failed or has run out of time.
func (l *lane) try(t *testing.T, p product, b behaviour) Cell {
	limit := b.limit
	if limit == 0 {
		limit = usual
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := &cell{t: t, ctx: ctx, name: b.name, p: p, lane: l, u: l.u, verdict: Pass}
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.folders(); err != nil {
			c.fatalf("%v", err)
		}
		b.run(c)
	}()
	<-done
	if err := c.u.rest(t.Context(), 10*time.Second); err != nil {
		c.errorf("%v", err)
	}
	if c.version != "" {
		l.seen = c.version
	}
	r := Cell{Agent: p.name, Behaviour: b.name, Verdict: c.verdict, Reason: c.reason, Version: l.seen}
	r.Seconds = time.Since(began).Round(100 * time.Millisecond).Seconds()
	if len(c.faults) > 0 {
		r.Verdict, r.Reason = Fails, strings.Join(c.faults, "; ")
		t.Logf("the model saw: %s", c.story())
	}
	return r
}
