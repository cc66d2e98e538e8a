package engine

import (
	"context"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
)

// Observer is user code that is called with what happens to elements (law O1). The first two are called as it happens, since
// their contexts are needed; the others from Report.
type Observer interface {
	// Accepted gets the number of an element that was restored with one.
	Accepted(ctx context.Context, element any, restored bool, number int64) context.Context
	AttemptStarted(ctx context.Context, attempt int) context.Context
	AttemptEnded(ctx context.Context, end AttemptEnd)
	Ended(ctx context.Context, end ElementEnd)
}

// AttemptEnd is how an attempt ended.
type AttemptEnd struct {
	Attempt  int
	Results  int
	Err      error
	Reason   predicates.Reason
	Duration time.Duration
	Retry    bool          // another attempt follows
	Delay    time.Duration // after this back-off
}

// ElementEnd is how an element ended.
type ElementEnd struct {
	How      Ending
	Results  int
	Err      error
	Reason   predicates.Reason // of its last outcome
	Attempts int               // begun, before a restart, too
	InDoubt  bool              // an attempt may have taken effect, and its result did not leave
	Queued   time.Duration     // from its slot to its first attempt, or to its end
	Total    time.Duration     // from its slot to its end
}

// Rider is what rides with an element for those who observe it. The engine's, until Left returns it; then the driver's, until it
// is given back to Gone. Riders are used again.
type Rider struct {
	base     context.Context // of the element, without observers
	ctx      context.Context // of the element, as Accepted has returned it
	attempt  context.Context // of the attempt whose end was not reported yet; nil: there is none
	end      AttemptEnd      // of that attempt, once it is concluded
	whole    ElementEnd      // of the element, once it leaves
	broken   error           // how Accepted broke
	accepted time.Duration
	started  time.Duration // of the first attempt; while it is 0 there was none
}

// note is something that Report is to call the observer with.
type note struct {
	ctx     context.Context //nolint:containedctx // of the element or attempt
	attempt AttemptEnd
	element ElementEnd
	isEnd   bool // of the element
}

// rider returns that of an observed element, or nil.
func (s *Slot[IN, OUT]) rider() *Rider {
	if r := s.rare(); r != nil {
		return r.rider
	}
	return nil
}

// IsObserved reports whether there are observers.
func (g *Engine[IN, OUT]) IsObserved() bool { return len(g.Observers) > 0 }

// observe calls the observers for an element that has taken its slot, which has a number if it was restored with one.
func (g *Engine[IN, OUT]) observe(e *queue.Entry[Slot[IN, OUT]], restored bool, number int64) {
	if len(g.Observers) == 0 {
		return
	}
	r := g.newRider()
	s := &e.Value
	s.more().rider = r
	r.accepted = g.now
	r.base = g.baseOf(s)
	r.ctx = r.base
	g.watchObserver()
	for next := 0; next < len(g.Observers); {
		if err := g.protect(callAccepted, e, func() {
			for next < len(g.Observers) {
				next++
				if ctx := g.Observers[next-1].Accepted(r.ctx, s.in, restored, number); ctx != nil {
					r.ctx = ctx //nolint:fatcontext // one layer an observer
				}
			}
		}); err != nil {
			r.broken = err
		}
	}
}

// Numbers returns what number says of the elements that Items returns, by the contexts of an observer; 0 of control elements.
// It may be called on another goroutine while the engine's waits for it.
func (g *Engine[IN, OUT]) Numbers(number func(ctx context.Context) int64) (all []int64) {
	for e := g.Queue.First(); e != nil; e = e.Next() {
		switch s := &e.Value; {
		case !g.holds(s):
		case s.phase == controlElement:
			all = append(all, 0)
		default:
			all = append(all, number(s.rider().ctx))
		}
	}
	return all
}

func (g *Engine[IN, OUT]) newRider() *Rider {
	if n := len(g.riders); n > 0 {
		r := g.riders[n-1]
		g.riders = g.riders[:n-1]
		return r
	}
	return new(Rider)
}

// observeStart calls the observers for an attempt that begins, and reports whether it goes on: an attempt whose observer breaks has
// failed with that (law A6).
func (g *Engine[IN, OUT]) observeStart(
	e *queue.Entry[Slot[IN, OUT]], r *Rider, a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT],
) bool {
	number := int(e.Value.attempts)
	if r.started == 0 {
		r.started = max(1, g.now-r.accepted)
	}
	r.attempt, r.end = r.ctx, AttemptEnd{Attempt: number}
	g.enter(e, running) // it goes on as if it were invoked if the observer ends the goroutine
	err := r.broken
	if err == nil {
		g.watchObserver()
		err = g.protect(callInvoke, e, func() {
			for _, o := range g.Observers {
				if ctx := o.AttemptStarted(r.attempt, number); ctx != nil {
					r.attempt = ctx //nolint:fatcontext // one layer an observer
				}
			}
		})
	}
	if err != nil {
		a.CompleteExceptionally(err)
		g.invoked(e, false)
	}
	return err == nil
}

// contextOf returns the context of an attempt's call.
func (g *Engine[IN, OUT]) contextOf(
	e *queue.Entry[Slot[IN, OUT]], a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT],
) context.Context {
	var own call.Cancellable = (*call.AttemptContext[*queue.Entry[Slot[IN, OUT]], OUT])(a)
	if g.forming != nil {
		own = g.forming.Context()
	}
	if g.hasValues(e) {
		return call.WithValues(e.Value.rider().attempt, own)
	}
	return own
}

