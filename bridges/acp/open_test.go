//go:build unix

package acp

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/core/ceiling"
)

func TestSettingsThatAgentsRefuse(t *testing.T) {
	tests := []struct {
		name, flags, options, model, effort string
		kind                                bridges.ErrorKind
		next                                string
	}{
		{"no such model", "", "", "huge", "", bridges.KindModelUnavailable, "small, large"},
		{"model not taken", "stubborn", "", "large", "", bridges.KindModelUnavailable, "small, large"},
		{"model has no effort", "", "", "small", "low", bridges.KindEffortUnsupported, "leave the effort out"},
		{"no such effort", "", "", "large", "extreme", bridges.KindEffortUnsupported, "low, high"},
		{"legacy, no such model", "legacy", "", "huge", "", bridges.KindModelUnavailable, "small, large"},
		{"another protocol", "v2", "", "", "", bridges.KindAgentProtocol, "ACP 1"},
		{"mode not taken", "stubborn", `{"modes":{"default":{"session":["yolo"]}}}`, "", "", bridges.KindSandboxUnavailable, ""},
		{"mistyped options", "", `{"mode":{}}`, "", "", bridges.KindInvalidArgument, "Profile"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tt.flags, tt.options)
			if strings.Contains(tt.options, "default") {
				r.settings.Mode = ceiling.Default
			}
			r.settings.Model, r.settings.Effort = tt.model, tt.effort
			_, err := r.create()
			if bridges.KindOf(err) != tt.kind || !strings.Contains(bridges.AsError(err).Next, tt.next) {
				t.Errorf("%v, next %q", err, bridges.AsError(err).Next)
			}
			if _, err := os.Stat(r.folders.Run); err == nil {
				t.Error("the run folder is left")
			}
		})
	}
}

func TestModelByNameAndItsEffort(t *testing.T) {
	r := newRig(t, "", "")
	r.settings.Model, r.settings.Effort = "LARGE", "high"
	c := r.mustCreate()
	if c.Info.Model != "large" || c.Info.Effort != "high" || !slices.Equal(c.Info.Models, []string{"small", "large"}) || !slices.Equal(c.Info.Efforts, []string{"low", "high"}) {
		t.Errorf("info %+v", c.Info)
	}
	r.settings.Model, r.settings.Effort = "small", ""
	if h, res := r.mustSubmit("config"); h.text() != "small high ask" || res.Model != "small" {
		t.Errorf("%q, %+v", h.text(), res)
	}
	r.settings.Model = "huge"
	if _, _, err := r.submit("say x", nil); !errors.Is(err, bridges.ErrModelUnavailable) {
		t.Errorf("submit with a model that is not there: %v", err)
	}
	if n := count(r.received(), "session/prompt"); n != 1 {
		t.Errorf("%d prompts were sent", n)
	}
}

func TestAgentThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, "silent", "")
	r.b.limits.start = 1500 * time.Millisecond
	_, err := r.create()
	if !errors.Is(err, bridges.ErrTimeout) || !strings.Contains(err.Error(), "Please choose a theme") || !strings.Contains(err.Error(), "no terminal") {
		t.Errorf("%v", err)
	}
}

func TestLogin(t *testing.T) {
	tests := []struct {
		name, flags string
		key         bool
		options     string
		create      bridges.ErrorKind
		turn        bridges.ErrorKind
	}{
		{"at new, with a key", "auth=new", true, "", "", ""},
		{"at new, method configured", "auth=new", false, `{"auth_method":"key"}`, "", ""},
		{"at new, without a key", "auth=new", false, "", bridges.KindAuthRequired, ""},
		{"at new, in vain", "auth=never", true, "", bridges.KindAuthRequired, ""},
		{"at prompt, with a key", "auth=prompt", true, "", "", ""},
		{"at prompt, without", "auth=prompt", false, "", "", bridges.KindAuthRequired},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tt.flags, tt.options)
			if tt.key {
				r.settings.Env = []string{"FAKE_KEY=0123456789"}
			}
			_, err := r.create()
			if bridges.KindOf(err) != tt.create {
				t.Fatalf("create: %v", err)
			}
			if err != nil {
				if e := bridges.AsError(err); e.Next != "log in, please" || !strings.Contains(e.Message, "browser, key, odd") {
					t.Errorf("%q, next %q", e.Message, e.Next)
				}
				return
			}
			h, res := r.mustSubmit("say hello")
			if bridges.KindOf(errOrNil(res.Error)) != tt.turn || tt.turn == "" && h.text() != "hello" {
				t.Errorf("%q, %+v, %v", h.text(), res, res.Error)
			}
			if tt.turn != "" && (res.Status != bridges.StatusFailed || res.Error.Next != "log in, please") {
				t.Errorf("%+v, next %q", res, res.Error.Next)
			}
		})
	}
}

