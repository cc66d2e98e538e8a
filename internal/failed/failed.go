// Package failed turns what an operator says of an element that it has given up into the history of a message.
package failed

import (
	"context"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// History returns what is known about a message after a visit has failed (law D6): what ctx has of it
// ([message.MetaFromContext]), and what the operator knows.
func History[T any](ctx context.Context, f asyncop.Failure[T], now time.Time) message.Meta {
	meta, _ := message.MetaFromContext(ctx)
	meta.Visit = max(1, meta.Visit)
	meta.Attempts += f.Attempts
	if meta.FirstFailure.IsZero() {
		meta.FirstFailure = now
	}
	meta.LastFailure, meta.LastError = now, guard.Text(f.Err)
	meta.UnsafeToRepeat = meta.UnsafeToRepeat || f.UnsafeToRepeat() // an earlier call is not less in doubt since
	meta.Reasons = slices.Clone(meta.Reasons)                       // they are shared
	meta.Timeline = slices.Concat(meta.Timeline, stepsOf(ctx, meta.Visit))
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

// stepsOf returns the calls of a visit that failed; ctx is the context of the failure sink.
func stepsOf(ctx context.Context, visit int) (calls []message.Step) {
	steps, _ := ctx.Value(ctxkey.Timeline{}).([]observe.Step)
	for _, s := range steps {
		step := message.Step{
			Visit: visit, Attempt: s.Attempt, Begun: s.Begun, Took: s.Duration, Wait: s.Delay, Retried: s.Retry,
			Reason: s.Reason.Name(), Backend: s.Backend,
		}
		if s.Err != nil {
			step.Error = guard.Text(s.Err)
		}
		calls = append(calls, step)
	}
	return calls
}

// Onward returns what is known about a message for the next queue: its history begins anew.
func Onward(m message.Meta) message.Meta {
	return message.Meta{ID: m.ID, Key: m.Key, Origin: m.Origin, Provider: m.Provider, Deadline: m.Deadline, Headers: m.Headers}
}

// Afresh makes a dead letter's history that of a message which returns, as for a first visit. A call in doubt whose request is
// not remembered any more is forgotten, since a person lets it return all the same: its next call is another request.
func Afresh(meta *message.Meta, now time.Time) {
	meta.Visit, meta.Attempts = 0, 0
	meta.Merges++
	if !meta.Remembered.After(now) {
		meta.UnsafeToRepeat, meta.Request, meta.Remembered = false, "", time.Time{}
	}
}

// maxDemand bounds what a server may demand. Some send a point in time where seconds are meant: that would be decades.
const maxDemand = 24 * time.Hour

// Demand returns how long the server wants not to be called, such as by Retry-After.
func Demand[T any](f asyncop.Failure[T]) time.Duration { return min(f.Demanded, maxDemand) }
