// Package failed turns what an operator says of an element that it has given up into the history of a message.
package failed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/strategies"
)

// History returns what is known about a message after a visit has failed (law D6): what ctx has of it
// ([delivery.MetaFromContext]), and what the operator knows.
func History[T any](ctx context.Context, f asyncop.Failure[T], now time.Time) delivery.Meta {
	meta, _ := delivery.MetaFromContext(ctx)
	meta.Visit = max(1, meta.Visit)
	meta.Attempts += f.Attempts
	if meta.FirstFailure.IsZero() {
		meta.FirstFailure = now
	}
	meta.LastFailure, meta.LastError = now, fmt.Sprint(f.Err) // fmt recovers panics of users' errors
	meta.OutcomeUnknown = f.Ambiguous()
	meta.Reasons = slices.Clone(meta.Reasons) // they are shared
	note := func(reason string) {
		if reason != "" && !slices.Contains(meta.Reasons, reason) {
			meta.Reasons = append(meta.Reasons, reason)
		}
	}
	for r := range f.Reasons.All() {
		note(r.Name())
	}
	note(f.Reason.Name())
	return meta
}

// Permanent says whether the error of a failure will not go away: the call was refused for good, or no one wanted to try again
// after it.
func Permanent[T any](f asyncop.Failure[T]) bool {
	_, timedOut := errors.AsType[*asyncop.TimeoutError](f.Err)
	return f.Reason.IsRejection() || f.Verdict == strategies.Final && !timedOut
}
