//go:build unix

package agentproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/proctree"
)

func TestInputOutlivesItsWriters(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	p := start(t, r, program(t, "/bin/cat"))
	for _, line := range []string{"one", "two", "three"} {
		q, err := r.Attach(limit(t), p.Dir())
		if err != nil {
			t.Fatal(err)
		}
		from, err := q.Size()
		if err != nil {
			t.Fatal(err)
		}
		write(t, q, line+"\n")
		if got := frame(t, q.Reader(from)); got != line {
			t.Errorf("echo of %q is %q", line, got)
		}
		q.Release() // the only writer goes
	}
	if err := p.CloseInput(limit(t)); err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	if e, _ := p.Exit(); e.Code != 0 || e.Ordered != "" {
		t.Errorf("after the end of its input: %+v", e)
	}
	wantKind(t, p.Write(limit(t), []byte("x\n")), bridges.KindInvalidArgument, "closed")
}

func TestOneWriter(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	p := start(t, r, program(t, "/bin/cat"))
	write(t, p, "mine\n")
	q, err := r.Attach(limit(t), p.Dir())
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, q.Write(limit(t), []byte("mine too\n")), bridges.KindSessionBusy)
	p.Release()
	write(t, q, "now mine\n")
	out := q.Reader(0)
	if got := []string{frame(t, out), frame(t, out)}; !cmp.Equal(got, []string{"mine", "now mine"}) {
		t.Errorf("the agent got %q", got)
	}
}

func TestWriteTakesOneLine(t *testing.T) {
	t.Parallel()
	p := start(t, newRunner(t), program(t, "/bin/cat"))
	for _, bad := range []string{"", "no newline", "two\nlines\n", "\nlate"} {
		wantKind(t, p.Write(limit(t), []byte(bad)), bridges.KindInvalidArgument)
	}
	if sent, err := p.Sent(t.Context()); err != nil || len(sent) > 0 {
		t.Errorf("journal %v, %v", sent, err)
	}
}

func TestB20AgentEndsBeforeReading(t *testing.T) {
	t.Parallel()
	prompt := append(bytes.Repeat([]byte("p"), 1<<20), '\n')
	for name, text := range map[string]string{
		"at once, code 0":         `echo no stdin please >&2; exit 0`,
		"at once, code 2":         `echo no stdin please >&2; exit 2`,
		"in the middle of it":     `head -c 1000 >/dev/null; echo no stdin please >&2; exit 2`,
		"and a child holds stdin": `echo no stdin please >&2; setsid sleep 1000 <&0 & exit 2`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, newRunner(t), script(t, text))
			wantKind(t, p.Write(limit(t), prompt), bridges.KindAgentFailed, "no stdin please", "ended with code")
		})
	}
}

