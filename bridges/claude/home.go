package claude

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2/maybe"
	"github.com/subspan-dev/subspan/bridges"
)

// home is one session's own CLAUDE_CONFIG_DIR. It is not shared between
// sessions, because the agent must be able to write it, and what one session
// plants there (a hook in settings.json, a line in a shell snapshot) another one
// with a wider mode would run. Before every start all of it that is not the
// conversation is made afresh.
type home struct {
	dir string // the config folder
	id  string // the session's native id
}

func homeOf(f bridges.Folders, native string) home {
	return home{dir: filepath.Join(f.State, "sessions", native), id: native}
}

// settings is all of the user-level configuration that the agent finds. The
// sandbox is the keeper's: two of them do not nest. Conversations are kept.
const settings = `{"sandbox":{"enabled":false},"disableAllHooks":true,"cleanupPeriodDays":3650}` + "\n"

// kept are the entries of a config folder that hold the conversation itself.
var kept = map[string]bool{"projects": true, "file-history": true, "todos": true, "tasks": true}

// prepare makes the folder what it has to be before a start. No process of the
// session may run meanwhile.
func (h home) prepare(login loginFile) error {
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return fmt.Errorf("make the agent's state folder: %w", err)
	}
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return fmt.Errorf("read the agent's state folder: %w", err)
	}
	for _, e := range entries {
		if kept[e.Name()] && e.IsDir() {
			continue
		}
		if err := os.RemoveAll(filepath.Join(h.dir, e.Name())); err != nil {
			return fmt.Errorf("clean the agent's state folder: %w", err)
		}
	}
	if err := maybe.WriteFile(filepath.Join(h.dir, "settings.json"), []byte(settings), 0o600); err != nil {
		return fmt.Errorf("write the agent's settings: %w", err)
	}
	return h.bring(login)
}

// bring puts the login into the folder. A running agent notices a newer one.
func (h home) bring(login loginFile) error {
	if login.data == nil {
		return nil
	}
	if err := maybe.WriteFile(filepath.Join(h.dir, ".credentials.json"), login.data, 0o600); err != nil {
		return fmt.Errorf("bring the login to the agent: %w", err)
	}
	return nil
}

// transcript returns the file that holds the conversation, or "" when there is
// none. Its folder is named after the working folder in a way that is the
// agent's own, so it is looked for and not computed.
func (h home) transcript() string { return h.transcriptOf(h.id) }

func (h home) transcriptOf(id string) string {
	found, err := filepath.Glob(filepath.Join(h.dir, "projects", "*", id+".jsonl"))
	if err != nil || len(found) == 0 {
		return ""
	}
	return found[0]
}

// holds reports whether the conversation has a message with the given uuid.
func (h home) holds(message string) (bool, error) {
	path := h.transcript()
	if path == "" {
		return false, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("look for the task in the agent's transcript: %w", err)
	}
	return bytes.Contains(data, []byte(`"`+message+`"`)), nil
}

// copyFrom puts the conversation of another session into this folder, as it is
// now: a fork begins where its parent was when it was made, however long the
// parent goes on before the fork's first task.
func (h home) copyFrom(ctx context.Context, parent home) error {
	path, err := parent.settled(ctx)
	if err != nil {
		return err
	}
	if path == "" {
		return bridges.Errorf(bridges.KindSessionGone, "the session to fork has no conversation in %s", parent.dir).
			WithNext("give the session a task before it is forked, or start a new session")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the conversation to fork: %w", err)
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1] // its last line may be half written
	to := filepath.Join(h.dir, "projects", filepath.Base(filepath.Dir(path)))
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("make the fork's state folder: %w", err)
	}
	if err := maybe.WriteFile(filepath.Join(to, filepath.Base(path)), data, 0o600); err != nil {
		return fmt.Errorf("write the conversation to fork: %w", err)
	}
	return nil
}

// The agent writes its transcript a moment after it has spoken: within 0.2 s, as
// 2.1.197 does it.
const (
	lookAgain = 25 * time.Millisecond
	quietFor  = 300 * time.Millisecond // without a change, the transcript is whole
	quietMost = 3 * time.Second        // a parent at work is never quiet
)

// settled returns the transcript once it has stopped growing, or "" when there is none.
func (h home) settled(ctx context.Context) (string, error) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	began, changed, size := time.Now(), time.Now(), int64(-1)
	for {
		path, now := h.transcript(), int64(-1)
		if st, err := os.Stat(path); err == nil {
			now = st.Size()
		}
		if now != size {
			size, changed = now, time.Now()
		}
		if time.Since(changed) >= quietFor || time.Since(began) >= quietMost {
			return path, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("wait for the conversation to fork: %w", context.Cause(ctx))
		}
	}
}

// written waits, for a moment, until there is a transcript at all.
func (h home) written(ctx context.Context) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for began := time.Now(); h.transcript() == "" && time.Since(began) < quietMost/3; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// loginFile is the user's login as the agent may have it.
type loginFile struct {
	data    []byte    // nil when there is none
	expires time.Time // zero when it does not say
	secrets []string
}

// readLogin reads the user's login from the first of the agent's files that
// exists, and leaves the refresh token out. A refresh token works once: an agent
// that renews its own copy logs the user out everywhere else (Claude Code writes
// the file by rename, so a link would become such a copy at the first renewal).
// Without it nothing that an agent does can touch the user's login; the access
// token is taken again from the user's file before every task, where the user's
// own Claude Code keeps it fresh.
func readLogin(agent bridges.Agent) (loginFile, error) {
	userHome, err := os.UserHomeDir()
	if err != nil {
		return loginFile{}, nil //nolint:nilerr // without a home there is no login to bring
	}
	for _, name := range agent.Login {
		data, err := os.ReadFile(filepath.Join(userHome, filepath.FromSlash(name)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return loginFile{}, bridges.Errorf(bridges.KindAuthRequired, "the login of Claude Code cannot be read: %w", err).
				WithNext("%s", agent.LoginHint)
		}
		return withoutRefresh(data)
	}
	return loginFile{}, nil
}

func withoutRefresh(data []byte) (loginFile, error) {
	var all map[string]json.RawMessage
	oauth := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &all); err != nil {
		return loginFile{}, nil //nolint:nilerr // a damaged file is no login; the agent says so itself
	}
	if err := json.Unmarshal(all["claudeAiOauth"], &oauth); err != nil || len(oauth) == 0 {
		return loginFile{}, nil //nolint:nilerr // no login of this kind in it
	}
	delete(oauth, "refreshToken")
	var l loginFile
	var token string
	var millis int64
	if json.Unmarshal(oauth["accessToken"], &token) == nil && token != "" {
		l.secrets = append(l.secrets, token)
	}
	if json.Unmarshal(oauth["expiresAt"], &millis) == nil && millis > 0 {
		l.expires = time.UnixMilli(millis)
	}
	var err error
	if l.data, err = json.Marshal(map[string]any{"claudeAiOauth": oauth}); err != nil {
		return loginFile{}, fmt.Errorf("write down the login: %w", err)
	}
	return l, nil
}

// usable refuses a login that has run out, before anything is started for it.
// Without any, the agent says so itself, at once and without a request.
func (l loginFile) usable(now time.Time) error {
	if l.expires.IsZero() || now.Before(l.expires) {
		return nil
	}
	return bridges.Errorf(bridges.KindAuthRequired, "the login of Claude Code ran out at %s", l.expires.UTC().Format(time.RFC3339)).
		WithNext("run `claude` once in a terminal, which renews it, or make a lasting token with `claude setup-token` and set CLAUDE_CODE_OAUTH_TOKEN")
}
