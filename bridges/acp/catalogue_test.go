package acp

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/subspan-dev/subspan/bridges"
)

func TestCatalogueIsSound(t *testing.T) {
	names := map[string]bool{}
	for _, a := range Agents() {
		if a.Name == "" || names[a.Name] || len(a.Command) == 0 || filepath.IsAbs(a.Command[0]) || a.LoginHint == "" {
			t.Errorf("agent %+v", a)
		}
		names[a.Name] = true
		if _, err := parseProfile(a); err != nil {
			t.Errorf("%s: %v", a.Name, err)
		}
		for _, name := range a.Login {
			if !filepath.IsLocal(name) {
				t.Errorf("%s: login file %s", a.Name, name)
			}
		}
	}
	// No mode below full is expressed by what approves by itself.
	for _, a := range Agents() {
		p, _ := parseProfile(a)
		for mode, mp := range p.Modes {
			asked := ModeProfile{}
			if mp.Asked != nil {
				asked = *mp.Asked
			}
			for _, s := range slices.Concat(mp.Session, mp.Args, asked.Session, asked.Args) {
				if mode != "full" && unattended.MatchString(s) {
					t.Errorf("%s, %s: %s", a.Name, mode, s)
				}
			}
		}
	}
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "lib", "cli.js")
	if err := os.Mkdir(filepath.Dir(program), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{program: 0o700, filepath.Join(dir, "data"): 0o600, filepath.Join(dir, "busybox"): 0o700} {
		if err := os.WriteFile(name, []byte("#!/bin/false\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"shim": program, "dead": "nowhere", "notrun": filepath.Join(dir, "data"), "ls": filepath.Join(dir, "busybox")} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Skipf("no links here: %v", err)
		}
	}
	look := func(name string) (string, error) {
		if name == "absent" || name == "opencode" {
			return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
		}
		return filepath.Join(dir, name), nil
	}
	for name, want := range map[string]string{"shim": program, "dead": filepath.Join(dir, "dead"), "notrun": filepath.Join(dir, "notrun"), "ls": filepath.Join(dir, "ls"), "busybox": filepath.Join(dir, "busybox")} {
		a, err := Resolve(bridges.Agent{Name: "x", Command: []string{name, "--acp"}}, look)
		if want, _ := filepath.EvalSymlinks(filepath.Dir(want)); err != nil || a.Command[1] != "--acp" || filepath.Dir(a.Command[0]) != want && filepath.Dir(a.Command[0]) != dir {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		if err == nil && filepath.Base(a.Command[0]) != filepath.Base(want) {
			t.Errorf("%s is %s, want %s", name, a.Command[0], want)
		}
	}
	original := bridges.Agent{Name: "opencode", Command: []string{"opencode", "acp"}}
	_, err := Resolve(original, look)
	if e := bridges.AsError(err); !errors.Is(err, bridges.ErrAgentMissing) || !errors.Is(err, exec.ErrNotFound) || e.Next != "install it (npm install -g opencode-ai)" {
		t.Errorf("%v, next %q", err, bridges.AsError(err).Next)
	}
	if _, err := Resolve(bridges.Agent{Name: "none"}, nil); !errors.Is(err, bridges.ErrInvalidArgument) {
		t.Errorf("no command: %v", err)
	}
}
