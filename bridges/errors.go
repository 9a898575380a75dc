package bridges

import (
	"errors"
	"fmt"
)

// Error is a failure that means the same in every process. Kind says what it is,
// Message what happened, Next what the person or program should do now.
//
// errors.Is against the Err… values compares kinds, on both sides of a process
// boundary. Causes do not cross it: their text is part of Message by then.
type Error struct {
	Kind      ErrorKind `json:"kind"`
	Message   string    `json:"detail"`
	Next      string    `json:"next,omitempty"`
	Retryable bool      `json:"retryable,omitempty"`
	cause     error
}

// Errorf makes an Error. Like fmt.Errorf it wraps what a %w names.
func Errorf(kind ErrorKind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), cause: errors.Unwrap(err)}
}

// WithNext returns the error with its next step set.
func (e *Error) WithNext(format string, args ...any) *Error {
	c := *e
	c.Next = fmt.Sprintf(format, args...)
	return &c
}

// AsRetryable returns the error marked as worth the same call again, later.
func (e *Error) AsRetryable() *Error {
	c := *e
	c.Retryable = true
	return &c
}

func (e *Error) Error() string {
	if e.Message == "" {
		return string(e.Kind)
	}
	return e.Message
}

// Unwrap returns the cause, in the process where the error was made.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an Error of the same kind without a message, that
// is, one of the Err… values.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Message == "" && t.Kind == e.Kind
}

// KindOf returns the kind of err: KindInternal for one that has none, empty for nil.
func KindOf(err error) ErrorKind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindInternal
}

// AsError returns err as an *Error, with kind KindInternal when it has none. It
// returns nil for nil. The text of wrappers around the Error is kept.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Kind: KindInternal, Message: err.Error(), cause: err}
	}
	c := *e
	c.Message = err.Error()
	c.cause = err
	return &c
}

// ErrorKind crosses processes and is stored: kinds are added, never changed.
type ErrorKind string

const (
	KindInvalidArgument       ErrorKind = "invalid_argument"
	KindUnknownRole           ErrorKind = "unknown_role"
	KindUnknownSession        ErrorKind = "unknown_session"
	KindSessionGone           ErrorKind = "session_gone"
	KindSessionBusy           ErrorKind = "session_busy"
	KindPermissionCeiling     ErrorKind = "permission_ceiling"
	KindDepthLimit            ErrorKind = "depth_limit"
	KindCapacity              ErrorKind = "capacity"
	KindCapabilityUnsupported ErrorKind = "capability_unsupported"
	KindAgentMissing          ErrorKind = "agent_missing"
	KindAuthRequired          ErrorKind = "auth_required"
	KindQuotaExhausted        ErrorKind = "quota_exhausted"
	KindRateLimited           ErrorKind = "rate_limited"
	KindModelUnavailable      ErrorKind = "model_unavailable"
	KindEffortUnsupported     ErrorKind = "effort_unsupported"
	KindTimeout               ErrorKind = "timeout"
	KindCancelled             ErrorKind = "cancelled"
	KindAgentFailed           ErrorKind = "agent_failed"
	KindAgentProtocol         ErrorKind = "agent_protocol"
	KindPluginFailed          ErrorKind = "plugin_failed"
	KindSandboxUnavailable    ErrorKind = "sandbox_unavailable"
	KindOutcomeUnknown        ErrorKind = "outcome_unknown"
	KindInternal              ErrorKind = "internal"
)

// Kinds lists every kind, in the order of their numbers on the wire.
func Kinds() []ErrorKind {
	return []ErrorKind{
		KindInvalidArgument, KindUnknownRole, KindUnknownSession, KindSessionGone, KindSessionBusy,
		KindPermissionCeiling, KindDepthLimit, KindCapacity, KindCapabilityUnsupported, KindAgentMissing,
		KindAuthRequired, KindQuotaExhausted, KindRateLimited, KindModelUnavailable, KindEffortUnsupported,
		KindTimeout, KindCancelled, KindAgentFailed, KindAgentProtocol, KindPluginFailed,
		KindSandboxUnavailable, KindOutcomeUnknown, KindInternal,
	}
}

// The values to compare with errors.Is.
var (
	ErrInvalidArgument       = &Error{Kind: KindInvalidArgument}
	ErrUnknownRole           = &Error{Kind: KindUnknownRole}
	ErrUnknownSession        = &Error{Kind: KindUnknownSession}
	ErrSessionGone           = &Error{Kind: KindSessionGone}
	ErrSessionBusy           = &Error{Kind: KindSessionBusy}
	ErrPermissionCeiling     = &Error{Kind: KindPermissionCeiling}
	ErrDepthLimit            = &Error{Kind: KindDepthLimit}
	ErrCapacity              = &Error{Kind: KindCapacity}
	ErrCapabilityUnsupported = &Error{Kind: KindCapabilityUnsupported}
	ErrAgentMissing          = &Error{Kind: KindAgentMissing}
	ErrAuthRequired          = &Error{Kind: KindAuthRequired}
	ErrQuotaExhausted        = &Error{Kind: KindQuotaExhausted}
	ErrRateLimited           = &Error{Kind: KindRateLimited}
	ErrModelUnavailable      = &Error{Kind: KindModelUnavailable}
	ErrEffortUnsupported     = &Error{Kind: KindEffortUnsupported}
	ErrTimeout               = &Error{Kind: KindTimeout}
	ErrCancelled             = &Error{Kind: KindCancelled}
	ErrAgentFailed           = &Error{Kind: KindAgentFailed}
	ErrAgentProtocol         = &Error{Kind: KindAgentProtocol}
	ErrPluginFailed          = &Error{Kind: KindPluginFailed}
	ErrSandboxUnavailable    = &Error{Kind: KindSandboxUnavailable}
	ErrOutcomeUnknown        = &Error{Kind: KindOutcomeUnknown}
	ErrInternal              = &Error{Kind: KindInternal}
)
