package asyncop

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
)

// The methods of drive.User. log.go has the log lines, timelines.go the timelines.
var _ drive.User[any, any] = (*frontend[any, any])(nil)

func (s *frontend[IN, OUT]) Invoke(ctx context.Context, in IN, a *call.Attempt[OUT]) error {
	return s.fn.AsyncInvoke(ctx, in, a)
}

func (s *frontend[IN, OUT]) CallBatch(b *call.Batch[IN, OUT]) { s.batch.call(b) }

func (s *frontend[IN, OUT]) CheckResults(results []OUT) error {
	for _, v := range results {
		if participant.IsControl(v) || isMessage(v) {
			return errControlResult
		}
	}
	return nil
}

func (s *frontend[IN, OUT]) TimeoutFor(in IN) time.Duration { return min(s.timeoutOf(in), maxTimeout) }

func (s *frontend[IN, OUT]) CostOf(in IN) float64 { return s.costOf(in) }

func (s *frontend[IN, OUT]) TenantOf(in IN) string { return s.tenantOf(in) }

func (s *frontend[IN, OUT]) HandleFailure(ctx context.Context, r core.Report[IN], timedOut bool) ([]OUT, error) {
	return handle(ctx, s.handlers, s.failureOf(r), timedOut)
}

func (s *frontend[IN, OUT]) HandOver(ctx context.Context, r core.Report[IN]) error {
	return s.sink(ctx, s.failureOf(r))
}

func (s *frontend[IN, OUT]) TimeoutError(r core.Report[IN], t core.TimedOut) error {
	if t.Attempt {
		return &AttemptTimeoutError{Limit: s.attemptTimeout, Attempt: r.Attempts}
	}
	return &TimeoutError{
		Limit: r.Timeout, Attempts: r.Attempts, Last: r.Err, Early: t.Early,
		InDoubt: r.InDoubt, waited: t.Waited, element: r.Element, policy: s.policy,
	}
}

func (s *frontend[IN, OUT]) UndecidedError(d decision.Decision) error {
	if d.NoRetryReason == decision.Failed {
		return d.Err
	}
	return fmt.Errorf("%w (%v: %v)", ErrRetriesExhausted, d.NoRetryReason, d.Reason)
}

func (s *frontend[IN, OUT]) HandlerError(failure error, timedOut bool, broken error) error {
	return handlerBroke(failure, timedOut, broken)
}

func (s *frontend[IN, OUT]) BudgetError(spent float64) error {
	return fmt.Errorf("%w: the calls have cost %.15g of %.15g: continue with a larger Budget", ErrBudgetSpent, spent, s.budget)
}

func (s *frontend[IN, OUT]) RunError(r core.Report[IN]) error {
	return &ElementError{
		Element: r.Element, Attempts: r.Attempts, Elapsed: r.Elapsed, Err: r.Err, label: s.labelOf(r.Element, true),
		NoRetryReason: r.NoRetryReason, Reason: r.Reason, InDoubt: r.InDoubt, policy: s.policy,
		Operator: s.name, retries: s.maxRetries,
	}
}

func (s *frontend[IN, OUT]) AbandonedError(cause error, byElement, cut bool, n int) error {
	if !byElement {
		return &AbandonedError{Cause: cause, Abandoned: n, cut: cut}
	}
	e := *cause.(*ElementError) //nolint:errorlint // it is our own
	e.Abandoned = n
	return &e
}

// EndedOnRequest compares errors off the loop: their methods may be user code.
func (s *frontend[IN, OUT]) EndedOnRequest(err error) (requested bool) {
	_ = s.offLoop(func() error {
		_, failed := errors.AsType[*ElementError](err)
		requested = !failed && (errors.Is(err, ErrStopped) || errors.Is(err, errCut) || errors.Is(err, context.Canceled))
		return nil
	})
	return requested
}

func (s *frontend[IN, OUT]) TypeError(got any) error {
	return &TypeError{Operator: s.name, Got: reflect.TypeOf(got), Want: reflect.TypeFor[IN]()}
}

// failureOf describes an element for the failure sink or the fallback.
func (s *frontend[IN, OUT]) failureOf(r core.Report[IN]) Failure[IN] {
	var demanded time.Duration
	if r.Err != nil { // user code may end its goroutine
		_ = call.OffLoop(func() (err error) {
			demanded, err = decision.FindPushback(&predicates.Attempt[OUT]{Err: r.Err})
			return err
		})
	}
	var waited error                     // for its backend
	timeout, ok := r.Err.(*TimeoutError) //nolint:errorlint // an operator within the call may have another backend
	if ok {
		waited = timeout.waited
	}
	return Failure[IN]{
		Element: r.Element, Err: r.Err, Attempts: r.Attempts, Elapsed: r.Elapsed, Reasons: r.Reasons,
		NoRetryReason: r.NoRetryReason, Reason: r.Reason, InDoubt: r.InDoubt, Deduplicated: r.Deduplicated, policy: s.policy, Abandoned: r.CutOff,
		FirstAttempt: r.First, LastAttempt: r.Last, Demanded: max(0, demanded),
		BackendDown: waited != nil, OthersAnswered: errors.Is(waited, gate.ErrAnswered),
	}
}