func TestWriteToAnAgentThatDoesNotRead(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	p := start(t, newRunner(t), program(t, "/bin/cat"))
	agent := p.record.Agent
	if err := proctree.Signal(agent, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", agent.PID))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	big := append(bytes.Repeat([]byte("b"), 1<<20), '\n')
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		t.Cleanup(cancel)
		return ctx
	}
	wantKind(t, p.Write(short(), big), bridges.KindTimeout, "does not read its input", context.DeadlineExceeded.Error())
	wantKind(t, p.Write(short(), []byte("lost\n")), bridges.KindTimeout, "0 of 5 bytes")
	cancelled, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := p.Write(cancelled, []byte("lost\n")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := proctree.Signal(agent, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	write(t, p, "whole\n")
	r := p.Reader(0)
	if half := frame(t, r); strings.Trim(half, "b") != "" || len(half) >= 1<<20 {
		t.Errorf("the half frame became %d bytes", len(half))
	}
	if got := frame(t, r); got != "whole" {
		t.Errorf("the frame after the half one: %.40q", got)
	}
	// What was half written is told; what was not written at all never was.
	sent, err := p.Sent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []Sent{{Seq: 1}, {Seq: 4, Committed: true}}
	if d := cmp.Diff(want, sent, cmpopts.IgnoreFields(Sent{}, "Frame", "OutOffset")); d != "" {
		t.Error(d)
	}
}

func TestJournalAndCheckpoint(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	p := start(t, r, program(t, "/bin/cat"))
	out := p.Reader(0)
	write(t, p, "one\n")
	frame(t, out)
	write(t, p, "two\n")
	sent, err := p.Sent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []Sent{
		{Seq: 1, Frame: []byte("one\n"), Committed: true},
		{Seq: 2, Frame: []byte("two\n"), OutOffset: 4, Committed: true},
	}
	if d := cmp.Diff(want, sent); d != "" {
		t.Error(d)
	}
	if _, ok, err := p.Checkpointed(); ok || err != nil {
		t.Errorf("a checkpoint before the first: %v, %v", ok, err)
	}
	state := Checkpoint{Data: []byte("state\x00"), OutOffset: 4, Sent: p.SentSeq()}
	if err := p.SaveCheckpoint(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	write(t, p, "three\n")
	p.Release()

	q, err := r.Attach(limit(t), p.Dir())
	if err != nil {
		t.Fatal(err)
	}
	got, ok, err := q.Checkpointed()
	if d := cmp.Diff(state, got); d != "" || !ok || err != nil {
		t.Errorf("checkpoint %v, %v: %s", ok, err, d)
	}
	sent, err = q.Sent(t.Context())
	if d := cmp.Diff([]Sent{{Seq: 3, Frame: []byte("three\n"), OutOffset: 4, Committed: true}}, sent); d != "" || err != nil {
		t.Errorf("%v: %s", err, d)
	}
	if q.SentSeq() != 3 {
		t.Errorf("newest frame is %d", q.SentSeq())
	}
	for _, bad := range []uint64{1, 4} {
		wantKind(t, q.SaveCheckpoint(t.Context(), Checkpoint{Sent: bad}), bridges.KindInvalidArgument)
	}
}

// A writer that died leaves a frame of which nobody knows how far it came.
func TestAttachAfterHalfAFrame(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	p := start(t, r, program(t, "/bin/cat"))
	if err := p.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	long := append(bytes.Repeat([]byte("h"), 2*atomicWrite), '\n')
	if _, err := p.input.journal.Append(long, 0); err != nil {
		t.Fatal(err)
	}
	fifo, err := folder.DialInlet(p.at(folder.In))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fifo.Write(long[:atomicWrite]); err != nil {
		t.Fatal(err)
	}
	fifo.Close()
	<-p.input.turn
	p.Release()

	q, err := r.Attach(limit(t), p.Dir())
	if err != nil {
		t.Fatal(err)
	}
	sent, err := q.Sent(t.Context())
	if err != nil || len(sent) != 1 || sent[0].Committed {
		t.Fatalf("journal %v, %v", sent, err)
	}
	write(t, q, "next\n")
	out := q.Reader(0)
	if got := frame(t, out); len(got) != atomicWrite {
		t.Errorf("half frame: %d bytes", len(got))
	}
	if got := frame(t, out); got != "next" {
		t.Errorf("next frame: %q", got)
	}
}

func TestB19StderrIsNeverFull(t *testing.T) {
	t.Parallel()
	p := start(t, newRunner(t), script(t, `head -c 204800 /dev/zero | tr '\0' e >&2; echo answer; read x; head -c 4000000 /dev/zero | tr '\0' f >&2; echo tail >&2; echo done; read x`))
	r := p.Reader(0)
	if got := frame(t, r); got != "answer" {
		t.Errorf("got %q", got)
	}
	if got := p.Stderr(); len(got) != folder.StderrTail || strings.Trim(got, "e") != "" {
		t.Errorf("stderr has %d bytes", len(got))
	}
	write(t, p, "\n")
	frame(t, r)
	f, err := os.Open(p.at(folder.Err))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	eventually(t, "stderr takes little room", func() bool {
		used, err := folder.AllocatedBytes(f)
		return err == nil && used <= 600<<10
	})
	if got := p.Stderr(); !strings.HasSuffix(got, "ftail\n") {
		t.Errorf("stderr ends with %.20q", got[max(0, len(got)-20):])
	}
}

func TestB56InputHasAnEnd(t *testing.T) {
	t.Parallel()
	p := start(t, newRunner(t), script(t, `cat >/dev/null; echo saw the end`))
	write(t, p, "prompt\n")
	if err := p.CloseInput(limit(t)); err != nil {
		t.Fatal(err)
	}
	r := p.Reader(0)
	if got := frame(t, r); got != "saw the end" {
		t.Errorf("got %q", got)
	}
	if _, err := r.ReadFrame(limit(t), 1); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
