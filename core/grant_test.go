package core

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/config"
	"github.com/subspan-dev/subspan/core/ceiling"
)

func TestGrantNeverExceedsAnyBound(t *testing.T) {
	modes := rapid.SampledFrom([]ceiling.Mode{ceiling.Readonly, ceiling.Default, ceiling.Full, 3, 77, 255})
	rapid.Check(t, func(t *rapid.T) {
		role := bound{modes.Draw(t, "role"), "role"}
		var bounds []bound
		for _, m := range rapid.SliceOfN(modes, 1, 4).Draw(t, "bounds") {
			bounds = append(bounds, bound{m, "bound"})
		}
		var requested *ceiling.Mode
		if rapid.Bool().Draw(t, "asked") {
			m := modes.Draw(t, "requested")
			requested = &m
		}
		got, lowered, err := grant(requested, role, bounds)
		for _, b := range bounds {
			if ceiling.Exceeds(got, b.mode) {
				t.Fatalf("granted %v above %v", got, b.mode)
			}
		}
		if requested == nil && ceiling.Exceeds(got, role.mode) {
			t.Fatalf("granted %v, the role asks for %v", got, role.mode)
		}
		if err != nil && got != ceiling.Readonly {
			t.Fatalf("refused and granted %v", got)
		}
		if requested != nil && err == nil && got != ceiling.Meet(*requested) {
			t.Fatalf("asked for %v, got %v without an error", *requested, got)
		}
		if requested == nil && (err != nil || (lowered == "") != (got == ceiling.Meet(role.mode))) {
			t.Fatalf("role %v got %v, lowered %q, %v", role.mode, got, lowered, err)
		}
	})
}

func TestB47ChildNeverAboveItsParent(t *testing.T) {
	w := newWorld(t)
	c := w.host()
	readonly, full := ceiling.Readonly, ceiling.Full
	parent := w.create(c, func(r *CreateRequest) { r.Mode = &readonly; r.Role = "general" })
	for name, req := range map[string]CreateRequest{
		"full":            {Mode: &full, Parent: parent.ID, Agent: "fake", Cwd: w.cwd},
		"full by a role":  {Mode: &full, Parent: parent.ID, Role: "implement", Agent: "fake", Cwd: w.cwd},
		"full by a fork":  {Mode: &full, Fork: parent.ID},
		"full in a child": {Mode: &full, Parent: parent.ID, Fork: parent.ID},
	} {
		if _, err := c.Create(t.Context(), req); !errors.Is(err, bridges.ErrPermissionCeiling) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := w.host().Create(t.Context(), req); !errors.Is(err, bridges.ErrPermissionCeiling) {
			t.Errorf("%s, after a restart: %v", name, err)
		}
	}
	child, err := c.Create(t.Context(), CreateRequest{Parent: parent.ID, Role: "implement", Agent: "fake", Cwd: w.cwd})
	if err != nil {
		t.Fatal(err)
	}
	if child.Permission != ceiling.Readonly || len(child.Warnings) == 0 {
		t.Errorf("child has %s, warnings %q", child.Permission, child.Warnings)
	}
}

func TestChosenRoleBoundsTheRequest(t *testing.T) {
	w := newWorld(t)
	c := w.host()
	full := ceiling.Full
	if s := w.create(c, func(r *CreateRequest) { r.Mode = &full }); s.Permission != ceiling.Full {
		t.Errorf("without a role: %s", s.Permission)
	}
	if s := w.create(c, nil); s.Permission != ceiling.Default {
		t.Errorf("without a wish: %s", s.Permission)
	}
	for _, role := range []string{"general", "review"} {
		if _, err := c.Create(t.Context(), CreateRequest{Role: role, Mode: &full, Agent: "fake", Cwd: w.cwd}); !errors.Is(err, bridges.ErrPermissionCeiling) {
			t.Errorf("role %s: %v", role, err)
		}
	}
	w.conf.Maximum = ceiling.Default
	if _, err := w.host().Create(t.Context(), CreateRequest{Mode: &full, Agent: "fake", Cwd: w.cwd}); !errors.Is(err, bridges.ErrPermissionCeiling) {
		t.Errorf("above the host's maximum: %v", err)
	}
	w.conf.DefaultRole = "review"
	if _, err := w.host().Create(t.Context(), CreateRequest{Mode: &full, Agent: "fake", Cwd: w.cwd}); !errors.Is(err, bridges.ErrPermissionCeiling) {
		t.Errorf("above the configured role: %v", err)
	}
}

