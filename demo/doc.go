// Package demo is an ACP agent without a model: an answer that works on any
// machine, offline and without a login, and an example of an agent that behaves.
// It runs as "subspan demo-agent" and speaks ACP version 1 on stdin and stdout.
//
// # What it answers
//
// A task in prose gets a map of the session's folder: languages, biggest files,
// entry points, tests, the beginning of the README, recent commits, open TODOs.
// With the model "demo-echo" it gets its own task back instead. Every answer ends
// with a line saying that no model was used.
//
// A task that consists of directives only, one a line or several separated by ";",
// is carried out in order:
//
//	read FILE [FROM-TO]   show a file, or lines of it
//	grep PATTERN [DIR]    search with a regular expression (Go syntax)
//	list [DIR]            show a folder
//	write FILE TEXT       asks for permission, then writes TEXT and a newline
//	run COMMAND           asks for permission, then runs it with sh -c
//	ask QUESTION          asks, and reports which option came back
//	say TEXT              answers with TEXT
//	sleep SECONDS         waits, with a thought a second
//	env NAME              says whether a variable is set, and its value
//	history               the turns of this session so far
//	mcp                   the MCP servers that the client offered
//	spam N BYTES          N chunks of text, BYTES bytes each, as fast as possible
//	big MIB               one chunk of that many MiB
//	fork-child FILE       asks, then leaves a detached child appending to FILE
//	crash [CODE]          exits without an answer
//	kill                  ends itself with SIGKILL
//
// A directive is written in lower case. Prose that merely begins like one ("write a
// parser", "run the tests") stays prose: the file of a write has a dot or a slash in
// its name, numbers are numbers, and no file or command is called "the" or "a". A
// ";" separates only where a directive follows; otherwise, or inside quotes, it
// belongs to the text before it.
//
// # What it keeps
//
// Sessions are files, $SUBSPAN_DEMO_HOME/sessions/ID.json, where SUBSPAN_DEMO_HOME
// is $HOME/.local/state/subspan-demo unless it is set. The file is the truth: it is read
// again for every request, so that a session goes on in another process.
package demo
