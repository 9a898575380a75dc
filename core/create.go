package core

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
	"github.com/subspan-dev/subspan/registry"
	"github.com/subspan-dev/subspan/roles"
)

// CreateRequest asks for a session. Empty fields are filled from the role, then
// from the configuration.
type CreateRequest struct {
	Title string
	Role  string
	Agent string
	// Mode is an explicit wish; nil takes the role's, lowered to what is allowed.
	Mode   *ceiling.Mode
	Model  string
	Effort string
	Cwd    string // absolute or relative to this process; empty is its working folder
	// Parent is the session that asks, as attested by whoever calls; empty for a
	// person or a harness.
	Parent string
	// Fork is the session whose history the new one starts with. Its agent and
	// folder are the new one's too.
	Fork string
	// Accept is the weakest hold that the caller takes.
	Accept bridges.Strength
}

// Create starts a session and returns once its handle is durable. A session whose
// bridge fails leaves no record.
func (c *Core) Create(ctx context.Context, req CreateRequest) (Session, error) {
	rec, instructions, fork, err := c.plan(req)
	if err != nil {
		return Session{}, err
	}
	l, err := c.adopt(ctx, rec)
	if err != nil {
		return Session{}, err
	}
	l.op.Lock()
	defer l.op.Unlock()
	if err := l.start(ctx, instructions, fork); err != nil {
		return Session{}, errors.Join(err, l.abandon(ctx))
	}
	return c.session(l.record(), true), nil
}

// plan decides everything about a session before anything exists of it.
func (c *Core) plan(req CreateRequest) (rec registry.Record, instructions string, fork *bridges.Handle, err error) {
	rec = registry.Record{Title: req.Title, State: registry.StateNew, Accept: req.Accept}
	var bounds []bound
	if req.Fork != "" {
		from, err := c.opts.Registry.Get(req.Fork)
		if err != nil {
			return rec, "", nil, err
		}
		if from.Handle.Data == nil {
			return rec, "", nil, bridges.Errorf(bridges.KindSessionGone, "session %s has no conversation to fork", from.ID)
		}
		fork, rec.ForkedFrom = &from.Handle, from.ID
		if req.Agent != "" && req.Agent != from.Agent {
			return rec, "", nil, bridges.Errorf(bridges.KindInvalidArgument, "a fork stays with its agent: %s is a session of %s", from.ID, from.Agent)
		}
		req.Agent, req.Cwd = from.Agent, from.Cwd
		if req.Role == "" {
			req.Role = from.Role
		}
		if req.Model == "" {
			req.Model = from.Model
		}
		if req.Effort == "" {
			req.Effort = from.Effort
		}
		bounds = append(bounds, bound{from.Mode, "the forked session " + from.ID})
		if req.Parent == "" {
			req.Parent = from.Parent
		}
	}
	if rec.Cwd, err = workspace(req.Cwd); err != nil {
		return rec, "", nil, err
	}
	role, err := c.role(req.Role, rec.Cwd)
	if err != nil {
		return rec, "", nil, err
	}
	rec.Role, rec.AllowDelegation = role.ID, role.AllowDelegation
	entry, err := c.agent(req.Agent, role)
	if err != nil {
		return rec, "", nil, err
	}
	rec.Agent, rec.AgentDef, rec.Bridge = entry.Agent.Name, entry.Agent, entry.Bridge
	if entry.Note != "" {
		rec.Warnings = append(rec.Warnings, entry.Note)
	}
	applied := role.For(entry.Agent.Name)
	rec.Model, rec.Effort = first(req.Model, applied.Model), first(req.Effort, applied.Effort)
	instructions = applied.Instructions
	if instructions != "" {
		sum := sha256.Sum256([]byte(instructions))
		rec.InstructionsDigest = hex.EncodeToString(sum[:])
	}
	rec.Limits = c.limits(role)
	if bounds, err = c.lineage(&rec, req.Parent, bounds); err != nil {
		return rec, "", nil, err
	}
	bounds = append(bounds, bound{c.opts.Config.Maximum, "the host's maximum"})
	if req.Role != "" || c.opts.Config.DefaultRole != "" {
		// A role that somebody chose is a bound. The one that fills the gap only says
		// what is granted when nobody asks.
		bounds = append(bounds, bound{role.Mode, "role " + role.ID})
	}
	mode, lowered, err := grant(req.Mode, bound{role.Mode, "role " + role.ID}, bounds)
	if err != nil {
		return rec, "", nil, err
	}
	if err := c.keepOut(rec.Cwd, mode); err != nil {
		return rec, "", nil, err
	}
	rec.Mode = mode
	if lowered != "" {
		rec.Warnings = append(rec.Warnings, lowered)
	}
	return rec, instructions, fork, nil
}

