//go:build unix

package fakeagent_test

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/test/fakeagent"
)

func TestB01B02ChildrenOutliveTheAgent(t *testing.T) {
	for _, how := range []string{"group", "setsid", "double"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			canary := fakeagent.Canary(filepath.Join(t.TempDir(), "canary"))
			p := start(t, fakeagent.Script{Dialect: "stream", Start: []fakeagent.Step{
				{Child: &fakeagent.Child{How: how, Canary: string(canary), Stubborn: true, For: fakeagent.Duration(2 * time.Second)}},
				fakeagent.Exit(0),
			}})
			if code, state := p.exit(); code != 0 {
				t.Fatalf("%s; stderr %s", state, p.stderr.String())
			}
			if err := canary.WaitAlive(within(t)); err != nil {
				t.Error(err)
			}
			if err := canary.WaitStill(within(t), 500*time.Millisecond); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestB04ChildHoldsStdout(t *testing.T) {
	t.Parallel()
	p := start(t, fakeagent.Script{Dialect: "stream", Start: []fakeagent.Step{
		fakeagent.Write("before\n"),
		{Child: &fakeagent.Child{How: "setsid", Hold: []string{"stdout"}, For: fakeagent.Duration(time.Second)}},
		fakeagent.Exit(0),
	}})
	begin := time.Now()
	b, err := io.ReadAll(p.out)
	if err != nil || string(b) != "before\n" {
		t.Errorf("got %q, %v", b, err)
	}
	if held := time.Since(begin); held < 500*time.Millisecond {
		t.Errorf("stdout ended after %v: nobody held it", held)
	}
}

func TestSignals(t *testing.T) {
	journal := filepath.Join(t.TempDir(), "j")
	p := start(t, fakeagent.Script{Dialect: "stream", Journal: journal,
		Start: []fakeagent.Step{fakeagent.Write("{}\n")},
		On: []fakeagent.Rule{
			fakeagent.Ignore("SIGTERM"),
			fakeagent.On("SIGINT", fakeagent.Write("{\"method\":\"bye\"}\n"), fakeagent.Exit(5)),
		}})
	p.read()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		if err := p.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(15 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			j, err := fakeagent.ReadJournal(journal)
			if err != nil {
				t.Fatal(err)
			}
			got := j.Of("signal")
			if len(got) > 0 && got[len(got)-1].Name == map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT"}[s] {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%v does not arrive", s)
			}
		}
	}
	if l := p.read(); l.Method != "bye" {
		t.Errorf("got %+v", l)
	}
	if code, _ := p.exit(); code != 5 {
		t.Errorf("exit code %d", code)
	}
}

func TestSignalToItself(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"KILL": syscall.SIGKILL, "SIGTERM": syscall.SIGTERM} {
		p := start(t, fakeagent.Script{Dialect: "stream", Start: []fakeagent.Step{{Signal: name}, {Hang: true}}})
		p.exit()
		if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != want {
			t.Errorf("%s: %s", name, p.cmd.ProcessState)
		}
	}
}

func TestStreamsCloseEachAlone(t *testing.T) {
	p := start(t, fakeagent.Script{Dialect: "stream",
		Start: []fakeagent.Step{{Close: "stderr"}, fakeagent.WriteErr("lost")},
		On: []fakeagent.Rule{
			{On: "user", Inline: true, Do: []fakeagent.Step{{Close: "stdin"}, fakeagent.Write("{}\n")}},
			fakeagent.On("SIGHUP", fakeagent.Write(`{"method":"alive"}`+"\n"), fakeagent.Step{Close: "stdout"}),
			fakeagent.On("SIGTERM", fakeagent.Exit(6)),
		}})
	p.write(`{"type":"user"}` + "\n")
	p.read()
	if _, err := io.WriteString(p.in, strings.Repeat("x", 100_000)); err == nil {
		t.Error("stdin is open")
	}
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if l := p.read(); l.Method != "alive" {
		t.Errorf("got %+v", l)
	}
	if b, err := io.ReadAll(p.out); err != nil || len(b) != 0 {
		t.Errorf("stdout: %q, %v", b, err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, state := p.exit(); code != 6 || p.stderr.String() != "" {
		t.Errorf("%s, stderr %q", state, p.stderr.String())
	}
}

func TestInlineReadsNothing(t *testing.T) {
	p, id := acp(t, fakeagent.Script{On: []fakeagent.Rule{
		{On: "session/prompt", Inline: true, Do: []fakeagent.Step{fakeagent.Text("busy"), {Hang: true}}},
	}})
	p.prompt(id, "x")
	p.read()
	wrote := make(chan error, 1)
	go func() {
		_, err := fmt.Fprintf(p.in, "%s\n", strings.Repeat("x", 4<<20))
		wrote <- err
	}()
	select {
	case err := <-wrote:
		t.Errorf("4 MiB were taken: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-wrote
}
