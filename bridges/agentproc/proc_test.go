package agentproc

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestEcho(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := NewRunner()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dir := filepath.Join(t.TempDir(), "run")
	p, err := r.Start(ctx, Spec{SessionID: "s_echo", Dir: dir, Cwd: "/", Command: []string{os.Args[0]}, Env: []string{"TEST_AGENT=echo"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Write(ctx, []byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	f, err := p.Reader(0).ReadFrame(ctx, 1<<20)
	t.Logf("%q %v", f.Data, err)
	rec, err := p.Stop(ctx, StopOptions{Reason: "test"})
	t.Logf("%+v %v", rec, err)
	if d, err := ProbeSandbox(ctx); err != nil {
		t.Error(err)
	} else {
		t.Log(d)
	}
	t.Log(Remove(dir))
}
