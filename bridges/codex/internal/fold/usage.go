package fold

import (
	"encoding/json"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// tokens is codex's count of a thread or of one call.
type tokens struct {
	Input      int64 `json:"inputTokens"`
	Cached     int64 `json:"cachedInputTokens"`
	CacheWrite int64 `json:"cacheWriteInputTokens"`
	Output     int64 `json:"outputTokens"`
	Reasoning  int64 `json:"reasoningOutputTokens"`
	Total      int64 `json:"totalTokens"`
}

func (a tokens) minus(b tokens) tokens {
	d := func(x, y int64) int64 { return max(x-y, 0) }
	return tokens{d(a.Input, b.Input), d(a.Cached, b.Cached), d(a.CacheWrite, b.CacheWrite), d(a.Output, b.Output), d(a.Reasoning, b.Reasoning), d(a.Total, b.Total)}
}

// usage folds thread/tokenUsage/updated. Codex counts per thread, over processes,
// and a fork goes on from its parent's count: a turn's share is the difference to
// what stood there before it. Where that was never told, the first update of the
// turn says it, as total without last.
func (f *State) usage(params []byte, t *Turn, e *emitter) {
	var u struct {
		TokenUsage struct {
			Total, Last *tokens
			Window      int64 `json:"modelContextWindow"`
		} `json:"tokenUsage"`
		Thread string `json:"threadId"`
	}
	if json.Unmarshal(params, &u) != nil || u.TokenUsage.Total == nil || u.Thread != f.Thread {
		return
	}
	total := *u.TokenUsage.Total
	before := f.Total
	f.Total = &total
	if t == nil {
		return
	}
	last := tokens{}
	if u.TokenUsage.Last != nil {
		last = *u.TokenUsage.Last
	}
	if t.Before == nil {
		if before == nil {
			b := total.minus(last)
			before = &b
		}
		t.Before = before
	}
	d := total.minus(*t.Before)
	t.Usage = &bridges.Usage{
		Input: d.Input, Output: d.Output, CacheRead: d.Cached, CacheWrite: d.CacheWrite, Reasoning: d.Reasoning,
		Source: "session_diff", ContextUsed: last.Total, ContextSize: u.TokenUsage.Window,
		Raw: rawJSON(jsonrpc.Get(params, "tokenUsage"), maxInput),
	}
	usage := *t.Usage
	e.emit(bridges.Event{Kind: bridges.KindUsage, ID: "usage", Usage: &usage})
}