func TestB36VanishedSessionIsNeverAFreshOne(t *testing.T) {
	tests := []struct {
		name, flags, options string
		vanish               bool
		status               bridges.ReconnectStatus
		submit               bridges.ErrorKind
	}{
		{"kept, load", "load", "", false, bridges.ReconnectSame, ""},
		{"kept, resume", "load,resume", "", false, bridges.ReconnectSame, ""},
		{"kept, resume is a lie", "load,resume=lie", "", false, bridges.ReconnectSame, ""},
		{"gone -32002", "load", "", true, bridges.ReconnectGone, bridges.KindSessionGone},
		{"gone -32602", "resume,gone=-32602", "", true, bridges.ReconnectGone, bridges.KindSessionGone},
		{"gone -32603, known for it", "load,gone=-32603", `{"gone_text":"service failure"}`, true, bridges.ReconnectGone, bridges.KindSessionGone},
		{"some failure", "load,gone=-32603", "", true, "", bridges.KindAgentFailed},
		{"loaded without its history", "load,amnesia", `{"verify_load":true}`, true, bridges.ReconnectGone, bridges.KindSessionGone},
		{"no such capability", "", "", false, bridges.ReconnectCannot, bridges.KindCapabilityUnsupported},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tt.flags, tt.options)
			r.mustCreate()
			r.mustSubmit("say first")
			r.kill()
			if tt.vanish {
				files, _ := filepath.Glob(filepath.Join(r.home(), "session-*"))
				for _, f := range files {
					os.Remove(f)
				}
			}
			r.restart()
			rec, err := r.reconnect("")
			if rec.Status != tt.status || (err != nil) != (tt.status == "") {
				t.Fatalf("reconnect: %+v, %v", rec, err)
			}
			if tt.status != bridges.ReconnectSame && tt.status != "" && rec.Reason == "" {
				t.Error("no reason is given")
			}
			h, _, err := r.submit("say second", nil)
			if bridges.KindOf(err) != tt.submit {
				t.Errorf("submit: %v", err)
			}
			if tt.submit == "" && h.text() != "second" {
				t.Errorf("second turn: %q", h.text())
			}
			if n := count(r.received(), "session/new"); n != 1 {
				t.Errorf("%d sessions were begun", n)
			}
		})
	}
}

func TestB37SettingsAreAppliedAgainBeforeThePrompt(t *testing.T) {
	r := newRig(t, "load", `{"modes":{"full":{"session":["yolo"]}}}`)
	r.settings.Model, r.settings.Effort = "large", "high"
	r.mustCreate()
	r.mustSubmit("say first")
	r.kill()
	if h, _ := r.mustSubmit("config"); h.text() != "large high yolo" {
		t.Errorf("after the agent's death: %q", h.text())
	}
	got := r.received()
	i := slices.Index(got, "session/load")
	want := []string{"session/load", "session/set_config_option=large", "session/set_config_option=high", "session/set_config_option=yolo", "session/prompt"}
	if i < 0 || !slices.Equal(got[i:], want) {
		t.Errorf("sent %q", got)
	}
}

func TestB39SessionWithoutATurnIsStartedAfresh(t *testing.T) {
	t.Parallel()
	r := newRig(t, "load,forgetful", "")
	c := r.mustCreate()
	r.kill()
	r.restart()
	rec, err := r.reconnect("")
	if err != nil || rec.Status != bridges.ReconnectSame || rec.Info.NativeID == c.Info.NativeID || len(rec.Info.Warnings) != 1 {
		t.Fatalf("%+v, %v", rec, err)
	}
	if h, _ := r.mustSubmit("say x"); h.text() != "x" {
		t.Errorf("%q", h.text())
	}
	// From then on it has a history, and is not replaced any more.
	r.kill()
	if _, _, err := r.submit("say y", nil); !errors.Is(err, bridges.ErrSessionGone) {
		t.Errorf("submit: %v", err)
	}
}

