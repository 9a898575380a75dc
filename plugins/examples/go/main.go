// Command echo is a complete bridge plugin in Go: its agent repeats the task. Copy
// it to begin a bridge of your own; the comments say what a real one does instead.
//
// Build it into its folder, then let the conformance suite judge it:
//
//	go build -o plugins/examples/go/echo ./plugins/examples/go
//	subspan plugins check plugins/examples/go
package main

import "github.com/subspan-dev/subspan/plugins"

func main() { plugins.Serve(&echo{}) }
