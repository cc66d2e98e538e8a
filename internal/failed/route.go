package failed

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

// Layer is where failed messages wait for their next visit.
type Layer struct {
	Delay  time.Duration
	Jitter float64 // the share of the delay that is added at random, at most: 0 to 1
}

// In an outage a message whose visits are used up waits once more, in the last layer or in its own queue: what is down is its service. But it
// may be what breaks the service. So that ends (law W2) when the service has answered between two visits that failed so, and by a bound.
const (
	outageVisits = 100 // at most, those before the outage included
	outageDelay  = time.Minute
)

// OwnQueue is the layer of a message that goes back to the queue it came from.
const OwnQueue = -1

// Router says where failures go. The n-th visit that fails sends a message to the n-th layer, and behind the last one it is a dead letter,
// unless its backend is down.
type Router[T any] struct {
	Layers    []Layer
	Returns   bool          // a message may go back to its own queue: OwnQueue
	Remembers time.Duration // how long the server remembers a request that has an id; 0: each call in doubt is a dead letter
}

// Route is where a failure goes.
type Route struct {
	Meta  message.Meta  // with the failure
	Cause store.Cause   // of a dead letter; "": it goes to a layer
	Layer int           // its index, or OwnQueue
	Delay time.Duration // there
}

// Route returns where a failure goes: ctx is that of the offer. An element that was cut off did not fail, and has an error. One without an
// id gets a random one, the same at each offer.
func (r *Router[T]) Route(ctx context.Context, f asyncop.Failure[T], now time.Time) (to Route, err error) {
	if f.Abandoned {
		return to, fmt.Errorf("the element was cut off, and has not failed: %w", f.Err)
	}
	before, _ := message.MetaFromContext(ctx)
	meta, demanded := History(ctx, f, now), Demand(f)
	carried := r.carry(ctx, f, before, &meta, demanded)
	if meta.ID == "" {
		meta.ID = ctxkey.OfferID(ctx)
	}
	to = Route{Meta: meta}
	switch {
	case meta.UnsafeToRepeat && !carried:
		to.Cause = store.UnsafeToRepeat
	case f.Reason.IsRejection():
		to.Cause = settle.CauseOf(&meta, store.Permanent)
	case meta.Visit > len(r.Layers) && !r.waits(meta.Visit, f):
		to.Cause = settle.CauseOf(&meta, store.Exhausted)
	default:
		to.Layer, to.Delay = min(meta.Visit, len(r.Layers))-1, outageDelay
		if to.Layer != OwnQueue {
			to.Delay = r.Layers[to.Layer].delay()
		}
		to.Delay = max(to.Delay, demanded)
		if IsPast(meta.Deadline, now.Add(to.Delay)) {
			to.Cause, to.Delay = settle.CauseOf(&meta, store.Expired), 0
		}
	}
	return to, nil
}

// waits reports whether a message waits for the end of an outage although its visits are used up:
// it was called, has failed, and then waited in vain for its backend. (A message that was not
// called is released by the operator, and does not come here.)
//
// The first visit too many, n+1, always waits: the failure before it may not have been part of an
// outage. Later visits wait only if the service has not answered other messages meanwhile.
func (r *Router[T]) waits(visit int, f asyncop.Failure[T]) bool {
	n := len(r.Layers)
	canWait := f.BackendDown && visit <= outageVisits && (n > 0 || r.Returns)
	return canWait && (visit <= n+1 || !f.OthersAnswered)
}

// IsPast says whether a deadline, if there is one, has passed at a time.
func IsPast(deadline, at time.Time) bool { return !deadline.IsZero() && !deadline.After(at) }

// carry notes under which id a call in doubt is to be made again, and reports whether the next visit may make it (law X1): the
// server remembers it longer than the rest of the layers lasts.
func (r *Router[T]) carry(ctx context.Context, f asyncop.Failure[T], before message.Meta, meta *message.Meta, demanded time.Duration) bool {
	if f.UnsafeToRepeat() {
		element, numbered := ctx.Value(oncewire.ElementKey{}).(oncewire.Element)
		request := ""
		if numbered {
			request = element.Carried()
		}
		var id, other exactlyonce.ID
		_ = id.UnmarshalText([]byte(request)) // zero: there is none
		began := f.FirstAttempt
		if began.IsZero() {
			began = meta.LastFailure.Add(-f.Elapsed)
		}
		err := other.UnmarshalText([]byte(before.Request))
		switch {
		case !f.Deduplicated || r.Remembers == 0 || numbered && request == "":
			meta.Remembered = time.Time{} // a request has no id, or none that it keeps
		case !before.UnsafeToRepeat:
			meta.Request, meta.Remembered = request, began.Add(r.Remembers)
		case err == nil && (other.Client != id.Client || other.Sequence != id.Sequence):
			meta.Remembered = time.Time{} // that of another operator is in doubt, too, and there is room for one
		default:
			meta.Request = request // another attempt; the server may not have seen it, so its time does not begin anew
		}
	}
	return r.Remembers > 0 && meta.UnsafeToRepeat && meta.Remembered.After(meta.LastFailure.Add(demanded).Add(r.rest(meta.Visit)))
}

// rest returns how long the layers last at most that a message goes through from its visit on.
func (r *Router[T]) rest(visit int) (d time.Duration) {
	for i := visit - 1; i < len(r.Layers); i++ {
		if d += r.Layers[i].longest(); d < 0 {
			return math.MaxInt64
		}
	}
	return d
}

// longest returns the longest delay of a message.
func (l Layer) longest() time.Duration {
	if d := l.Delay + time.Duration(l.Jitter*float64(l.Delay)); d >= l.Delay {
		return d
	}
	return math.MaxInt64
}

// delay returns the delay of a message: never less than the layer's (law D3).
func (l Layer) delay() time.Duration {
	extra := time.Duration(rand.Float64() * l.Jitter * float64(l.Delay))
	if d := l.Delay + extra; d >= l.Delay {
		return d
	}
	return l.Delay // too long for a Duration
}