func TestHistoryOfALoadIsNotEmitted(t *testing.T) {
	t.Parallel()
	r := newRig(t, "load,history=10000", "")
	r.mustCreate()
	r.mustSubmit("say first")
	r.kill()
	h, _ := r.mustSubmit("say second")
	if h.text() != "second" || len(h.of(bridges.KindNotice)) != 0 {
		t.Errorf("%d bytes, %+v", len(h.text()), h.of(bridges.KindNotice))
	}
}

func TestCreateIsIdempotent(t *testing.T) {
	r := newRig(t, "", "")
	r.mustCreate()
	first, err := r.b.runner.Attach(t.Context(), r.folders.Run)
	if err != nil {
		t.Fatal(err)
	}
	_, agent := first.Processes()
	first.Release()
	r.restart() // the call was cut short: nobody ever got the handle
	r.mustCreate()
	if err := syscall.Kill(agent.PID, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the first call's agent is still there: %v", err)
	}
	if h, _ := r.mustSubmit("say x"); h.text() != "x" {
		t.Errorf("%q", h.text())
	}
}

func TestFork(t *testing.T) {
	r := newRig(t, "", "")
	c := r.mustCreate()
	f := *r
	f.id, f.folders.Run = r.id+"f", r.folders.Run+"f"
	forked, err := r.b.Create(t.Context(), bridges.CreateRequest{SessionID: f.id, Agent: f.agent, Settings: f.settings, Folders: f.folders, ForkFrom: &c.Handle})
	if err != nil || forked.Info.NativeID == c.Info.NativeID {
		t.Fatalf("%+v, %v", forked, err)
	}
	f.handle = forked.Handle
	if h, _ := f.mustSubmit("say fork"); h.text() != "fork" {
		t.Errorf("%q", h.text())
	}
	if rec, err := r.b.Dispose(t.Context(), bridges.DisposeRequest{SessionID: f.id, Folders: f.folders}); err != nil || !rec.Proven {
		t.Errorf("dispose: %+v, %v", rec, err)
	}
}

func TestDispose(t *testing.T) {
	t.Run("unknown", func(t *testing.T) {
		r := newRig(t, "", "")
		for range 2 {
			if rec, err := r.b.Dispose(t.Context(), bridges.DisposeRequest{SessionID: r.id, Folders: r.folders}); err != nil || !rec.Proven || rec.EndedCount != 0 {
				t.Errorf("%+v, %v", rec, err)
			}
		}
	})
	t.Run("by itself", func(t *testing.T) {
		r := newRig(t, "", "")
		r.mustCreate()
		r.mustSubmit("say x")
		rec, err := r.b.Dispose(t.Context(), bridges.DisposeRequest{SessionID: r.id, Folders: r.folders})
		if err != nil || !rec.Proven || rec.Exit == nil || rec.Exit.Code != 0 || !slices.Contains(rec.Notes, "it ended by itself when its input was closed") {
			t.Errorf("%+v, %v", rec, err)
		}
		if got := r.received(); got[len(got)-1] != "session/close" {
			t.Errorf("sent %q", got)
		}
		if _, err := os.Stat(r.folders.Run); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("run folder: %v", err)
		}
	})
	t.Run("in a turn, with a tool in its own session", func(t *testing.T) {
		r := newRig(t, "ignore-eof", "")
		r.mustCreate()
		h := newHost(nil)
		type end struct {
			res bridges.Result
			err error
		}
		ends := make(chan end, 1)
		r.turns++
		go func() {
			res, err := r.b.Submit(t.Context(), r.request("grandchild\nstubborn up"), h)
			ends <- end{res, err}
		}()
		h.until(t, "up")
		rec, err := r.b.Dispose(t.Context(), bridges.DisposeRequest{SessionID: r.id, Folders: r.folders, Grace: 300 * time.Millisecond})
		if err != nil || !rec.Proven || rec.SurvivedCount != 0 || rec.EndedCount < 2 {
			t.Errorf("%+v, %v", rec, err)
		}
		if e := <-ends; e.err == nil && e.res.Status != bridges.StatusCancelled {
			t.Errorf("submit: %+v, %v", e.res, e.err)
		}
		var pid int
		for _, ev := range h.of(bridges.KindText) {
			for _, c := range strings.TrimSuffix(ev.Text, "up") {
				pid = pid*10 + int(c-'0')
			}
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the tool %d lives: %v", pid, err)
		}
	})
}

