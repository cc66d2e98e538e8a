package core

import (
	"context"
	"errors"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// An element that was not taken is offered again after firstOffer, then after twice as long, and so on up to lastOffer.
const (
	firstOffer = 100 * time.Millisecond
	lastOffer  = 10 * time.Second
)

// handing is an element that is offered to Config.Sink, from its first offer on. It is the context of the call that runs, and
// its letter says that the call has returned.
type handing[IN, OUT any] struct {
	call.Token
	wait time.Duration // before the offer after this one

	err     error         // written before done is closed
	refused bool          // err says that the sink can never take the element
	unknown bool          // and the element's call must not happen twice, and may have taken effect
	done    chan struct{} // closed when the call has returned
}

// run calls the sink, on a worker, unless it is late. unknown, which asks user code, is called if the sink refuses the element.
func (h *handing[IN, OUT]) run(sink func() error, unknown func() bool, panicked func(recovered any) error) {
	defer h.Finish()
	defer close(h.done)
	if h.err = h.Late(); h.err != nil {
		return
	}
	var g guard.Guard
	defer g.Close(func(recovered any) { h.err = panicked(recovered) }) // law A6: it was not taken
	h.err = sink()
	h.refused = errors.Is(h.err, message.ErrRefused)
	g.Returned()
	if h.refused {
		h.unknown = true // if unknown breaks: the safe side
		_ = guard.Call(func() error { h.unknown = unknown(); return nil }, panicked)
	}
}

// handOver offers the oldest element that has failed, unless a call of the sink runs.
func (g *Machine[IN, OUT]) handOver() {
	if !g.mayHandOver() {
		return
	}
	s := g.failing.Pop()
	h := &handing[IN, OUT]{wait: firstOffer}
	if before, ok := s.more().held.(*handing[IN, OUT]); ok {
		h.wait = min(2*before.wait, lastOffer)
	}
	g.offer(s, h)
}

func (g *Machine[IN, OUT]) mayHandOver() bool { return g.handing == nil && g.failing.Len() > 0 }

// offer has the sink called for s.
func (g *Machine[IN, OUT]) offer(s *Slot[IN, OUT], h *handing[IN, OUT]) {
	h.done = make(chan struct{})
	h.Start(g.Host, g.slots.wait(s), 0, call.NoDeadline)
	h.Carry(s.message())
	s.more().held = h
	g.handing = h
	g.refresh()
	sink, policy, panicked, ctx, r := g.Sink, g.Policy, g.Host.Panicked, g.contextBeside(s, &h.Token), g.report(s)
	g.Host.Run(func() {
		h.run(func() error { return sink(ctx, r) }, func() bool {
			return r.InDoubt && !decision.WantedRepeat(r.Verdict, r.Reason) && !policy.IsIdempotent(r.Element)
		}, panicked)
	})
}

// answered goes on after the sink has answered: s is taken, can never be, or will be offered again.
func (g *Machine[IN, OUT]) answered(s *Slot[IN, OUT], h *handing[IN, OUT]) {
	g.handing = nil
	switch {
	case h.err == nil:
		g.taken(s)
		return
	case h.refused:
		g.notTakeable(s, h)
		return
	}
	g.tick()
	g.Timers.Arm(&s.timer, later(g.now, h.wait))
	g.Hooks.NotTaken(g.report(s), h.err, h.wait)
}

// taken ends s: it was handed over.
func (g *Machine[IN, OUT]) taken(s *Slot[IN, OUT]) {
	r := g.report(s) // while it has its rider
	g.Ended(s, observe.HandedOver)
	g.enter(s, ended)
	g.Queue.Complete(s.entry)
	g.leaveLane(s)
	g.Hooks.GivenUp(r, observe.HandedOver)
}

// notTakeable ends s, which the sink can never take. A message goes to the dead letters of its source. What is no message is nobody's,
// so it fails the run: another offer would hold its slot for ever (law D4).
func (g *Machine[IN, OUT]) notTakeable(s *Slot[IN, OUT], h *handing[IN, OUT]) {
	s.err = errors.Join(s.err, h.err)
	m := s.message()
	r := g.report(s)
	if !m.Pending() {
		g.enter(s, ended)
		g.Queue.Complete(s.entry)
		g.leaveLane(s)
		g.Ended(s, observe.Failed)
		if g.failure == nil {
			g.failedIn = r.Context
		}
		g.end(g.Hooks.RunFailed(r), ByElement)
		return
	}
	// Before the end acknowledges it: the first verdict counts (law D2).
	g.settlements.Push(settlement{m, message.Verdict{Kind: message.Rejected, Err: s.err, OutcomeUnknown: h.unknown}})
	g.Ended(s, observe.HandedOver)
	g.enter(s, ended)
	g.Queue.Complete(s.entry)
	g.leaveLane(s)
	g.Hooks.NotTaken(r, h.err, 0)
}

// CutSink ends the context of the call of the sink that runs, if one does: its element is not ended any more.
func (g *Machine[IN, OUT]) CutSink() {
	if g.handing != nil {
		g.handing.Cut()
	}
}

// AwaitSink waits for the call of the sink that runs, if one does. For use after Abandon.
func (g *Machine[IN, OUT]) AwaitSink() {
	if g.handing != nil {
		<-g.handing.done
	}
}

// WasTaken reports whether the sink has taken s, which Abandon has returned, meanwhile. For use after AwaitSink.
func (g *Machine[IN, OUT]) WasTaken(s *Slot[IN, OUT]) bool {
	h := g.handing
	r := s.rare()
	return h != nil && h.err == nil && r != nil && r.held == any(h)
}

// LastOffer calls the sink for an element that Abandon has returned, with err as the reason if it has not failed. The call's
// context has the values that it would have had before the end, and ends by cut.
func (g *Machine[IN, OUT]) LastOffer(cut context.Context, s *Slot[IN, OUT], err error) error {
	h := new(handing[IN, OUT])
	h.Start(g.Host, call.Ref{}, 0, call.NoDeadline)
	h.Carry(s.message())
	ctx := call.WithEnd(g.contextBeside(s, &h.Token), cut)
	r := g.report(s)
	if !r.Failed {
		r.Err = err
	}
	return guard.Call(func() error { return g.Sink(ctx, r) }, g.Host.Panicked)
}
