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

// An element that was not taken is offered again after firstOffer, then after twice as long, and so on up to lastOffer.
const (
	firstOffer = 100 * time.Millisecond
	lastOffer  = 10 * time.Second
)

// HandOver offers elements that have failed to a sink, on a worker, one at a time, until it takes them (law A1).
type HandOver[IN, OUT any] struct {
	core     *Machine[IN, OUT]
	messages *Messages[IN, OUT]
	sink     func(ctx context.Context, r Report[IN]) error
	notTaken func(r Report[IN], err error, wait time.Duration)
	failing  fifo.Queue[*Slot[IN, OUT]] // those that are to be offered now
	running  *offer                     // the call of the sink that runs; nil: none does
}

// offer is an element that is offered to the sink, from its first offer on. It is the context of the call that runs, and
// its letter says that the call has returned.
type offer struct {
	call.Token
	wait time.Duration // before the offer after this one
	name *ctxkey.Offer // of the element, in all of its offers

	err     error         // written before done is closed
	refused bool          // err says that the sink can never take the element
	unknown bool          // and the element's call must not happen twice, and may have taken effect
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

// AddHandOver adds the feature. notTaken learns of an element that the sink has not taken, and when it is offered again; 0: never.
func AddHandOver[IN, OUT any](
	g *Machine[IN, OUT], messages *Messages[IN, OUT], sink func(ctx context.Context, r Report[IN]) error,
	notTaken func(r Report[IN], err error, wait time.Duration),
) *HandOver[IN, OUT] {
	h := &HandOver[IN, OUT]{core: g, messages: messages, sink: sink, notTaken: notTaken}
	g.offer = func(s *Slot[IN, OUT]) {
		g.enter(s, failing)
		if g.inTurn == nil || g.inTurn(s) { // else when it is
			h.failing.Push(s)
		}
	}
	g.on[failing] = phaseMoments[IN, OUT]{
		answered: h.answered, fired: h.failing.Push, inTurn: h.failing.Push, cut: func(*Slot[IN, OUT], bool) {},
	}
	g.isBusy = append(g.isBusy, func() bool { return h.running == nil && h.failing.Len() > 0 })
	g.turnEnds = append(g.turnEnds, h.offerNext)
	g.cut = append(g.cut, h.Cut)
	g.forget = append(g.forget, func() { h.failing, h.running = fifo.Queue[*Slot[IN, OUT]]{}, nil })
	return h
}

// offerNext offers the oldest element that has failed, unless a call of the sink runs.
func (h *HandOver[IN, OUT]) offerNext() {
	if h.running != nil || h.failing.Len() == 0 {
		return
	}
	g, s := h.core, h.failing.Pop()
	o, ctx := h.newOffer(s)
	*g.held.ref(s.place) = o
	h.running = o
	g.refresh()
	r := g.report(s)
	g.Host.Run(func() { h.callSink(ctx, o, r) })
}

// newOffer returns the next offer of s, and the context of its call.
func (h *HandOver[IN, OUT]) newOffer(s *Slot[IN, OUT]) (*offer, context.Context) {
	g, o := h.core, &offer{wait: firstOffer, name: new(ctxkey.Offer), done: make(chan struct{})}
	if before, ok := g.held.get(s.place).(*offer); ok {
		o.wait, o.name = min(2*before.wait, lastOffer), before.name
	}
	g.bind(s, &o.Token, 0, call.NoDeadline)
	ctx := o.name.With(g.context(s, &o.Token))
	if of := g.wayOf; of != nil && of(s) != nil {
		ctx = context.WithValue(ctx, ctxkey.Timeline{}, of(s))
	}
	return o, ctx
}

// answered goes on after the sink has answered: s is taken, or will be offered again. If the sink can never take it, a message goes to
// the dead letters of its source. An element that is not a message has nobody to go to, so it fails the run: another offer would hold
// its slot for ever (law D4).
func (h *HandOver[IN, OUT]) answered(s *Slot[IN, OUT]) {
	g := h.core
	o := g.held.get(s.place).(*offer)
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
	r := g.report(s) // while its observers know of it
	g.Ended(s, observe.HandedOver)
	g.enter(s, ended)
	g.complete(s)
	if o.refused {
		h.notTaken(r, o.err, 0)
	} else {
		g.Hooks.GivenUp(r, observe.HandedOver)
	}
}

// Cut ends the context of the call of the sink that runs, if one does: its element is not ended any more.
func (h *HandOver[IN, OUT]) Cut() {
	if h.running != nil {
		h.running.Token.Cut()
	}
}

// Await waits for the call of the sink that runs, if one does. For use after Abandon.
func (h *HandOver[IN, OUT]) Await() {
	if h.running != nil {
		<-h.running.done
	}
}

// WasTaken reports whether the sink has taken s, which Abandon has returned, meanwhile. For use after Await.
func (h *HandOver[IN, OUT]) WasTaken(s *Slot[IN, OUT]) bool {
	return h.running != nil && h.running.err == nil && h.core.held.get(s.place) == any(h.running)
}

// Last calls the sink for an element that Abandon has returned, with err as the reason if it has not failed. The call's
// context has the values that it would have had before the end, and ends by cut: then there is no call. Last returns what the sink got,
// or would have got.
func (h *HandOver[IN, OUT]) Last(cut context.Context, s *Slot[IN, OUT], err error) (r Report[IN], declined error) {
	_, values := h.newOffer(s)
	ctx := call.WithEnd(values, cut)
	r = h.core.report(s)
	if over := context.Cause(cut); over != nil {
		return r, over
	}
	got := r
	if !r.Failed {
		got.Err = err
	}
	return r, call.OffLoop(func() error { return h.sink(ctx, got) })
}
