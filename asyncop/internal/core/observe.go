package core

import (
	"context"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
)

// Rider is what rides with an element for those who observe it. The core's, until Left returns it; then the driver's, until it
// is given back to Gone. Riders are used again. One is small, since with rings many are on their way.
type Rider struct {
	accepted time.Duration
	started  time.Duration // of the first attempt; while it is 0 there was none
	running  bool          // there is an attempt whose end was not reported yet
	called   bool          // there was an attempt, maybe before a restart
	attempt  counting.Attempt
	element  counting.Element
	told     *told // nil if there are only counters
}

// told is what the observers of an element are told beside what is counted.
type told struct {
	base    context.Context // of the element, without observers
	ctx     context.Context // of the element, as Accepted has returned it
	attempt context.Context // of the attempt; nil: there is none
	call    context.Context // of its call, once there is one
	end     observe.Outcome // of the attempt, once it is concluded
	element observe.Ending  // once it leaves
	broken  error           // how Accepted broke
}

// note is something that Report is to call the observer with.
type note struct {
	ctx     context.Context //nolint:containedctx // of the element or attempt
	attempt observe.Outcome
	element observe.Ending
	isEnd   bool // of the element
}

// rider returns that of an observed element, or nil.
func (s *Slot[IN, OUT]) rider() *Rider {
	if r := s.rare(); r != nil {
		return r.rider
	}
	return nil
}

// IsObserved reports whether there are observers, or counters.
func (g *Machine[IN, OUT]) IsObserved() bool { return g.observed }

// observe calls the observers for an element that has taken its slot, which has a number if it was restored with one.
func (g *Machine[IN, OUT]) observe(s *Slot[IN, OUT], restored bool, number int64) {
	if !g.observed {
		return
	}
	r := g.newRider()
	g.more(s).rider = r
	r.accepted = g.now
	t := r.told
	if t == nil {
		return
	}
	t.base = g.baseOf(s)
	t.ctx = t.base
	for next := 0; next < len(g.Observers); {
		if err := g.guarded(callAccepted, s, func() {
			for next < len(g.Observers) {
				next++
				if ctx := accepted(t.ctx, g.Observers[next-1], s.in, restored, number); ctx != nil {
					t.ctx = ctx //nolint:fatcontext // one layer an observer
				}
			}
		}); err != nil {
			t.broken = err
		}
	}
}

// accepted tells an observer of an element, which has a number if it was restored with one.
func accepted(ctx context.Context, o observe.Observer, element any, restored bool, number int64) context.Context {
	if restored {
		if c, ok := o.(observe.CheckpointedObserver); ok {
			return c.Restored(ctx, element, number)
		}
	}
	return o.Accepted(ctx, element, restored)
}

// Numbers returns what number says of the elements that Items returns, by the contexts of an observer; 0 of control elements.
// It may be called on another goroutine while the core's waits for it.
func (g *Machine[IN, OUT]) Numbers(number func(ctx context.Context) int64) (all []int64) {
	for s := g.first(); s != nil; s = s.next() {
		switch {
		case !g.holds(s):
		case s.phase == controlElement:
			all = append(all, 0)
		default:
			all = append(all, number(s.rider().told.ctx))
		}
	}
	return all
}

func (g *Machine[IN, OUT]) newRider() *Rider {
	if n := len(g.riders); n > 0 {
		r := g.riders[n-1]
		g.riders = g.riders[:n-1]
		return r
	}
	r := new(Rider)
	if len(g.Observers) > 0 {
		r.told = new(told)
	}
	return r
}

// keepRider keeps a rider for another element.
func (g *Machine[IN, OUT]) keepRider(r *Rider) {
	if g.abandoned {
		return
	}
	t := r.told
	if *r = (Rider{told: t}); t != nil {
		*t = told{}
	}
	if len(g.riders) < g.Queue.Cap() {
		g.riders = append(g.riders, r)
	}
}

// observeStart calls the observers for an attempt that begins, and reports whether it goes on: an attempt whose observer breaks has
// failed with that (law A6).
func (g *Machine[IN, OUT]) observeStart(
	s *Slot[IN, OUT], r *Rider, a *call.Attempt[OUT],
) bool {
	number := int(s.attempts)
	if r.started == 0 {
		r.started = max(1, g.now-r.accepted)
	}
	r.running, r.attempt = true, counting.Attempt{}
	t := r.told
	if t == nil {
		return true
	}
	t.attempt, t.call, t.end = t.ctx, nil, observe.Outcome{Attempt: number}
	g.enter(s, running) // it goes on as if it were invoked if the observer ends the goroutine
	if t.broken == nil {
		g.calling(callInvoke, s)
		for _, o := range g.Observers {
			if ctx := o.AttemptStarted(t.attempt, number); ctx != nil {
				t.attempt = ctx //nolint:fatcontext // one layer an observer
			}
		}
		g.called()
		return true
	}
	a.Attend()
	a.CompleteExceptionally(t.broken)
	g.invoked(s)
	return false
}

// contextOf returns the context of the call of an attempt, also for those who judge it.
func (g *Machine[IN, OUT]) contextOf(
	s *Slot[IN, OUT], a *call.Attempt[OUT],
) context.Context {
	var own call.Cancellable = (*call.AttemptContext[OUT])(a)
	if g.forming != nil {
		own = g.forming.Context()
	}
	values := s.values()
	if values == nil {
		return own
	}
	t := s.rider().told
	if t.call == nil {
		t.call = call.WithValues(values, own)
	}
	return t.call
}

// values returns the context with the values that observers have given an element and its attempt, if it has one; nil if they have given
// none.
func (s *Slot[IN, OUT]) values() context.Context {
	r := s.rider()
	if r == nil || r.told == nil {
		return nil
	}
	values := r.told.ctx
	if r.told.attempt != nil {
		values = r.told.attempt
	}
	if values == r.told.base {
		return nil
	}
	return values
}

