package agentproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/folder"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/journal"
)

// atomicWrite is the size up to which a write to a FIFO happens whole or not at all
// (PIPE_BUF: 4096 on Linux, 512 on macOS).
const atomicWrite = 512

// Sent is one frame in the journal of what was written to the agent.
type Sent struct {
	// Seq counts the frames from 1, over the whole life of the folder.
	Seq   uint64
	Frame []byte
	// OutOffset is how far this process's Readers had come when it was written: an
	// answer never comes before it.
	OutOffset int64
	// Committed is set when the frame was written whole. When it is not, the writer
	// died on the way: the agent has all of it, a part or nothing.
	Committed bool
}

// Checkpoint is a bridge's state as of some point, and that point.
type Checkpoint struct {
	Data []byte `json:"data"` // the bridge's own
	// OutOffset is where the output begins that is not in Data.
	OutOffset int64 `json:"out_offset"`
	// Sent is the Seq of the last frame that is in Data; see Proc.SentSeq.
	Sent uint64 `json:"sent"`
}

// input is the writing side of a Proc.
type input struct {
	turn chan struct{} // holds one token: whoever has it may write

	// Below: only with the token.
	lock    *os.File
	journal *journal.Journal
	torn    bool // the agent may have half a line
	closed  error

	mu   sync.Mutex
	fifo *os.File // nil until the first write and after the end
	seq  uint64
}

func newInput() input {
	return input{turn: make(chan struct{}, 1)}
}

// interrupt ends a write that waits for the agent to read.
func (in *input) interrupt() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.fifo != nil {
		_ = in.fifo.SetWriteDeadline(time.Unix(1, 0))
	}
}

func (in *input) close() {
	in.interrupt()
	in.turn <- struct{}{}
	defer func() { <-in.turn }()
	in.closed = fs.ErrClosed
	in.closeFIFO()
	if in.journal != nil {
		_ = in.journal.Close()
		_ = in.lock.Close()
		in.journal = nil
	}
}

func (in *input) closeFIFO() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.fifo != nil {
		_ = in.fifo.Close()
		in.fifo = nil
	}
}

// take waits for the token and makes this process the session's writer.
func (p *Proc) take(ctx context.Context) error {
	select {
	case p.input.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := p.becomeWriter(); err != nil {
		<-p.input.turn
		return err
	}
	return nil
}

func (p *Proc) becomeWriter() error {
	in := &p.input
	if errors.Is(in.closed, fs.ErrClosed) {
		return in.closed
	}
	if in.journal != nil {
		return nil
	}
	lock, err := folder.LockFileAt(p.dir, folder.WriterLock)
	if errors.Is(err, folder.ErrLocked) {
		return bridges.Errorf(bridges.KindSessionBusy, "another process writes to the agent in %s", p.dir).
			WithNext("wait until it has ended").AsRetryable()
	}
	if err != nil {
		return err
	}
	c, _, err := p.Checkpointed()
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	j, err := journal.Open(p.at(folder.Sent), c.Sent)
	if err != nil {
		return errors.Join(fmt.Errorf("the journal of the session's input: %w", err), lock.Close())
	}
	records, err := journal.Read(p.at(folder.Sent), c.Sent)
	if err != nil {
		return errors.Join(err, j.Close(), lock.Close())
	}
	if n := len(records); n > 0 && !records[n-1].Committed && len(records[n-1].Frame) > atomicWrite {
		in.torn = true
	}
	in.lock, in.journal = lock, j
	in.mu.Lock()
	in.seq = j.Last()
	in.mu.Unlock()
	return nil
}

// Write gives the agent one frame: one line with its newline. The frame is in the
// journal before the agent can see it. Write waits while the agent does not read,
// until ctx ends (KindTimeout); when the agent has ended it fails with KindAgentFailed
// and the end of its stderr. An error after a part was written is not undone: the
// agent then gets an empty line before the next frame, so that only one is lost.
func (p *Proc) Write(ctx context.Context, frame []byte) error {
	if n := bytes.IndexByte(frame, '\n'); n < 0 || n != len(frame)-1 {
		return bridges.Errorf(bridges.KindInvalidArgument, "a frame is one line with its newline")
	}
	if err := p.take(ctx); err != nil {
		return err
	}
	defer func() { <-p.input.turn }()
	in := &p.input
	if in.closed != nil {
		return in.closed
	}
	if err := p.dial(); err != nil {
		return err
	}
	seq, err := in.journal.Append(frame, p.readTo.Load())
	if err != nil {
		return err
	}
	in.mu.Lock()
	in.seq = seq
	in.mu.Unlock()
	n, err := p.push(ctx, frame)
	switch {
	case err == nil:
		return in.journal.Commit(seq)
	case n == 0:
		return errors.Join(err, in.journal.Void(seq))
	default:
		in.torn = true
		return err
	}
}

// dial opens the agent's input when it is not open yet.
func (p *Proc) dial() error {
	if _, ended := p.Exit(); ended {
		return p.endedError(nil)
	}
	if p.input.fifo != nil { // it changes with the token alone
		return nil
	}
	f, err := folder.DialInlet(p.at(folder.In))
	if errors.Is(err, folder.ErrNoReader) {
		return p.endedError(err)
	}
	if err != nil {
		return fmt.Errorf("the agent's input: %w", err)
	}
	p.input.mu.Lock()
	defer p.input.mu.Unlock()
	p.input.fifo = f
	return nil
}

// push writes the frame, and returns how much of it the agent may have.
func (p *Proc) push(ctx context.Context, frame []byte) (int, error) {
	in := &p.input
	deadline, _ := ctx.Deadline() // the zero time is none
	_ = in.fifo.SetWriteDeadline(deadline)
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		in.interrupt()
	})
	defer func() {
		if !stop() {
			<-interrupted // or it would hit the next frame
		}
	}()
	// Both may have come before there was a deadline for them to change.
	if _, ended := p.Exit(); ended {
		return 0, p.endedError(nil)
	}
	if p.isReleased() {
		return 0, fs.ErrClosed
	}
	if in.torn {
		if _, err := in.fifo.Write([]byte{'\n'}); err != nil {
			return 0, p.pushError(ctx, err, 0, len(frame))
		}
		in.torn = false
	}
	n, err := in.fifo.Write(frame)
	if err != nil {
		return n, p.pushError(ctx, err, n, len(frame))
	}
	return n, nil
}

