package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/plugins/dropin"
	"github.com/subspan-dev/subspan/plugins/host"
)

// Config is a bridge for Run.
type Config struct {
	// New returns the bridge. It is called again where the suite needs what a new
	// process would have: nothing but the handle and the folders.
	New func() bridges.Bridge
	// Agent is the agent to drive.
	Agent bridges.Agent
	// Words replaces tasks of DefaultWords.
	Words map[string]string
}

// T is *testing.T, so that this package does not pull package testing into programs.
type T[Self any] interface {
	Helper()
	Context() context.Context
	Run(name string, f func(Self)) bool
	Error(args ...any)
	Fatal(args ...any)
	Skip(args ...any)
	Cleanup(f func())
}

// Run judges a bridge inside a test, each check a subtest. The checks that need a
// process of the bridge's own are left out; see Check.
func Run[S T[S]](t S, cfg Config) {
	t.Helper()
	e, err := newEnv(cfg.Words, cfg.Agent)
	if err != nil {
		t.Fatal(err)
	}
	e.launch = func(context.Context) (*live, error) { return &live{Bridge: cfg.New()}, nil }
	t.Cleanup(func() {
		if err := e.close(); err != nil {
			t.Error(err)
		}
	})
	for _, c := range checks() {
		if c.process {
			continue
		}
		t.Run(c.name, func(t S) {
			t.Helper()
			var skipped skipped
			switch err := e.run(t.Context(), c); {
			case errors.As(err, &skipped):
				t.Skip(skipped.why)
			case err != nil:
				t.Error(fmt.Sprintf("%v\nthe rule: %s", err, c.fix))
			}
		})
	}
}

// Options are for Check.
type Options struct {
	// Self is the subspan executable: keepers are started from it, and the demo agent
	// is `Self demo-agent`.
	Self string
	// Agent is the agent to drive; the zero Agent is what plugin.json says under
	// check.agent, or else the demo agent.
	Agent bridges.Agent
	// Set is added to the plugin's environment, KEY=VALUE.
	Set []string
	// Log gets what the plugin logs; nil for nothing.
	Log *slog.Logger
	// Each is called with every outcome as it comes; nil for none.
	Each func(Outcome)
}

// Verdict is how a check ended.
type Verdict string

const (
	Passed  Verdict = "passed"
	Failed  Verdict = "failed"
	Skipped Verdict = "skipped" // Detail says why
)

// Outcome is one check's.
type Outcome struct {
	Name    string        `json:"name"`
	Verdict Verdict       `json:"verdict"`
	Detail  string        `json:"detail,omitempty"`
	Fix     string        `json:"fix,omitempty"` // for Failed: what to do
	Took    time.Duration `json:"took"`
}

// Report is what Check found.
type Report struct {
	Plugin   string    `json:"plugin"`
	Version  string    `json:"version"`
	Outcomes []Outcome `json:"outcomes"`
}

// OK reports whether no check failed.
func (r Report) OK() bool {
	return !slices.ContainsFunc(r.Outcomes, func(o Outcome) bool { return o.Verdict == Failed })
}

// Write prints the report for a person.
func (r Report) Write(w io.Writer) error {
	counts := map[Verdict]int{}
	for _, o := range r.Outcomes {
		counts[o.Verdict]++
		line := fmt.Sprintf("%-8s %s", o.Verdict, o.Name)
		if o.Detail != "" {
			line += ": " + o.Detail
		}
		if o.Fix != "" {
			line += "\n         the rule: " + o.Fix
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%s %s: %d passed, %d failed, %d skipped\n", r.Plugin, r.Version,
		counts[Passed], counts[Failed], counts[Skipped])
	return err
}

// Check judges the plugin in a folder as a real process. It executes what the folder
// holds, trusted or not. The error is for what keeps the suite from running at all,
// such as a broken manifest; it has at most one Check at a time per process in mind,
// since processes are found by this one's temporary folder.
func Check(ctx context.Context, folder string, o Options) (Report, error) {
	program, manifest, err := dropin.InPlace(folder)
	if err != nil {
		return Report{}, fmt.Errorf("read the plugin: %w", err)
	}
	agent, err := agentFor(folder, manifest, o)
	if err != nil {
		return Report{}, err
	}
	e, err := newEnv(manifest.Check.Words, agent)
	if err != nil {
		return Report{}, fmt.Errorf("prepare the suite: %w", err)
	}
	e.program = host.Program{
		Name: manifest.Name, Command: program.Command, Dir: program.Dir, Sockets: filepath.Join(e.root, "sock"),
		Env: host.Environment([]string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(e.root, "home"), "TMPDIR=" + filepath.Join(e.root, "tmp"),
			"SUBSPAN_STATE_DIR=" + filepath.Join(e.root, "state"), "SUBSPAN_RUNTIME_DIR=" + filepath.Join(e.root, "run"),
			hostSecretName + "=" + secretValue,
		}, manifest.Env, append(slices.Clone(o.Set), "SUBSPAN_KEEPER="+o.Self)),
		Check: func(d bridges.Description) error { return host.Matches(d, manifest.Name, manifest.Version) },
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	e.launch = func(ctx context.Context) (*live, error) {
		in, err := host.Launch(ctx, e.program, log)
		if err != nil {
			return nil, err
		}
		return &live{Bridge: in, instance: in}, nil
	}
	report := Report{Plugin: manifest.Name, Version: manifest.Version}
	for _, c := range checks() {
		begin := time.Now()
		out := outcome(c, e.run(ctx, c))
		out.Took = time.Since(begin)
		report.Outcomes = append(report.Outcomes, out)
		if o.Each != nil {
			o.Each(out)
		}
		if ctx.Err() != nil || c.name == "handshake" && out.Verdict == Failed {
			break // what never starts fails everything, and says no more by it
		}
	}
	if err := e.close(); err != nil {
		return report, fmt.Errorf("clean up after the suite: %w", err)
	}
	return report, ctx.Err()
}

func outcome(c check, err error) Outcome {
	var s skipped
	switch {
	case err == nil:
		return Outcome{Name: c.name, Verdict: Passed}
	case errors.As(err, &s):
		return Outcome{Name: c.name, Verdict: Skipped, Detail: s.why}
	}
	return Outcome{Name: c.name, Verdict: Failed, Detail: err.Error(), Fix: c.fix}
}

// agentFor chooses the agent that the plugin is to drive.
func agentFor(folder string, m *dropin.Manifest, o Options) (bridges.Agent, error) {
	if o.Agent.Name != "" {
		return o.Agent, nil
	}
	if len(m.Check.Agent) > 0 {
		cmd, err := m.CheckAgent(folder)
		return bridges.Agent{Name: m.Name, Command: cmd}, err
	}
	return bridges.Agent{Name: "demo", Command: []string{o.Self, "demo-agent"}}, nil
}
