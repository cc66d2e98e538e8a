package deadfile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/strategies"
)

// Take stores an element that an operator has given up. It returns nil when that is durable. The history of the message, if the element
// is one, comes from ctx ([delivery.MetaFromContext]), and what the operator knows of the failure is added to it.
//
// The cause is [store.OutcomeUnknown] for a call that must not happen twice and may have taken effect, [store.Permanent] for an error that
// nobody wanted to try again after, and else [store.Exhausted]. An element that was cut off by the end of its operator is not taken: it
// did not fail.
func (f *File[T]) Take(ctx context.Context, failure asyncop.Failure[T]) error {
	if failure.Abandoned {
		return fmt.Errorf("deadfile: the element was cut off, and is no dead letter: %w", failure.Err)
	}
	meta, _ := delivery.MetaFromContext(ctx)
	now := f.clock.Now()
	meta.Visit = max(1, meta.Visit)
	meta.Attempts += failure.Attempts
	if meta.FirstFailure.IsZero() {
		meta.FirstFailure = now
	}
	meta.LastFailure, meta.LastError = now, fmt.Sprint(failure.Err) // fmt recovers panics of users' errors
	meta.Reasons = slices.Clone(meta.Reasons)                       // they are shared
	note := func(reason string) {
		if reason != "" && !slices.Contains(meta.Reasons, reason) {
			meta.Reasons = append(meta.Reasons, reason)
		}
	}
	for r := range failure.Reasons.All() {
		note(r.Name())
	}
	note(failure.Reason.Name())

	e := Entry[T]{Value: failure.Element, Meta: meta, Cause: store.Exhausted}
	_, timedOut := errors.AsType[*asyncop.TimeoutError](failure.Err)
	switch {
	case failure.Ambiguous():
		e.Cause, e.Meta.OutcomeUnknown = store.OutcomeUnknown, true
	case failure.Reason.IsRejection(), failure.Verdict == strategies.Accepted && !timedOut:
		e.Cause = store.Permanent
	}
	return f.Append(ctx, e)
}
