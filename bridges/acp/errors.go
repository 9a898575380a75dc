package acp

import (
	"errors"
	"regexp"
	"strings"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/jsonrpc"
)

// What agents say when something fails is prose, and differs by agent and version.
// The order counts: the first that matches decides.
var faults = []struct {
	text *regexp.Regexp
	kind bridges.ErrorKind
}{
	{regexp.MustCompile(`(?i)insufficient_quota|quota exceeded|exceeded your (current )?quota|out of credits|credit balance|billing|usage limit|payment required|\b402\b`), bridges.KindQuotaExhausted},
	{regexp.MustCompile(`(?i)\b429\b|rate.?limit|too many requests|overloaded|\b529\b`), bridges.KindRateLimited},
	{regexp.MustCompile(`(?i)\b401\b|\b403\b|unauthori[sz]ed|unauthenticated|invalid.{0,12}api.?key|api.?key.{0,24}(missing|required|invalid|not (set|found|valid))|not (signed|logged) in|log ?in required|authentication|\bforbidden\b`), bridges.KindAuthRequired},
	{regexp.MustCompile(`(?i)(unknown|invalid|unsupported|no such) model|model[^.]{0,64}(not (found|available|supported)|does not exist|unavailable)|\b404\b[^.]{0,32}model`), bridges.KindModelUnavailable},
}

var (
	gone    = regexp.MustCompile(`(?i)(session|conversation|thread|resource)[^.]{0,80}(not found|unknown|does not exist|no longer)|no (saved |previous |such )*(session|conversation)|unknown (session|conversation)|not found[^.]{0,20}(session|conversation)|FS_NOT_FOUND`)
	refused = regexp.MustCompile(`(?i)already (in use|active|running|loaded|has an active)|locked by|cannot resume|active writer|was created (with|in)`)
)

const (
	codeNotFound    = -32002
	codeRateLimited = -32003
	codeCancelled   = -32800
)

// agentError turns an error that an agent answered with into one of ours. Other
// errors stay what they are.
func agentError(err error) error {
	var fault *jsonrpc.Error
	if errors.As(err, new(*bridges.Error)) || errors.As(err, new(*rejoinError)) || !errors.As(err, &fault) {
		return err
	}
	e := textError(codeText(fault))
	switch fault.Code {
	case codeAuthRequired:
		e.Kind = bridges.KindAuthRequired
	case codeRateLimited:
		if e.Kind != bridges.KindQuotaExhausted { // that is said in the same code
			e.Kind = bridges.KindRateLimited
		}
	}
	return withAdvice(e)
}

// codeText puts a code that is an HTTP status where the table finds it.
func codeText(fault *jsonrpc.Error) string {
	text := fault.Error()
	if fault.Code >= 400 && fault.Code < 600 && fault.Text() == "" {
		return "HTTP " + text
	}
	return text
}

// textError sorts an error by what it says.
func textError(text string) *bridges.Error {
	kind := bridges.KindAgentFailed
	for _, f := range faults {
		if f.text.MatchString(text) {
			kind = f.kind
			break
		}
	}
	return withAdvice(bridges.Errorf(kind, "%s", strings.TrimSpace(text)))
}

func withAdvice(e *bridges.Error) *bridges.Error {
	switch e.Kind {
	case bridges.KindRateLimited:
		return e.WithNext("wait, then submit again").AsRetryable()
	case bridges.KindQuotaExhausted:
		return e.WithNext("use another agent or model, or wait for the quota to be renewed")
	case bridges.KindAuthRequired:
		return e.WithNext("log in to the agent, or give it a key that works")
	case bridges.KindModelUnavailable:
		return e.WithNext("choose a model that the agent offers")
	}
	return e
}

// isGone reports whether an error of the agent means that it has no such session.
func isGone(err error, p *Profile) bool {
	var fault *jsonrpc.Error
	if !errors.As(err, &fault) {
		return false
	}
	text := fault.Text()
	return fault.Code == codeNotFound || gone.MatchString(text) || p.goneText != nil && p.goneText.MatchString(text)
}

func isRefused(err error) bool {
	var fault *jsonrpc.Error
	return errors.As(err, &fault) && refused.MatchString(fault.Text())
}

// isMissingMethod reports whether the agent does not have a method after all.
func isMissingMethod(err error) bool {
	var fault *jsonrpc.Error
	return errors.As(err, &fault) && fault.Code == jsonrpc.CodeNoMethod
}
