package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Main serves one client on stdin and stdout until stdin ends or ctx does, and
// returns the exit code of the process. Turns that run then are cancelled and
// answered. Logs go to stderr. When ctx ends, stdin is closed if it can be. A read
// that does not return even so, and a turn whose client stopped reading, are left
// behind after endGrace: the process is about to end.
func Main(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	st, err := newStore()
	if err != nil {
		log.Error(err.Error())
		return 1
	}
	ctx, stop := context.WithCancel(ctx)
	a := &agent{
		conn: newConn(stdin, stdout), store: st, log: log, ctx: ctx,
		open: make(map[string]*attached), crashed: make(chan int, 1),
	}
	read := make(chan error, 1)
	go func() { read <- a.serve() }()

	code := 0
	select {
	case err := <-read:
		if err != nil {
			log.Error("stdin ended with an error", "err", err)
			code = 1
		}
	case code = <-a.crashed:
	case <-ctx.Done():
		if c, ok := stdin.(io.Closer); ok {
			_ = c.Close() // only to end the read
		}
	}
	stop()
	a.mu.Lock()
	a.ended = true // no turn starts from here on, so that Wait may follow
	a.mu.Unlock()
	idle := make(chan struct{})
	go func() { a.turns.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-time.After(endGrace):
		log.Warn("a turn could not be answered: the client does not read")
	}
	return code
}

// endGrace is how long Main waits for turns that were cancelled at the end.
const endGrace = 2 * time.Second

// agent is the ACP side: it answers requests and starts turns.
type agent struct {
	conn    *conn
	store   *store
	log     *slog.Logger
	ctx     context.Context // ends with the process; turns derive from it
	turns   sync.WaitGroup
	crashed chan int // the exit code of a crash directive

	initialized bool // only the reader looks at it

	mu    sync.Mutex
	ended bool
	open  map[string]*attached
}

// attached is a session that this process may prompt.
type attached struct {
	cwd  string
	mcp  []mcpServer
	turn *turn // nil while idle
}

type mcpServer struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	Command string   `json:"command"`
	Args    []string `json:"args"`
}

// serve handles frames in their order until the input ends. Everything but a
// prompt is answered before the next frame is read.
func (a *agent) serve() error {
	for {
		m, err := a.conn.read()
		switch {
		case errors.Is(err, errBadFrame):
			a.log.Warn("skipped a line on stdin", "err", err)
			err = a.conn.reply(json.RawMessage("null"), nil, errf(codeParse, "%v", err))
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case m.Method == "" && len(m.ID) > 0:
			a.conn.deliver(m)
		case m.Method == "session/prompt":
			if perr := a.prompt(m); perr != nil {
				err = a.conn.reply(m.ID, nil, perr)
			}
		default:
			result, herr := a.handle(m)
			err = a.conn.reply(m.ID, result, herr)
		}
		if err != nil {
			return err
		}
	}
}

// handle answers one request, or takes one notification.
func (a *agent) handle(m message) (any, error) {
	if m.Method == "initialize" {
		a.initialized = true
		return initializeResult(), nil
	}
	if !a.initialized {
		return nil, errf(codeInvalidRequest, "the first request has to be initialize, not %q", m.Method)
	}
	switch m.Method {
	case "session/new", "session/load", "session/resume", "session/fork":
		return a.attach(m)
	case "session/list":
		return a.list(m)
	case "session/set_config_option":
		return with(m, func(p struct{ SessionID, ConfigID, Value string }) (any, error) {
			return a.configure(p.SessionID, p.ConfigID, p.Value)
		})
	case "session/set_mode":
		return with(m, func(p struct{ SessionID, ModeID string }) (any, error) {
			_, err := a.configure(p.SessionID, optMode, p.ModeID)
			return struct{}{}, err
		})
	case "session/cancel", "session/close", "session/delete":
		return with(m, func(p struct{ SessionID string }) (any, error) {
			return struct{}{}, a.end(m.Method, p.SessionID)
		})
	}
	return nil, errf(codeNoMethod, "method %q is not known here", m.Method)
}

// with decodes params. JSON names match fields whatever their case.
func with[P any](m message, do func(P) (any, error)) (any, error) {
	var p P
	if len(m.Params) == 0 {
		m.Params = json.RawMessage("{}")
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		return nil, errf(codeInvalidParams, "params of %s: %v", m.Method, err)
	}
	return do(p)
}

func initializeResult() any {
	version := "devel"
	if bi, ok := debug.ReadBuildInfo(); ok && strings.HasPrefix(bi.Main.Version, "v") {
		version = bi.Main.Version
	}
	yes := struct{}{}
	return map[string]any{
		"protocolVersion": 1,
		"agentCapabilities": map[string]any{
			"loadSession":        true,
			"promptCapabilities": map[string]bool{"image": false, "audio": false, "embeddedContext": false},
			"mcpCapabilities":    map[string]bool{"http": false, "sse": false},
			"sessionCapabilities": map[string]any{
				"list": yes, "resume": yes, "fork": yes, "close": yes, "delete": yes,
			},
		},
		"agentInfo":   map[string]string{"name": "subspan-demo", "title": "subspan demo agent (no model)", "version": version},
		"authMethods": []any{},
	}
}

