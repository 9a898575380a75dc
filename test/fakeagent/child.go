package fakeagent

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"time"
)

// beat is how often a canary is appended to.
const beat = 20 * time.Millisecond

// childArg makes a process the child that a Child describes.
const childArg = "fakeagent-child"

// start starts the child and returns once it is on its way.
func (c Child) start() error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	spec, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("describing the child: %w", err)
	}
	cmd := exec.Command(exe, Arg, childArg, string(spec))
	if slices.Contains(c.Hold, "stdout") {
		cmd.Stdout = os.Stdout
	}
	if slices.Contains(c.Hold, "stderr") {
		cmd.Stderr = os.Stderr
	}
	switch c.How {
	case "group":
	case "setsid", "double":
		cmd.SysProcAttr = newSession()
	default:
		return fmt.Errorf("child: how %q is none of group, setsid, double", c.How)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the child: %w", err)
	}
	if c.How == "double" { // the one in between ends at once
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("starting the child: %w", err)
		}
		return nil
	}
	return cmd.Process.Release()
}

// runChild is the child's main. The one in between of "double" starts the real one.
func runChild(spec string) error {
	var c Child
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return fmt.Errorf("child: %w", err)
	}
	if c.How == "double" {
		c.How = "group"
		return c.start()
	}
	if c.Stubborn {
		signal.Ignore(stoppers...)
	}
	life := time.Duration(c.For)
	if life == 0 {
		life = time.Minute
	}
	if c.Canary == "" {
		time.Sleep(life)
		return nil
	}
	f, err := os.OpenFile(c.Canary, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("child: %w", err)
	}
	defer f.Close()
	for end := time.Now().Add(life); time.Now().Before(end); time.Sleep(beat) {
		if _, err := f.WriteString("."); err != nil {
			return fmt.Errorf("child: %w", err)
		}
	}
	return nil
}
