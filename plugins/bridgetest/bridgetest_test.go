package bridgetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/plugins"
	bridgev1 "github.com/subspan-dev/subspan/proto/bridge/v1"
)

// TestMain is also the broken plugins: `TESTBINARY plugin MODE`.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "plugin" {
		brokenMain(os.Args[2])
	}
	os.Exit(m.Run())
}

// brokenMain is a plugin that breaks one rule.
func brokenMain(mode string) {
	switch mode {
	case "banner":
		fmt.Println("acme bridge, welcome")
	case "cookie":
		cookie := plugins.Handshake()
		os.Setenv(cookie.MagicCookieKey, cookie.MagicCookieValue)
	case "nofinal", "twofinals":
		serveRaw(mode)
		os.Exit(0)
	}
	plugins.Serve(&fickle{mode: mode})
}

// fickle is a small bridge without an agent that breaks the rule of its mode.
type fickle struct{ mode string }

func (b *fickle) Describe(context.Context) (bridges.Description, error) {
	return bridges.Description{Name: b.mode, Version: "1", Contract: []int{1}}, nil
}

func (b *fickle) Create(_ context.Context, req bridges.CreateRequest) (bridges.Created, error) {
	if err := os.MkdirAll(req.Folders.Run, 0o700); err != nil {
		return bridges.Created{}, err
	}
	switch b.mode {
	case "survivor":
		cmd := exec.Command("sleep", "20")
		cmd.Dir = req.Settings.Cwd
		ownSession(cmd)
		if err := cmd.Start(); err != nil {
			return bridges.Created{}, err
		}
	case "litter":
		home, err := os.UserHomeDir()
		if err != nil {
			return bridges.Created{}, err
		}
		os.WriteFile(filepath.Join(home, ".acme"), nil, 0o600)
	}
	return bridges.Created{Handle: bridges.Handle{Version: 1}}, nil
}

func (b *fickle) Submit(_ context.Context, req bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
	if _, err := os.Stat(req.Folders.Run); err != nil {
		return bridges.Result{}, bridges.ErrSessionGone
	}
	if req.Resume != nil && b.mode != "rerun" {
		return bridges.Result{Status: bridges.StatusCompleted}, nil
	}
	offset := int64(1)
	if b.mode != "backwards" && req.TurnID != "turn-1" {
		offset = 100
	}
	for i := range int64(2) {
		if b.mode == "backwards" {
			i = -i
		}
		turn.Emit(bridges.Event{Kind: bridges.KindText, Text: req.Task, Pos: bridges.Position{Offset: offset + i, Part: 1}})
	}
	return bridges.Result{Status: bridges.StatusCompleted}, nil
}

func (b *fickle) Reconnect(context.Context, bridges.ReconnectRequest) (bridges.Reconnected, error) {
	return bridges.Reconnected{Status: bridges.ReconnectCannot, Turn: bridges.TurnLost}, nil
}

func (b *fickle) Dispose(_ context.Context, req bridges.DisposeRequest) (bridges.Receipt, error) {
	return bridges.Receipt{}, os.RemoveAll(req.Folders.Run)
}

// serveRaw is a plugin below our own server, which cannot break these rules.
func serveRaw(mode string) {
	if os.Getenv(plugins.Handshake().MagicCookieKey) == "" {
		fmt.Fprintln(os.Stderr, "a plugin")
		os.Exit(1)
	}
	go func() { io.Copy(io.Discard, os.Stdin); os.Exit(0) }()
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  plugins.Handshake(),
		VersionedPlugins: map[int]plugin.PluginSet{1: {plugins.Name: &rawPlugin{mode: mode}}},
		GRPCServer:       plugin.DefaultGRPCServer,
	})
}

type rawPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	bridgev1.UnimplementedBridgeServiceServer
	mode string
}

func (r *rawPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	bridgev1.RegisterBridgeServiceServer(s, r)
	return nil
}

func (r *rawPlugin) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

func (r *rawPlugin) Describe(context.Context, *bridgev1.DescribeRequest) (*bridgev1.DescribeResponse, error) {
	return &bridgev1.DescribeResponse{Name: r.mode, Version: "1", Contract: []int32{1}}, nil
}

