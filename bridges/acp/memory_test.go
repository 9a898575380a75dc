//go:build linux

package acp

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestMemoryOfALargeText: a text of 32 MiB in one line passes in a process that never
// has more than 64 MB, given the memory limit that a plugin's process sets itself.
func TestMemoryOfALargeText(t *testing.T) {
	if raced {
		t.Skip("the race detector's memory is not ours")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	driver := exec.Command(self)
	driver.Env = append(os.Environ(), "DRIVE="+dir, "GOMEMLIMIT=48MiB")
	driver.Stdin = strings.NewReader(fmt.Sprintf("big %d", 32<<20))
	out, err := driver.Output()
	if err != nil {
		t.Fatal(err)
	}
	_, peak, ok := strings.Cut(string(out), "VmHWM:")
	kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(peak), " kB"))
	if !ok || err != nil || kib > 64_000_000/1024 {
		t.Errorf("peak %q, %v", peak, err)
	}
	if n := strings.Count(string(out), "z"); n < 32<<20 {
		t.Errorf("%d bytes of text", n)
	}
}
