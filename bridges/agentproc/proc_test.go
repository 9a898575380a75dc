//go:build unix

package agentproc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"
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

func TestKeeperIsAskedToEnd(t *testing.T) {
	t.Parallel()
	p := start(t, newRunner(t), program(t, "/bin/cat"))
	if err := proctree.Signal(p.record.Keeper, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	if e, _ := p.Exit(); !strings.Contains(e.Ordered, "the keeper was asked to end") {
		t.Errorf("exit %+v", e)
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

// hardToEnd starts children that try to get away, and tells when all are there:
// one that ignores SIGTERM, one that left the session and lost its parent, and one
// that is stopped. The first two go on writing.
const hardToEnd = `
trap '' TERM
work() { while :; do echo x >>canary; sleep 0.02; done; }
work &
(setsid sh -c 'trap "" TERM INT HUP; echo up; while :; do echo y >>canary; sleep 0.02; done' </dev/null 2>/dev/null &)
sh -c 'echo up; kill -STOP $$' &
read never
sleep 1000
`

func stillGrows(t *testing.T, path string) bool {
	t.Helper()
	size := func() int64 {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	before := size()
	time.Sleep(200 * time.Millisecond) // ten writes long
	return size() != before
}

func TestB01B02NobodyGetsAway(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	spec := script(t, hardToEnd)
	p := start(t, newRunner(t), spec)
	lines := p.Reader(0)
	frame(t, lines)
	frame(t, lines)
	canary := filepath.Join(spec.Cwd, "canary")
	eventually(t, "the canary is there", func() bool { _, err := os.Stat(canary); return err == nil })
	if n := len(session(t, spec.SessionID)); n < 4 {
		t.Fatalf("only %d processes to end", n)
	}
	receipt, err := p.Stop(limit(t), StopOptions{Reason: "enough", Grace: 200 * time.Millisecond, Interrupt: true})
	if err != nil {
		t.Fatal(err)
	}
	if stillGrows(t, canary) {
		t.Error("somebody still writes")
	}
	if !receipt.Proven || receipt.EndedCount < 4 || len(receipt.Ended) != receipt.EndedCount || receipt.SurvivedCount != 0 {
		t.Errorf("receipt %+v", receipt)
	}
	if len(receipt.Notes) == 0 || !strings.Contains(receipt.Notes[0], "had to be killed") {
		t.Errorf("notes %q", receipt.Notes)
	}
	for _, e := range receipt.Ended {
		if e.PID == 0 || e.Start == 0 || e.Command == "" {
			t.Errorf("a process without its name: %+v", e)
		}
	}
}

func TestKeeperIsKilled(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	spec := script(t, hardToEnd)
	p := start(t, newRunner(t), spec)
	lines := p.Reader(0)
	frame(t, lines)
	frame(t, lines)
	keeper, _ := p.Processes()
	if err := syscall.Kill(keeper.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-limit(t).Done():
		t.Fatal("nobody noticed")
	}
	if e, _ := p.Exit(); e.Code != -1 || !strings.Contains(e.Ordered, "keeper was killed") {
		t.Errorf("exit %+v", e)
	}
	if stillGrows(t, filepath.Join(spec.Cwd, "canary")) {
		t.Error("somebody still writes")
	}
	wantKind(t, p.Write(limit(t), []byte("x\n")), bridges.KindAgentFailed, "keeper was killed")
	receipt, err := p.Stop(limit(t), StopOptions{})
	if err != nil || receipt.Proven || receipt.SurvivedCount > 0 || receipt.EndedCount < 2 {
		t.Errorf("receipt %+v, %v", receipt, err)
	}
	if err := Remove(spec.Dir); err != nil {
		t.Error(err)
	}
}

func TestKeeperHangs(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	p := start(t, newRunner(t), program(t, "/bin/cat"))
	if err := proctree.Signal(p.record.Keeper, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	receipt, err := p.Stop(limit(t), StopOptions{Grace: time.Millisecond})
	if err != nil || receipt.Proven || proctree.Alive(p.record.Agent) {
		t.Errorf("receipt %+v, %v", receipt, err)
	}
}

func TestB04GrandchildHoldsStdout(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	p := start(t, newRunner(t), script(t, `setsid sleep 1000 & echo last words; exit 0`))
	r := p.Reader(0)
	begin := time.Now()
	if got := frame(t, r); got != "last words" {
		t.Errorf("got %q", got)
	}
	if _, err := r.ReadFrame(limit(t), 1); err == nil {
		t.Error("no end")
	}
	if len(session(t, p.spec.SessionID)) == 0 {
		t.Error("the grandchild is gone already: this tests nothing")
	}
	if d := time.Since(begin); d > 1500*time.Millisecond {
		t.Errorf("the end came after %v", d)
	}
	eventually(t, "the grandchild ends too", func() bool { return !folder.Locked(p.Dir(), folder.Lock) })
	receipt, err := p.Stop(limit(t), StopOptions{})
	if err != nil || !receipt.Proven || receipt.EndedCount != 1 || receipt.Ended[0].Command != "sleep" || receipt.Exit.Ordered != "" {
		t.Errorf("receipt %+v, %v", receipt, err)
	}
}

func TestInterruptBeforeTerminate(t *testing.T) {
	t.Parallel()
	spec := script(t, `trap 'echo interrupted; exit 7' INT; trap 'echo terminated; exit 8' TERM; echo up; while :; do sleep 0.01; done`)
	spec.Interrupt = true
	p := start(t, newRunner(t), spec)
	r := p.Reader(0)
	frame(t, r)
	receipt, err := p.Stop(limit(t), StopOptions{})
	if err != nil || receipt.Exit.Code != 7 {
		t.Errorf("receipt %+v, %v", receipt, err)
	}
	if got := frame(t, r); got != "interrupted" {
		t.Errorf("the agent said %q", got)
	}
}

func TestLeaseEnds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lease")
	lease := flock.New(path)
	if ok, err := lease.TryLock(); err != nil || !ok {
		t.Fatal(ok, err)
	}
	spec := script(t, `setsid sleep 1000 & exec sleep 1000`)
	spec.Lease, spec.Grace = path, 1100*time.Millisecond
	p := start(t, newRunner(t), spec)
	select {
	case <-p.Exited():
		e, _ := p.Exit()
		t.Fatalf("ended while the lease was held: %+v", e)
	case <-time.After(2500 * time.Millisecond): // two looks at the lease, and the grace
	}
	begin := time.Now()
	if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	if d := time.Since(begin); d < spec.Grace {
		t.Errorf("ended after %v, before the grace was over", d)
	}
	if e, _ := p.Exit(); !strings.Contains(e.Ordered, "the host has been gone") {
		t.Errorf("exit %+v", e)
	}
	eventually(t, "nobody is left", func() bool { return len(session(t, spec.SessionID)) == 0 })
}

func TestStopFromManySides(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	p := start(t, r, script(t, `trap '' TERM; echo up; while :; do sleep 1; done`))
	frame(t, p.Reader(0))
	var wg sync.WaitGroup
	receipts := make([]bridges.Receipt, 4)
	for i := range receipts {
		q, err := r.Attach(limit(t), p.Dir())
		if err != nil {
			t.Fatal(err)
		}
		q.Release() // a released Proc still stops
		wg.Go(func() {
			receipt, err := q.Stop(limit(t), StopOptions{Reason: "one of many", Grace: 100 * time.Millisecond})
			if err != nil {
				t.Error(err)
			}
			receipts[i] = receipt
		})
	}
	wg.Wait()
	for _, receipt := range receipts[1:] {
		if d := cmp.Diff(receipts[0], receipt); d != "" {
			t.Errorf("different receipts: %s", d)
		}
	}
	if !receipts[0].Proven {
		t.Errorf("receipt %+v", receipts[0])
	}
}

// An order may shorten one that is under way.
func TestStopAgainInAHurry(t *testing.T) {
	t.Parallel()
	p := start(t, newRunner(t), script(t, `trap '' TERM; echo up; while :; do sleep 1; done`))
	frame(t, p.Reader(0))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := p.Stop(ctx, StopOptions{Reason: "slowly", Grace: time.Hour})
	wantKind(t, err, bridges.KindTimeout)
	receipt, err := p.Stop(limit(t), StopOptions{Reason: "now", Grace: 10 * time.Millisecond})
	if err != nil || receipt.Exit.Ordered != "slowly" || !receipt.Proven {
		t.Errorf("receipt %+v, %v", receipt, err)
	}
}

func TestOrdersThatAreNone(t *testing.T) {
	t.Parallel()
	p := start(t, newRunner(t), program(t, "/bin/cat"))
	f, err := folder.DialInlet(p.at(folder.Orders))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("\n{}\nnonsense\n" + strings.Repeat("x", 20<<10) + "\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	write(t, p, "still here\n")
	if got := frame(t, p.Reader(0)); got != "still here" {
		t.Errorf("got %q", got)
	}
	receipt, err := p.Stop(limit(t), StopOptions{Reason: strings.Repeat("\x01", 5000)})
	if err != nil || !receipt.Proven {
		t.Errorf("receipt %+v, %v", receipt, err)
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

// Fifty agents come and go, and nothing stays: no process, no file, no goroutine.
func TestNothingStays(t *testing.T) {
	linuxOnly(t)
	r := newRunner(t)
	run := func() {
		spec := script(t, `sleep 1000 & echo up; read x`)
		p, err := r.Start(limit(t), spec)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := p.Reader(0).ReadFrame(limit(t), 10); err != nil {
			t.Error(err)
		}
		if receipt, err := p.Stop(limit(t), StopOptions{}); err != nil || !receipt.Proven {
			t.Errorf("%+v, %v", receipt, err)
		}
		p.Release()
		if err := Remove(spec.Dir); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(spec.Dir); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	run() // the first one makes what stays for good: pollers, threads
	fds, goroutines := openFiles(t), runtime.NumGoroutine()
	for range 10 {
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(run)
		}
		wg.Wait()
	}
	eventually(t, "no child is left, not even a zombie", func() bool {
		_, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		return errors.Is(err, syscall.ECHILD)
	})
	eventually(t, "no file is left open", func() bool { return openFiles(t) <= fds })
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines })
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
