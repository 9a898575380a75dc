package demo

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// step is one directive, ready to be carried out. What do returns is its part of
// the answer.
type step struct {
	title string
	do    func(*turn) (string, error)
}

// The most that spam and big may be asked for.
const (
	maxChunks     = 10_000_000
	maxChunkBytes = 64 << 20
	maxBigMiB     = 1024
)

// parse reads a task as directives. It reports false when any of it is not one:
// the task is prose then.
func parse(task string) ([]step, bool) {
	var steps []step
	for line := range strings.Lines(task) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		for _, text := range split(line) {
			s, ok := parseOne(text)
			if !ok {
				return nil, false
			}
			steps = append(steps, s)
		}
	}
	return steps, len(steps) > 0
}

// split cuts a line at every ";" outside quotes behind which a directive stands.
// Any other ";" is part of a directive's text: that of a shell command, say. It
// goes from the end, where it is known how far a directive reaches.
func split(line string) []string {
	cuts := semicolons(line)
	if len(cuts) > maxSemicolons || !isVerb(line) {
		return []string{line}
	}
	var parts []string
	end := len(line)
	for _, at := range slices.Backward(cuts) {
		text := strings.TrimSpace(line[at+1 : end])
		if text == "" {
			end = at
		} else if _, ok := parseOne(text); ok {
			parts = append(parts, text)
			end = at
		}
	}
	parts = append(parts, strings.TrimSpace(line[:end]))
	slices.Reverse(parts)
	return parts
}

// maxSemicolons bounds the work on one line; a line with more of them is one text.
const maxSemicolons = 1000

// semicolons returns where a line has ";" outside quotes. An apostrophe within a
// word, or without its pair, quotes nothing.
func semicolons(line string) []int {
	var at []int
	for i := 0; i < len(line); i++ {
		switch ch := line[i]; {
		case ch == ';':
			at = append(at, i)
		case (ch == '"' || ch == '\'') && (i == 0 || strings.IndexByte(" =(", line[i-1]) >= 0):
			if n := strings.IndexByte(line[i+1:], ch); n >= 0 {
				i += n + 1
			}
		}
	}
	return at
}

// nextArg takes one argument off a text. In quotes it may hold spaces.
func nextArg(text string) (arg, rest string) {
	text = strings.TrimSpace(text)
	if text != "" && (text[0] == '"' || text[0] == '\'') {
		if end := strings.IndexByte(text[1:], text[0]); end > 0 {
			return text[1 : end+1], strings.TrimSpace(text[end+2:])
		}
	}
	end := strings.IndexAny(text, " \t")
	if end < 0 {
		return text, ""
	}
	return text[:end], strings.TrimSpace(text[end:])
}

var (
	lineRange = regexp.MustCompile(`^[1-9][0-9]{0,8}(-[1-9][0-9]{0,8})?$`)
	// A file or a command with one of these names is a sentence.
	sentence = regexp.MustCompile(`^(?:the|a|an|all|any|my|our|your|this|that|these|those|me|it|us|some|every|each)$`)
	varName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// isVerb reports whether a text begins with the word of a directive.
func isVerb(text string) bool {
	if end := strings.IndexAny(text, " ;"); end >= 0 {
		text = text[:end]
	}
	switch text {
	case "read", "grep", "list", "write", "run", "ask", "say", "sleep", "env", "history", "mcp",
		"spam", "big", "fork-child", "crash", "kill":
		return true
	}
	return false
}

// maxArgs is more arguments than any directive has; the rest of a text is not
// looked at when it is only about their number.
const maxArgs = 3

// parseOne reads one directive.
func parseOne(text string) (step, bool) {
	if !isVerb(text) {
		return step{}, false
	}
	verb, rest, _ := strings.Cut(text, " ")
	rest = strings.TrimSpace(rest)
	var args []string
	for arg, more := nextArg(rest); arg != "" && len(args) < maxArgs; arg, more = nextArg(more) {
		args = append(args, arg)
	}
	if len(args) > 0 && verb != "say" && verb != "ask" && sentence.MatchString(args[0]) {
		return step{}, false
	}
	do := parseArgs(verb, rest, args)
	return step{title: firstWords(text, 120), do: do}, do != nil
}

// parseArgs returns what a directive does, or nil when it is none.
func parseArgs(verb, rest string, args []string) func(*turn) (string, error) {
	one := len(args) == 1
	switch verb {
	case "read":
		if one {
			return func(t *turn) (string, error) { return t.read(args[0], "") }
		}
		if len(args) == 2 && lineRange.MatchString(args[1]) {
			return func(t *turn) (string, error) { return t.read(args[0], args[1]) }
		}
	case "grep":
		if one || len(args) == 2 {
			dir := append(args, ".")[1]
			if re, err := regexp.Compile(args[0]); err == nil {
				return func(t *turn) (string, error) { return t.grep(re, dir) }
			}
		}
	case "list":
		if len(args) <= 1 {
			dir := append(args, ".")[0]
			return func(t *turn) (string, error) { return t.list(dir) }
		}
	case "write":
		if len(args) >= 2 && strings.ContainsAny(args[0], "./") {
			_, text := nextArg(rest)
			return func(t *turn) (string, error) { return t.write(args[0], text) }
		}
	case "run":
		if rest != "" {
			return func(t *turn) (string, error) { return t.command(rest) }
		}
	case "ask":
		if rest != "" {
			return func(t *turn) (string, error) { return t.question(rest) }
		}
	case "say":
		if rest != "" {
			return func(*turn) (string, error) { return rest, nil }
		}
	case "sleep":
		if one {
			if d, err := time.ParseDuration(args[0] + "s"); err == nil && d >= 0 {
				return func(t *turn) (string, error) { return t.sleep(d) }
			}
		}
	case "env":
		if one && varName.MatchString(args[0]) {
			return func(*turn) (string, error) { return showEnv(args[0]), nil }
		}
	case "history":
		if rest == "" {
			return (*turn).history
		}
	case "mcp":
		if rest == "" {
			return (*turn).servers
		}
	default:
		return parseFault(verb, args)
	}
	return nil
}

// parseFault reads the directives that make the agent behave badly on purpose.
func parseFault(verb string, args []string) func(*turn) (string, error) {
	switch {
	case verb == "crash" && len(args) <= 1:
		if code, ok := number(append(args, "1")[0], 0, 255); ok {
			return func(t *turn) (string, error) { return t.crash(code) }
		}
	case verb == "kill" && len(args) == 0:
		return (*turn).kill
	case verb == "spam" && len(args) == 2:
		n, ok1 := number(args[0], 1, maxChunks)
		size, ok2 := number(args[1], 1, maxChunkBytes)
		if ok1 && ok2 {
			return func(t *turn) (string, error) { return t.spam(n, size) }
		}
	case verb == "big" && len(args) == 1:
		if mib, ok := number(args[0], 1, maxBigMiB); ok {
			return func(t *turn) (string, error) { return t.big(mib) }
		}
	case verb == "fork-child" && len(args) == 1:
		return func(t *turn) (string, error) { return t.forkChild(args[0]) }
	}
	return nil
}

func number(s string, least, most int) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= least && n <= most
}
