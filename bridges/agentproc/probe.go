package agentproc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/subspan-dev/subspan/bridges"
)

// canaryVerb is the argument, and the variable, that make a process the canary.
const canaryVerb = "SUBSPAN_CANARY"

// sung is what the canary found out.
type sung struct {
	Outside string `json:"outside"` // why it could not write where it must not
	Socket  string `json:"socket"`  // why it could not make a unix socket
	Inside  bool   `json:"inside"`  // it could write to its TMPDIR
}

// ProbeSandbox proves that agents can be confined here, by an experiment: a child
// that is started like any agent tries what it must not do. It returns how the
// sandbox is held, such as landlock-7+seccomp, or KindSandboxUnavailable. It takes
// the start of two processes: do it once per process and keep the answer.
func ProbeSandbox(ctx context.Context) (detail string, err error) {
	dir, err := os.MkdirTemp("", "subspan-probe-")
	if err != nil {
		return "", fmt.Errorf("probing the sandbox: %w", err)
	}
	defer os.RemoveAll(dir)
	self, err := keeperPath() // Main makes it the canary too
	if err != nil {
		return "", err
	}
	r, err := NewRunner()
	if err != nil {
		return "", err
	}
	defer r.Close()
	target := filepath.Join(dir, "canary")
	p, err := r.Start(ctx, Spec{
		SessionID: "probe-" + filepath.Base(dir), Dir: filepath.Join(dir, "run"), Cwd: dir,
		Command: []string{self, canaryVerb, target}, Env: []string{canaryVerb + "=" + target},
		Sandbox: Sandbox{Mode: SandboxReadOnly}, Keeper: []string{self},
	})
	if err != nil {
		return "", err
	}
	defer func() {
		_, stopErr := p.Stop(context.WithoutCancel(ctx), StopOptions{Reason: "probe"})
		err = errors.Join(err, stopErr)
	}()
	f, err := p.Reader(0).ReadFrame(ctx, 4<<10)
	var s sung
	if err == nil {
		err = json.Unmarshal(f.Data, &s)
	}
	if err != nil {
		return "", fmt.Errorf("probing the sandbox: %w: %s", err, p.Stderr())
	}
	_, statErr := os.Lstat(target)
	// Seatbelt lets unix sockets be made, and refuses to connect them.
	socket := s.Socket != "" || runtime.GOOS == "darwin"
	if s.Outside == "" || !socket || !s.Inside || !errors.Is(statErr, fs.ErrNotExist) {
		return "", bridges.Errorf(bridges.KindSandboxUnavailable, "the sandbox does not hold: %+v", s).
			WithNext("accept a weaker hold by name")
	}
	return p.Hold().Detail, nil
}

// canary tries what a confined process must not do, tells how it went, and ends.
func canary(target string) {
	var s sung
	if err := os.WriteFile(target, []byte("sung"), 0o600); err != nil {
		s.Outside = err.Error()
	}
	if l, err := net.Listen("unix", filepath.Join(os.TempDir(), "s")); err != nil {
		s.Socket = err.Error()
	} else {
		l.Close()
	}
	s.Inside = os.WriteFile(filepath.Join(os.TempDir(), "f"), nil, 0o600) == nil
	if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}
