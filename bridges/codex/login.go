package codex

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/codex/internal/fold"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// How codex gets its login.
//
// The login of `codex login` is a file with an access token, good for days, and a
// refresh token that is good for one refresh: whoever uses it must write the next one
// back, or the user is logged out. Codex does so by a rename beside the file, which
// the sandbox of a readonly session refuses; a copy would leave the user's own file
// with a dead token. So the agent gets a copy of the file without the refresh token,
// and when the access token is about to run out, codex itself, alone and without an
// agent, is started on the user's file to renew it (renew) before it is copied. The
// agent can neither spend nor spoil the user's login.
//
// Tested with codex 0.171 against a login server of our own: a refresh writes through
// a symbolic link, by rename in the folder of its target, and spends each token once;
// a file without a refresh token is taken as long as the access token is good, and
// after that turns end with 401. Not tested: the real login server.

// keyProvider is the name under which a key from the environment is configured.
const keyProvider = "subspan-key"

// credentials are how one start of codex pays.
type credentials struct {
	Env      []string       // to add to the environment
	Config   map[string]any // for the thread
	Provider string         // "" for codex's own
	Stamp    string         // changes when codex has to be started again for them
	Warning  string
}

// credentialsFor brings the login into codex's home. A key that was named for codex
// wins over the user's login, and the login over a key that may be there for other
// programs: nobody's bill changes because a variable happens to be set.
func (b *Bridge) credentialsFor(ctx context.Context, agent bridges.Agent, settings bridges.Settings, home string, o options) (credentials, error) {
	if _, own := o.Config["model_provider"]; own {
		return credentials{Env: allowed(agent, settings.Env, nil)}, nil
	}
	withKey := func(name string) credentials {
		provider := map[string]any{
			"name": "OpenAI", "base_url": "https://api.openai.com/v1", "env_key": name, "wire_api": "responses",
			"env_http_headers": map[string]any{"OpenAI-Organization": "OPENAI_ORGANIZATION", "OpenAI-Project": "OPENAI_PROJECT"},
		}
		if url, ok := o.Config["openai_base_url"].(string); ok {
			provider["base_url"] = url
		}
		return credentials{
			Env:      allowed(agent, settings.Env, func(n string) bool { return n == name || !isKey(n) }),
			Config:   map[string]any{"model_providers": map[string]any{keyProvider: provider}},
			Provider: keyProvider, Stamp: name,
			Warning: "this session is billed to the API key in " + name,
		}
	}
	if has(settings.Env, "CODEX_API_KEY") {
		return withKey("CODEX_API_KEY"), nil
	}
	stamp, err := b.bringLogin(ctx, agent, home)
	if err == nil {
		return credentials{Env: allowed(agent, settings.Env, func(n string) bool { return !isKey(n) }), Stamp: stamp}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return credentials{}, err
	}
	if has(settings.Env, "OPENAI_API_KEY") {
		return withKey("OPENAI_API_KEY"), nil
	}
	return credentials{}, bridges.Errorf(bridges.KindAuthRequired, "codex has no login, and no key was given").
		WithNext("%s, or set CODEX_API_KEY", fold.LoginHint(agent))
}

func isKey(name string) bool { return strings.HasSuffix(name, "_API_KEY") }

func has(env []string, name string) bool {
	return slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") && len(e) > len(name)+1 })
}

// allowed is what of env the agent may have by its PassEnv.
func allowed(agent bridges.Agent, env []string, also func(name string) bool) []string {
	var out []string
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if slices.Contains(agent.PassEnv, name) && (also == nil || also(name)) {
			out = append(out, e)
		}
	}
	return out
}