func (p *Proc) pushError(ctx context.Context, err error, n, size int) error {
	if _, ended := p.Exit(); ended || errors.Is(err, syscall.EPIPE) {
		return p.endedError(err)
	}
	if p.isReleased() {
		return fs.ErrClosed
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if err = context.Cause(ctx); err == nil { // the file's clock was a little earlier
			err = context.DeadlineExceeded
		}
		kind := bridges.KindTimeout
		if errors.Is(err, context.Canceled) {
			kind = bridges.KindCancelled
		}
		return bridges.Errorf(kind, "the agent does not read its input (%d of %d bytes taken): %w", n, size, err)
	}
	return fmt.Errorf("the agent's input: %w", err)
}

// endedError says how the agent ended. The keeper is about to tell, when it has not
// told yet.
func (p *Proc) endedError(cause error) error {
	select {
	case <-p.exited:
	case <-time.After(2 * lookEvery):
	}
	how := "it does not take input any more"
	if e, ok := p.Exit(); ok {
		how = fmt.Sprintf("it ended with code %d", e.Code)
		if e.Signal != "" {
			how = "it ended: " + e.Signal
		}
		if e.Ordered != "" {
			how += " (" + e.Ordered + ")"
		}
	}
	if said := strings.TrimSpace(p.Stderr()); said != "" {
		how += ": " + said
	}
	if cause == nil {
		return bridges.Errorf(bridges.KindAgentFailed, "the agent did not get the message: %s", how)
	}
	return bridges.Errorf(bridges.KindAgentFailed, "the agent did not get the message: %s: %w", how, cause)
}

// CloseInput gives the agent the end of its input. There is no way back.
func (p *Proc) CloseInput(ctx context.Context) error {
	select {
	case p.input.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.input.turn }()
	if errors.Is(p.input.closed, fs.ErrClosed) {
		return p.input.closed
	}
	p.input.closed = bridges.Errorf(bridges.KindInvalidArgument, "the agent's input was closed")
	p.input.closeFIFO()
	err := p.order(ctx, folder.Order{CloseInput: true})
	if errors.Is(err, folder.ErrNoReader) {
		return nil // it has ended
	}
	return err
}

// Sent returns the frames that are in the journal and not in the checkpoint, oldest
// first: what a bridge folds, together with the output, after a crash.
func (p *Proc) Sent(ctx context.Context) ([]Sent, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, _, err := p.Checkpointed()
	if err != nil {
		return nil, err
	}
	records, err := journal.Read(p.at(folder.Sent), c.Sent)
	if err != nil {
		return nil, fmt.Errorf("the journal of the session's input: %w", err)
	}
	sent := make([]Sent, len(records))
	for i, r := range records {
		sent[i] = Sent{r.Seq, r.Frame, r.OutOffset, r.Committed}
	}
	return sent, nil
}

// SentSeq is the Seq of the newest frame, by whichever process. Read it before you
// compose a checkpoint's data, register frames in the state before you write them,
// and no frame is ever missing from both.
func (p *Proc) SentSeq() uint64 {
	p.input.mu.Lock()
	defer p.input.mu.Unlock()
	return p.input.seq
}

// SaveCheckpoint stores the bridge's state, at once or not at all, and drops the
// frames that are in it from the journal.
func (p *Proc) SaveCheckpoint(ctx context.Context, c Checkpoint) error {
	if err := p.take(ctx); err != nil {
		return err
	}
	defer func() { <-p.input.turn }()
	old, _, err := p.Checkpointed()
	if err != nil {
		return err
	}
	if c.Sent < old.Sent || c.Sent > p.SentSeq() {
		return bridges.Errorf(bridges.KindInvalidArgument, "a checkpoint of frame %d: the last one was of %d, the newest frame is %d",
			c.Sent, old.Sent, p.SentSeq())
	}
	if err := folder.WriteJSON(p.at(folder.Checkpoint), c); err != nil {
		return fmt.Errorf("storing the checkpoint: %w", err)
	}
	return p.input.journal.Drop(c.Sent)
}

// Checkpointed returns the checkpoint stored last; false when there is none.
func (p *Proc) Checkpointed() (Checkpoint, bool, error) {
	var c Checkpoint
	err := folder.ReadJSON(p.at(folder.Checkpoint), &c)
	if errors.Is(err, fs.ErrNotExist) {
		return Checkpoint{}, false, nil
	}
	return c, err == nil, err
}
