//go:build unix

package agentproc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

func TestExit(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	for text, want := range map[string]bridges.Exit{
		`exit 0`:                    {},
		`echo oops >&2; exit 3`:     {Code: 3, Stderr: "oops\n"},
		`echo a >&2; kill -KILL $$`: {Code: -1, Signal: "killed", Stderr: "a\n"},
	} {
		p := start(t, r, script(t, text))
		<-p.Exited()
		got, ok := p.Exit()
		if d := cmp.Diff(want, got, cmpopts.IgnoreFields(bridges.Exit{}, "At")); d != "" || !ok {
			t.Errorf("%s: %s", text, d)
		}
		if age := time.Since(got.At); age < 0 || age > time.Minute {
			t.Errorf("%s: ended %v ago", text, age)
		}
	}
}

func TestStartRefuses(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	broken := filepath.Join(dir, "broken")
	if err := errors.Join(
		os.WriteFile(file, nil, 0o600),
		os.WriteFile(broken, []byte("#!/no/such/interpreter\n"), 0o700),
	); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Spec)
		kind   bridges.ErrorKind
		words  string
	}{
		"B58 no working folder":        {func(s *Spec) { s.Cwd = filepath.Join(dir, "gone") }, bridges.KindInvalidArgument, filepath.Join(dir, "gone")},
		"B58 a file as working folder": {func(s *Spec) { s.Cwd = file }, bridges.KindInvalidArgument, file},
		"no program":                   {func(s *Spec) { s.Command = []string{"/no/such/agent"} }, bridges.KindAgentMissing, "/no/such/agent"},
		"program without right":        {func(s *Spec) { s.Command = []string{file} }, bridges.KindAgentMissing, file},
		"script without interpreter":   {func(s *Spec) { s.Command = []string{broken} }, bridges.KindAgentMissing, broken},
		"relative program":             {func(s *Spec) { s.Command = []string{"cat"} }, bridges.KindInvalidArgument, "absolute"},
		"no command":                   {func(s *Spec) { s.Command = nil }, bridges.KindInvalidArgument, "absolute"},
		"no session":                   {func(s *Spec) { s.SessionID = "" }, bridges.KindInvalidArgument, "mark"},
		"keeper that is none":          {func(s *Spec) { s.Keeper = []string{"/bin/true"} }, bridges.KindInternal, "/bin/true"},
		"keeper that is not there":     {func(s *Spec) { s.Keeper = []string{"/no/keeper"} }, bridges.KindInternal, "/no/keeper"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := script(t, "exit 0")
			c.change(&spec)
			_, err := r.Start(limit(t), spec)
			wantKind(t, err, c.kind, c.words)
			// Nothing is left of it, and the folder is free for the next try.
			good := script(t, "exit 0")
			good.Dir = spec.Dir
			start(t, r, good)
		})
	}
}

func TestStartIsCutShort(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	spec := program(t, "/bin/cat")
	spec.Keeper = []string{"/bin/sh", "-c", "exec sleep 1000"} // never answers
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := r.Start(ctx, spec); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Start: %v", err)
	}
	if _, err := r.Attach(limit(t), spec.Dir); !errors.Is(err, ErrNoProcess) {
		t.Errorf("Attach: %v", err)
	}
}

