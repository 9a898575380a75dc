package plugins

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/subspan-dev/subspan/bridges"
	bridgev1 "github.com/subspan-dev/subspan/proto/bridge/v1"
)

// maxErrorText bounds an error's message on the wire: it travels as a header.
const maxErrorText = 32 << 10

// codeOf gives each kind the gRPC code that generic tools expect. The kind itself
// travels in ErrorDetail; nothing here is decided by the code.
func codeOf(kind bridges.ErrorKind) codes.Code {
	switch kind {
	case bridges.KindInvalidArgument, bridges.KindUnknownRole, bridges.KindEffortUnsupported:
		return codes.InvalidArgument
	case bridges.KindUnknownSession, bridges.KindSessionGone, bridges.KindAgentMissing, bridges.KindModelUnavailable:
		return codes.NotFound
	case bridges.KindSessionBusy, bridges.KindDepthLimit, bridges.KindSandboxUnavailable, bridges.KindAgentFailed:
		return codes.FailedPrecondition
	case bridges.KindPermissionCeiling:
		return codes.PermissionDenied
	case bridges.KindAuthRequired:
		return codes.Unauthenticated
	case bridges.KindCapacity, bridges.KindQuotaExhausted, bridges.KindRateLimited:
		return codes.ResourceExhausted
	case bridges.KindCapabilityUnsupported:
		return codes.Unimplemented
	case bridges.KindTimeout:
		return codes.DeadlineExceeded
	case bridges.KindCancelled:
		return codes.Canceled
	case bridges.KindPluginFailed:
		return codes.Unavailable
	case bridges.KindOutcomeUnknown:
		return codes.Unknown
	}
	return codes.Internal
}

func errorToWire(e bridges.Error) *bridgev1.ErrorDetail {
	kind := number[bridgev1.ErrorKind](errorKinds, e.Kind)
	if kind == bridgev1.ErrorKind_ERROR_KIND_UNSPECIFIED {
		kind = bridgev1.ErrorKind_ERROR_KIND_INTERNAL
	}
	return &bridgev1.ErrorDetail{
		Kind: kind, Message: text(shorten(e.Message)), Next: text(shorten(e.Next)), Retryable: e.Retryable,
	}
}

func errorFromWire(m *bridgev1.ErrorDetail) *bridges.Error {
	kind := word(errorKinds, m.GetKind())
	if kind == "" {
		kind = bridges.KindInternal
	}
	return &bridges.Error{Kind: kind, Message: m.GetMessage(), Next: m.GetNext(), Retryable: m.GetRetryable()}
}

func shorten(s string) string {
	if len(s) <= maxErrorText {
		return s
	}
	return strings.ToValidUTF8(s[:maxErrorText], "") + " … (cut)"
}

// toStatus is the error of a handler as it goes on the wire.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	e := bridges.AsError(err)
	if e.Kind == bridges.KindInternal {
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			e.Kind = bridges.KindTimeout
		case errors.Is(err, context.Canceled):
			e.Kind = bridges.KindCancelled
		}
	}
	detail := errorToWire(*e)
	st := status.New(codeOf(e.Kind), detail.GetMessage())
	if with, err := st.WithDetails(detail); err == nil {
		st = with
	}
	return st.Err()
}

// fromStatus is the error of a call as the host's side sees it. An error with a
// detail is the bridge speaking. One without is nobody's word: the caller's own
// deadline when that is over, else a plugin that died or broke the protocol, after
// which the host starts it again and reconnects.
func fromStatus(ctx context.Context, verb string, err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	for _, d := range st.Details() {
		if detail, ok := d.(*bridgev1.ErrorDetail); ok {
			return errorFromWire(detail)
		}
	}
	if cause := ctx.Err(); cause != nil {
		if errors.Is(cause, context.DeadlineExceeded) {
			return bridges.Errorf(bridges.KindTimeout, "the bridge did not answer %s in time: %w", verb, cause).AsRetryable()
		}
		return bridges.Errorf(bridges.KindCancelled, "%s was given up by its caller: %w", verb, cause)
	}
	switch st.Code() {
	case codes.Unimplemented:
		return bridges.Errorf(bridges.KindCapabilityUnsupported, "the bridge does not have %s", verb)
	case codes.Unavailable:
		return bridges.Errorf(bridges.KindPluginFailed, "the bridge's process went away during %s: %s", verb, st.Message()).
			WithNext("it is started again with the next call; its log says why it ended").AsRetryable()
	}
	return bridges.Errorf(bridges.KindPluginFailed, "the bridge's process broke the protocol in %s: %s: %s",
		verb, st.Code(), st.Message()).WithNext("report this to the plugin's author; `subspan plugins check` shows more")
}
