// Package fakeagent is an agent that does exactly what a script says, however
// bad: for tests of what must survive real agents. It knows two dialects. "acp"
// answers ACP version 1 sensibly until a rule says otherwise; "stream" says nothing
// of its own accord and suits every protocol of one JSON value a line.
//
// # In a Go test
//
// The test binary itself becomes the agent. Main comes first in TestMain:
//
//	func TestMain(m *testing.M) {
//		fakeagent.Main()
//		os.Exit(m.Run())
//	}
//
//	command, err := fakeagent.Script{
//		Journal: filepath.Join(dir, "journal"),
//		On: []fakeagent.Rule{
//			fakeagent.On("session/prompt", fakeagent.Text("half an ans"), fakeagent.Exit(3)),
//			fakeagent.Ignore("SIGTERM"),
//		},
//	}.Command(dir)
//
// Command writes the script to a file and returns the command line that runs it.
// ReadJournal tells afterwards what the agent got: argv, environment, folder, every
// line of stdin, the options in force at each prompt, the replies to its requests.
//
// # As a file
//
// The same in JSON, for testscript and for other languages. A script may be spread
// over several JSON values in the file; their lists are joined. Durations are
// texts like "20ms". Unknown keys are errors.
//
//	{"journal": "/tmp/x/journal", "on": [
//	  {"on": "session/prompt", "nth": 1, "do": [
//	    {"update": {"sessionUpdate": "compaction_update", "status": "done"}},
//	    {"child": {"how": "double", "canary": "/tmp/x/canary"}},
//	    {"sleep": "50ms"},
//	    {"text": "turn ${n} of ${session}"},
//	    {"result": {"stopReason": "end_turn"}},
//	    {"text": "too late"}]},
//	  {"on": "session/load", "do": [{"error": {"code": -32603, "message": "service failure"}}]},
//	  {"on": "session/cancel", "do": []}]}
//
// An agent that gets its task as an argument, and is done:
//
//	{"dialect": "stream", "start": [
//	  {"if": {"env": "CLAUDECODE"}, "then": [{"stderr": "nested\n"}, {"exit": 1}]},
//	  {"trickle": {"text": "{\"text\":\"né\"}\n", "size": 1, "every": "20ms"}},
//	  {"exit": 0}]}
//
// # Rules
//
// A rule is for messages by their "method", or else their "type"; for "line", a line
// that is not a JSON object; "eof", the end of stdin; "SIGTERM", "SIGINT", "SIGHUP";
// or "*", any message. The first rule that fits is used, and instead of the default.
// A request whose rule does not answer is never answered; one may be answered twice.
// The steps of different messages run at the same time, unless the rule is inline:
// then nothing is read meanwhile. A session/cancel without a rule of its own ends the
// steps of the session's prompts and answers those that are open.
//
// # Variables
//
// Texts may hold ${id} (the message's id as it came), ${session}, ${text} (of the
// prompt), ${n} (how often the rule fitted), ${i} (of a repeat, from 0), ${pid} and
// ${env:NAME}; ${json:text} and the like are quoted for JSON. In update, result,
// error and params they stand inside of JSON strings and are escaped for them.
package fakeagent
