//go:build unix

package demo

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestB02ForkChildOutlivesTheAgent(t *testing.T) {
	canary := filepath.Join(t.TempDir(), "canary")
	// Whatever happens, the child ends when it cannot append any more.
	t.Cleanup(func() {
		if err := errors.Join(os.Remove(canary), os.Mkdir(canary, 0o700)); err != nil {
			t.Error(err)
		}
	})
	c := ready(t, t.TempDir())
	if got := c.ask(c.newSession(t.TempDir()), "fork-child "+canary); !strings.Contains(got, "every 100 ms") {
		t.Fatalf("got %q", got)
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait() // killed
	size := fileSize(canary)
	grows(t, c, canary)
	if fileSize(canary) <= size && size > 4 {
		t.Error("the child did not outlive the agent")
	}
}

func TestSpecialFilesAreNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.x"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := ready(t, t.TempDir())
	got := c.ask(c.newSession(dir), "read fifo.x\nwrite fifo.x y\ngrep y\nwrite nodir/x y")
	if strings.Count(got, "is not a regular file") != 2 || !strings.Contains(got, "no line matches") || !strings.Contains(got, "no such file") {
		t.Errorf("got %s", got)
	}
}

// What the system forbids is reported like any other failure.
func TestWriteThatTheSystemRefuses(t *testing.T) {
	if os.Getuid() == 0 {
		// Root may write everywhere but where nobody may.
		if _, err := exec.LookPath("chattr"); err != nil {
			t.Skip("as root, needs chattr")
		}
	}
	dir := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := exec.Command("chattr", "+i", dir).Run(); err != nil {
			t.Skip("the file system knows no immutable folders")
		}
		t.Cleanup(func() {
			if err := exec.Command("chattr", "-i", dir).Run(); err != nil {
				t.Error(err)
			}
		})
	}
	c := ready(t, t.TempDir())
	got := c.ask(c.newSession(dir), "write a.txt x")
	if !strings.Contains(got, "`write a.txt x` failed: open") || c.statuses()["Write a.txt"] != "pending in_progress failed" {
		t.Errorf("got %q, %v", got, c.statuses())
	}
}
