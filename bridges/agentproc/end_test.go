//go:build unix

package agentproc

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

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
	// And one without the session's mark, which only the reaper of orphans finds.
	spec := script(t, `(env -i setsid sh -c 'echo $$; exec sleep 1000' </dev/null 2>/dev/null &)`+hardToEnd)
	p := start(t, newRunner(t), spec)
	lines := p.Reader(0)
	var unmarked proctree.Process
	for range 3 {
		if pid, err := strconv.Atoi(frame(t, lines)); err == nil {
			if unmarked, err = proctree.Lookup(pid); err != nil {
				t.Fatal(err)
			}
		}
	}
	canary := filepath.Join(spec.Cwd, "canary")
	eventually(t, "the canary is there", func() bool { _, err := os.Stat(canary); return err == nil })
	if n := len(session(t, spec.SessionID)); n < 4 { // the unmarked one is not counted
		t.Fatalf("only %d processes to end", n)
	}
	receipt, err := p.Stop(limit(t), StopOptions{Reason: "enough", Grace: 200 * time.Millisecond, Interrupt: true})
	if err != nil {
		t.Fatal(err)
	}
	if stillGrows(t, canary) {
		t.Error("somebody still writes")
	}
	if unmarked.PID == 0 || proctree.Alive(unmarked.ID) {
		t.Errorf("process %d got away", unmarked.PID)
		_ = proctree.Signal(unmarked.ID, syscall.SIGKILL)
	}
	if !receipt.Proven || receipt.EndedCount < 5 || len(receipt.Ended) != receipt.EndedCount || receipt.SurvivedCount != 0 {
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

// Nobody has to look: the kernel sees to it.
func TestAgentDiesWithItsKeeper(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	p := start(t, newRunner(t), program(t, "/bin/sleep", "1000")) // it does not end with its input
	p.Release()
	if err := proctree.Signal(p.record.Keeper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is dead", func() bool { return !proctree.Alive(p.record.Agent) })
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