func TestOneProcessPerFolder(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	spec := program(t, "/bin/cat")
	p := start(t, r, spec)
	_, err := r.Start(limit(t), spec)
	wantKind(t, err, bridges.KindSessionBusy, "runs in")
	wantKind(t, Remove(spec.Dir), bridges.KindSessionBusy)
	if _, err := p.Stop(limit(t), StopOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = r.Start(limit(t), spec)
	wantKind(t, err, bridges.KindSessionBusy, "earlier process")
	for range 2 {
		if err := Remove(spec.Dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Attach(limit(t), spec.Dir); !errors.Is(err, ErrNoProcess) {
		t.Errorf("Attach: %v", err)
	}
	start(t, r, spec)
}

// Start was killed before anybody could be told of a process.
func TestFolderOfAnUnfinishedStart(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	spec := program(t, "/bin/cat")
	if err := os.Mkdir(spec.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := lay(spec, folder.SpecRecord{SessionID: spec.SessionID}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Attach(limit(t), spec.Dir); !errors.Is(err, ErrNoProcess) {
		t.Errorf("Attach: %v", err)
	}
	if err := Remove(spec.Dir); err != nil {
		t.Fatal(err)
	}
	start(t, r, spec)
}

func TestEnvironmentIsNotStored(t *testing.T) {
	t.Parallel()
	spec := script(t, `echo $SECRET $SUBSPAN_SESSION; read x`)
	spec.Env = append(spec.Env, "SECRET=xyzzy", proctree.Marker+"=somebody_else")
	p := start(t, newRunner(t), spec)
	if got := frame(t, p.Reader(0)); got != "xyzzy "+spec.SessionID {
		t.Errorf("the agent saw %q", got)
	}
	files, err := os.ReadDir(spec.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Name() == folder.Out || !f.Type().IsRegular() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(spec.Dir, f.Name()))
		if err != nil || strings.Contains(string(data), "xyzzy") {
			t.Errorf("%s: %v %s", f.Name(), err, data)
		}
	}
	keeper := p.record.Keeper.PID
	for _, name := range []string{"environ", "cmdline"} {
		if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", keeper, name)); err == nil && strings.Contains(string(data), "xyzzy") {
			t.Errorf("the keeper's %s holds the value", name)
		}
	}
}

// Files that were open in whoever started us are no business of the agent's.
func TestInheritedFilesAreClosed(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	spec := script(t, `for f in 3 4 5 6 7 8 9; do if (: >&$f) 2>/dev/null || (: <&$f) 2>/dev/null; then echo $f; fi; done; echo end; read x`)
	leak := filepath.Join(t.TempDir(), "leak")
	spec.Keeper = slices.Concat([]string{"/bin/sh", "-c", `exec 9>"$0"; exec "$@"`, leak}, spec.Keeper)
	p := start(t, newRunner(t), spec)
	if got := frame(t, p.Reader(0)); got != "end" {
		t.Errorf("the agent has file %s", got)
	}
	if target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/9", p.record.Keeper.PID)); err == nil && target == leak {
		t.Error("the keeper has the leaked file")
	}
	if _, err := os.Stat(leak); err != nil {
		t.Fatal("nothing was leaked: ", err)
	}
}

// Records of an earlier boot, or of a process whose pid was taken over, are no
// licence to kill. Both records here name the test itself.
func TestSalvageKillsNoStranger(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	self, err := proctree.Lookup(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	boot, err := proctree.BootID()
	if err != nil {
		t.Fatal(err)
	}
	r := newRunner(t)
	for name, c := range map[string]struct {
		record folder.KeeperRecord
		why    string
	}{
		"another boot":    {folder.KeeperRecord{Boot: "another", Agent: self.ID}, "started anew"},
		"another process": {folder.KeeperRecord{Boot: boot, Agent: proctree.ID{PID: self.PID, Start: self.Start - 1}}, "keeper was killed"},
	} {
		spec := program(t, "/bin/cat")
		if err := errors.Join(
			os.Mkdir(spec.Dir, 0o700),
			lay(spec, folder.SpecRecord{SessionID: spec.SessionID}),
			folder.WriteJSON(filepath.Join(spec.Dir, folder.Keeper), c.record),
		); err != nil {
			t.Fatal(err)
		}
		p, err := r.Attach(limit(t), spec.Dir)
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := p.Exit(); !ok || !strings.Contains(e.Ordered, c.why) {
			t.Errorf("%s: exit %+v, %v", name, e, ok)
		}
		if receipt, err := p.Stop(limit(t), StopOptions{}); err != nil || receipt.EndedCount != 0 || receipt.Proven {
			t.Errorf("%s: %+v, %v", name, receipt, err)
		}
	}
}

func TestAgentOutlivesItsStarter(t *testing.T) {
	t.Parallel()
	dir, id := filepath.Join(t.TempDir(), "run"), "s_outlives_"+strconv.Itoa(os.Getpid())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	starter := exec.Command(self)
	starter.Env = []string{"TEST_ROLE=starter", "TEST_DIR=" + dir, "TEST_SESSION=" + id}
	starter.Stderr = os.Stderr
	out, err := starter.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "started\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := starter.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = starter.Wait() // it was killed

	r := newRunner(t)
	p, err := r.Attach(limit(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	write(t, p, "two\n")
	lines := p.Reader(0)
	if got := []string{frame(t, lines), frame(t, lines)}; !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("output %q", got)
	}
	sent, err := p.Sent(t.Context())
	if err != nil || len(sent) != 2 || string(sent[0].Frame) != "one\n" || !sent[0].Committed {
		t.Errorf("journal %v, %v", sent, err)
	}
	receipt, err := p.Stop(limit(t), StopOptions{Reason: "seen enough"})
	if err != nil || !receipt.Proven || receipt.Exit == nil || receipt.Exit.Ordered != "seen enough" {
		t.Errorf("receipt %+v, %v", receipt, err)
	}

	// And once more, when all is over.
	q, err := r.Attach(limit(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := q.Exit(); !ok || e.Ordered != "seen enough" {
		t.Errorf("exit %+v, %v", e, ok)
	}
	if got := frame(t, q.Reader(4)); got != "two" {
		t.Errorf("output afterwards %q", got)
	}
	again, err := q.Stop(limit(t), StopOptions{Reason: "again"})
	if d := cmp.Diff(receipt, again); d != "" || err != nil {
		t.Errorf("second stop: %v %s", err, d)
	}
}

func TestAncestor(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	spec := script(t, `(setsid sh -c 'echo $$; exec sleep 1000' &); read x`)
	p := start(t, newRunner(t), spec)
	pid, err := strconv.Atoi(frame(t, p.Reader(0)))
	if err != nil {
		t.Fatal(err)
	}
	ours := func(id, dir string) bool { return id == spec.SessionID && dir == spec.Dir }
	if id, dir, ok := Ancestor(pid, ours); id != spec.SessionID || dir != spec.Dir || !ok {
		t.Errorf("below the keeper: %q %q %v", id, dir, ok)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(spec.Dir), link); err != nil {
		t.Fatal(err)
	}
	spec = program(t, "/bin/cat")
	spec.Dir = filepath.Join(link, "other")
	linked := start(t, newRunner(t), spec)
	ours = func(id, dir string) bool { return id == spec.SessionID && dir == spec.Dir }
	if _, dir, ok := Ancestor(linked.record.Agent.PID, ours); dir != spec.Dir || !ok {
		t.Errorf("a folder behind a link: %q %v", dir, ok)
	}
	spec.SessionID = p.spec.SessionID
	// Records that nobody vouches for lead nowhere, but the mark is told.
	if id, dir, ok := Ancestor(pid, func(string, string) bool { return false }); id != spec.SessionID || dir != "" || ok {
		t.Errorf("below a keeper that is not known: %q %q %v", id, dir, ok)
	}
	if id, dir, ok := Ancestor(os.Getpid(), ours); id != "" || dir != "" || ok {
		t.Errorf("not below any: %q %q %v", id, dir, ok)
	}
	if id, _, ok := Ancestor(1<<22+1, ours); id != "" || ok {
		t.Errorf("no process: %q %v", id, ok)
	}
}

// A process that only pretends to be a session's keeper, down to its folder.
func TestAncestorIsNotDeceived(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	r := newRunner(t)
	real := start(t, r, program(t, "/bin/cat"))
	spec := script(t, `cd "$FOLDER"; sh -c 'echo $$; read x'`)
	spec.Env = append(spec.Env, "FOLDER="+real.Dir())
	p := start(t, r, spec)
	pid, err := strconv.Atoi(frame(t, p.Reader(0)))
	if err != nil {
		t.Fatal(err)
	}
	if id, dir, ok := Ancestor(pid, func(string, string) bool { return true }); id != spec.SessionID || dir != spec.Dir || !ok {
		t.Errorf("%q %q %v", id, dir, ok)
	}
}