// keepOut refuses a workspace in which the agent could change what bounds it: with
// the records or the configuration writable, any permission would be full.
func (c *Core) keepOut(cwd string, mode ceiling.Mode) error {
	if mode != ceiling.Default {
		return nil // readonly writes nothing there, and full is no bound
	}
	for _, dir := range []string{c.opts.Dirs.State, c.opts.Dirs.Config, c.opts.Dirs.Runtime, c.opts.Dirs.Data} {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			real = dir // not there yet
		}
		if within(cwd, real) || within(real, cwd) {
			return bridges.Errorf(bridges.KindInvalidArgument, "%s cannot be a workspace with permission default: subspan's own folder %s is in the agent's reach there", cwd, dir).
				WithNext("work in a project's folder with --cwd, or use --permission readonly")
		}
	}
	return nil
}

// within reports whether path is dir or below it.
func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// lineage puts the session into its place in the tree and counts who is there.
func (c *Core) lineage(rec *registry.Record, parentID string, bounds []bound) ([]bound, error) {
	all, _, err := c.records()
	if err != nil {
		return nil, err
	}
	liveCount := 0
	for _, r := range all {
		if holdsSlot(r) {
			liveCount++
		}
	}
	if limit := c.opts.Config.Limits.MaxLive; limit > 0 && liveCount >= limit {
		return nil, bridges.Errorf(bridges.KindCapacity, "%d sessions are at work, which is the limit", liveCount).
			WithNext("wait for one to end, stop one, or raise limits.maxLive in %s", c.opts.Dirs.ConfigFile()).AsRetryable()
	}
	if parentID == "" {
		return bounds, nil
	}
	parent, err := c.opts.Registry.Get(parentID)
	if err != nil {
		return nil, err
	}
	rec.Parent, rec.Depth, rec.Root = parent.ID, parent.Depth+1, first(parent.Root, parent.ID)
	if limit := parent.Limits.MaxDepth; rec.Depth > limit {
		return nil, bridges.Errorf(bridges.KindDepthLimit, "session %s is at depth %d, and the limit is %d", parent.ID, parent.Depth, limit).
			WithNext("do the task in this session, or raise limits.maxDepth")
	}
	children := 0
	for _, r := range all {
		if r.Parent == parent.ID && holdsSlot(r) {
			children++
		}
	}
	if limit := parent.Limits.MaxChildren; limit > 0 && children >= limit {
		return nil, bridges.Errorf(bridges.KindCapacity, "session %s has %d children, which is the limit", parent.ID, children).
			WithNext("stop one that is done: `subspan stop ID`").AsRetryable()
	}
	rec.Limits.MaxDepth = min(rec.Limits.MaxDepth, parent.Limits.MaxDepth)
	return append(bounds, bound{parent.Mode, "the parent session " + parent.ID}), nil
}

// holdsSlot reports whether a session counts against its parent's children: while
// it works, and after that until the end of its processes is proven.
func holdsSlot(r registry.Record) bool {
	return r.Turn != "" || r.State == registry.StateNew || r.Survivors > 0
}

// role finds the role of a session.
func (c *Core) role(id, cwd string) (roles.Role, error) {
	set, err := c.opts.Roles(cwd)
	if err != nil {
		return roles.Role{}, err
	}
	return set.Get(first(id, c.opts.Config.DefaultRole, "general"))
}

// agent finds the agent of a session: the caller's, the role's, the configured
// one, or the first that is there.
func (c *Core) agent(name string, role roles.Role) (AgentEntry, error) {
	if name = first(name, role.Backend, c.opts.Config.DefaultAgent); name != "" {
		return c.opts.Agents.Resolve(name)
	}
	return c.opts.Agents.Default()
}

func (c *Core) limits(role roles.Role) registry.Limits {
	conf := c.opts.Config.Limits
	return registry.Limits{
		TurnTimeout: first(role.Limits.TurnTimeout, conf.TurnTimeout),
		IdleTimeout: first(role.Limits.IdleTimeout, conf.IdleTimeout),
		MaxDepth:    lower(role.Limits.MaxDepth, conf.MaxDepth),
		MaxChildren: lower(role.Limits.MaxChildren, conf.MaxChildren),
	}
}

// lower returns the smaller of a role's limit and the host's; 0 in the role is none.
func lower(role, host int) int {
	if role > 0 && role < host {
		return role
	}
	return host
}

func first[T comparable](values ...T) T {
	var zero T
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}

