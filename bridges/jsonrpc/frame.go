package jsonrpc

import (
	"context"
)

// DefaultMaxFrame is the length of the longest frame that is read, in bytes.
const DefaultMaxFrame = 64 << 20

// Frame is one line of the peer.
type Frame struct {
	// Offset is where the line begins in the peer's output.
	Offset int64
	// Data is the line, with or without its newline. It is valid until the next
	// ReadFrame. Of an oversize frame it is the beginning, or nothing.
	Data []byte
	// Oversize is set when the line was longer than asked for and has been skipped.
	Oversize bool
	// Size is the line's whole length in bytes.
	Size int64
}

// Source gives the peer's lines in order. ReadFrame returns io.EOF when the peer
// has ended and all of its output was read. It is called from one goroutine.
type Source interface {
	ReadFrame(ctx context.Context, max int64) (Frame, error)
}

// Sink takes whole frames, newline included. An error means that the frame did not
// reach the peer in one piece. WriteFrame is never called twice at the same time.
type Sink interface {
	WriteFrame(ctx context.Context, frame []byte) error
}
