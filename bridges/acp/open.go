package acp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/acp/internal/fold"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

const protocolVersion = 1

// The parameters that we send. What a client may offer and we do not (files,
// terminals, elicitation) is said to be absent, not left to be guessed.
type (
	initializeParams struct {
		ProtocolVersion    int                `json:"protocolVersion"`
		ClientInfo         clientInfo         `json:"clientInfo"`
		ClientCapabilities clientCapabilities `json:"clientCapabilities"`
	}
	clientInfo struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	clientCapabilities struct {
		FS struct {
			Read  bool `json:"readTextFile"`
			Write bool `json:"writeTextFile"`
		} `json:"fs"`
		Terminal bool `json:"terminal"`
	}
	sessionParams struct {
		SessionID  string         `json:"sessionId,omitempty"`
		Cwd        string         `json:"cwd"`
		MCPServers []mcpServer    `json:"mcpServers"` // never null: agents refuse that
		Meta       map[string]any `json:"_meta,omitempty"`
	}
	mcpServer struct {
		Name    string   `json:"name"`
		Command string   `json:"command"`
		Args    []string `json:"args"`
		Env     []envVar `json:"env"`
	}
	envVar struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	idParams struct {
		SessionID string `json:"sessionId"`
	}
)

func (l *link) paramsOf(native string, st bridges.Settings) sessionParams {
	p := sessionParams{
		SessionID: native, Cwd: st.Cwd, MCPServers: []mcpServer{},
		Meta: l.s.profile.meta(st.Mode, l.s.hold.Strength == bridges.HoldKernel),
	}
	for _, m := range st.MCPServers {
		server := mcpServer{Name: m.Name, Command: m.Command, Args: m.Args, Env: []envVar{}}
		if server.Args == nil {
			server.Args = []string{}
		}
		for name, value := range m.Env {
			server.Env = append(server.Env, envVar{name, value})
		}
		slices.SortFunc(server.Env, func(a, b envVar) int { return strings.Compare(a.Name, b.Name) })
		p.MCPServers = append(p.MCPServers, server)
	}
	return p
}

// call is a request with a time limit, whose end is told from the caller's.
func (l *link) call(ctx context.Context, limit time.Duration, method string, params any) (*jsonrpc.Reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	r, err := l.conn.Call(ctx, method, params)
	switch {
	case err == nil:
		return r, nil
	case errors.As(err, new(*jsonrpc.Error)):
		return nil, err
	case errors.Is(err, jsonrpc.ErrClosed):
		return nil, l.ended(method)
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, bridges.Errorf(bridges.KindTimeout, "%w%s", err, l.heard()).
			WithNext("look at what the agent says when it is started by hand").AsRetryable()
	}
	return nil, err
}

// heard tells what came instead of an answer.
func (l *link) heard() string {
	var b strings.Builder
	if n, sample := l.conn.Noise(); n > 0 {
		fmt.Fprintf(&b, "; its output has %d lines that are no messages, first %q", n, sample)
	}
	if said := lastLines(l.s.proc.Stderr(), 1<<10); said != "" {
		fmt.Fprintf(&b, "; its stderr ends with %q", said)
	}
	return b.String()
}

// ended is the error for an agent that ended where it should not have.
func (l *link) ended(during string) *bridges.Error {
	<-l.done
	s := l.s
	exit, ok := s.proc.Exit()
	if !ok {
		return bridges.Errorf(bridges.KindPluginFailed, "reading the agent's output stopped during %s: %w", during, l.result)
	}
	how := fmt.Sprintf("ended with code %d", exit.Code)
	if exit.Signal != "" {
		how = "was ended by the signal " + exit.Signal
	}
	if exit.Ordered != "" {
		how += " (" + exit.Ordered + ")"
	}
	how += " during " + during
	if said := lastLines(exit.Stderr, 2<<10); said != "" {
		how += ": " + said
	}
	return bridges.Errorf(bridges.KindAgentFailed, "the agent %s", how).
		WithNext("submit again to start the agent anew; the conversation goes on if the agent kept it")
}

