package claude

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// TestLongTurn frees the output of a turn while it runs, and goes on with the rest.
func TestLongTurn(t *testing.T) {
	t.Parallel()
	w := setUp(t, ceiling.Full)
	w.create(nil)
	file := filepath.Join(w.settings.Cwd, "go")
	req := w.request(strings.Repeat("big 3000000\n", 6) + "say here\nwait " + file + "\nsay end")
	rec := newRecorder(w)
	done := w.start(req, rec)
	rec.awaitText(t, "here")
	w.restart()
	if _, err := (<-done)(); err == nil {
		t.Error("a closed bridge returned a result")
	}
	var spool syscall.Stat_t
	if err := syscall.Stat(filepath.Join(w.folders.Run, "out"), &spool); err != nil {
		t.Fatal(err)
	}
	if spool.Size < 30<<20 || spool.Blocks*512 > 20<<20 {
		t.Errorf("the spool of %d bytes takes %d", spool.Size, spool.Blocks*512)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	events := rec.all()
	rec = newRecorder(w)
	req.Resume = &bridges.Resume{After: events[len(events)-1].Pos}
	r, err := w.bridge.Submit(ctx(t), req, rec)
	if err != nil || r.Status != bridges.StatusCompleted || rec.text() != "end" {
		t.Errorf("%+v, %v, %q", r, err, rec.text())
	}
	rec = newRecorder(w)
	req.Resume = &bridges.Resume{} // a host that has lost all of it
	if _, err := w.bridge.Submit(ctx(t), req, rec); err != nil {
		t.Fatal(err)
	}
	if first := rec.all()[0]; first.Notice == nil || first.Notice.Code != "gap" {
		t.Errorf("no word of the gap: %+v", first)
	}
}
