//go:build linux

package matrix

// knownFailures are the cells that fail, agent/behaviour, with the reason. Each is a
// defect of ours or something that the agent does not let us do right; the test is
// red when one of them does not fail any more.
var knownFailures = map[string]string{}
