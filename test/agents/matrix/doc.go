// Package matrix runs each behaviour that subspan promises on each real agent, and
// says in a table which of them hold. A cell is the built program with one agent, a
// scripted model on the loopback interface and a scratch user; see package agents
// for where the agents come from.
//
//	SUBSPAN_AGENTS=1 go test ./test/agents/matrix -run TestRealMatrix -timeout 20m
//	SUBSPAN_AGENTS=1 go test ./test/agents/matrix -run 'TestRealMatrix/claude/^fork$' -v
//
// Agents run beside each other, as many as -parallel says, and the cells of one agent
// one after the other. What the cells said is written as JSON to the file that
// -matrix names, and the table is made from it:
//
//	go run ./test/agents/matrix/cmd results.json > test/agents/MATRIX.md
//
// A cell passes, or the agent cannot do it and the bridge says so in the way that the
// cell asserts, or it fails. The failures that are known are listed with the reason in
// knownFailures; the test is red when any other cell fails, and when one of these does
// not fail any more.
package matrix
