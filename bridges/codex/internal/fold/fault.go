package fold

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// Fault is a turn's error as codex tells it.
type Fault struct {
	Message string `json:"message"`
	Details string `json:"details,omitempty"`
	Code    string `json:"code,omitempty"`   // the name in codexErrorInfo
	Status  int64  `json:"status,omitempty"` // the HTTP status in it, 0 for none
}

// faultOf reads a TurnError; nil for none. Its codexErrorInfo is a name, or an object
// with the name as its only key and the HTTP status below it.
func faultOf(raw []byte) *Fault {
	if !jsonrpc.IsObject(raw) {
		return nil
	}
	f := &Fault{
		Message: Clip(jsonrpc.GetString(raw, "message"), MaxNotice),
		Details: Clip(jsonrpc.GetString(raw, "additionalDetails"), MaxNotice),
	}
	info := jsonrpc.Get(raw, "codexErrorInfo")
	f.Code = jsonrpc.Unquote(info)
	for key, value := range jsonrpc.Members(info) {
		f.Code = string(key)
		f.Status, _ = jsonrpc.GetInt(value, "httpStatusCode")
	}
	return f
}

func (f *Fault) unauthorized() bool {
	return f.Code == "unauthorized" || f.Status == 401 || f.Status == 403 || strings.HasPrefix(f.Message, "unexpected status 401")
}

func (f *Fault) says(words ...string) bool {
	text := strings.ToLower(f.Message + " " + f.Details)
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}

// Refused reports whether the provider declined to work on the task at all.
func (f *Fault) Refused() bool {
	switch f.Code {
	case "cyberPolicy", "bioPolicy", "misalignmentPolicyViolation":
		return true
	}
	return false
}

// AsError says what a fault means and what to do about it.
func (f *Fault) AsError(agent bridges.Agent, model string) *bridges.Error {
	text := f.Message
	if text == "" {
		text = "codex gives no reason"
	}
	of := func(kind bridges.ErrorKind) *bridges.Error { return bridges.Errorf(kind, "codex: %s", text) }
	switch {
	case f.unauthorized(), f.says("missing environment variable", "access token could not be refreshed", "please log in", "not logged in"):
		return of(bridges.KindAuthRequired).WithNext("%s", LoginHint(agent))
	case f.Code == "usageLimitExceeded", f.Code == "sessionBudgetExceeded", f.says("quota exceeded", "insufficient_quota"):
		return of(bridges.KindQuotaExhausted).WithNext("wait until the limit is reset, or use another account or agent")
	case f.Code == "rateLimitExceeded", f.Status == 429:
		return of(bridges.KindRateLimited).AsRetryable().WithNext("wait a minute, then submit the task again")
	case f.Code == "modelNotFound":
		return of(bridges.KindModelUnavailable).WithNext("ask for another model than %q", model)
	case f.Code == "badRequest" && f.says("reasoning.effort", "reasoning_effort"):
		return of(bridges.KindEffortUnsupported).WithNext("ask for another effort")
	case f.Code == "badRequest" && f.says("model"), f.Status == 404 && f.says("model"):
		return of(bridges.KindModelUnavailable).WithNext("ask for another model than %q", model)
	case f.Code == "contextWindowExceeded":
		return of(bridges.KindAgentFailed).WithNext("start a new session with what matters of this one in its task")
	case f.Code == "sandboxError":
		return of(bridges.KindSandboxUnavailable).WithNext("run `codex sandbox -- true` in a terminal to see why codex's sandbox does not start")
	case f.Refused():
		return of(bridges.KindAgentFailed).WithNext("the provider declined the task; word it differently or use another agent")
	case f.Code == "httpConnectionFailed" && f.Status == 0:
		return of(bridges.KindAgentFailed).AsRetryable().WithNext("check that the model's server can be reached from here, then submit the task again")
	case f.Status >= 500, f.says("stream disconnected"), slices.Contains([]string{"serverOverloaded", "internalServerError", "flexUnavailable", "policyCapacityUnavailable",
		"responseStreamDisconnected", "responseStreamConnectionFailed", "responseTooManyFailedAttempts"}, f.Code):
		return of(bridges.KindAgentFailed).AsRetryable().WithNext("the provider has trouble; submit the task again later")
	}
	return of(bridges.KindAgentFailed).WithNext("read the message; the session can take another task")
}

func LoginHint(agent bridges.Agent) string {
	if agent.LoginHint != "" {
		return agent.LoginHint
	}
	return "run `codex login` in a terminal"
}

// CallError says what an error of the protocol means for a thread.
func CallError(method string, err error) error {
	var e *jsonrpc.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("codex %s: %w", method, err)
	}
	text := strings.ToLower(e.Text())
	switch {
	case strings.Contains(text, "no rollout found"), strings.Contains(text, "thread not found"), strings.Contains(text, "is archived"):
		return bridges.Errorf(bridges.KindSessionGone, "codex: %s", e.Text()).WithNext("create a new session")
	case strings.Contains(text, "active writer"):
		return bridges.Errorf(bridges.KindSessionBusy, "codex: %s", e.Text()).WithNext("close the other codex that has this conversation open")
	case strings.Contains(text, "required mcp servers"):
		return bridges.Errorf(bridges.KindInvalidArgument, "codex: %s", Clip(e.Text(), MaxNotice)).WithNext("check the MCP server's command, or leave the server out")
	case strings.Contains(text, "unauthorized"), strings.Contains(text, "not logged in"):
		return bridges.Errorf(bridges.KindAuthRequired, "codex: %s", e.Text()).WithNext("%s", LoginHint(bridges.Agent{}))
	}
	return bridges.Errorf(bridges.KindAgentProtocol, "codex %s: %s", method, e.Text()).WithNext("check that the installed codex is a version that this bridge knows, see `codex --version`")
}
