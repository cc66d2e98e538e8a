package failed

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

// Layer is a queue in which failed messages wait for their next visit.
type Layer struct {
	Delay  time.Duration
	Jitter float64 // share of Delay that is added at random, at most: 0 to 1
}

// In an outage, a message that has used up its layers waits again: see waits. The message
// itself may be the reason that its calls fail, so it does not wait forever (law W2).
const (
	outageVisits = 100         // a message with this many visits, also before the outage, waits no longer
	outageDelay  = time.Minute // of each wait in its own queue
)

// OwnQueue is the layer of a message that returns to the queue it came from.
const OwnQueue = -1

// Router decides where failed messages go. The n-th failed visit leads to the n-th layer.
// After the last layer a message is a dead letter, or waits for the end of an outage.
type Router[T any] struct {
	Layers    []Layer
	HasLeases bool          // the engine leases messages, so they can wait in their own queue (OwnQueue), and be made due early
	Remembers time.Duration // how long the server remembers a request with an id; if 0, each call in doubt becomes a dead letter
}

// Route is the destination of a failed message.
type Route struct {
	Meta  message.Meta  // including the failure
	Cause store.Cause   // of a dead letter; "" if the message gets a further visit
	Layer int           // index of the layer, or OwnQueue; 0 for a dead letter
	Delay time.Duration // until the next visit; 0 for a dead letter
}

// Route returns the destination of a failed message. ctx is the context of the offer. A
// message without an id gets a random id, the same at each offer. Route returns an error
// for an element that was cut off, since it has not failed.
func (r *Router[T]) Route(ctx context.Context, f asyncop.Failure[T], now time.Time) (to Route, err error) {
	if f.Abandoned {
		return to, fmt.Errorf("the element was cut off, and has not failed: %w", f.Err)
	}
	meta, demanded := History(ctx, f, now), Demand(f)
	if f.UnsafeToRepeat() {
		r.noteRequest(ctx, f, &meta)
	}
	if meta.ID == "" {
		meta.ID = ctxkey.OfferID(ctx)
	}
	cause := r.causeOf(f, &meta, demanded)
	if cause != "" {
		return Route{Meta: meta, Cause: cause}, nil
	}
	to = Route{Meta: meta, Layer: OwnQueue, Delay: outageDelay}
	if len(r.Layers) > 0 {
		to.Layer = min(meta.Visit, len(r.Layers)) - 1
		to.Delay = r.Layers[to.Layer].delay()
	}
	to.Delay = max(to.Delay, demanded)
	if IsPast(meta.Deadline, now.Add(to.Delay)) {
		return Route{Meta: meta, Cause: settle.CauseOf(&meta, store.Expired)}, nil
	}
	if to.Layer != OwnQueue {
		r.noteOutage(ctx, &to, to.Delay-demanded)
	}
	return to, nil
}

// causeOf returns the cause of the dead letter of a failed message, or "" if the message
// may get a further visit.
func (r *Router[T]) causeOf(f asyncop.Failure[T], meta *message.Meta, demanded time.Duration) store.Cause {
	switch {
	case meta.UnsafeToRepeat && !r.mayRepeat(meta, demanded):
		return store.UnsafeToRepeat
	case f.Reason.IsRejection():
		return settle.CauseOf(meta, store.Permanent)
	case meta.Visit > len(r.Layers) && !r.waits(meta.Visit, f):
		return settle.CauseOf(meta, store.Exhausted)
	}
	return ""
}

// mayRepeat reports whether the next visit may repeat the call in doubt (law X1): the
// server must remember the request until the demanded delay and all remaining layers have
// passed.
func (r *Router[T]) mayRepeat(meta *message.Meta, demanded time.Duration) bool {
	lastVisit := meta.LastFailure.Add(demanded).Add(r.rest(meta.Visit))
	return r.Remembers > 0 && meta.Remembered.After(lastVisit)
}

// waits reports whether a message without a further layer waits for the end of an outage.
// In the outage its call has failed, and then its timeout passed while it waited for the
// backend (BackendDown).
//
// It does not wait if the service has answered other messages since the visit before
// (OthersAnswered): then the message itself may be the reason. But after the first visit
// without a further layer it waits in any case, since the service may have answered the
// others before the outage began.
func (r *Router[T]) waits(visit int, f asyncop.Failure[T]) bool {
	canWait := len(r.Layers) > 0 || r.HasLeases
	isOutage := f.BackendDown && visit < outageVisits
	isFirst := visit == len(r.Layers)+1
	return canWait && isOutage && (isFirst || !f.OthersAnswered)
}

// IsPast reports whether a deadline has passed. The zero deadline never passes.
func IsPast(deadline, at time.Time) bool { return !deadline.IsZero() && !deadline.After(at) }

// noteRequest records in meta the request of a call that is unsafe to repeat, and until
// when its server remembers it (Remembered). The first row that applies counts:
//
//	the server would not recognise a repeat  Remembered is zero: it cannot be repeated
//	no call was in doubt before this visit   Remembered is the first call + r.Remembers
//	another request was in doubt already     Remembered is zero: Meta has room for one
//	the same request was in doubt already    Remembered stays
//
// The id of a request is known only if exactlyonce/caller has tracked it. The user's
// function makes other ids, and makes the same id again in the next visit. So if the
// request that was in doubt already has no known id, it counts as the same request.
func (r *Router[T]) noteRequest(ctx context.Context, f asyncop.Failure[T], meta *message.Meta) {
	received, _ := message.MetaFromContext(ctx) // without the doubt of this visit
	tracked, isTracked := ctx.Value(ctxkey.Tracked{}).(ctxkey.TrackedElement)
	request := ""
	if isTracked {
		request = tracked.Carried()
	}
	losesID := isTracked && request == "" // the next visit gets another id
	isRecognised := f.Deduplicated && !losesID && r.Remembers > 0
	isOtherRequest := received.Request != "" && !isSameRequest(received.Request, request)
	switch {
	case !isRecognised:
		meta.Remembered = time.Time{}
	case !received.UnsafeToRepeat:
		meta.Request = request
		meta.Remembered = firstCall(f, meta.LastFailure).Add(r.Remembers)
	case isOtherRequest: // for example of another operator; Meta keeps the first request
		meta.Remembered = time.Time{}
	default: // the server counts from the first call
		meta.Request = request
	}
}

// firstCall returns when the first call of a failed visit began. If that is unknown, it
// returns when the element was accepted. failedAt is when the visit failed.
func firstCall[T any](f asyncop.Failure[T], failedAt time.Time) time.Time {
	if f.FirstAttempt.IsZero() {
		return failedAt.Add(-f.Elapsed)
	}
	return f.FirstAttempt
}

// rest returns the sum of the longest delays of the layers that are left after a visit.
func (r *Router[T]) rest(visit int) (d time.Duration) {
	for i := visit - 1; i < len(r.Layers); i++ {
		d += r.Layers[i].longest()
		if d < 0 {
			return math.MaxInt64
		}
	}
	return d
}

func (l Layer) longest() time.Duration {
	if d := l.Delay + time.Duration(l.Jitter*float64(l.Delay)); d >= l.Delay {
		return d
	}
	return math.MaxInt64
}

// delay returns a random delay in the layer, at least l.Delay (law D3).
func (l Layer) delay() time.Duration {
	extra := time.Duration(rand.Float64() * l.Jitter * float64(l.Delay))
	if d := l.Delay + extra; d >= l.Delay {
		return d
	}
	return l.Delay // too long for a Duration
}