// contextOfElement returns the context that belongs to an element: its values are those that its observers gave it.
func (g *Machine[IN, OUT]) contextOfElement(s *Slot[IN, OUT]) context.Context {
	if r := s.rider(); r != nil && r.told != nil {
		return r.told.ctx
	}
	return g.baseOf(s)
}

// baseOf returns the context that the observers of an element get.
func (g *Machine[IN, OUT]) baseOf(s *Slot[IN, OUT]) context.Context {
	if m := s.message(); m != (call.Message{}) {
		return call.WithMessage(g.Host.Values, m)
	}
	return g.Host.Values
}

// contextBeside returns the context of user code that runs for an element beside its calls.
func (g *Machine[IN, OUT]) contextBeside(s *Slot[IN, OUT], t *call.Token) context.Context {
	own := (*call.Context)(t)
	if values := s.values(); values != nil {
		return call.WithValues(values, own)
	}
	return own
}

// conclude keeps the outcome of an attempt until it is known what follows from it.
func (g *Machine[IN, OUT]) conclude(s *Slot[IN, OUT], results int, err error) {
	r := s.rider()
	if r == nil || !r.running || r.attempt.Duration != 0 {
		return
	}
	g.refresh()
	r.attempt.Outcome, r.attempt.Duration = counting.OutcomeOf(results, err), max(1, g.now-s.last)
	if t := r.told; t != nil {
		t.end.Results, t.end.Err = results, err
	}
}

// attemptOver reports the attempt of an element that has one: nothing follows, or a retry after d.
func (g *Machine[IN, OUT]) attemptOver(s *Slot[IN, OUT], retry bool, d time.Duration) {
	r := s.rider()
	if r == nil || !r.running {
		return
	}
	r.running = false
	a := &r.attempt
	a.Reason, a.Retry, a.Delay = s.reason(), retry, d
	if len(g.Counters) > 0 {
		g.attempts = append(g.attempts, *a)
	}
	if t := r.told; t != nil {
		t.end.Reason, t.end.Duration, t.end.Retry, t.end.Delay = a.Reason, a.Duration, a.Retry, a.Delay
		g.notes.Push(note{ctx: t.attempt, attempt: t.end})
		t.attempt, t.call = nil, nil
	}
}

// over fills in how an element ends; its rider leaves it.
func (g *Machine[IN, OUT]) over(s *Slot[IN, OUT], how observe.EndKind, err error) *Rider {
	r := s.rider()
	if r == nil {
		return nil
	}
	if !g.abandoned { // else the last offer of the sink wants its contexts
		s.extra.rare.rider = nil // so that keepExtra has nothing to clear
	}
	r.called = s.attempts > 0
	r.element.InDoubt = s.doubt != noDoubt && how != observe.Emitted && how != observe.Empty
	if t := r.told; t != nil {
		t.element.Err, t.element.Reason, t.element.Attempts = err, s.reason(), int(s.attempts)
		if how == observe.Emitted {
			t.element.Results = len(s.results())
		}
	}
	return r
}

// Gone says how an element whose rider the driver has, has ended: emitted or discarded.
func (g *Machine[IN, OUT]) Gone(r *Rider, how observe.EndKind) {
	g.refresh()
	e := &r.element
	e.How, e.Accepted, e.Queued, e.Total = uint8(how), true, r.started, g.now-r.accepted
	if r.started == 0 {
		e.Queued = e.Total
	}
	if how == observe.Discarded { // nothing else knows that it has taken effect
		e.InDoubt = r.called
	}
	if len(g.Counters) > 0 {
		g.elements = append(g.elements, *e)
	}
	if t := r.told; t != nil {
		t.element.How, t.element.InDoubt, t.element.Queued, t.element.Total = how, e.InDoubt, e.Queued, e.Total
		g.notes.Push(note{ctx: t.ctx, element: t.element, isEnd: true})
	}
	g.keepRider(r)
}

// Refused says that an element was received and not accepted: Discarded or Kept. m is the message that it is, if it is one.
func (g *Machine[IN, OUT]) Refused(how observe.EndKind, m call.Message) {
	g.GiveBack(m)
	if len(g.Counters) > 0 {
		g.elements = append(g.elements, counting.Element{How: uint8(how)})
	}
	if len(g.Observers) > 0 {
		g.notes.Push(note{ctx: g.Host.Values, element: observe.Ending{How: how}, isEnd: true})
	}
}

// mayReport reports whether Report has something to do.
func (g *Machine[IN, OUT]) mayReport() bool {
	return g.notes.Len() > 0 || len(g.attempts) > 0 || len(g.elements) > 0
}

// Report calls the observers with what has happened, in order. The driver calls it once a turn, and after the end.
func (g *Machine[IN, OUT]) Report() {
	for g.mayReport() {
		g.calling(callReport, nil)
		g.tell()
		g.called()
	}
}

// tell calls the observers as long as there is something. If one breaks, the others are called all the same: by the next Report.
func (g *Machine[IN, OUT]) tell() {
	for (len(g.attempts) > 0 || len(g.elements) > 0) && g.counted < len(g.Counters) {
		g.counted++
		g.Counters[g.counted-1].Count(g.attempts, g.elements)
	}
	g.counted, g.attempts, g.elements = 0, emptied(g.attempts), emptied(g.elements)
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

// keepEvents is how many events of one turn are kept room for.
const keepEvents = 1024

// emptied returns s without its values, to be filled again.
func emptied[E any](s []E) []E {
	if cap(s) > keepEvents {
		return nil
	}
	return s[:0]
}
