package agentproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/subspan-dev/subspan/bridges"
)

const (
	// blockSize is the most that is read at once, and all that a Reader holds.
	blockSize = 64 << 10
	// longFrom is the size from which a frame gets memory of its own.
	longFrom = blockSize / 2
	// firstLook is when a waiting Reader first looks without having been woken; the
	// pause then doubles up to lookEvery.
	firstLook = 50 * time.Millisecond
)

// Frame is one line of the agent's output.
type Frame struct {
	Offset int64 // where it begins in the output
	// Data is the line without its newline, valid until the next ReadFrame. It is nil
	// for an oversize frame.
	Data     []byte
	Size     int64 // the line's length in the output, newline included
	Oversize bool
}

// End is where the next frame begins.
func (f Frame) End() int64 { return f.Offset + f.Size }

// Reader follows the agent's output, frame by frame. It is for one goroutine.
type Reader struct {
	p     *Proc
	block []byte // of blockSize, made at the first read
	buf   []byte // the part of block that holds output from off on
	off   int64
	clean int64 // the output has no newline for so many bytes from off on
	idle  *time.Timer
}

// Reader returns a reader of the output from the given offset on, which is the
// beginning of a frame. It needs no closing; it ends with the Proc's Release.
func (p *Proc) Reader(from int64) *Reader { return &Reader{p: p, off: from} }

// ReadFrame returns the next frame as soon as it is complete. A frame longer than
// limit bytes is passed over, without being held in memory, and reported with its
// size. When the agent has ended and everything was read, a last line without a
// newline is a frame too, and then the error is io.EOF. After any other error the
// reader is where it was.
func (r *Reader) ReadFrame(ctx context.Context, limit int64) (Frame, error) {
	for {
		scanned := min(int(r.clean), len(r.buf))
		if i := bytes.IndexByte(r.buf[scanned:], '\n'); i >= 0 {
			return r.take(scanned+i, scanned+i+1, limit), nil
		}
		r.clean = max(r.clean, int64(len(r.buf)))
		if r.clean >= longFrom {
			return r.long(ctx, limit)
		}
		n, err := r.fill(ctx)
		if errors.Is(err, io.EOF) && len(r.buf) > 0 {
			return r.take(len(r.buf), len(r.buf), limit), nil
		}
		if err != nil {
			return Frame{}, err
		}
		r.buf = r.buf[:len(r.buf)+n]
	}
}

// take cuts a frame off the buffer: size bytes, of which the first length are data.
func (r *Reader) take(length, size int, limit int64) Frame {
	f := Frame{Offset: r.off, Size: int64(size)}
	if int64(length) > limit {
		f.Oversize = true
	} else {
		f.Data = r.buf[:length:length]
	}
	r.buf = r.buf[size:]
	r.advance(f)
	return f
}

func (r *Reader) advance(f Frame) {
	r.off, r.clean = f.End(), 0
	for {
		old := r.p.readTo.Load()
		if old >= r.off || r.p.readTo.CompareAndSwap(old, r.off) {
			return
		}
	}
}

// fill reads what comes after buf into the room behind it, and returns how much. It
// waits for output; io.EOF means that there is none to come.
func (r *Reader) fill(ctx context.Context) (int, error) {
	if r.block == nil {
		r.block = make([]byte, blockSize)
	}
	if len(r.buf) == 0 || cap(r.buf)-len(r.buf) < blockSize/8 {
		r.buf = r.block[:copy(r.block, r.buf)]
	}
	return r.read(ctx, r.buf[len(r.buf):cap(r.buf)], r.off+int64(len(r.buf)))
}

// read reads output at off, and waits for it. It returns at least one byte, or an
// error, which is io.EOF when the agent has ended.
func (r *Reader) read(ctx context.Context, b []byte, off int64) (int, error) {
	for pause := firstLook; ; pause = min(2*pause, lookEvery) {
		// In this order: what is written before the exit is seen is read.
		_, ended := r.p.Exit()
		change := r.p.change()
		n, err := r.p.out.ReadAt(b, off)
		switch {
		case n > 0:
			return n, nil
		case errors.Is(err, fs.ErrClosed):
			return 0, fs.ErrClosed
		case err != nil && !errors.Is(err, io.EOF):
			return 0, fmt.Errorf("the spool: %w", err)
		}
		if size, err := r.p.Size(); err == nil && size < off {
			return 0, bridges.Errorf(bridges.KindAgentProtocol, "the agent cut its own output to %d bytes, after %d were read", size, off)
		}
		if ended {
			return 0, io.EOF
		}
		if err := r.wait(ctx, change, pause); err != nil {
			return 0, err
		}
	}
}

// wait waits for a reason to look at the spool again, at most for the pause: there
// are file systems whose changes are not announced.
func (r *Reader) wait(ctx context.Context, change <-chan struct{}, pause time.Duration) error {
	if r.idle == nil {
		r.idle = time.NewTimer(pause)
	} else {
		r.idle.Reset(pause)
	}
	select {
	case <-change:
	case <-r.p.exited:
	case <-r.idle.C:
	case <-r.p.released:
		return fs.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// long reads a frame that is longer than longFrom. It looks for the newline first, a
// block at a time, so that the frame is allocated once and in its size, and not at
// all when it is longer than limit.
func (r *Reader) long(ctx context.Context, limit int64) (Frame, error) {
	r.buf = r.buf[:0] // its room is needed, and the frame is read as a whole anyway
	size := int64(0)
	for size == 0 {
		n, err := r.read(ctx, r.block, r.off+r.clean)
		if errors.Is(err, io.EOF) {
			size = r.clean
			break
		}
		if err != nil {
			return Frame{}, err
		}
		if i := bytes.IndexByte(r.block[:n], '\n'); i >= 0 {
			r.clean += int64(i)
			size = r.clean + 1
		} else {
			r.clean += int64(n)
		}
	}
	f := Frame{Offset: r.off, Size: size, Oversize: r.clean > limit}
	if !f.Oversize {
		f.Data = make([]byte, r.clean)
		if _, err := r.p.out.ReadAt(f.Data, r.off); err != nil {
			return Frame{}, fmt.Errorf("the spool: %w", err)
		}
	}
	r.advance(f)
	return f, nil
}