func needSandbox(t *testing.T) {
	t.Helper()
	if _, err := agentproc.ProbeSandbox(t.Context()); err != nil {
		t.Skipf("no sandbox here: %v", err)
	}
}

func TestModesAreHeldByTheKernel(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	r := newRig(t, "load", "")
	r.settings.Mode = ceiling.Readonly
	c := r.mustCreate()
	if c.Info.Hold.Strength != bridges.HoldKernel || c.Info.Hold.Detail == "" {
		t.Errorf("hold %+v", c.Info.Hold)
	}
	inside, outside, home := filepath.Join(r.settings.Cwd, "f"), filepath.Join(filepath.Dir(r.settings.Cwd), "f"), filepath.Join(r.home(), "f")
	task := "write " + inside + "\nwrite " + outside + "\nwrite " + home
	show := func(h *host) string {
		return strings.NewReplacer(inside, "inside", outside, "outside", home, "home").Replace(h.text())
	}
	h, _ := r.mustSubmit(task)
	if got := show(h); got != "inside: false;outside: false;home: true;" {
		t.Errorf("readonly: %s", got)
	}
	// Another mode needs another process: the session goes on in it.
	r.settings.Mode = ceiling.Default
	h, _ = r.mustSubmit(task)
	if got := show(h); got != "inside: true;outside: false;home: true;" {
		t.Errorf("default: %s", got)
	}
	r.settings.Mode = ceiling.Full
	h, _ = r.mustSubmit(task)
	if got := show(h); got != "inside: true;outside: true;home: true;" {
		t.Errorf("full: %s", got)
	}
	r.settings.Mode = 77 // what is no mode is readonly
	os.Remove(inside)
	h, _ = r.mustSubmit("write " + inside)
	if got := show(h); got != "inside: false;" {
		t.Errorf("no mode: %s", got)
	}
}

func TestWeakerHoldsAreTakenByNameOnly(t *testing.T) {
	probe := errors.New("no Landlock")
	held := func(options string, accept bridges.Strength) (bridges.Hold, error) {
		p, err := parseProfile(bridges.Agent{Options: []byte(options)})
		if err != nil {
			t.Fatal(err)
		}
		h, _, err := hold(t.Context(), p, bridges.Settings{Accept: accept}, func(context.Context) (string, error) { return "", probe })
		return h, err
	}
	const policy = `{"modes":{"readonly":{"policy":true}}}`
	for _, tt := range []struct {
		options string
		accept  bridges.Strength
		want    bridges.Strength
	}{
		{"", "", ""}, {"", bridges.HoldKernel, ""}, {"", bridges.HoldProductPolicy, ""}, {"", "whatever", ""}, {"", bridges.HoldNone, ""},
		{"", bridges.HoldAsked, bridges.HoldAsked},
		{policy, bridges.HoldProductSandbox, ""}, {policy, bridges.HoldProductPolicy, bridges.HoldProductPolicy}, {policy, bridges.HoldAsked, bridges.HoldProductPolicy},
	} {
		h, err := held(tt.options, tt.accept)
		if h.Strength != tt.want || (err == nil) != (tt.want != "") || err != nil && !errors.Is(err, bridges.ErrSandboxUnavailable) {
			t.Errorf("options %q, accept %q: %+v, %v", tt.options, tt.accept, h, err)
		}
	}
}