// attach makes a session usable in this process: a new one, a fork, or one from disk.
func (a *agent) attach(m message) (any, error) {
	return with(m, func(p struct {
		SessionID, Cwd string
		MCPServers     []mcpServer
	}) (any, error) {
		if !filepath.IsAbs(p.Cwd) {
			return nil, errf(codeInvalidParams, "cwd %q is not an absolute path", p.Cwd)
		}
		if fi, err := os.Stat(p.Cwd); err != nil {
			return nil, errf(codeInvalidParams, "cwd cannot be used: %v", err)
		} else if !fi.IsDir() {
			return nil, errf(codeInvalidParams, "cwd %s is not a folder", p.Cwd)
		}
		for _, s := range p.MCPServers {
			if s.Type != "" && s.Type != "stdio" {
				return nil, errf(codeInvalidParams, "MCP server %q: type %s is not supported, only stdio is", s.Name, s.Type)
			}
		}
		s, err := a.record(m.Method, p.SessionID, p.Cwd)
		if err != nil {
			return nil, err
		}
		a.mu.Lock()
		if old := a.open[s.ID]; old != nil {
			old.cwd, old.mcp = p.Cwd, p.MCPServers // a turn that runs stays
		} else {
			a.open[s.ID] = &attached{cwd: p.Cwd, mcp: p.MCPServers}
		}
		a.mu.Unlock()
		if m.Method == "session/load" {
			if err := a.replay(s); err != nil {
				return nil, err
			}
		}
		result := map[string]any{"configOptions": s.options(), "modes": modes(s)}
		if m.Method == "session/new" || m.Method == "session/fork" {
			result["sessionId"] = s.ID
		}
		return result, nil
	})
}

func (a *agent) record(method, id, cwd string) (*session, error) {
	if method == "session/new" {
		return a.store.create(cwd, nil)
	}
	s, err := a.store.load(id)
	if err != nil || method != "session/fork" {
		return s, err
	}
	return a.store.create(cwd, s)
}

// modes is the older form of the mode option, for clients that know only that.
func modes(s *session) any {
	for _, o := range s.options() {
		if o.ID == optMode {
			var list []map[string]string
			for _, v := range o.Options {
				list = append(list, map[string]string{"id": v.Value, "name": v.Name, "description": v.Description})
			}
			return map[string]any{"currentModeId": o.CurrentValue, "availableModes": list}
		}
	}
	return nil
}

// replay shows a session's history, as session/load wants it.
func (a *agent) replay(s *session) error {
	for i, t := range s.Turns {
		for _, part := range []struct{ kind, id, text string }{
			{"user_message_chunk", fmt.Sprintf("user-%d", i+1), t.Task},
			{"agent_message_chunk", fmt.Sprintf("answer-%d", i+1), t.Answer},
		} {
			if part.text == "" {
				continue
			}
			if err := a.update(s.ID, chunk(part.kind, part.id, part.text)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *agent) update(id string, u any) error {
	return a.conn.notify("session/update", map[string]any{"sessionId": id, "update": u})
}

func (a *agent) configure(id, option, value string) (any, error) {
	s, err := a.store.update(id, func(s *session) error { return s.set(option, value) })
	if err != nil {
		return nil, err
	}
	return map[string]any{"configOptions": s.options()}, nil
}

// pageSize is how many sessions one session/list shows.
const pageSize = 100

func (a *agent) list(m message) (any, error) {
	return with(m, func(p struct{ Cwd, Cursor string }) (any, error) {
		from := 0
		if p.Cursor != "" {
			n, err := strconv.Atoi(p.Cursor)
			if err != nil || n < 0 {
				return nil, errf(codeInvalidParams, "cursor %q is not one of this agent's", p.Cursor)
			}
			from = n
		}
		found, bad, err := a.store.list(p.Cwd)
		if err != nil {
			return nil, err
		}
		for _, b := range bad {
			a.log.Warn("left a session out of the list", "err", b)
		}
		page := []any{} // never null
		for _, s := range found[min(from, len(found)):min(from+pageSize, len(found))] {
			page = append(page, map[string]any{
				"sessionId": s.ID, "cwd": s.Cwd, "title": s.title(), "updatedAt": s.Updated,
			})
		}
		result := map[string]any{"sessions": page}
		if from+pageSize < len(found) {
			result["nextCursor"] = strconv.Itoa(from + pageSize)
		}
		return result, nil
	})
}

// end cancels the session's turn. For close and delete it also waits until the
// turn has been answered, then lets the session go.
func (a *agent) end(method, id string) error {
	a.mu.Lock()
	s := a.open[id]
	var t *turn
	if s != nil {
		t = s.turn
	}
	if method != "session/cancel" {
		delete(a.open, id)
	}
	a.mu.Unlock()
	if t != nil {
		t.cancel()
	}
	if method == "session/cancel" {
		return nil
	}
	if t != nil {
		<-t.done
	}
	if method == "session/delete" {
		return a.store.remove(id)
	}
	if s == nil {
		return notFound(id)
	}
	return nil
}
