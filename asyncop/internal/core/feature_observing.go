package core

import (
	"cmp"
	"context"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/fifo"
)

// Observing calls the observers and counters (law O1). What happens to elements is noted, and reported in order by Report.
type Observing[IN, OUT any] struct {
	core      *Machine[IN, OUT]
	messages  *Messages[IN, OUT]
	observers []observe.Observer
	counters  []counting.Counter // observers that only count
	of        side[*Track]
	leaving   *Track   // of the element that has left last
	spare     []*Track // to be used again

	notes    fifo.Queue[note]      // for the observers
	informed int                   // how many of them know of the first one
	attempts []counting.AttemptEnd // for the counters
	elements []counting.Element    // for the counters
	counted  int                   // how many of them know

	introduced     int // how many observers know of the newest element
	introduceBroke func(s *Slot[IN, OUT], err error)
	reportBroke    func(s *Slot[IN, OUT], err error)
}

// Track is what is known of an observed element. The core's, until the driver takes it with Leaving and gives it back with Gone.
// Tracks are used again.
type Track struct {
	accepted time.Duration
	started  time.Duration  // of the first attempt; while it is 0 there was none
	ending   observe.Ending // once it leaves

	// With observers.
	base    context.Context // of the element, without them
	ctx     context.Context // of the element, as Accepted has returned it
	attempt context.Context // of the attempt; nil: there is none
	call    context.Context // of its call, once there is one
	broken  error           // how Accepted broke
}

// note is something that an observer is to be called with.
type note struct {
	ctx     context.Context //nolint:containedctx // of the element or attempt
	attempt observe.Outcome
	element observe.Ending
	isEnd   bool // of the element
}

// AddObserving adds the feature. broke learns of an observer that breaks where that is not the outcome of an element.
func AddObserving[IN, OUT any](
	g *Machine[IN, OUT], messages *Messages[IN, OUT], observers []observe.Observer, counters []counting.Counter, broke func(err error),
) *Observing[IN, OUT] {
	o := &Observing[IN, OUT]{
		core: g, messages: messages, of: newSide[*Track](g), observers: observers, counters: counters,
		reportBroke: func(_ *Slot[IN, OUT], err error) { broke(err) },
	}
	o.introduceBroke = func(s *Slot[IN, OUT], err error) {
		o.of.get(s.place).broken = err
		o.introduce(s)
		g.resumes.accepted(s, err)
	}
	g.exact, g.timesAll = true, true
	g.accepted = append(g.accepted, o.accepted)
	g.started = append(g.started, o.started)
	g.over = append(g.over, o.attemptOver)
	g.ended = append(g.ended, o.ended)
	g.isBusy = append(g.isBusy, o.MayReport)
	g.forget = append(g.forget, func() {
		o.notes, o.spare, o.attempts, o.elements = fifo.Queue[note]{}, nil, nil, nil
	})
	if len(observers) > 0 {
		g.describe = o.describe
		g.contextOf = o.contextOf
	}
	return o
}

// accepted calls the observers for an element that has taken its slot, which has a number if it was restored with one.
func (o *Observing[IN, OUT]) accepted(s *Slot[IN, OUT]) bool {
	var r *Track
	if n := len(o.spare); n > 0 {
		r, o.spare = o.spare[n-1], o.spare[:n-1]
	} else {
		r = new(Track)
	}
	*o.of.ref(s.place) = r
	r.accepted = o.core.now
	if len(o.observers) > 0 {
		r.base = o.messages.Context(s)
		r.ctx = r.base
		o.introduced = 0
		o.introduce(s)
	}
	return true
}

// introduce calls the observers that do not know of s, the newest element, yet.
func (o *Observing[IN, OUT]) introduce(s *Slot[IN, OUT]) {
	g, r := o.core, o.of.get(s.place)
	g.calling(s, o.introduceBroke)
	for o.introduced < len(o.observers) {
		o.introduced++
		if ctx := accepted(r.ctx, o.observers[o.introduced-1], s.in, g.accepting); ctx != nil {
			r.ctx = ctx //nolint:fatcontext // one layer an observer
		}
	}
	g.user.after = nil
}

// accepted calls an observer for an element, which has a number if it was restored with one.
func accepted(ctx context.Context, o observe.Observer, element any, a acceptance) context.Context {
	if a.restored {
		if c, ok := o.(observe.CheckpointedObserver); ok {
			return c.Restored(ctx, element, a.number)
		}
	}
	return o.Accepted(ctx, element, a.restored)
}

// Numbers returns what number says of the elements that Items returns, by the contexts of an observer; 0 of control elements.
// It may be called on another goroutine while the core's waits for it.
func (o *Observing[IN, OUT]) Numbers(number func(ctx context.Context) int64) (all []int64) {
	g := o.core
	for s := g.first(); s != nil; s = s.next() {
		switch {
		case !g.holds(s):
		case s.phase == controlElement:
			all = append(all, 0)
		default:
			all = append(all, number(o.of.get(s.place).ctx))
		}
	}
	return all
}

// started calls the observers for an attempt that begins, and reports whether it goes on: an attempt whose observer breaks has
// failed with that (law A6).
func (o *Observing[IN, OUT]) started(s *Slot[IN, OUT], a *call.Attempt[OUT]) bool {
	g, r, number := o.core, o.of.get(s.place), int(s.attempts)
	if r.started == 0 {
		r.started = max(1, g.now-r.accepted)
	}
	if len(o.observers) == 0 {
		return true
	}
	r.attempt, r.call = r.ctx, nil
	if r.broken != nil {
		a.CompleteExceptionally(r.broken)
		g.invoked(s)
		return false
	}
	g.calling(s, g.resumes.invoke)
	for _, observer := range o.observers {
		if ctx := observer.AttemptStarted(r.attempt, number); ctx != nil {
			r.attempt = ctx //nolint:fatcontext // one layer an observer
		}
	}
	g.user.after = nil
	return true
}

