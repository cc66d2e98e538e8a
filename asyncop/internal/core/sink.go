package core

import (
	"context"
	"errors"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// An element that was not taken is offered again after firstOffer. The wait doubles up to
// lastOffer.
const (
	firstOffer = 100 * time.Millisecond
	lastOffer  = 10 * time.Second
)

// HandOver offers failed elements to the failure sink until it takes them (law A1), one
// at a time, on a worker.
type HandOver[IN, OUT any] struct {
	core    *Machine[IN, OUT]
	offers  perSlot[*offer]            // of elements in phase failing
	toOffer fifo.Queue[*Slot[IN, OUT]] // elements whose offer is due
	running *offer                     // the running call, or nil
}

// offer is an offer of an element to the sink. It is the context of the call, and posts
// its letter when the call returns.
type offer struct {
	call.Token
	wait time.Duration // before the next offer
	name *ctxkey.Offer // the same in all offers, so that the sink recognises repeats

	// Written before done is closed.
	err            error
	refused        bool          // the sink can never take the element
	unsafeToRepeat bool          // the element was refused, and its call must not be repeated
	done           chan struct{} // closed when the call returns
}

// callSink calls the sink on a worker, unless the offer is late.
func (h *HandOver[IN, OUT]) callSink(ctx context.Context, o *offer, r Report[IN]) {
	defer o.Finish(false) // an offer is not counted as a late completion
	defer close(o.done)
	o.err = o.Late()
	if o.err != nil {
		return
	}
	var g guard.Guard
	defer g.Close(func(recovered any) { o.err = call.Panicked(recovered) }) // law A6: the element was not taken
	o.err = h.core.User.HandOver(ctx, r)
	o.refused = errors.Is(o.err, message.ErrRefused)
	g.Returned()
	mayRepeat := !r.InDoubt || h.core.Policy.AllowsRepeat(r.NoRetryReason)
	if o.refused && !mayRepeat {
		o.unsafeToRepeat = true // stays true if IsIdempotent panics
		_ = call.OffLoop(func() error { o.unsafeToRepeat = !h.core.Policy.IsIdempotent(r.Element); return nil })
	}
}

// awaitOffer makes s, which has failed, wait for its offer to the sink. With key order,
// the offer waits until s is the first of its line.
func (h *HandOver[IN, OUT]) awaitOffer(s *Slot[IN, OUT]) {
	g := h.core
	g.enter(s, failing)
	if g.keys == nil || g.keys.isFirst(s) { // otherwise leaveLine adds it
		h.toOffer.Push(s)
	}
}

func (h *HandOver[IN, OUT]) mayOffer() bool { return h.running == nil && h.toOffer.Len() > 0 }

func (h *HandOver[IN, OUT]) forget() {
	h.toOffer, h.running = fifo.Queue[*Slot[IN, OUT]]{}, nil
}

// offerNext offers the oldest failure, unless a call is running.
func (h *HandOver[IN, OUT]) offerNext() {
	if !h.mayOffer() {
		return
	}
	g, s := h.core, h.toOffer.Pop()
	o, ctx := h.newOffer(s)
	*h.offers.ref(s.index) = o
	h.running = o
	g.refresh()
	r := g.report(s)
	g.Host.Run(func() { h.callSink(ctx, o, r) })
}

func (h *HandOver[IN, OUT]) newOffer(s *Slot[IN, OUT]) (*offer, context.Context) {
	g, o := h.core, &offer{wait: firstOffer, name: new(ctxkey.Offer), done: make(chan struct{})}
	if last := h.offers.get(s.index); last != nil {
		o.wait, o.name = min(2*last.wait, lastOffer), last.name
	}
	g.bind(s, &o.Token, 0, call.NoDeadline)
	ctx := o.name.With(g.context(s, &o.Token))
	steps := g.history.stepsOf(s)
	if steps != nil {
		ctx = context.WithValue(ctx, ctxkey.Timeline{}, steps)
	}
	if g.backend != nil {
		outage := g.backend.outage(s)
		if outage != "" {
			ctx = context.WithValue(ctx, ctxkey.Outage{}, outage)
		}
	}
	return o, ctx
}

// answered continues after an offer of s: s was taken, or is offered again later. If the
// sink can never take s, its message becomes a dead letter. Without a message s fails the
// run (law D4).
func (h *HandOver[IN, OUT]) answered(s *Slot[IN, OUT]) {
	g := h.core
	o := h.offers.get(s.index)
	h.running = nil
	switch {
	case o.err != nil && !o.refused:
		g.readClock()
		g.Timers.Arm(&s.timer, later(g.now, o.wait))
		g.User.LogNotTaken(g.report(s), o.err, o.wait)
		return
	case o.refused:
		s.err = errors.Join(s.err, o.err)
		isMessage := g.messages.Reject(s, o.unsafeToRepeat) // before Ended acknowledges it
		if !isMessage {
			g.enter(s, endedWithoutResults)
			g.allowToLeave(s)
			g.failRun(s)
			return
		}
	}
	r := g.report(s) // before Ended: the observers still have the context
	g.Ended(s, observe.HandedOver)
	g.enter(s, endedWithoutResults)
	g.allowToLeave(s)
	if o.refused {
		g.User.LogNotTaken(r, o.err, 0)
	} else {
		g.User.LogGivenUp(r, observe.HandedOver)
	}
}

// Cut ends the context of a running call, because the operator ends. The loop no longer
// reads the letter of the call, so the driver calls Await and WasTaken.
func (h *HandOver[IN, OUT]) Cut() {
	if h.running != nil {
		h.running.Token.Cut()
	}
}

// Await waits for a running call. It is called after Abandon.
func (h *HandOver[IN, OUT]) Await() {
	if h.running != nil {
		<-h.running.done
	}
}

// WasTaken reports whether the call that ran when the run ended took s, which Abandon has
// returned. It is called after Await.
func (h *HandOver[IN, OUT]) WasTaken(s *Slot[IN, OUT]) bool {
	return h.running != nil && h.running.err == nil && h.offers.get(s.index) == h.running
}

// OfferAtEnd calls the sink for an element that Abandon has returned, unless limit has
// ended. The context of the call ends with limit. If the element was cut off, the sink
// gets cause in place of the last error of an attempt. The returned report has the last
// error.
func (h *HandOver[IN, OUT]) OfferAtEnd(limit context.Context, s *Slot[IN, OUT], cause error) (r Report[IN], declined error) {
	_, values := h.newOffer(s)
	ctx := call.WithEnd(values, limit)
	r = h.core.report(s)
	r.CutOff = !s.WaitsForSink()
	ended := context.Cause(limit)
	if ended != nil {
		return r, ended
	}
	offered := r
	if r.CutOff {
		offered.Err = cause
	}
	return r, call.OffLoop(func() error { return h.core.User.HandOver(ctx, offered) })
}
