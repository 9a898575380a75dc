package fold

import (
	"math"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// Agents count differently, and say so nowhere. What can be told from the numbers
// themselves is: whether the input includes what was read from a cache, and whether
// the output includes reasoning, follow from the total. What cannot (whether a number
// is for the call, the turn or the session) comes from the agent's profile.

// parseUsage reads token counts. Input includes cached input and Output reasoning.
func parseUsage(obj []byte) (bridges.Usage, bool) {
	if !jsonrpc.IsObject(obj) {
		return bridges.Usage{}, false
	}
	num := func(names ...string) int64 {
		for _, name := range names {
			if n, ok := jsonrpc.GetInt(obj, name); ok && n > 0 {
				return n
			}
		}
		return 0
	}
	u := bridges.Usage{
		Input:      num("inputTokens", "input_tokens"),
		Output:     num("outputTokens", "output_tokens"),
		CacheRead:  num("cachedReadTokens", "cached_read_tokens"),
		CacheWrite: num("cachedWriteTokens", "cached_write_tokens", "cacheCreationTokens"),
		Reasoning:  num("thoughtTokens", "thought_tokens", "reasoningTokens"),
		Raw:        keep(obj, maxRaw),
	}
	cached := u.CacheRead + u.CacheWrite
	switch total := num("totalTokens", "total_tokens"); total {
	case u.Input + u.Output:
	case u.Input + u.Output + u.Reasoning:
		u.Output += u.Reasoning
	case u.Input + u.Output + cached:
		u.Input += cached
	case u.Input + u.Output + u.Reasoning + cached:
		u.Input += cached
		u.Output += u.Reasoning
	default:
		if u.Input < cached { // it cannot include what is more than itself
			u.Input += cached
		}
	}
	return u, true
}

// turnUsage takes the counts of a turn from the answer to its prompt.
func (s *State) turnUsage(t *Turn, result []byte) {
	u, ok := parseUsage(jsonrpc.Get(result, "usage"))
	if !ok {
		meta := jsonrpc.Get(result, "_meta")
		if u, ok = parseUsage(jsonrpc.Get(meta, "usage")); ok {
			t.Model = firstNonEmpty(jsonrpc.GetString(meta, "modelId"), t.Model)
		}
	}
	if !ok {
		quota := jsonrpc.Get(result, "_meta", "quota")
		if u, ok = parseUsage(jsonrpc.Get(quota, "token_count")); ok {
			for m := range jsonrpc.Elements(jsonrpc.Get(quota, "model_usage")) {
				t.Model = jsonrpc.GetString(m, "model")
			}
		}
	}
	if ok {
		if s.SessionTotals {
			u, s.Totals = minus(u, s.Totals), u
		}
		t.Usage = &u
	}
	if t.Usage == nil && (t.Size > 0 || s.Cost > t.StartCost) {
		t.Usage = &bridges.Usage{}
	}
	if t.Usage != nil {
		t.Usage.ContextUsed, t.Usage.ContextSize = t.Used, t.Size
		t.Usage.CostUSD = s.costSince(t)
	}
}

// minus is what a session's totals grew by.
func minus(now, before bridges.Usage) bridges.Usage {
	d := now
	d.Input = max(0, now.Input-before.Input)
	d.Output = max(0, now.Output-before.Output)
	d.CacheRead = max(0, now.CacheRead-before.CacheRead)
	d.CacheWrite = max(0, now.CacheWrite-before.CacheWrite)
	d.Reasoning = max(0, now.Reasoning-before.Reasoning)
	return d
}

// chunkUsage takes counts that come with the last piece of a model's answer. There
// is one for each call of the model.
func (s *State) chunkUsage(obj []byte) {
	if u, ok := parseUsage(obj); ok && s.Turn != nil {
		if have := s.Turn.Usage; have != nil {
			u.Input += have.Input
			u.Output += have.Output
			u.CacheRead += have.CacheRead
			u.CacheWrite += have.CacheWrite
			u.Reasoning += have.Reasoning
		}
		s.Turn.Usage = &u
	}
}

// contextUsage takes the filling of the context window and the session's cost.
func (s *State) contextUsage(update []byte) {
	if cost := jsonrpc.Get(update, "cost"); jsonrpc.GetString(cost, "currency") == "USD" {
		if amount, ok := jsonrpc.GetFloat(cost, "amount"); ok {
			s.Cost = amount
		}
	}
	if t := s.Turn; t != nil {
		if n, ok := jsonrpc.GetInt(update, "used"); ok {
			t.Used = max(0, n)
		}
		if n, ok := jsonrpc.GetInt(update, "size"); ok {
			t.Size = max(0, n)
		}
	}
}

// costSince is what a turn has cost so far, to a billionth of a dollar: a difference
// of two running totals has no more digits that mean anything.
func (s *State) costSince(t *Turn) float64 {
	return math.Round(max(0, s.Cost-t.StartCost)*1e9) / 1e9
}

// usageSoFar is what is known in the middle of a turn.
func (s *State) usageSoFar() *bridges.Usage {
	t := s.Turn
	u := bridges.Usage{ContextUsed: t.Used, ContextSize: t.Size, CostUSD: s.costSince(t)}
	if t.Usage != nil {
		u.Input, u.Output = t.Usage.Input, t.Usage.Output
	}
	return &u
}
