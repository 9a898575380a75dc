// Package jsonrpc is the one JSON-RPC connection over lines that bridges share.
//
// It is written for peers as they are, not as the specifications wish them:
// they leave out the version, glue banners and escape sequences to a frame, answer
// with ids of another type, answer twice, never answer, send 40 MiB in one line, and
// stop reading. None of that ends a connection or blocks the host. What cannot be
// used is counted and handed on as what it is (Noise, Oversize).
//
// A frame is one line together with the place where it begins in the peer's output.
// The same bytes always give the same messages with the same places, in whatever
// pieces they arrived; that is what lets a bridge find its way back into a stream
// after a crash.
//
// Values are picked from a frame without decoding the rest (Members, Get) and
// without copying it: a text of 32 MiB is held once, and handed on in pieces
// (Pieces). The scanner is our own because the ready ones unescape every string
// they pass, which doubles exactly the frames that are already too large.
package jsonrpc
