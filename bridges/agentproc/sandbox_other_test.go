//go:build unix && !linux

package agentproc

// attempts belongs to the tests of the sandbox, which run on Linux alone.
func attempts() {}
