// Package failed records the failure of an element in the history of its message, and
// decides where the message goes.
package failed

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

// History returns the Meta of the message in ctx with the failure of this visit added
// (law D6).
func History[T any](ctx context.Context, f asyncop.Failure[T], now time.Time) message.Meta {
	meta, _ := message.MetaFromContext(ctx)
	settle.DropPointsTo(&meta)
	meta.Visit = max(1, meta.Visit) // an element without a message is in its first visit
	meta.Attempts += f.Attempts
	settle.NoteFailure(&meta, now)
	meta.LastError = guard.Text(f.Err)
	meta.Outage = "" // of an earlier visit
	if meta.UnsafeToRepeat && wasRefused(ctx, meta.Request) {
		EndDoubt(&meta)
	}
	meta.UnsafeToRepeat = meta.UnsafeToRepeat || f.UnsafeToRepeat() // an earlier call stays in doubt
	meta.Reasons = slices.Clone(meta.Reasons)                       // ctx shares the slice
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

// wasRefused reports whether the server has refused request for good in this visit.
// request is the request that earlier visits have left in doubt. The tracker in ctx may
// be of an outer operator, with another request. So wasRefused also requires that request
// is the tracker's latest request (Carried).
func wasRefused(ctx context.Context, request string) bool {
	e, ok := ctx.Value(ctxkey.Tracked{}).(ctxkey.TrackedElement)
	return ok && e.AllRefused() && isSameRequest(request, e.Carried())
}

// isSameRequest reports whether both texts are ids of the same tracked request. Their
// attempts, steps and parameters such as ";only=1" may differ.
func isSameRequest(a, b string) bool {
	var first, second exactlyonce.ID
	err := errors.Join(first.UnmarshalText([]byte(a)), second.UnmarshalText([]byte(b)))
	return err == nil && first.Client == second.Client && first.Sequence == second.Sequence
}

// stepsOf returns the calls of a failed visit. ctx is from the failure sink.
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

// Onward returns a message's Meta for the next queue, without its history.
func Onward(m message.Meta) message.Meta {
	return message.Meta{
		ID: m.ID, Put: m.Put, Key: m.Key, Origin: m.Origin, Provider: m.Provider, Deadline: m.Deadline, Headers: m.Headers,
	}
}

// ResetForMerge resets the history of a dead letter that is merged back. The doubt about
// a call stays while the server remembers the request. Otherwise ResetForMerge removes
// the doubt: a person has decided to repeat the call as another request.
func ResetForMerge(meta *message.Meta, now time.Time) {
	meta.Visit, meta.Attempts = 0, 0
	meta.Merges++
	if !meta.Remembered.After(now) {
		EndDoubt(meta)
	}
}

// EndDoubt removes a call in doubt from the history.
func EndDoubt(meta *message.Meta) {
	meta.UnsafeToRepeat = false
	meta.Request = ""
	meta.Remembered = time.Time{}
}

// maxDemand limits the delay that a server demands. Some servers send a time in place of
// a number of seconds, which would be a delay of decades.
const maxDemand = 24 * time.Hour

// Demand returns the delay that the server demands, for instance with Retry-After. It is
// at most maxDemand.
func Demand[T any](f asyncop.Failure[T]) time.Duration { return min(f.Demanded, maxDemand) }
