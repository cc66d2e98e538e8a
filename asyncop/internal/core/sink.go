package core

import (
	"context"
	"errors"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// An element that was not taken is offered again after firstOffer, then after twice as
// long, and so on up to lastOffer.
const (
	firstOffer = 100 * time.Millisecond
	lastOffer  = 10 * time.Second
)

// HandOver offers elements that have failed to the failure sink, until it takes them (law
// A1). A worker calls the sink for one element at a time.
type HandOver[IN, OUT any] struct {
	core     *Machine[IN, OUT]
	messages *Messages[IN, OUT]
	sink     func(ctx context.Context, r Report[IN]) error
	notTaken func(r Report[IN], err error, wait time.Duration)
	offers   perSlot[*offer]            // the last offer of each element in phase failing
	failing  fifo.Queue[*Slot[IN, OUT]] // elements to be offered now
	running  *offer                     // the call of the sink that runs; nil if none does
}

// offer is one offer of an element to the sink. It is the context of the call, and its
// letter reports that the call has returned.
type offer struct {
	call.Token
	wait time.Duration // before the next offer
	name *ctxkey.Offer // of the element, in all of its offers

	// Written before done is closed.
	err     error
	refused bool          // the sink can never take the element
	unknown bool          // refused, and the element's call may have taken effect and must not be repeated
	done    chan struct{} // closed when the call has returned
}

// callSink calls the sink, on a worker, unless the offer is late.
func (h *HandOver[IN, OUT]) callSink(ctx context.Context, o *offer, r Report[IN]) {
	defer o.Finish(false)
	defer close(o.done)
	if o.err = o.Late(); o.err != nil {
		return
	}
	var g guard.Guard
	defer g.Close(func(recovered any) { o.err = call.Panicked(recovered) }) // law A6: it was not taken
	o.err = h.sink(ctx, r)
	o.refused = errors.Is(o.err, message.ErrRefused)
	g.Returned()
	if o.refused && r.InDoubt && !decision.WantedRepeat(r.NoRetryReason, r.Reason) {
		o.unknown = true // also if what is asked breaks: the safe side
		_ = call.OffLoop(func() error { o.unknown = !h.core.Policy.IsIdempotent(r.Element); return nil })
	}
}

// AddHandOver adds a failure sink. notTaken is called for an element that the sink has
// not taken, with the time until its next offer; 0 means that it is not offered again.
func AddHandOver[IN, OUT any](
	g *Machine[IN, OUT], messages *Messages[IN, OUT], sink func(ctx context.Context, r Report[IN]) error,
	notTaken func(r Report[IN], err error, wait time.Duration),
) *HandOver[IN, OUT] {
	g.sink = &HandOver[IN, OUT]{
		core: g, messages: messages, sink: sink, notTaken: notTaken, offers: newPerSlot[*offer](g),
	}
	return g.sink
}

// take makes s, which has failed, wait for its offer. With key order it waits until it is
// the first of its key.
func (h *HandOver[IN, OUT]) take(s *Slot[IN, OUT]) {
	g := h.core
	g.enter(s, failing)
	if g.keys == nil || g.keys.isFirst(s) { // otherwise keyOrder.leaveLine adds it
		h.failing.Push(s)
	}
}

// mayOffer reports whether offerNext has something to do.
func (h *HandOver[IN, OUT]) mayOffer() bool { return h.running == nil && h.failing.Len() > 0 }

func (h *HandOver[IN, OUT]) forget() {
	h.failing, h.running = fifo.Queue[*Slot[IN, OUT]]{}, nil
}

// offerNext offers the oldest element that has failed, unless a call of the sink runs.
func (h *HandOver[IN, OUT]) offerNext() {
	if !h.mayOffer() {
		return
	}
	g, s := h.core, h.failing.Pop()
	o, ctx := h.newOffer(s)
	*h.offers.ref(s.index) = o
	h.running = o
	g.refresh()
	r := g.report(s)
	g.Host.Run(func() { h.callSink(ctx, o, r) })
}

// newOffer returns the next offer of s, and the context of its call.
func (h *HandOver[IN, OUT]) newOffer(s *Slot[IN, OUT]) (*offer, context.Context) {
	g, o := h.core, &offer{wait: firstOffer, name: new(ctxkey.Offer), done: make(chan struct{})}
	if before := h.offers.get(s.index); before != nil {
		o.wait, o.name = min(2*before.wait, lastOffer), before.name
	}
	g.bind(s, &o.Token, 0, call.NoDeadline)
	ctx := o.name.With(g.context(s, &o.Token))
	if g.history != nil {
		steps := g.history.stepsOf(s)
		if steps != nil {
			ctx = context.WithValue(ctx, ctxkey.Timeline{}, steps)
		}
	}
	return o, ctx
}

// answered continues after the sink has answered: s was taken, or is offered again later.
// If the sink can never take s, a message goes to the dead letters of its source. An
// element that is not a message fails the run, because further offers would hold its slot
// forever (law D4).
func (h *HandOver[IN, OUT]) answered(s *Slot[IN, OUT]) {
	g := h.core
	o := h.offers.get(s.index)
	h.running = nil
	switch {
	case o.err != nil && !o.refused:
		g.tick()
		g.Timers.Arm(&s.timer, later(g.now, o.wait))
		h.notTaken(g.report(s), o.err, o.wait)
		return
	case o.refused:
		s.err = errors.Join(s.err, o.err)
		if !h.messages.Reject(s, o.unknown) { // before the end acknowledges it
			g.enter(s, ended)
			g.complete(s)
			g.failRun(s)
			return
		}
	}
	r := g.report(s) // before Ended: its observers still have its context
	g.Ended(s, observe.HandedOver)
	g.enter(s, ended)
	g.complete(s)
	if o.refused {
		h.notTaken(r, o.err, 0)
	} else {
		g.Hooks.GivenUp(r, observe.HandedOver)
	}
}

// Cut ends the context of the call of the sink, if one runs. Its answer is not handled
// any more.
func (h *HandOver[IN, OUT]) Cut() {
	if h.running != nil {
		h.running.Token.Cut()
	}
}

// Await waits for the call of the sink, if one runs. It is called after Abandon.
func (h *HandOver[IN, OUT]) Await() {
	if h.running != nil {
		<-h.running.done
	}
}

// WasTaken reports whether the sink has taken s, which Abandon has returned, while the
// run ended. It is called after Await.
func (h *HandOver[IN, OUT]) WasTaken(s *Slot[IN, OUT]) bool {
	return h.running != nil && h.running.err == nil && h.offers.get(s.index) == h.running
}

// Last calls the sink for an element that Abandon has returned, with err as its error if
// it has not failed. The context of the call has the values that it had during the run,
// and ends with cut. If cut has ended, there is no call. Last returns the report that the
// sink got, or would have got.
func (h *HandOver[IN, OUT]) Last(cut context.Context, s *Slot[IN, OUT], err error) (r Report[IN], declined error) {
	_, values := h.newOffer(s)
	ctx := call.WithEnd(values, cut)
	r = h.core.report(s)
	ended := context.Cause(cut)
	if ended != nil {
		return r, ended
	}
	got := r
	if !r.Failed {
		got.Err = err
	}
	return r, call.OffLoop(func() error { return h.sink(ctx, got) })
}
