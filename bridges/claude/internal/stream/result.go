package stream

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/tidwall/gjson"
)

// usage is what a process has used since it was started, subagents included.
type usage struct {
	Input      int64   `json:"input,omitempty"`
	Output     int64   `json:"output,omitempty"`
	CacheRead  int64   `json:"cache_read,omitempty"`
	CacheWrite int64   `json:"cache_write,omitempty"`
	Cost       float64 `json:"cost,omitempty"`
}

// usageOf adds up what a result says of all models; ok is false when it says nothing.
func usageOf(root gjson.Result) (u usage, size int64, ok bool) {
	models := root.Get("modelUsage")
	models.ForEach(func(_, m gjson.Result) bool {
		u.CacheRead += m.Get("cacheReadInputTokens").Int()
		u.CacheWrite += m.Get("cacheCreationInputTokens").Int()
		u.Input += m.Get("inputTokens").Int() + m.Get("cacheReadInputTokens").Int() + m.Get("cacheCreationInputTokens").Int()
		u.Output += m.Get("outputTokens").Int()
		size = max(size, m.Get("contextWindow").Int())
		ok = true
		return true
	})
	u.Cost = root.Get("total_cost_usd").Float()
	return u, size, ok
}

// less reports whether u counts less than v, which a running sum cannot.
func (u usage) less(v usage) bool {
	return u.Input < v.Input || u.Output < v.Output || u.CacheRead < v.CacheRead || u.CacheWrite < v.CacheWrite
}

// contextOf returns how much of the window a call's usage fills.
func contextOf(u gjson.Result) int64 {
	return u.Get("input_tokens").Int() + u.Get("cache_read_input_tokens").Int() +
		u.Get("cache_creation_input_tokens").Int() + u.Get("output_tokens").Int()
}

// spent returns what the turn cost. The sums over all models include subagents,
// which the result's own usage does not; they are the turn's by difference.
func (s *State) spent(root gjson.Result) *bridges.Usage {
	now, size, ok := usageOf(root)
	before := s.Told
	if !ok || now.less(before) {
		u := root.Get("usage")
		if !u.Exists() {
			return nil
		}
		return &bridges.Usage{
			Input:     contextOf(u) - u.Get("output_tokens").Int(),
			Output:    u.Get("output_tokens").Int(),
			CacheRead: u.Get("cache_read_input_tokens").Int(), CacheWrite: u.Get("cache_creation_input_tokens").Int(),
			Source: "turn", ContextUsed: s.Turn.Context,
		}
	}
	used := &bridges.Usage{
		Input: now.Input - before.Input, Output: now.Output - before.Output,
		CacheRead: now.CacheRead - before.CacheRead, CacheWrite: now.CacheWrite - before.CacheWrite,
		CostUSD: max(0, now.Cost-before.Cost),
		Source:  "session_diff", ContextUsed: s.Turn.Context, ContextSize: size,
	}
	if raw := root.Get("modelUsage").Raw; len(raw) <= maxRaw {
		used.Raw = json.RawMessage(raw)
	}
	return used
}

// result folds the frame that ends a turn.
func (s *State) result(root gjson.Result) {
	now, _, counted := usageOf(root)
	if s.Running() && s.ours(root) {
		s.end(root)
	} else if s.Running() {
		s.notice("info", "background_turn", "claude ended a turn of its own, about work it had left running; the task is still under way")
	}
	if s.Turn == nil && root.Get("is_error").Bool() {
		s.Failed = clip(firstOf(root.Get("errors.0").String(), root.Get("result").String()), 2000)
	}
	if counted {
		s.Told = now
	}
}

// ours reports whether a result is that of the running turn. The agent may end a
// turn that it began by itself, when a command it left in the background ends.
func (s *State) ours(root gjson.Result) bool {
	t := s.Turn
	switch {
	case root.Get("origin.kind").String() == "task-notification":
		return false
	case t.Seen, t.Interrupted != "":
		return true
	case s.Echoes:
		return root.Get("is_error").Bool() && !t.Inited
	}
	return t.Inited || root.Get("is_error").Bool()
}

// end makes the turn's Result of the agent's.
func (s *State) end(root gjson.Result) {
	t := s.Turn
	s.flush()
	s.Open = nil
	failed := root.Get("is_error").Bool() || root.Get("subtype").String() != "success"
	if text := root.Get("result").String(); !t.Text && !failed && text != "" {
		t.Message = message{ID: "result"}
		s.whole("text", text)
	}
	r := &bridges.Result{
		Status:     bridges.StatusCompleted,
		StopReason: root.Get("stop_reason").String(),
		Usage:      s.spent(root),
		Model:      t.Answered,
		Denied:     t.Denied,
		Warnings:   t.Warnings,
	}
	reason := root.Get("terminal_reason").String()
	if failed && reason == "completed" {
		reason = "" // it says so of every turn that an error of the service ended
	}
	if r.StopReason == "" || failed && reason != "" {
		r.StopReason = firstOf(reason, root.Get("subtype").String())
	}
	if r.Usage != nil {
		s.emit(bridges.Event{Kind: bridges.KindUsage, Usage: r.Usage})
	}
	switch {
	case t.Interrupted == "cancel", t.Fatal == nil && strings.HasPrefix(reason, "aborted"):
		// Whatever else it says: it was asked to stop, and a late success is no success.
		r.Status = bridges.StatusCancelled
	case t.Fatal != nil:
		r.Status, r.Error = bridges.StatusFailed, t.Fatal.error(s.Models)
	case failed:
		f := s.failureOf(root)
		r.Status, r.Error = bridges.StatusFailed, f.error(s.Models)
	case r.StopReason == "refusal":
		r.Status = bridges.StatusRefused
		r.Error = bridges.Errorf(bridges.KindAgentFailed, "the model declined the task").
			WithNext("put the task differently, or give it to another model")
	}
	if r.Status == bridges.StatusCompleted && t.ToolsBad > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%d of %d tool calls failed", t.ToolsBad, t.Tools))
	}
	if want, _, _ := strings.Cut(s.Model, "["); want != "" && t.Answered != "" && want != t.Answered {
		r.Warnings = append(r.Warnings, fmt.Sprintf("answered by %s instead of %s", t.Answered, want))
	}
	t.Result, t.Message = r, message{}
}