// lastLines returns the end of a text, of at most n bytes, from the beginning of a
// line where there is one.
func lastLines(s string, n int) string {
	s = strings.TrimSpace(strings.ToValidUTF8(s, ""))
	if len(s) <= n {
		return s
	}
	s = strings.ToValidUTF8(s[len(s)-n:], "")
	if _, rest, ok := strings.Cut(s, "\n"); ok {
		s = rest
	}
	return s
}

// initialize begins the protocol.
func (l *link) initialize(ctx context.Context) error {
	r, err := l.call(ctx, l.s.b.limits.start, "initialize", initializeParams{
		ProtocolVersion: protocolVersion,
		ClientInfo:      clientInfo{Name: "subspan", Version: l.s.b.version},
	})
	if err != nil {
		return agentError(err)
	}
	if v, ok := jsonrpc.GetInt(r.Result, "protocolVersion"); !ok || v != protocolVersion {
		return bridges.Errorf(bridges.KindAgentProtocol, "the agent speaks version %d of the protocol, this bridge speaks %d", v, protocolVersion).
			WithNext("use a version of the agent that speaks ACP %d", protocolVersion)
	}
	return nil
}

// open calls a method that opens a session, and logs in once when that is asked for.
func (l *link) open(ctx context.Context, agent bridges.Agent, method string, params sessionParams) (*jsonrpc.Reply, error) {
	r, err := l.call(ctx, l.s.b.limits.start, method, params)
	if !needsLogin(err) {
		return r, err
	}
	if err := l.authenticate(ctx, agent, err); err != nil {
		return nil, err
	}
	r, err = l.call(ctx, l.s.b.limits.start, method, params)
	if needsLogin(err) {
		return nil, authRequired(agent, l.agent(), "the agent still asks for a login")
	}
	return r, err
}

func (l *link) agent() fold.Agent {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.s.state.Agent
}

const codeAuthRequired = -32000

func needsLogin(err error) bool {
	var fault *jsonrpc.Error
	return errors.As(err, &fault) && fault.Code == codeAuthRequired
}

// authenticate logs in with what is there already: a method that the profile names,
// the one that the agent itself proposes, or a key in the environment. It never
// starts anything that needs a person.
func (l *link) authenticate(ctx context.Context, agent bridges.Agent, cause error) error {
	about := l.agent()
	var fault *jsonrpc.Error
	if errors.As(cause, &fault) {
		if more := fold.ParseAuth(fault.Data); len(more) > 0 {
			about.Auth = more
		}
	}
	method := l.authMethod(about)
	if method == "" {
		return authRequired(agent, about, "the agent asks for a login")
	}
	_, err := l.call(ctx, l.s.b.limits.start, "authenticate", struct {
		MethodID string `json:"methodId"`
	}{method})
	var refused *jsonrpc.Error
	if errors.As(err, &refused) {
		return authRequired(agent, about, fmt.Sprintf("logging in by %q failed: %s", method, refused.Text()))
	}
	return err
}

func (l *link) authMethod(about fold.Agent) string {
	usable := func(m fold.AuthMethod) bool { return !m.Terminal }
	if want := l.s.profile.AuthMethod; want != "" {
		return want
	}
	if way := l.s.profile.way(l.s.home, l.s.hasEnv); way != "" {
		return way
	}
	for _, m := range about.Auth {
		if m.ID == about.DefaultAuth && usable(m) {
			return m.ID
		}
	}
	for _, m := range about.Auth {
		if !usable(m) || !m.Key {
			continue
		}
		set := len(m.Vars) == 0 && l.s.hasKey
		for _, name := range m.Vars {
			set = set || l.s.hasEnv(name)
		}
		if set {
			return m.ID
		}
	}
	return ""
}

func authRequired(agent bridges.Agent, about fold.Agent, what string) error {
	var ways []string
	for _, m := range about.Auth {
		ways = append(ways, m.ID)
	}
	if len(ways) > 0 {
		what += "; it offers " + strings.Join(ways, ", ")
	}
	e := bridges.Errorf(bridges.KindAuthRequired, "%s: %s", agent.Name, what)
	if agent.LoginHint != "" {
		return e.WithNext("%s", agent.LoginHint)
	}
	return e.WithNext("log in to %s at a terminal, then try again", agent.Name)
}
