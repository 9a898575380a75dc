package demo

import (
	"fmt"
	"path/filepath"

	"github.com/subspan-dev/subspan/demo/internal/survey"
)

// makeMap answers prose: a map of the folder, made in steps that are shown.
func (t *turn) makeMap() {
	var report *survey.Report
	steps := []struct {
		title string
		kind  string
		do    func() (string, error)
	}{
		{"Look through the files", "search", func() (string, error) {
			r, err := survey.Look(t.ctx, t.cwd, filepath.Base(t.cwd), survey.DefaultLimits())
			if err != nil {
				return "", err
			}
			report = r
			return fmt.Sprintf("%d files in %d folders, %d languages", r.Seen.Files, r.Seen.Folders, len(r.Languages)), nil
		}},
		{"Find entry points, tests and the README", "read", func() (string, error) {
			report.FindEntries()
			return fmt.Sprintf("%d entry points, %d test files", len(report.Entries), report.Tests.Files), nil
		}},
		{"Read the recent commits", "read", func() (string, error) {
			report.FindCommits(t.ctx, t.cwd)
			return fmt.Sprintf("%d commits", len(report.Commits)), nil
		}},
	}
	titles := make([]string, 0, len(steps)+1)
	for _, s := range steps {
		titles = append(titles, s.title)
	}
	titles = append(titles, "Write the map")

	thoughts := t.settings.option(optThought) != thoughtLow
	if thoughts {
		t.think("There is no model behind this agent, so the task itself cannot be understood; a map of the folder may still help.\n")
	}
	for i, s := range steps {
		t.plan(titles, i)
		c := t.begin(s.kind, s.title, "in_progress", locations(t.cwd))
		out, err := s.do()
		if err == nil {
			err = t.ctx.Err()
		}
		c.end(out, err)
		if err != nil {
			t.say(fmt.Sprintf("The folder could not be mapped: %v\n", err))
			return
		}
		if thoughts {
			t.think(out + ".\n")
		}
	}
	t.plan(titles, len(steps))
	for _, section := range report.Markdown() {
		t.say(section)
	}
	t.plan(titles, len(titles))
}