func (r *rawPlugin) Create(context.Context, *bridgev1.CreateRequest) (*bridgev1.CreateResponse, error) {
	return &bridgev1.CreateResponse{}, nil
}

func (r *rawPlugin) Dispose(context.Context, *bridgev1.DisposeRequest) (*bridgev1.DisposeResponse, error) {
	return &bridgev1.DisposeResponse{}, nil
}

func (r *rawPlugin) Submit(s grpc.BidiStreamingServer[bridgev1.SubmitRequest, bridgev1.SubmitResponse]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	s.Send(&bridgev1.SubmitResponse{Message: &bridgev1.SubmitResponse_Events{Events: &bridgev1.SubmitResponse_EventBatch{
		Events: []*bridgev1.Event{{Kind: "text", Text: first.GetStart().GetTask()}}}}})
	if r.mode == "twofinals" {
		for range 2 {
			s.Send(&bridgev1.SubmitResponse{Message: &bridgev1.SubmitResponse_Final{
				Final: &bridgev1.Result{Status: bridgev1.ResultStatus_RESULT_STATUS_COMPLETED}}})
		}
	}
	return nil
}

// folder writes a plugin folder whose program is this test binary in a mode.
func folder(t *testing.T, mode string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), mode)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' plugin %s\n", self, mode)
	if err := os.WriteFile(filepath.Join(dir, "run"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal(map[string]any{
		"name": mode, "version": "1", "contract": []int{1}, "exec": []string{"./run"},
		"check": map[string]any{"words": map[string]string{"ask": "", "sleep": "", "spam": "", "crash": "", "env": ""}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "plugin.json"), manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func judge(t *testing.T, dir string) Report {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, err := Check(t.Context(), dir, Options{Self: self, Set: []string{"GORACE=atexit_sleep_ms=0"}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func report(r Report) string {
	var b strings.Builder
	_ = r.Write(&b)
	return b.String()
}

func TestBrokenPluginsFailByName(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string][2]string{ // check, part of the detail
		"banner":    {"handshake", "acme bridge, welcome"},
		"cookie":    {"cookie", "without the cookie"},
		"nofinal":   {"answer", "without a final event"},
		"twofinals": {"answer", plugins.AfterFinal},
		"survivor":  {"nothing-left", "sleep 20"},
		"litter":    {"files", ".acme"},
		"backwards": {"answer", "positions go back"},
		"rerun":     {"replay", "emitted text again"},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := judge(t, folder(t, mode))
			for _, o := range r.Outcomes {
				if o.Name != want[0] {
					continue
				}
				if o.Verdict != Failed || !strings.Contains(o.Detail, want[1]) || o.Fix == "" {
					t.Errorf("%s: %s: %s", o.Name, o.Verdict, o.Detail)
				}
				return
			}
			t.Errorf("check %s did not run:\n%s", want[0], report(r))
		})
	}
}

func TestGoodPluginHasNoFailure(t *testing.T) {
	t.Parallel()
	r := judge(t, folder(t, "good"))
	if !r.OK() {
		t.Errorf("\n%s", report(r))
	}
}

// The example is built and judged as its author would.
func TestExampleInGo(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "echo")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "echo"), "../examples/go")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	manifest, err := os.ReadFile("../examples/go/plugin.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "plugin.json"), manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	r := judge(t, dir)
	t.Log("\n" + report(r))
	skipped := 0
	for _, o := range r.Outcomes {
		if o.Verdict == Skipped {
			skipped++
		}
	}
	if !r.OK() || skipped > 2 {
		t.Errorf("%d skipped", skipped)
	}
	out, err := exec.Command(filepath.Join(dir, "echo"), "--describe").Output()
	if err != nil || !strings.Contains(string(out), `"name": "echo"`) {
		t.Errorf("--describe: %v\n%s", err, out)
	}
}

func TestInProcess(t *testing.T) {
	words := map[string]string{"ask": "", "sleep": "", "spam": "", "crash": "", "env": ""}
	Run(t, Config{New: func() bridges.Bridge { return &fickle{mode: "good"} }, Words: words})
}