// failure is why a turn failed, in the agent's words.
type failure struct {
	Class  string `json:"class,omitempty"` // authentication_failed, billing_error, …
	Status int64  `json:"status,omitempty"`
	Reason string `json:"reason,omitempty"` // the terminal reason
	Text   string `json:"text,omitempty"`
	Reset  string `json:"reset,omitempty"`
}

func (s *State) failureOf(root gjson.Result) *failure {
	f := &failure{
		Status: root.Get("api_error_status").Int(),
		Reason: firstOf(root.Get("terminal_reason").String(), root.Get("subtype").String()),
		Text:   root.Get("result").String(),
		Reset:  s.Turn.LastReset,
	}
	if p := s.Turn.Problem; p != nil {
		f.Class, f.Text = p.Class, p.Text
	}
	if f.Text == "" {
		var lines []string
		for _, e := range root.Get("errors").Array() {
			lines = append(lines, e.String())
		}
		f.Text = strings.Join(lines, "; ")
	}
	f.Text = s.scrub.Clean(clip(f.Text, 2000))
	return f
}

// error maps the agent's words to a kind that every product shares.
func (f *failure) error(models []string) *bridges.Error {
	text := firstOf(f.Text, f.Reason, "claude gave no reason")
	low := strings.ToLower(text)
	switch {
	case strings.HasPrefix(text, "No conversation found"):
		return bridges.Errorf(bridges.KindSessionGone, "%s", text).WithNext("start a new session")
	case f.Class == "authentication_failed", f.Class == "oauth_org_not_allowed",
		f.Class == "" && (f.Status == 401 || f.Status == 403):
		return bridges.Errorf(bridges.KindAuthRequired, "%s", text).
			WithNext("run `claude` and /login in a terminal, or set ANTHROPIC_API_KEY")
	case f.Class == "billing_error", f.Status == 402, f.Reset != "",
		f.Class == "rate_limit" && (strings.Contains(low, "usage limit") || strings.Contains(low, "hit your")):
		e := bridges.Errorf(bridges.KindQuotaExhausted, "%s", text)
		if f.Reset != "" {
			return e.WithNext("wait until %s, or give the task to another agent", f.Reset)
		}
		return e.WithNext("add credit to the account, or give the task to another agent")
	case f.Class == "rate_limit", f.Status == 429:
		return bridges.Errorf(bridges.KindRateLimited, "%s", text).WithNext("try again later").AsRetryable()
	case f.Class == "model_not_found", f.Status == 404:
		e := bridges.Errorf(bridges.KindModelUnavailable, "%s", text)
		if len(models) > 0 {
			return e.WithNext("choose one of %s, or a full model name", strings.Join(models, ", "))
		}
		return e.WithNext("choose another model")
	case f.Reason == "prompt_too_long":
		return bridges.Errorf(bridges.KindAgentFailed, "%s", text).WithNext("start a new session, or give a shorter task")
	case f.Reason == "error_max_turns", f.Reason == "max_turns":
		return bridges.Errorf(bridges.KindAgentFailed, "%s", text).WithNext("submit again to let it go on")
	case f.Class == "server_error", f.Class == "overloaded", f.Status >= 500:
		return bridges.Errorf(bridges.KindAgentFailed, "%s", text).WithNext("try again later").AsRetryable()
	}
	return bridges.Errorf(bridges.KindAgentFailed, "%s", text).WithNext("read the turn's events for what it did")
}

// retry folds the agent's note that it will ask its service again.
func (s *State) retry(root gjson.Result) {
	class, status, attempt := root.Get("error").String(), root.Get("error_status").Int(), root.Get("attempt").Int()
	s.notice("warning", "retry", fmt.Sprintf("claude's request failed (%s, status %d); attempt %d of %d follows in %.1f s",
		clip(class, 80), status, attempt, root.Get("max_retries").Int(), root.Get("retry_delay_ms").Float()/1000))
	if !s.Running() || s.Turn.Fatal != nil {
		return
	}
	// Nothing that waits can mend these. A login by OAuth may renew its token after
	// the first refusal, so it gets a second one; a key does not.
	switch {
	case class == "billing_error":
	case class == "authentication_failed" && (s.KeySource != "none" || attempt >= 2):
	default:
		return
	}
	text := "the service refused the login"
	if class == "billing_error" {
		text = "the service refused for want of credit"
	}
	s.Turn.Fatal = &failure{Class: class, Status: status, Text: fmt.Sprintf("%s (status %d)", text, status)}
}

// limits folds the agent's note on the account's allowance.
func (s *State) limits(info gjson.Result) {
	status := info.Get("status").String()
	if status == "" || status == "allowed" {
		return
	}
	reset := ""
	if at := info.Get("resetsAt").Int(); at > 0 {
		reset = unixTime(at)
	}
	text := fmt.Sprintf("the account's %s allowance: %s", clip(info.Get("rateLimitType").String(), 80), clip(status, 80))
	if reset != "" {
		text += ", renewed at " + reset
	}
	s.notice("warning", "rate_limit", text)
	if status == "rejected" && s.Running() {
		s.Turn.LastReset = reset
	}
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}
