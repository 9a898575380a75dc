//go:build unix

package survey

import (
	"path/filepath"
	"syscall"
	"testing"
)

func TestWalkIsNotHeldByAFIFO(t *testing.T) {
	dir := folder(t, map[string]string{"z.txt": "x"})
	if err := syscall.Mkfifo(filepath.Join(dir, "a-fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, _ := walk(t, dir, DefaultLimits())
	if len(got) != 1 || got["z.txt"] == "" {
		t.Errorf("got %v", got)
	}
}