// bringLogin copies the user's login into codex's home, renewed where it has to be.
// The stamp names what was copied. It fails with fs.ErrNotExist where there is none.
func (b *Bridge) bringLogin(ctx context.Context, agent bridges.Agent, home string) (stamp string, err error) {
	user, err := os.UserHomeDir()
	if err != nil || len(agent.Login) == 0 {
		return "", fs.ErrNotExist
	}
	path := filepath.Join(user, filepath.FromSlash(agent.Login[0]))
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	b.loginMu.Lock()
	defer b.loginMu.Unlock()
	if expires(raw, time.Now()) {
		if err := b.renew(ctx, agent, home, path); err != nil {
			b.log.Warn("codex's login was not renewed", "error", err)
		}
		if raw, err = os.ReadFile(path); err != nil {
			return "", err
		}
	}
	clean, stamp, err := withoutRefresh(raw)
	if err != nil {
		return "", bridges.Errorf(bridges.KindAuthRequired, "codex's login %s cannot be read: %w", path, err).WithNext("%s", fold.LoginHint(agent))
	}
	return stamp, replaceFile(filepath.Join(home, "auth.json"), clean)
}

// withoutRefresh returns a login that cannot renew itself, and what tells it from others.
func withoutRefresh(raw []byte) (clean []byte, stamp string, err error) {
	var login map[string]any
	if err := json.Unmarshal(raw, &login); err != nil {
		return nil, "", err
	}
	if tokens, ok := login["tokens"].(map[string]any); ok {
		tokens["refresh_token"] = "" // codex wants the key
	}
	if clean, err = json.Marshal(login); err != nil {
		return nil, "", err
	}
	return clean, fingerprint(string(clean)), nil
}

// renewBefore is how long an access token must be good to be handed to an agent, and
// renewAfter how old a login may be; codex itself renews at eight days.
const (
	renewBefore = time.Hour
	renewAfter  = 7 * 24 * time.Hour
)

// expires reports whether a login should be renewed before it is used.
func expires(raw []byte, now time.Time) bool {
	var login struct {
		Tokens *struct {
			Access  string `json:"access_token"`
			Refresh string `json:"refresh_token"`
		} `json:"tokens"`
		LastRefresh time.Time `json:"last_refresh"`
	}
	if json.Unmarshal(raw, &login) != nil || login.Tokens == nil || login.Tokens.Refresh == "" {
		return false
	}
	if !login.LastRefresh.IsZero() && now.Sub(login.LastRefresh) > renewAfter {
		return true
	}
	parts := strings.Split(login.Tokens.Access, ".")
	if len(parts) != 3 {
		return false
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}
	at, ok := jsonrpc.GetInt(claims, "exp")
	return ok && now.Add(renewBefore).After(time.Unix(at, 0))
}

// renew lets codex renew the user's login, in a process that runs no agent: a home of
// its own whose auth.json is a link to the user's.
func (b *Bridge) renew(ctx context.Context, agent bridges.Agent, home, login string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	dir := filepath.Join(home, "renew")
	if err := furnish(dir, options{}); err != nil {
		return err
	}
	temp := filepath.Join(dir, "tmp")
	if err := os.MkdirAll(temp, 0o700); err != nil {
		return err
	}
	link := filepath.Join(dir, "auth.json")
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(login, link); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, agent.Command[0], append(slices.Clone(agent.Command[1:]), "app-server")...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = environment(agent, dir, temp, nil), dir, 2*time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(in, `{"id":1,"method":"initialize","params":{"clientInfo":{"name":"subspan","title":"subspan","version":"1"}}}
{"method":"initialized"}
{"id":2,"method":"account/read","params":{"refreshToken":true}}
`)
	for lines := bufio.NewReader(out); err == nil; {
		var line []byte
		if line, err = lines.ReadBytes('\n'); err == nil {
			if id, _ := jsonrpc.GetInt(line, "id"); id == 2 {
				break
			}
		}
	}
	// The end of its input ends it; what it was writing it writes to the end.
	err = errors.Join(err, in.Close())
	if werr := cmd.Wait(); err == nil && ctx.Err() != nil {
		err = fmt.Errorf("renewing the login: %w", werr)
	}
	return err
}