func TestDepthAndChildrenAreCounted(t *testing.T) {
	w := newWorld(t)
	w.conf.Limits = config.Limits{MaxDepth: 2, MaxChildren: 1, MaxLive: 99}
	c := w.host()
	top := w.create(c, nil)
	mid := w.create(c, func(r *CreateRequest) { r.Parent = top.ID })
	low := w.create(c, func(r *CreateRequest) { r.Parent = mid.ID })
	if low.Depth != 2 {
		t.Errorf("depth %d", low.Depth)
	}
	if _, err := c.Create(t.Context(), CreateRequest{Parent: low.ID, Agent: "fake", Cwd: w.cwd}); !errors.Is(err, bridges.ErrDepthLimit) {
		t.Errorf("third level: %v", err)
	}

	// A child that works holds the slot; every way of ending frees it, but only
	// when the end is proven.
	results := map[string]func() (bridges.Result, error){
		"success":   func() (bridges.Result, error) { return bridges.Result{Status: bridges.StatusCompleted}, nil },
		"failure":   func() (bridges.Result, error) { return bridges.Result{Status: bridges.StatusFailed}, nil },
		"cancelled": func() (bridges.Result, error) { return bridges.Result{Status: bridges.StatusCancelled}, nil },
		"crash": func() (bridges.Result, error) {
			return bridges.Result{Status: bridges.StatusFailed, Error: bridges.Errorf(bridges.KindAgentFailed, "died")}, nil
		},
		"unknown": func() (bridges.Result, error) {
			return bridges.Result{}, bridges.Errorf(bridges.KindOutcomeUnknown, "who knows")
		},
	}
	for name, result := range results {
		t.Run(name, func(t *testing.T) {
			outer := w.t
			w.t = t
			defer func() { w.t = outer }()
			release := make(chan struct{})
			w.bridge.submit = submitFunc(func() (bridges.Result, error) { <-release; return result() })
			child := w.create(c, func(r *CreateRequest) { r.Parent = top.ID })
			ref, err := c.Submit(t.Context(), SubmitRequest{Session: child.ID, Task: "work"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Create(t.Context(), CreateRequest{Parent: top.ID, Agent: "fake", Cwd: w.cwd}); !errors.Is(err, bridges.ErrCapacity) {
				t.Errorf("while the child works: %v", err)
			}
			close(release)
			if _, err := c.Wait(t.Context(), child.ID, ref.Turn); err != nil {
				t.Fatal(err)
			}
			w.create(c, func(r *CreateRequest) { r.Parent = top.ID })
		})
	}

	w.bridge.receipt = bridges.Receipt{SurvivedCount: 1, Survived: []bridges.Process{{PID: 4711}}}
	w.bridge.submit = submitFunc(results["crash"])
	child := w.create(c, func(r *CreateRequest) { r.Parent = top.ID })
	w.turn(c, child, "crash and leave something behind")
	if _, err := c.Create(t.Context(), CreateRequest{Parent: top.ID, Agent: "fake", Cwd: w.cwd}); !errors.Is(err, bridges.ErrCapacity) {
		t.Errorf("with a survivor: %v", err)
	}
	w.bridge.receipt = bridges.Receipt{Proven: true}
	if _, err := c.Stop(t.Context(), child.ID); err != nil {
		t.Fatal(err)
	}
	w.create(c, func(r *CreateRequest) { r.Parent = top.ID })
}

func TestWorkspaceMustNotHoldWhatBoundsTheAgent(t *testing.T) {
	w := newWorld(t)
	c := w.host()
	above := filepath.Dir(w.dirs.State)
	inside := filepath.Join(w.dirs.State, "sessions")
	if err := os.MkdirAll(w.dirs.Config, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(w.cwd, "link")
	if err := os.Symlink(w.dirs.Config, link); err != nil {
		t.Fatal(err)
	}
	for _, cwd := range []string{above, inside, link, w.dirs.State} {
		if _, err := c.Create(t.Context(), CreateRequest{Cwd: cwd, Agent: "fake"}); !errors.Is(err, bridges.ErrInvalidArgument) {
			t.Errorf("default in %s: %v", cwd, err)
		}
		for _, mode := range []ceiling.Mode{ceiling.Readonly, ceiling.Full} {
			if _, err := c.Create(t.Context(), CreateRequest{Cwd: cwd, Agent: "fake", Mode: &mode}); err != nil {
				t.Errorf("%s in %s: %v", mode, cwd, err)
			}
		}
	}
}

func TestJudge(t *testing.T) {
	cwd := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(cwd, "link")); err != nil {
		t.Fatal(err)
	}
	kernel, asked := bridges.HoldKernel, bridges.HoldAsked
	for _, tt := range []struct {
		mode  ceiling.Mode
		hold  bridges.Strength
		kind  bridges.ToolKind
		where string
		want  string
	}{
		{ceiling.Full, bridges.HoldNone, bridges.ToolExecute, "", "allow"},
		{ceiling.Readonly, kernel, bridges.ToolRead, "/etc/passwd", "allow"},
		{ceiling.Readonly, kernel, bridges.ToolEdit, "a.txt", "deny"},
		{ceiling.Readonly, kernel, bridges.ToolOther, "", "deny"},
		{ceiling.Readonly, kernel, "", "", "deny"},
		{ceiling.Readonly, kernel, bridges.ToolSwitchMode, "", "deny"},
		{ceiling.Readonly, kernel, bridges.ToolExecute, "", "allow"},
		{ceiling.Readonly, asked, bridges.ToolExecute, "", "deny"},
		{77, asked, bridges.ToolExecute, "", "deny"},
		{ceiling.Default, kernel, bridges.ToolEdit, "a.txt", "allow"},
		{ceiling.Default, kernel, bridges.ToolEdit, "../a.txt", "ask"},
		{ceiling.Default, kernel, bridges.ToolEdit, "/etc/passwd", "ask"},
		{ceiling.Default, kernel, bridges.ToolEdit, "link/passwd", "ask"},
		{ceiling.Default, asked, bridges.ToolEdit, "", "ask"},
		{ceiling.Default, asked, bridges.ToolEdit, "new/deep/a.txt", "allow"},
		{ceiling.Default, asked, bridges.ToolExecute, "", "ask"},
		{ceiling.Default, kernel, bridges.ToolExecute, "", "allow"},
		{ceiling.Default, kernel, bridges.ToolOther, "", "ask"},
	} {
		q := bridges.Question{Tool: bridges.Tool{Kind: tt.kind}}
		if tt.where != "" {
			q.Tool.Locations = []string{tt.where}
		}
		v := judge(tt.mode, tt.hold, cwd, nil, q)
		got := string(v.decision)
		if v.ask {
			got = "ask"
		}
		if got != tt.want {
			t.Errorf("%s held by %s, %s %s: %s, want %s", tt.mode, tt.hold, tt.kind, tt.where, got, tt.want)
		}
		if v.ask && v.decision != bridges.Deny {
			t.Errorf("nobody there to ask means %s", v.decision)
		}
	}
}

func TestConfiguredPolicyNeverWidensTheMode(t *testing.T) {
	rules := map[bridges.ToolKind]config.Rule{
		bridges.ToolExecute: config.RuleAllow, bridges.ToolEdit: config.RuleAllow, bridges.ToolRead: config.RuleDeny,
	}
	judged := func(mode ceiling.Mode, kind bridges.ToolKind) verdict {
		return judge(mode, bridges.HoldAsked, t.TempDir(), rules, bridges.Question{Tool: bridges.Tool{Kind: kind}})
	}
	if v := judged(ceiling.Readonly, bridges.ToolEdit); v.decision != bridges.Deny || v.ask {
		t.Errorf("readonly edit: %+v", v)
	}
	if v := judged(ceiling.Default, bridges.ToolExecute); v.decision != bridges.Allow {
		t.Errorf("default execute: %+v", v)
	}
	if v := judged(ceiling.Full, bridges.ToolRead); v.decision != bridges.Deny || !strings.Contains(v.reason, "policy") {
		t.Errorf("denied read: %+v", v)
	}
}
