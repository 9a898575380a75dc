// Package modelserver is a model provider on the loopback interface whose answers
// are written into the question. Real coding agents run against it offline, and a
// test says in its task what the model shall do:
//
//	[[say TEXT]]           answer TEXT
//	[[think TEXT]]         think TEXT aloud first
//	[[delta N x SIZE]]     answer in N deltas of SIZE bytes each (see Filler)
//	[[big BYTES]]          answer BYTES bytes in deltas of 16 KiB
//	[[unicode]]            answer the constant Unicode
//	[[empty]]              answer nothing at all
//	[[slow MS]]            wait MS milliseconds before each delta from here on
//	[[sh COMMAND]]         call the agent's shell tool
//	[[write PATH TEXT]]    call its tool that makes a file; agents want PATH absolute
//	[[read PATH]]          call its tool that reads a file, or the shell's cat
//	[[mcp SERVER TOOL {…}]] call a tool of an MCP server with these arguments
//	[[call NAME {…}]]      call the tool NAME, offered by the agent or not
//	[[hang]]               send what came so far, then nothing; the connection stays open
//	[[drop]]               send what came so far, then cut the connection
//	[[status CODE]]        fail with 400, 401, 403, 404, 429, 500, 503 or 529
//	[[quota]]              fail as the provider does when the account has no credit
//
// Several markers in one message are played in their order. Each tool call ends an
// answer; the next one goes on behind it when the tool's result has come back. A
// script that ends with a tool call is followed by "done: " and the result's start.
// A text ends at the first ]]; JSON may hold it. A tool that the agent does not
// offer becomes the answer "script error: …", as does a marker that is not well
// formed. A message without markers is answered with its length and digest (see
// Echo). Requests that agents make on their own behalf, such as titles, quote the
// user's message; they are recognised and get a short answer of their own.
//
// The formats are OpenAI Chat Completions and Responses, Anthropic Messages and
// Gemini generateContent, streamed and not. Every call costs the same, see Cost.
// A model whose name starts with "missing-" does not exist.
package modelserver
