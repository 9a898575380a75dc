// Package bridgetest is the conformance suite of bridges: what package bridges says
// in prose, as checks with names. It judges a bridge in Go inside a test (Run), and
// any plugin in any language as a real process (Check), which is what `subspan
// plugins check FOLDER` does.
//
// The checks need an agent that can be made to do things. They use a few words, for
// which each bridge has a task (see DefaultWords); the defaults are those of the demo
// agent that subspan has built in. A word whose task is empty is something the agent
// cannot do, and the checks that need it are skipped and say so.
package bridgetest
