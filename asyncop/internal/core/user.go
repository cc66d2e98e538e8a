package core

import (
	"context"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/decision"
)

// User is the core's view of the program around it: functions of the user, and errors and
// log lines for the user.
//
// The loop calls the methods, unless stated otherwise. A method is not called if Config
// lacks its option.
type User[IN, OUT any] interface {
	UserFunctions[IN, OUT]
	UserErrors[IN]
	UserLog[IN]
}

// UserFunctions are the functions of the user. They may panic (law A6), except
// CheckResults and AsksForTimeline.
type UserFunctions[IN, OUT any] interface {
	// Invoke starts the call of an attempt.
	Invoke(ctx context.Context, in IN, a *call.Attempt[OUT]) error
	// CallBatch calls the function for a batch, on a worker (Config.Batching).
	CallBatch(b *call.Batch[IN, OUT])
	// CheckResults returns an error if results are invalid (Config.ChecksResults).
	CheckResults(results []OUT) error
	// TimeoutFor returns the timeout of an element (Config.OwnTimeouts). 0 means
	// Limits.Timeout; with a negative timeout it times out at once.
	TimeoutFor(in IN) time.Duration
	// CostOf returns the estimated cost of an attempt (BackendCalls.HasCost).
	CostOf(in IN) float64
	// TenantOf returns the tenant of an attempt (BackendCalls.HasTenant).
	TenantOf(in IN) string
	// HandleFailure returns the results or the failure of a failed element. It is called
	// on a worker (Config.Handling).
	HandleFailure(ctx context.Context, r Report[IN], timedOut bool) ([]OUT, error)
	// HandOver offers a failed element to the failure sink, one at a time. It is called
	// on a worker and, after the end, by the driver (Config.HandsOver).
	HandOver(ctx context.Context, r Report[IN]) error
	// AsksForTimeline reports whether to keep an element's timeline even if it succeeds
	// (Config.AsksForTimelines).
	AsksForTimeline(in IN) bool
}

// UserErrors make the errors that users see.
type UserErrors[IN any] interface {
	// TimeoutError returns the error of an element or an attempt that timed out.
	TimeoutError(r Report[IN], t TimedOut) error
	// UndecidedError returns the error of an element whose policy failed, or whose last
	// result still asked for a retry (Config.ExhaustedAsFailure).
	UndecidedError(d decision.Decision) error
	// HandlerError returns the failure of an element whose handler panicked, exceeded its
	// limit or did not run (broken).
	HandlerError(failure error, timedOut bool, broken error) error
	// RunError returns the error of a run that an element has failed.
	RunError(r Report[IN]) error
}

// UserLog writes log lines, and keeps timelines. A method calls [Machine.NoteSlept]
// before it runs user code, such as the log handler.
type UserLog[IN any] interface {
	// LogsDebug reports whether debug lines are written.
	LogsDebug() bool
	// LogDecision logs an attempt with a reason to retry, and whether it is retried. It
	// is called if LogsDebug returned true in the last 100 ms.
	LogDecision(r Report[IN], d decision.Decision, isRetried bool)
	// LogGivenUp logs an element that was dropped or handed over.
	LogGivenUp(r Report[IN], how observe.EndKind)
	// LogNotTaken logs an element that the failure sink has not taken. wait is the time
	// until the next offer; 0 means no further offer.
	LogNotTaken(r Report[IN], err error, wait time.Duration)
	// LogObserverPanic logs a panic of an observer.
	LogObserverPanic(err error)
	// LogSourcePanic logs a panic of a source that settled a message. Any goroutine may
	// call it.
	LogSourcePanic(err error)
	// KeepTimeline keeps the attempts of an element that failed, was slow or was asked
	// for.
	KeepTimeline(r Report[IN], how observe.EndKind, steps []observe.Step)
}
