package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core"
)

// The exit codes are part of the command's interface: scripts branch on them.
const (
	exitOK          = 0
	exitInternal    = 1
	exitUsage       = 2
	exitRunning     = 3  // the turn goes on
	exitRefused     = 4  // the ceiling, the depth or the number of children forbids it
	exitAgentFailed = 5  // the agent ended the turn badly
	exitGone        = 6  // session gone, or nobody can say how the turn ended
	exitUnavailable = 69 // the agent is not installed or not logged in (EX_UNAVAILABLE)
	exitInterrupted = 130
)

// usageError is a mistake in the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// exitStatus carries a code for a command that has already said everything.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// exitCode maps an error to the command's exit code.
func exitCode(err error) int {
	var status exitStatus
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.Is(err, context.DeadlineExceeded):
		return exitRunning
	}
	return kindCode(bridges.KindOf(err))
}

func kindCode(kind bridges.ErrorKind) int {
	switch kind {
	case bridges.KindInvalidArgument, bridges.KindUnknownRole, bridges.KindUnknownSession,
		bridges.KindModelUnavailable, bridges.KindEffortUnsupported, bridges.KindCapabilityUnsupported:
		return exitUsage
	case bridges.KindPermissionCeiling, bridges.KindDepthLimit, bridges.KindCapacity, bridges.KindSandboxUnavailable:
		return exitRefused
	case bridges.KindSessionBusy:
		return exitRunning
	case bridges.KindSessionGone, bridges.KindOutcomeUnknown:
		return exitGone
	case bridges.KindAgentMissing, bridges.KindAuthRequired:
		return exitUnavailable
	case bridges.KindAgentFailed, bridges.KindAgentProtocol, bridges.KindQuotaExhausted, bridges.KindRateLimited, bridges.KindTimeout:
		return exitAgentFailed
	case bridges.KindCancelled:
		return exitInterrupted
	}
	return exitInternal
}

// turnCode maps how a turn ended to the exit code.
func turnCode(t core.Turn) int {
	switch t.Status {
	case core.TurnCompleted:
		return exitOK
	case core.TurnRunning:
		return exitRunning
	case core.TurnCancelled:
		return exitInterrupted
	case core.TurnLost:
		return exitGone
	}
	if t.Ended != nil && t.Ended.Error != nil {
		if code := kindCode(t.Ended.Error.Kind); code != exitInternal {
			return code
		}
	}
	return exitAgentFailed
}

// complain tells a person what went wrong and what to do now.
func complain(w io.Writer, err error) {
	var status exitStatus
	if err == nil || errors.As(err, &status) {
		return
	}
	fmt.Fprintf(w, "subspan: %s\n", err)
	var e *bridges.Error
	if errors.As(err, &e) && e.Next != "" {
		fmt.Fprintf(w, "  next: %s\n", e.Next)
	}
}
