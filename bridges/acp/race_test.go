//go:build race

package acp

// raced is set when the race detector is in the binary, whose memory is its own.
const raced = true