// workspace resolves the folder a session works in. It must exist: another folder
// in its place would be another project's.
func workspace(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", bridges.Errorf(bridges.KindInvalidArgument, "working folder %s: %w", dir, err).WithNext("name a folder that exists with --cwd")
	}
	info, err := os.Stat(abs)
	if err != nil {
		return "", bridges.Errorf(bridges.KindInvalidArgument, "working folder: %w", err).WithNext("name a folder that exists with --cwd")
	}
	if !info.IsDir() {
		return "", bridges.Errorf(bridges.KindInvalidArgument, "working folder %s is a file", abs).WithNext("name a folder with --cwd")
	}
	return abs, nil
}

// adopt records a new session and makes it live.
func (c *Core) adopt(ctx context.Context, rec registry.Record) (*live, error) {
	rec.ID = registry.NewID()
	l := &live{c: c, id: rec.ID, ready: make(chan struct{}), followers: map[chan struct{}]struct{}{}}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, errClosing
	}
	c.live[rec.ID] = l
	c.mu.Unlock()
	return l, l.open(ctx, func() (*registry.Session, error) { return c.opts.Registry.Create(rec) })
}

// start creates the session at its bridge and stores the handle.
func (l *live) start(ctx context.Context, instructions string, fork *bridges.Handle) error {
	if instructions != "" {
		if _, err := l.sess.WriteFileSync(registry.InstructionsFile, []byte(instructions)); err != nil {
			return err
		}
	}
	b, err := l.c.opts.Bridges.Open(ctx, l.bridgeName())
	if err != nil {
		return err
	}
	rec := l.record()
	settings := l.settings(rec)
	created, err := b.Create(ctx, bridges.CreateRequest{
		SessionID: l.id, Agent: l.agent(), Settings: settings, Folders: l.c.folders(rec),
		Keeping: l.keeping(), ForkFrom: fork,
	})
	if err != nil {
		return fmt.Errorf("create a session with %s: %w", rec.Agent, err)
	}
	if err := l.update(func(rec *registry.Record) {
		rec.Handle, rec.Info, rec.State = created.Handle, created.Info, registry.StateIdle
		rec.EnvNames = names(settings.Env)
	}); err != nil {
		return err
	}
	l.mu.Lock()
	l.connected = true
	l.mu.Unlock()
	return nil
}

func names(env []string) []string {
	out := make([]string, 0, len(env))
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		out = append(out, name)
	}
	return out
}

// abandon undoes a session that never came to be. A caller that gave up does not
// stop the clean-up after it.
func (l *live) abandon(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hardStop)
	defer cancel()
	receipt, err := l.dispose(ctx, false)
	if err != nil || receipt.SurvivedCount > 0 {
		// Something may be alive: keep the record, so that `stop` can find it.
		l.c.drop(l)
		return errors.Join(err, l.update(func(rec *registry.Record) {
			rec.State, rec.Reason = registry.StateLost, "it could not be created, and its end is not proven"
			rec.Survivors = max(1, receipt.SurvivedCount)
		}), l.sess.Close())
	}
	l.c.drop(l)
	return l.sess.Remove()
}

func (l *live) bridgeName() string { return first(l.entry.Bridge, l.record().Bridge) }

func (l *live) agent() bridges.Agent { return l.entry.Agent }

// settings are what the session runs under, the same for every call of its life.
func (l *live) settings(rec registry.Record) bridges.Settings {
	s := bridges.Settings{
		Mode: rec.Mode, Accept: rec.Accept, Cwd: rec.Cwd, Model: rec.Model, Effort: rec.Effort,
	}
	if rec.InstructionsDigest != "" {
		if text, err := l.c.opts.Registry.ReadFile(l.id, registry.InstructionsFile); err == nil {
			s.Instructions = string(text)
		}
	}
	for _, name := range l.entry.Agent.PassEnv {
		if v, ok := l.c.opts.Getenv(name); ok {
			s.Env = append(s.Env, name+"="+v)
		}
	}
	return s
}

// keeping ties the agent's life to the session's lock: when no process holds it
// for longer than the grace, the keeper ends the agent.
func (l *live) keeping() bridges.Keeping {
	return bridges.Keeping{Lease: l.sess.LockPath(), Grace: l.c.opts.Config.Limits.KeeperGrace}
}

func (c *Core) folders(rec registry.Record) bridges.Folders {
	return bridges.Folders{
		Run:   filepath.Join(c.opts.Dirs.Runtime, rec.ID),
		State: filepath.Join(c.opts.Dirs.State, "agents", rec.Agent),
	}
}
