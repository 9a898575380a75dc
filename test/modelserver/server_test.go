package modelserver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/test/modelserver"
)

func start(t *testing.T, o modelserver.Options) *modelserver.Server {
	t.Helper()
	s, err := modelserver.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func post(t *testing.T, url string, body any, header ...string) (int, string, error) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(deadline(t), http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(out), err
}

func TestEveryFormatStreamedAndWhole(t *testing.T) {
	const task = "[[think hm]][[say one ]][[delta 3 x 5]][[unicode]][[sh ls]][[think so]][[say end]]"
	cost := modelserver.Cost(1)
	for _, f := range formats {
		stops := map[string][2]string{
			"chat": {"tool_calls", "stop"}, "responses": {"completed", "completed"}, "messages": {"tool_use", "end_turn"}, "gemini": {"STOP", "STOP"},
		}[f.name]
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%t", f.name, stream), func(t *testing.T) {
				s := start(t, modelserver.Options{})
				got := f.request(t, s, task, nil, "", stream)
				first := got
				if got.CallID == "" {
					t.Error("the call has no id")
				}
				got.CallID = ""
				want := answer{
					Thought: "hm", Text: "one " + modelserver.Filler(15) + modelserver.Unicode, Call: "bash", Args: `{"command":"ls"}`,
					Stop: stops[0], Input: cost.Input, Output: cost.Output,
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("first answer (-want +got):\n%s", diff)
				}
				got = f.request(t, s, task, &first, "a listing", stream)
				want = answer{Thought: "so", Text: "end", Stop: stops[1], Input: cost.Input, Output: cost.Output}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("second answer (-want +got):\n%s", diff)
				}
				last, ok := s.Last()
				if !ok {
					t.Fatal("no request is remembered")
				}
				last.Time, last.Body, last.Path = time.Time{}, nil, ""
				wantReq := modelserver.Request{
					Method: "POST", Dialect: f.name, Model: "m", Effort: "high", Stream: stream, System: "be brief", UserText: task,
					Task: task, Tools: []string{"bash"}, Results: []string{"a listing"}, Reply: "text 3", State: modelserver.Whole,
				}
				if diff := cmp.Diff(wantReq, last); diff != "" {
					t.Errorf("request (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestFailures(t *testing.T) {
	tests := []struct {
		task   string
		format string
		status int
		holds  string
	}{
		{"[[status 401]]", "chat", 401, "invalid_api_key"},
		{"[[status 429]]", "messages", 429, "rate_limit_error"},
		{"[[status 529]]", "messages", 529, "overloaded_error"},
		{"[[status 403]]", "gemini", 403, "PERMISSION_DENIED"},
		{"[[status 500]]", "responses", 500, "api_error"},
		{"[[quota]]", "chat", 429, "insufficient_quota"},
		{"[[quota]]", "responses", 200, "response.failed"},
		{"[[quota]]", "messages", 400, "credit balance"},
		{"[[quota]]", "gemini", 429, "RESOURCE_EXHAUSTED"},
	}
	s := start(t, modelserver.Options{})
	for _, tt := range tests {
		for _, f := range formats {
			if f.name != tt.format {
				continue
			}
			status, body, err := post(t, s.URL()+f.path(true), f.ask(tt.task, nil, "", true))
			if err != nil || status != tt.status || !strings.Contains(body, tt.holds) {
				t.Errorf("%s %s: status %d, %v, %s; want %d with %q", tt.format, tt.task, status, err, body, tt.status, tt.holds)
			}
		}
	}
}

func TestHangEndsWithTheClientAndWithTheServer(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			s, err := modelserver.Start(modelserver.Options{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			body, err := json.Marshal(formats[0].ask("[[say before]][[hang]]", nil, "", true))
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+"/v1/chat/completions", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			sc := bufio.NewScanner(resp.Body)
			for sc.Scan() && !strings.Contains(sc.Text(), "before") {
			}
			if _, err := s.WaitFor(deadline(t), func(r modelserver.Request) bool { return r.State == modelserver.Hanging }); err != nil {
				t.Fatal(err)
			}
			if who == "client" {
				leave()
				if _, err := s.WaitFor(deadline(t), func(r modelserver.Request) bool { return r.State == modelserver.Abandoned }); err != nil {
					t.Error(err)
				}
			}
			closed := make(chan error, 1)
			go func() { closed <- s.Close() }()
			select {
			case err := <-closed:
				if err != nil {
					t.Error(err)
				}
			case <-deadline(t).Done():
				t.Fatal("Close waits for the hanging answer")
			}
			if got := s.Requests()[0].State; got != modelserver.Abandoned {
				t.Errorf("state %s, want %s", got, modelserver.Abandoned)
			}
		})
	}
}

func TestDropCutsTheStream(t *testing.T) {
	s := start(t, modelserver.Options{})
	for _, f := range formats {
		_, body, err := post(t, s.URL()+f.path(true), f.ask("[[say before]][[drop]]", nil, "", true))
		if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(body, "before") {
			t.Errorf("%s: %q, error %v, want the text and %v", f.name, body, err, io.ErrUnexpectedEOF)
		}
	}
	if _, err := s.WaitFor(deadline(t), func(r modelserver.Request) bool { return r.State == modelserver.Cut }); err != nil {
		t.Error(err)
	}
}

func TestKeys(t *testing.T) {
	s := start(t, modelserver.Options{})
	s.SetKey("good")
	body := dict{"model": "m", "messages": list{dict{"role": "user", "content": "x"}}}
	for _, tt := range []struct {
		header, value, query, auth string
		status                     int
	}{
		{"Authorization", "Bearer good", "", "bearer", 200},
		{"Authorization", "Bearer bad", "", "bearer", 401},
		{"x-api-key", "good", "", "x-api-key", 200},
		{"x-goog-api-key", "bad", "", "x-goog-api-key", 401},
		{"", "", "?key=good", "query", 200},
		{"", "", "", "", 401},
	} {
		var h []string
		if tt.header != "" {
			h = []string{tt.header, tt.value}
		}
		status, _, err := post(t, s.URL()+"/v1/messages"+tt.query, body, h...)
		last, _ := s.Last()
		if err != nil || status != tt.status || last.Auth != tt.auth {
			t.Errorf("%q %q %q: status %d, auth %q, %v; want %d, %q", tt.header, tt.value, tt.query, status, last.Auth, err, tt.status, tt.auth)
		}
	}
	s.SetKey("")
	if status, _, _ := post(t, s.URL()+"/v1/messages", body); status != 200 {
		t.Errorf("status %d without a key to ask for, want 200", status)
	}
}

func TestModelsAndOtherPaths(t *testing.T) {
	s := start(t, modelserver.Options{})
	for _, f := range formats[:3] {
		body := f.ask("x", nil, "", false).(dict)
		body["model"] = "missing-model"
		if status, out, err := post(t, s.URL()+f.path(false), body); status != 404 || err != nil {
			t.Errorf("%s: a missing model has status %d, %v: %s", f.name, status, err, out)
		}
	}
	for path, want := range map[string]int{"/v1/messages/count_tokens": 200, "/v1beta/models/m:countTokens": 200, "/v1/nosuch": 404} {
		if status, out, err := post(t, s.URL()+path, dict{}); status != want || err != nil {
			t.Errorf("POST %s: status %d, %v: %s; want %d", path, status, err, out, want)
		}
	}
	for _, bad := range []string{"", "{", "[]", `{"messages":3}`} {
		resp, err := http.Post(s.URL()+"/v1/chat/completions", "application/json", strings.NewReader(bad))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 400 {
			t.Errorf("body %q: status %d, want 400", bad, resp.StatusCode)
		}
	}
	resp, err := http.Get(s.URL() + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(out), "scripted-1") {
		t.Errorf("models: %s, %v", out, err)
	}
	if turns := s.Turns(); len(turns) != 3 {
		t.Errorf("%d turns remembered, want the 3 model calls", len(turns))
	}
}

func TestOnlyLoopback(t *testing.T) {
	if s, err := modelserver.Start(modelserver.Options{Addr: "0.0.0.0:0"}); err == nil {
		s.Close()
		t.Error("the server listens on all addresses")
	}
}

func TestLogHasOneLineForEachRequest(t *testing.T) {
	var log bytes.Buffer
	s := start(t, modelserver.Options{Log: &log})
	formats[0].request(t, s, "[[say a]]", nil, "", true)
	formats[1].request(t, s, "[[say b]]", nil, "", false)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var tasks []string
	for line := range strings.Lines(log.String()) {
		var r modelserver.Request
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		tasks = append(tasks, r.Task+" "+string(r.State))
	}
	if diff := cmp.Diff([]string{"[[say a]] whole", "[[say b]] whole"}, tasks); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

func TestWaitForGivesUpWithTheContext(t *testing.T) {
	s := start(t, modelserver.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.WaitFor(ctx, func(modelserver.Request) bool { return true }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}