// hasValues reports whether the context of the attempt of e has values of an observer.
func (g *Engine[IN, OUT]) hasValues(e *queue.Entry[Slot[IN, OUT]]) bool {
	r := e.Value.rider()
	return r != nil && r.attempt != r.base
}

// contextOfElement returns the context that belongs to an element: its values are those that its observers gave it.
func (g *Engine[IN, OUT]) contextOfElement(s *Slot[IN, OUT]) context.Context {
	if r := s.rider(); r != nil {
		return r.ctx
	}
	return g.baseOf(s)
}

// baseOf returns the context that the observers of an element get.
func (g *Engine[IN, OUT]) baseOf(s *Slot[IN, OUT]) context.Context {
	if m := s.message(); m != (call.Message{}) {
		return call.WithMessage(g.Host.Values, m)
	}
	return g.Host.Values
}

// contextBeside returns the context of user code that runs for an element beside its calls.
func (g *Engine[IN, OUT]) contextBeside(s *Slot[IN, OUT], t *call.Token[*queue.Entry[Slot[IN, OUT]]]) context.Context {
	own := (*call.Context[*queue.Entry[Slot[IN, OUT]]])(t)
	if r := s.rider(); r != nil && r.ctx != r.base {
		return call.WithValues(r.ctx, own)
	}
	return own
}

// conclude keeps the outcome of an attempt until it is known what follows from it.
func (g *Engine[IN, OUT]) conclude(s *Slot[IN, OUT], results int, err error) {
	if r := s.rider(); r != nil && r.attempt != nil && r.end.Duration == 0 {
		g.refresh()
		r.end.Results, r.end.Err, r.end.Duration = results, err, max(1, g.now-s.last)
	}
}

// attemptOver reports the attempt of an element that has one: nothing follows, or a retry after d.
func (g *Engine[IN, OUT]) attemptOver(s *Slot[IN, OUT], retry bool, d time.Duration) {
	r := s.rider()
	if r == nil || r.attempt == nil {
		return
	}
	end := r.end
	end.Reason, end.Retry, end.Delay = s.reason(), retry, d
	g.notes.Push(note{ctx: r.attempt, attempt: end})
	r.attempt = nil
}

// over fills in how an element ends; its rider leaves it.
func (g *Engine[IN, OUT]) over(s *Slot[IN, OUT], how Ending, err error) *Rider {
	r := s.rider()
	if r == nil {
		return nil
	}
	results := 0
	if how == Emitted {
		results = len(s.results())
	}
	g.conclude(s, 0, err) // unless it was already
	g.attemptOver(s, false, 0)
	s.extra.rare.rider = nil
	r.whole = ElementEnd{
		How: how, Results: results, Err: err, Reason: s.reason(), Attempts: int(s.attempts),
		InDoubt: s.doubt != noDoubt && how != Emitted && how != Empty, Queued: r.started,
	}
	return r
}

// Gone says how an element whose rider the driver has, has ended: emitted or discarded.
func (g *Engine[IN, OUT]) Gone(r *Rider, how Ending) {
	if how == Discarded { // nothing else knows that it has taken effect
		r.whole.InDoubt = r.whole.Attempts > 0
	}
	r.whole.How = how
	g.refresh()
	r.whole.Total = g.now - r.accepted
	if r.started == 0 {
		r.whole.Queued = r.whole.Total
	}
	g.notes.Push(note{ctx: r.ctx, element: r.whole, isEnd: true})
	*r = Rider{}
	if len(g.riders) < g.Queue.Cap() {
		g.riders = append(g.riders, r)
	}
}

// Refused says that an element was received and not accepted: Discarded or Kept. m is the message that it is, if it is one.
func (g *Engine[IN, OUT]) Refused(how Ending, m call.Message) {
	g.GiveBack(m)
	if len(g.Observers) > 0 {
		g.notes.Push(note{ctx: g.Host.Values, element: ElementEnd{How: how}, isEnd: true})
	}
}

// Report calls the observers with what has happened, in order. The driver calls it once a turn, and after the end.
func (g *Engine[IN, OUT]) Report() {
	for g.notes.Len() > 0 {
		g.refresh()
		g.watchObserver()
		if err := g.protect(callReport, nil, g.tell); err != nil {
			g.Hooks.ObserverBroke(err)
		}
		g.tick()
	}
}

// tell calls the observers as long as there is something. If one breaks, the others are called all the same: by the next call.
func (g *Engine[IN, OUT]) tell() {
	for ; g.notes.Len() > 0; g.notes.Pop() {
		for n := g.notes.Peek(); g.told < len(g.Observers); {
			o := g.Observers[g.told]
			g.told++
			if n.isEnd {
				o.Ended(n.ctx, n.element)
			} else {
				o.AttemptEnded(n.ctx, n.attempt)
			}
		}
		g.told = 0
	}
}

// watchObserver begins to watch a call of the observer.
func (g *Engine[IN, OUT]) watchObserver() {
	w := &g.slow
	*w = watchedCall[IN, OUT]{watched: true, observed: true, since: g.now, lost: time.Duration(g.Lost.Load())}
}
