package acp

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"
)

type promptParams struct {
	SessionID string  `json:"sessionId"`
	Prompt    []block `json:"prompt"`
}

type block struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// prompt composes the task's message, and the digest of the instructions that the
// agent knows when it has it.
func (s *session) prompt(instructions, task string) (promptParams, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := promptParams{SessionID: s.state.NativeID}
	told := s.state.Instructed
	if instructions != "" {
		if now := instructionsDigest(instructions); now != told {
			told = now
			p.Prompt = append(p.Prompt, block{"text", s.inert(instructions) + "\n\n"})
		}
	}
	p.Prompt = append(p.Prompt, block{"text", s.inert(task)})
	return p, told
}

// instructionsDigest tells instructions apart; those that there are none of have none.
func instructionsDigest(instructions string) string {
	if instructions == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(instructions))
	return hex.EncodeToString(sum[:8])
}

// inert makes sure that a text is one for the model: see the package comment.
func (s *session) inert(text string) string {
	if s.profile.PlainText {
		return text
	}
	first, _ := utf8.DecodeRuneInString(strings.TrimLeftFunc(text, func(r rune) bool { return unicode.IsSpace(r) || r == '\uFEFF' }))
	switch first {
	case '/', '@', '!':
		return "\u200B" + text
	}
	return text
}
