package codex

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
)

func fakeJWT(exp time.Time) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return part(`{"alg":"none"}`) + "." + part(fmt.Sprintf(`{"exp":%d}`, exp.Unix())) + ".sig"
}

func loginFile(t *testing.T, access string, refreshed time.Time) string {
	t.Helper()
	path := filepath.Join(os.Getenv("HOME"), ".codex", "auth.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(object{"auth_mode": "chatgpt", "last_refresh": refreshed, "other": object{"kept": 1},
		"tokens": object{"access_token": access, "refresh_token": "precious", "account_id": "a1"}})
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// own takes the fake's provider away, so that a login is needed.
func (r *rig) own() *rig {
	r.agent.Options = nil
	r.agent.Env["FAKE_PROVIDER"] = "openai"
	return r
}

func TestLoginIsCopiedWithoutItsRefreshToken(t *testing.T) {
	r := newRig(t, ceiling.Readonly).own()
	path := loginFile(t, fakeJWT(time.Now().Add(48*time.Hour)), time.Now())
	before, _ := os.ReadFile(path)
	r.settings.Env = []string{"OPENAI_API_KEY=sk-not-asked-for"}
	r.create()
	h := newHost()
	r.submit("[env]", h)
	if strings.Contains(text(h.events()), "sk-not-asked-for") {
		t.Error("the login is there, and the key is handed over all the same")
	}
	copied, err := os.ReadFile(filepath.Join(r.folders.State, "auth.json"))
	if err != nil || strings.Contains(string(copied), "precious") || !strings.Contains(string(copied), `"kept":1`) {
		t.Errorf("%s %v", copied, err)
	}
	if after, _ := os.ReadFile(path); string(after) != string(before) {
		t.Error("the user's login changed")
	}
	if start := r.frames("thread/start")[0]; start["modelProvider"] != nil {
		t.Errorf("provider %v", start["modelProvider"])
	}
}

func TestLoginIsRenewedOutsideOfTheAgent(t *testing.T) {
	for name, old := range map[string]struct {
		access    string
		refreshed time.Time
	}{
		"token at its end": {fakeJWT(time.Now().Add(time.Minute)), time.Now()},
		"login too old":    {fakeJWT(time.Now().Add(48 * time.Hour)), time.Now().Add(-8 * 24 * time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, ceiling.Readonly).own()
			path := loginFile(t, old.access, old.refreshed)
			r.create()
			own, _ := os.ReadFile(path)
			copied, _ := os.ReadFile(filepath.Join(r.folders.State, "auth.json"))
			if !strings.Contains(string(own), "rotated") {
				t.Errorf("the user's login was not renewed: %s", own)
			}
			if strings.Contains(string(copied), "rotated") || strings.Contains(string(copied), old.access) {
				t.Errorf("the agent got %s", copied)
			}
			// A login that changes reaches an agent that runs: it is started anew.
			r.submit("[say x]", newHost())
			loginFile(t, fakeJWT(time.Now().Add(72*time.Hour)), time.Now())
			r.submit("[say x]", newHost())
			if n := len(r.frames("thread/resume")); n != 1 {
				t.Errorf("started anew %d times", n)
			}
		})
	}
}

func TestKeys(t *testing.T) {
	for _, tc := range []struct {
		name     string
		env      []string
		login    bool
		key      string // that the agent gets
		provider any
	}{
		{"codex's own key wins", []string{"CODEX_API_KEY=a", "OPENAI_API_KEY=b"}, true, "CODEX_API_KEY=a", keyProvider},
		{"the other serves without a login", []string{"OPENAI_API_KEY=b"}, false, "OPENAI_API_KEY=b", keyProvider},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, ceiling.Full).own()
			if tc.login {
				loginFile(t, fakeJWT(time.Now().Add(48*time.Hour)), time.Now())
			}
			r.settings.Env = tc.env
			c := r.create()
			if len(c.Info.Warnings) != 1 {
				t.Errorf("who is billed is not said: %q", c.Info.Warnings)
			}
			h := newHost()
			r.submit("[env]", h)
			n := 0
			for line := range strings.Lines(text(h.events())) {
				if strings.Contains(line, "_API_KEY=") {
					n++
					if strings.TrimSpace(line) != tc.key {
						t.Errorf("the agent has %s", line)
					}
				}
			}
			if n != 1 {
				t.Errorf("the agent has %d keys", n)
			}
			start := r.frames("thread/start")[0]
			if start["modelProvider"] != tc.provider || strings.Contains(fmt.Sprint(start), "=a") {
				t.Errorf("thread/start %v", start)
			}
		})
	}
	r := newRig(t, ceiling.Full).own()
	_, err := r.b.Create(t.Context(), bridges.CreateRequest{SessionID: r.id, Agent: r.agent, Settings: r.settings, Folders: r.folders})
	if bridges.KindOf(err) != bridges.KindAuthRequired || !strings.Contains(bridges.AsError(err).Next, "codex login") {
		t.Errorf("without anything: %v", err)
	}
}
