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

// In an outage a message whose visits are used up waits again, in the last layer or in
// its own queue. But the message itself may break the service. So it stops waiting (law
// W2) if the service has answered other messages between two such visits, and after
// outageVisits.
const (
	outageVisits = 100 // most visits, including visits before the outage
	outageDelay  = time.Minute
)

// OwnQueue is the layer of a message that returns to the queue it came from.
const OwnQueue = -1

// Router decides where failed messages go: after the n-th failed visit to the n-th layer,
// after the last layer to the dead letters, unless the backend is down.
type Router[T any] struct {
	Layers    []Layer
	HasLeases bool          // the engine leases messages, so they can wait in their own queue (OwnQueue), and be made due early
	Remembers time.Duration // how long the server remembers a request with an id; if 0, each call in doubt becomes a dead letter
}

// Route is the destination of a failed message.
type Route struct {
	Meta  message.Meta  // including the failure
	Cause store.Cause   // of a dead letter; "" if the message goes to a layer
	Layer int           // index of the layer, or OwnQueue
	Delay time.Duration // in the layer; 0 for a dead letter
}

// Route returns the destination of a failed message. ctx is the context of the offer. An
// element that was cut off is an error, not a failure. A message without an id gets a
// random id, the same at each offer.
func (r *Router[T]) Route(ctx context.Context, f asyncop.Failure[T], now time.Time) (to Route, err error) {
	if f.Abandoned {
		return to, fmt.Errorf("the element was cut off, and has not failed: %w", f.Err)
	}
	before, _ := message.MetaFromContext(ctx) // as received: meta also has this visit's doubt
	meta, demanded := History(ctx, f, now), Demand(f)
	mayRepeat := r.noteDoubt(ctx, f, before, &meta, demanded)
	if meta.ID == "" {
		meta.ID = ctxkey.OfferID(ctx)
	}
	to = Route{Meta: meta}
	switch {
	case meta.UnsafeToRepeat && !mayRepeat:
		to.Cause = store.UnsafeToRepeat
	case f.Reason.IsRejection():
		to.Cause = settle.CauseOf(&meta, store.Permanent)
	case meta.Visit > len(r.Layers) && !r.waits(meta.Visit, f):
		to.Cause = settle.CauseOf(&meta, store.Exhausted)
	default:
		to.Layer, to.Delay = OwnQueue, outageDelay
		if len(r.Layers) > 0 {
			to.Layer = min(meta.Visit, len(r.Layers)) - 1
			to.Delay = r.Layers[to.Layer].delay()
		}
		to.Delay = max(to.Delay, demanded)
		if IsPast(meta.Deadline, now.Add(to.Delay)) {
			to.Cause, to.Delay = settle.CauseOf(&meta, store.Expired), 0
		}
		if to.Cause == "" && to.Layer != OwnQueue {
			r.noteOutage(ctx, &to, to.Delay-demanded)
		}
	}
	return to, nil
}

// waits reports whether a message whose visits are used up waits for the end of an
// outage: its call has failed, and then its timeout passed while it waited for the
// backend.
//
// With n layers, visit n+1 is the first visit without a further layer. If it fails in an
// outage, the message waits in any case, since the service may have answered others
// before the outage began. If a later visit fails, the message waits only if the service
// has answered no other message since the visit before (OthersAnswered).
func (r *Router[T]) waits(visit int, f asyncop.Failure[T]) bool {
	n := len(r.Layers)
	canWait := f.BackendDown && visit < outageVisits && (n > 0 || r.HasLeases)
	return canWait && (visit <= n+1 || !f.OthersAnswered)
}

// IsPast reports whether a deadline has passed. The zero deadline never passes.
func IsPast(deadline, at time.Time) bool { return !deadline.IsZero() && !deadline.After(at) }

// noteDoubt records in meta the id with which a call in doubt can be repeated. before is
// the Meta as received. It reports whether the next visit may repeat the call (law X1):
// the server must remember the request until the demanded delay and all remaining layers
// have passed.
func (r *Router[T]) noteDoubt(ctx context.Context, f asyncop.Failure[T], before message.Meta, meta *message.Meta, demanded time.Duration) (mayRepeat bool) {
	if f.UnsafeToRepeat() {
		r.noteRequest(ctx, f, before, meta)
	}
	end := meta.LastFailure.Add(demanded).Add(r.rest(meta.Visit)) // of the remaining layers
	return r.Remembers > 0 && meta.UnsafeToRepeat && meta.Remembered.After(end)
}

// noteRequest records in meta the request of a call that is unsafe to repeat, and until
// when its server remembers it (Remembered). The first row that applies counts:
//
//	the server would not recognise a repeat  zero: the call cannot be repeated
//	no earlier visit has left a doubt        the first call + Router.Remembers
//	another request is in doubt already      zero: Meta keeps only the first request
//	the same request is in doubt already     the time stays
//
// An earlier request without an id in Meta counts as the same request: it has the user's
// own id, so it can be repeated as well.
func (r *Router[T]) noteRequest(ctx context.Context, f asyncop.Failure[T], before message.Meta, meta *message.Meta) {
	element, isTracked := ctx.Value(ctxkey.Tracked{}).(ctxkey.TrackedElement)
	// The id of a request is known only if exactlyonce/caller has tracked it. A request
	// with the user's own id can be repeated, too: its function makes the same id.
	request := ""
	if isTracked {
		request = element.Carried()
	}
	losesID := isTracked && request == "" // the tracker does not give the next visit the same id
	switch {
	case !f.Deduplicated || losesID || r.Remembers == 0:
		meta.Remembered = time.Time{}
	case !before.UnsafeToRepeat:
		meta.Request = request
		meta.Remembered = firstCall(f, meta.LastFailure).Add(r.Remembers)
	case before.Request != "" && !isSameRequest(before.Request, request):
		// For example of two operators. Meta keeps the first request.
		meta.Remembered = time.Time{}
	default:
		// The server counts from the first call, so Remembered stays.
		meta.Request = request
	}
}

// firstCall returns when the first call of a failed visit began or, if that is unknown,
// when its element was accepted.
func firstCall[T any](f asyncop.Failure[T], failed time.Time) time.Time {
	if f.FirstAttempt.IsZero() {
		return failed.Add(-f.Elapsed)
	}
	return f.FirstAttempt
}

// rest returns the longest total delay after a visit.
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
