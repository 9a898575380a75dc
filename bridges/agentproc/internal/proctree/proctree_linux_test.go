package proctree

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	const rest = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 4711 18"
	for _, c := range []struct {
		name, stat string
		want       Process
		gone, bad  bool
	}{
		{name: "plain", stat: "42 (cat) S 7" + rest, want: Process{ID{42, 4711}, 7, "cat"}},
		{name: "a name like the rest of the line", stat: "42 (a) Z 1 (b c) R 7" + rest, want: Process{ID{42, 4711}, 7, "a) Z 1 (b c"}},
		{name: "zombie", stat: "42 (cat) Z 7" + rest, gone: true},
		{name: "dead", stat: "42 (cat) X 7" + rest, gone: true},
		{name: "empty", bad: true},
		{name: "cut", stat: "42 (cat) S 7 1 2", bad: true},
		{name: "no name", stat: "42 cat S 7" + rest, bad: true},
		{name: "wrong parentheses", stat: "42 )cat( S 7" + rest, bad: true},
		{name: "parent is no number", stat: "42 (cat) S x" + rest, bad: true},
	} {
		got, err := parseStat(42, []byte(c.stat))
		if errors.Is(err, ErrGone) != c.gone || (err != nil) != (c.gone || c.bad) {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (cat) S 7 1 2 3"))
	f.Add([]byte(")("))
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = parseStat(1, data) })
}

func TestSelf(t *testing.T) {
	p, err := Lookup(os.Getpid())
	if err != nil || p.Parent != os.Getppid() || p.Start == 0 || !Alive(p.ID) {
		t.Fatalf("%+v, %v", p, err)
	}
	if Alive(ID{p.PID, p.Start + 1}) {
		t.Error("another start time is another process")
	}
}

func TestSignalOnlyTheOneMeant(t *testing.T) {
	cmd := exec.Command("/bin/cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = []string{Marker + "=s_marked"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Lookup(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := Signal(ID{p.PID, p.Start - 1}, syscall.SIGKILL); !errors.Is(err, ErrGone) {
		t.Errorf("signalling a predecessor: %v", err)
	}
	for _, pid := range []int{-1, 0, 1} {
		if err := Signal(ID{PID: pid}, syscall.SIGKILL); err == nil {
			t.Errorf("process %d was signalled", pid)
		}
	}
	if !Alive(p.ID) {
		t.Fatal("it is dead")
	}
	// Found by its mark, or by its parent; never by no mark at all.
	for _, c := range []struct {
		session string
		root    int
		want    bool
	}{{"s_marked", -1, true}, {"s_mark", -1, false}, {"", -1, false}, {"", os.Getpid(), true}} {
		found, err := Session(c.session, c.root)
		if err != nil {
			t.Fatal(err)
		}
		has := false
		for _, f := range found {
			has = has || f.ID == p.ID
			if f.PID == os.Getpid() {
				t.Errorf("%+v: found ourselves", c)
			}
		}
		if has != c.want {
			t.Errorf("%+v: found %v", c, has)
		}
		if c.session == "" && c.root == -1 && len(found) > 0 {
			t.Errorf("no session has processes: %v", found)
		}
	}
	if err := Signal(p.ID, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	in.Close()
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("it ended with %v", err)
	}
	if err := Signal(p.ID, syscall.SIGTERM); !errors.Is(err, ErrGone) {
		t.Errorf("signalling the dead: %v", err)
	}
}

func TestBelow(t *testing.T) {
	p := func(pid, parent int) Process { return Process{ID: ID{PID: pid}, Parent: parent} }
	got := Below(10, []Process{p(12, 11), p(11, 10), p(10, 1), p(13, 12), p(1, 0), p(20, 1), p(30, 31), p(31, 30)})
	pids := map[int]bool{}
	for _, g := range got {
		pids[g.PID] = true
	}
	if d := cmp.Diff(map[int]bool{11: true, 12: true, 13: true}, pids); d != "" {
		t.Error(d)
	}
}
