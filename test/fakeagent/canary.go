package fakeagent

import (
	"context"
	"fmt"
	"os"
	"time"
)

// Canary is a file that a Child appends to while it lives. Its growth tells of life
// that no list of pids shows.
type Canary string

// Size is how many bytes the file has; 0 when it is not there.
func (c Canary) Size() int64 {
	fi, err := os.Stat(string(c))
	if err != nil {
		return 0
	}
	return fi.Size()
}

// WaitAlive returns when the file has grown by two beats, or with ctx's error.
func (c Canary) WaitAlive(ctx context.Context) error {
	start := c.Size()
	return c.poll(ctx, func() bool { return c.Size() >= start+2 }, "does not grow")
}

// WaitStill returns when the file has not grown for a time, which should be many
// beats (500 ms, say), or with ctx's error.
func (c Canary) WaitStill(ctx context.Context, quiet time.Duration) error {
	last, since := c.Size(), time.Now()
	return c.poll(ctx, func() bool {
		if now := c.Size(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) >= quiet
	}, "still grows")
}

func (c Canary) poll(ctx context.Context, done func() bool, otherwise string) error {
	tick := time.NewTicker(beat / 2)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("canary %s %s: %w", c, otherwise, ctx.Err())
		}
	}
	return nil
}
