// Package script decides what the scripted model answers. It reads the markers of
// the last user message of a conversation, counts the tool calls that were made
// since, and plans the one reply that comes next. It keeps no state: the same
// conversation always gets the same reply but for the ids in it, also after the
// agent was killed and resumed, which makes runs of real agents reproducible.
package script
