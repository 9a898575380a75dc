package script

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// Conversation is a model request in the words that all dialects share.
type Conversation struct {
	Model     string
	Effort    string // as the agent asked for it; empty when it did not
	Stream    bool
	System    string // all system, developer and instruction texts, joined by a newline
	Messages  []Message
	Tools     []Tool
	MaxTokens int
}

// Message is one entry of a conversation.
type Message struct {
	FromUser bool // false: from the model, or the result of a tool
	Text     string
	Calls    int      // how many tools the model called
	Results  []string // what tools answered
}

// Tool is one tool that the agent offers to the model.
type Tool struct {
	Name      string
	Namespace string          // set for the namespaced functions of the Responses API
	Schema    json.RawMessage // JSON Schema of the arguments, when it takes any
	Freeform  bool            // takes text, not JSON
	About     string
}

// wrappers are the elements in which agents wrap what they add to the user's words.
var wrappers = []string{
	"system-reminder", "system_reminder", "environment_context", "user_instructions", "user_info", "git_status",
	"project_layout", "session_context", "turn_aborted", "INSTRUCTIONS", "skills_instructions", "agent_skills",
	"local-command-caveat", "recommended_plugins", "available_skills", "additional_context",
}

var wrapped = func() []*regexp.Regexp {
	var all []*regexp.Regexp
	for _, w := range wrappers {
		all = append(all, regexp.MustCompile(`(?s)<`+w+`[^>]*>.*?</`+w+`>`))
	}
	return all
}()

var query = regexp.MustCompile(`(?s)<user_query>\s*(.*?)\s*</user_query>`)

// unwrap returns the user's own words of a user message.
func unwrap(text string) string {
	if m := query.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	for _, re := range wrapped {
		if strings.Contains(text, "</") {
			text = re.ReplaceAllString(text, "")
		}
	}
	return strings.TrimSpace(text)
}

// last returns the index of the last message with words of the user, and those
// words; -1 when there is none.
func (c Conversation) last() (int, string) {
	for i := len(c.Messages) - 1; i >= 0; i-- {
		m := c.Messages[i]
		if !m.FromUser || len(m.Results) > 0 {
			continue
		}
		if own := unwrap(m.Text); own != "" {
			return i, own
		}
	}
	return -1, ""
}

// Task returns the last user message, as it was sent and without what the agent
// wrapped around the user's words.
func (c Conversation) Task() (raw, own string) {
	i, own := c.last()
	if i < 0 {
		return "", ""
	}
	return c.Messages[i].Text, own
}

// Results returns what tools answered since the last user message.
func (c Conversation) Results() []string {
	i, _ := c.last()
	var all []string
	for _, m := range c.Messages[i+1:] {
		all = append(all, m.Results...)
	}
	return all
}

// rounds counts the tool calls since the last user message.
func (c Conversation) rounds() int {
	i, _ := c.last()
	n := 0
	for _, m := range c.Messages[i+1:] {
		n += m.Calls
	}
	return n
}

// errands are phrases of the requests that agents make for themselves, beside the
// conversation: titles, summaries, memories.
var errands = []string{
	"title generator", "generate a title", "generate a concise title", "concise, sentence-case title", "session_title",
	"extract durable memories", "memory extraction", "you are a summarization", "anchored summary", "conversation summary",
	"context checkpoint compaction", "who should speak next",
}

// Errand reports whether the agent asks on its own behalf. Such a request often
// quotes the user's message, markers included, and must not play them.
func (c Conversation) Errand() bool {
	if len(c.Tools) == 1 && c.Tools[0].Name == "session_title" {
		return true
	}
	_, own := c.last()
	if strings.HasPrefix(own, "[[") && len(c.Tools) > 2 {
		return false
	}
	text := strings.ToLower(head(c.System, 4000) + "\n" + head(own, 4000))
	return slices.ContainsFunc(errands, func(p string) bool { return strings.Contains(text, p) })
}

func head(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