// contextOf returns own with the values that observers have given an element and its attempt.
func (o *Observing[IN, OUT]) contextOf(s *Slot[IN, OUT], own call.Cancellable) context.Context {
	r := o.of.get(s.place)
	if r == nil {
		return own
	}
	values := cmp.Or(r.attempt, r.ctx)
	switch _, isBeside := own.(*call.Token); {
	case values == r.base: // they have given none
		return own
	case isBeside:
		return call.WithValues(values, own)
	case r.call == nil:
		r.call = call.WithValues(values, own)
	}
	return r.call
}

// describe returns the context that belongs to an element: its values are those that its observers gave it.
func (o *Observing[IN, OUT]) describe(s *Slot[IN, OUT]) context.Context {
	if r := o.of.get(s.place); r != nil {
		return r.ctx
	}
	return o.messages.Context(s)
}

// attemptOver reports the outcome of an attempt, and what follows: nothing, or a retry after d.
func (o *Observing[IN, OUT]) attemptOver(s *Slot[IN, OUT], out *outcome, again bool, d time.Duration) {
	g, r := o.core, o.of.get(s.place)
	if r == nil {
		return
	}
	a := observe.Outcome{
		Attempt: int(s.attempts), Results: out.results, Err: out.err, Duration: max(1, out.took),
		Reason: g.reasons.get(s.place).last, Retry: again, Delay: d,
	}
	if len(o.counters) > 0 {
		o.attempts = append(o.attempts, counting.AttemptEnd{
			End: counting.EndOf(a.Results, a.Err), Reason: a.Reason, Duration: a.Duration, Retry: a.Retry, Delay: a.Delay,
		})
	}
	if len(o.observers) > 0 {
		o.notes.Push(note{ctx: r.attempt, attempt: a})
		r.attempt, r.call = nil, nil
	}
}

// ended notes how an element ends. One that is emitted is gone when the driver says so.
func (o *Observing[IN, OUT]) ended(s *Slot[IN, OUT], how observe.EndKind) {
	r := o.of.get(s.place)
	if r == nil {
		return
	}
	if !o.core.abandoned { // else the last offer of the sink wants its contexts
		*o.of.ref(s.place) = nil
	}
	e := &r.ending
	e.Reason, e.Attempts, e.InDoubt = o.core.reasons.get(s.place).last, int(s.attempts), s.doubt != noDoubt
	switch how {
	case observe.Emitted:
		e.Results, e.InDoubt = len(s.attempt.Results), false
		o.leaving = r
		return
	case observe.Empty:
		e.InDoubt = false
	case observe.Abandoned, observe.Kept:
		e.Err = cmp.Or(o.core.state.Failure, s.err) // without a failure, it was given back while the run goes on
	default:
		e.Err = s.err
	}
	o.Gone(r, how)
}

// Leaving returns the track of the element that has left last, for Gone; nil if that was a control element.
func (o *Observing[IN, OUT]) Leaving() (r *Track) {
	r, o.leaving = o.leaving, nil
	return r
}

// Gone says how an element whose track the driver has, has ended: emitted or discarded.
func (o *Observing[IN, OUT]) Gone(r *Track, how observe.EndKind) {
	o.core.refresh()
	e := &r.ending
	e.How, e.Total = how, o.core.now-r.accepted
	e.Queued = cmp.Or(r.started, e.Total)
	if how == observe.Discarded { // nothing else knows that it has taken effect
		e.InDoubt = e.Attempts > 0
	}
	o.noteEnd(r.ctx, e, true)
	if o.core.abandoned {
		return
	}
	if *r = (Track{}); len(o.spare) < o.core.Queue.Cap() {
		o.spare = append(o.spare, r)
	}
}

// Refused says that an element was received and not accepted: Discarded or Kept.
func (o *Observing[IN, OUT]) Refused(how observe.EndKind) {
	o.noteEnd(o.core.Host.Values, &observe.Ending{How: how}, false)
}

func (o *Observing[IN, OUT]) noteEnd(ctx context.Context, e *observe.Ending, isAccepted bool) {
	if len(o.counters) > 0 {
		o.elements = append(o.elements, counting.Element{
			How: uint8(e.How), InDoubt: e.InDoubt, Accepted: isAccepted, Queued: e.Queued, Total: e.Total,
		})
	}
	if len(o.observers) > 0 {
		o.notes.Push(note{ctx: ctx, element: *e, isEnd: true})
	}
}

// MayReport reports whether Report has something to do.
func (o *Observing[IN, OUT]) MayReport() bool {
	return o.notes.Len() > 0 || len(o.attempts) > 0 || len(o.elements) > 0
}

// Report calls the observers with what has happened, in order. The driver calls it once a turn, and after the end. If one breaks, the next
// Report calls the others.
func (o *Observing[IN, OUT]) Report() {
	if !o.MayReport() {
		return
	}
	o.core.calling(nil, o.reportBroke)
	for (len(o.attempts) > 0 || len(o.elements) > 0) && o.counted < len(o.counters) {
		o.counted++
		o.counters[o.counted-1].Count(o.attempts, o.elements)
	}
	o.counted, o.attempts, o.elements = 0, emptied(o.attempts), emptied(o.elements)
	for ; o.notes.Len() > 0; o.notes.Pop() {
		for n := o.notes.Peek(); o.informed < len(o.observers); {
			observer := o.observers[o.informed]
			o.informed++
			if n.isEnd {
				observer.Ended(n.ctx, n.element)
			} else {
				observer.AttemptEnded(n.ctx, n.attempt)
			}
		}
		o.informed = 0
	}
	o.core.user.after = nil
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