func TestB55EnvironmentIsAnAllowList(t *testing.T) {
	for _, name := range []string{"CLAUDECODE", "FORCE_COLOR", "CLICOLOR_FORCE", "PLUGIN_MAGIC", "SUBSPAN_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "FAKE_KEY"} {
		t.Setenv(name, "canary-value")
	}
	t.Setenv("LC_ALL", "C")
	r := newRig(t, "", "")
	r.agent.Env["FORCE_COLOR"] = "1"
	r.agent.Env["OWN"] = "x"
	r.settings.Env = []string{"FAKE_KEY=s3cret-from-caller", "OTHER_KEY=s3cret-not-passed"}
	r.mustCreate()
	h, _ := r.mustSubmit("env")
	names, home, _ := strings.Cut(h.text(), " HOME=")
	var odd []string
	for _, name := range strings.Fields(names) {
		if !slices.Contains(append([]string{"HOME", "TERM", "NO_COLOR", "LC_ALL", "FAKE", "GORACE", "FAKE_KEY", "OWN", "SUBSPAN_SESSION", "TMPDIR", "TMP", "TEMP"}, inherited...), name) {
			odd = append(odd, name)
		}
	}
	if d := cmp.Diff([]string(nil), odd); d != "" || home != r.home() || !strings.Contains(names, "OWN") {
		t.Errorf("names %q, home %q:\n%s", names, home, d)
	}
	// What the caller gave is not shown, in whatever the agent says.
	h, res := r.mustSubmit("say my key is s3cret-from-caller.\npermit s3cret-from-caller allow_once reject_once\nupdate {\"sessionUpdate\":\"odd\",\"x\":\"s3cret-from-caller\"}\nerror -32603 bad key s3cret-from-caller")
	all := h.text() + res.Error.Message
	for _, ev := range h.events {
		all += string(ev.Raw)
		if ev.Tool != nil {
			all += ev.Tool.Title
		}
	}
	if strings.Contains(all, "s3cret") || !strings.Contains(all, hidden) {
		t.Errorf("shown: %s", all)
	}
	for _, name := range []string{"checkpoint", "spec.json"} {
		if strings.Contains(readFile(t, filepath.Join(r.folders.Run, name)), "s3cret-from-caller") {
			t.Errorf("%s holds it", name)
		}
	}
}

func TestLoginFilesAreLinked(t *testing.T) {
	user, home := t.TempDir(), t.TempDir()
	t.Setenv("HOME", user)
	for name, text := range map[string]string{".a/token": "1", ".b": "2"} {
		os.MkdirAll(filepath.Dir(filepath.Join(user, name)), 0o700)
		os.WriteFile(filepath.Join(user, name), []byte(text), 0o600)
	}
	os.WriteFile(filepath.Join(home, ".b"), []byte("own"), 0o600)
	for range 2 {
		if err := linkLogin([]string{".a/token", ".b", ".missing"}, home); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := readFile(t, filepath.Join(home, ".a/token")), readFile(t, filepath.Join(home, ".b")); a != "1" || b != "own" {
		t.Errorf("%q, %q", a, b)
	}
	for _, name := range []string{"../x", "/etc/passwd", ""} {
		if err := linkLogin([]string{name}, home); !errors.Is(err, bridges.ErrInvalidArgument) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestConfigurationIsLaidOverTheCallers(t *testing.T) {
	p, err := parseProfile(bridges.Agent{Options: []byte(`{"config_env":"CFG","modes":{"readonly":{"config":{"permission":{"*":"deny"}}}}}`)})
	if err != nil {
		t.Fatal(err)
	}
	agent := bridges.Agent{PassEnv: []string{"CFG"}}
	env, err := environment(agent, p, p.mode(ceiling.Readonly, true), bridges.Settings{Env: []string{`CFG={"provider":{"x":1},"permission":{"*":"allow"}}`}}, "/h")
	if err != nil || !slices.Contains(env, `CFG={"permission":{"*":"deny"},"provider":{"x":1}}`) {
		t.Errorf("%q, %v", env, err)
	}
	if _, err := environment(agent, p, p.mode(ceiling.Readonly, true), bridges.Settings{Env: []string{"CFG=[]"}}, "/h"); !errors.Is(err, bridges.ErrInvalidArgument) {
		t.Errorf("a configuration that is no object: %v", err)
	}
}
