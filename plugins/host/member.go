package host

import (
	"context"
	"errors"
	"time"

	"github.com/subspan-dev/subspan/bridges"
)

// How long each verb may take before its caller is told that the bridge does not
// answer. Submit has no limit: the process is probed while it is silent.
const (
	createLimit    = 3 * time.Minute // an agent's start, with a login check over a slow line
	reconnectLimit = 3 * time.Minute
	disposeLimit   = 30 * time.Second // and four times the grace asked for
)

const (
	maxRestarts = 5
	firstDelay  = time.Second
	maxDelay    = 30 * time.Second
	// healthyAfter is the life after which earlier deaths no longer count.
	healthyAfter = time.Minute
	// explainWait is how long to wait for the exit status of a process whose
	// connection broke.
	explainWait = 500 * time.Millisecond
)

// member is one bridge of a pool over all the processes that it needs. It is a
// bridges.Bridge.
type member struct {
	pool *Pool
	name string
	stop context.CancelFunc // ends launches and waits
	ctx  context.Context    // until close

	// turn is held by whoever looks at or changes the rest; a channel, so that waiting
	// for a launch by another call ends with the waiter's context.
	turn     chan struct{}
	current  *Instance // nil before the first launch and after the last
	failures int       // deaths and failed launches in a row
	failedAt time.Time
	lastErr  error
}

var _ bridges.Bridge = (*member)(nil)

func newMember(p *Pool, name string) *member {
	m := &member{pool: p, name: name, turn: make(chan struct{}, 1)}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// running returns a live instance, launching one when there is none.
func (m *member) running(ctx context.Context) (*Instance, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, m.gaveUp(ctx)
	}
	defer func() { <-m.turn }()

	if m.ctx.Err() != nil {
		return nil, errClosed()
	}
	if in := m.current; in != nil {
		select {
		case <-in.proc.exited:
			m.current = nil
			in.release()
			if time.Since(in.started) > healthyAfter {
				m.failures = 0
			}
			m.failed(bridges.Errorf(bridges.KindPluginFailed, "plugin %s ended: %s", m.name, in.proc.end()))
		default:
			return in, nil
		}
	}
	if err := m.backOff(ctx); err != nil {
		return nil, err
	}
	pr, err := m.pool.program(m.name)
	if err != nil {
		return nil, err // not a failure of the plugin
	}
	in, err := Launch(ctx, pr, m.pool.opts.Log)
	if err != nil {
		if ctx.Err() == nil {
			m.failed(err)
		}
		return nil, err
	}
	m.current = in
	return in, nil
}

func (m *member) failed(err error) {
	m.failures++
	m.failedAt = time.Now()
	m.lastErr = err
	m.pool.opts.Log.Warn("plugin failed", "plugin", m.name, "in_a_row", m.failures, "error", err)
}

// backOff waits before a restart. The first one is at once. After maxRestarts the
// plugin is left alone until healthyAfter has passed.
func (m *member) backOff(ctx context.Context) error {
	if m.failures <= 1 {
		return nil
	}
	if m.failures > maxRestarts {
		if rest := healthyAfter - time.Since(m.failedAt); rest > 0 {
			return bridges.Errorf(bridges.KindPluginFailed, "plugin %s failed %d times in a row and is left alone for %s: %w",
				m.name, m.failures, rest.Round(time.Second), m.lastErr).
				WithNext("run `subspan plugins check` on it, or see the host's log").AsRetryable()
		}
		m.failures = 0
		return nil
	}
	delay := min(firstDelay<<(m.failures-2), maxDelay)
	timer := time.NewTimer(delay - time.Since(m.failedAt))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return m.gaveUp(ctx)
	}
}

func (m *member) gaveUp(ctx context.Context) error {
	if m.ctx.Err() != nil {
		return errClosed()
	}
	return bridges.Errorf(bridges.KindPluginFailed, "plugin %s is not running yet: %w", m.name, ctx.Err()).AsRetryable()
}

func (m *member) close(ctx context.Context) {
	m.stop()
	m.turn <- struct{}{} // launches give up now that m.ctx has ended
	defer func() { <-m.turn }()
	if m.current != nil {
		m.current.Stop(ctx)
		m.current = nil
	}
}

// call runs one verb on a live instance within limit, 0 for none.
func call[T any](ctx context.Context, m *member, limit time.Duration, verb func(context.Context, *Instance) (T, error)) (T, error) {
	in, err := m.running(ctx)
	if err != nil {
		var none T
		return none, err
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	in.inFlight.Add(1)
	defer in.inFlight.Add(-1)
	res, err := verb(ctx, in)
	if errors.Is(err, bridges.ErrPluginFailed) {
		err = m.explain(in, err)
	}
	return res, err
}

// explain adds to a broken call how its process ended.
func (m *member) explain(in *Instance, err error) error {
	select {
	case <-in.proc.exited:
		e := bridges.AsError(err)
		return bridges.Errorf(bridges.KindPluginFailed, "plugin %s ended (%s): %w", m.name, in.proc.end(), err).
			WithNext("%s", e.Next).AsRetryable()
	case <-time.After(explainWait):
		return err
	}
}

// Describe implements bridges.Bridge.
func (m *member) Describe(ctx context.Context) (bridges.Description, error) {
	return call(ctx, m, describeLimit, func(ctx context.Context, in *Instance) (bridges.Description, error) {
		return in.Describe(ctx)
	})
}

// Create implements bridges.Bridge.
func (m *member) Create(ctx context.Context, req bridges.CreateRequest) (bridges.Created, error) {
	return call(ctx, m, createLimit, func(ctx context.Context, in *Instance) (bridges.Created, error) {
		return in.Create(ctx, req)
	})
}

// Submit implements bridges.Bridge.
func (m *member) Submit(ctx context.Context, req bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
	return call(ctx, m, 0, func(ctx context.Context, in *Instance) (bridges.Result, error) {
		return in.Submit(ctx, req, turn)
	})
}

// Reconnect implements bridges.Bridge.
func (m *member) Reconnect(ctx context.Context, req bridges.ReconnectRequest) (bridges.Reconnected, error) {
	return call(ctx, m, reconnectLimit, func(ctx context.Context, in *Instance) (bridges.Reconnected, error) {
		return in.Reconnect(ctx, req)
	})
}

// Dispose implements bridges.Bridge.
func (m *member) Dispose(ctx context.Context, req bridges.DisposeRequest) (bridges.Receipt, error) {
	return call(ctx, m, disposeLimit+4*req.Grace, func(ctx context.Context, in *Instance) (bridges.Receipt, error) {
		return in.Dispose(ctx, req)
	})
}
