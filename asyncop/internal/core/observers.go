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

// Observing calls observers and counters (law O1). It collects the ends of attempts and
// elements during a step. Report then calls observers with one end after the other, and
// counters with all ends. If an observer or a counter panics, Report continues with the
// next one: see numInformed and numCounted.
type Observing[IN, OUT any] struct {
	core    *Machine[IN, OUT]
	tracks  perSlot[*Track]
	leaving *Track   // of the element that left last, until TakeLeaving
	spare   []*Track // for reuse

	notes       fifo.Queue[note]      // for the observers
	numInformed int                   // observers that were called with the first note
	attempts    []counting.AttemptEnd // for the counters
	elements    []counting.Element    // for the counters
	numCounted  int                   // counters that were called with attempts and elements
}

// Track is the record of an observed element. The core owns it until the driver takes it
// with TakeLeaving, and returns it with RecordEnd. Tracks are reused.
type Track struct {
	accepted time.Duration
	started  time.Duration  // from accepted to the first attempt; 0 before
	ending   observe.Ending // of the element, once it has ended

	base    context.Context // of the element, without observers
	ctx     context.Context // of the element, from Accepted
	attempt context.Context // of the attempt, from AttemptStarted, without its end; or nil
	callCtx context.Context // attempt with the end of the attempt, made by contextOf; or nil
	broken  error           // of an observer that panicked in Accepted; every attempt fails with it
}

// note is the end of an attempt or, if isEnd is set, of an element.
type note struct {
	ctx     context.Context //nolint:containedctx // of the element or attempt
	attempt observe.Outcome
	element observe.Ending
	isEnd   bool
}

func (o *Observing[IN, OUT]) forget() {
	o.notes, o.spare = fifo.Queue[note]{}, nil
	o.attempts, o.elements = nil, nil
}

// accepted calls all observers for a new element, even after a panic: see Track.broken.
func (o *Observing[IN, OUT]) accepted(s *Slot[IN, OUT], i introduction) {
	var r *Track
	if n := len(o.spare); n > 0 {
		r, o.spare = o.spare[n-1], o.spare[:n-1]
	} else {
		r = new(Track)
	}
	*o.tracks.ref(s.index) = r
	r.accepted = o.core.now
	if len(o.core.Observers) == 0 {
		return
	}
	r.base = o.core.messages.Context(s)
	r.ctx = r.base
	for _, observer := range o.core.Observers {
		err := o.callAccepted(observer, r, s.in, i)
		if err != nil {
			r.broken = err
		}
	}
}

func (o *Observing[IN, OUT]) callAccepted(observer observe.Observer, r *Track, in IN, i introduction) (err error) {
	o.core.ranCode = true
	returned := false
	defer func() {
		if !returned {
			err = o.core.noteBroken("an observer", recover())
		}
	}()
	ctx := notifyAccepted(r.ctx, observer, in, i)
	if ctx != nil {
		r.ctx = ctx
	}
	returned = true
	return nil
}

func notifyAccepted(ctx context.Context, o observe.Observer, element any, i introduction) context.Context {
	if i.restored {
		if c, ok := o.(observe.CheckpointedObserver); ok {
			return c.Restored(ctx, element, i.number)
		}
	}
	return o.Accepted(ctx, element, i.restored)
}

// Numbers returns the numbers of the elements that Items returns, from the contexts of an
// observer. Control elements have number 0. It may be called off the loop while the loop
// waits.
func (o *Observing[IN, OUT]) Numbers(number func(ctx context.Context) int64) (all []int64) {
	g := o.core
	for s := g.first(); s != nil; s = s.next() {
		switch {
		case !g.holds(s):
		case s.phase == controlElement:
			all = append(all, 0)
		default:
			all = append(all, number(o.tracks.get(s.index).ctx))
		}
	}
	return all
}

// started calls the observers for a new attempt, and reports whether the attempt
// continues. The attempt fails if an observer panics, or has panicked in Accepted (law
// A6).
func (o *Observing[IN, OUT]) started(s *Slot[IN, OUT], a *call.Attempt[OUT]) (continues bool) {
	g, r := o.core, o.tracks.get(s.index)
	if r.started == 0 {
		r.started = max(1, g.now-r.accepted)
	}
	if len(o.core.Observers) == 0 {
		return true
	}
	r.attempt, r.callCtx = r.ctx, nil
	err := r.broken
	if err == nil {
		err = o.callStarted(r, int(s.attempts))
	}
	if err != nil {
		a.CompleteExceptionally(err)
		g.invoked(s)
		return false
	}
	return true
}

func (o *Observing[IN, OUT]) callStarted(r *Track, number int) (err error) {
	o.core.ranCode = true
	returned := false
	defer func() {
		if !returned {
			err = o.core.noteBroken("an observer", recover())
		}
	}()
	for _, observer := range o.core.Observers {
		ctx := observer.AttemptStarted(r.attempt, number)
		if ctx != nil {
			r.attempt = ctx //nolint:fatcontext // one layer for each observer
		}
	}
	returned = true
	return nil
}

// contextOf returns bare with the values of observers for the element and its attempt.
// bare is an attempt, or the token of a task.
func (o *Observing[IN, OUT]) contextOf(s *Slot[IN, OUT], bare call.Cancellable) context.Context {
	r := o.tracks.get(s.index)
	if r == nil || len(o.core.Observers) == 0 {
		return bare
	}
	values := cmp.Or(r.attempt, r.ctx)
	_, isTask := bare.(*call.Token)
	switch {
	case values == r.base: // no values
		return bare
	case isTask:
		return call.WithValues(values, bare)
	case r.callCtx == nil:
		r.callCtx = call.WithValues(values, bare)
	}
	return r.callCtx
}

func (o *Observing[IN, OUT]) contextForReport(s *Slot[IN, OUT]) context.Context {
	if r := o.tracks.get(s.index); r != nil {
		return r.ctx
	}
	return o.core.messages.Context(s)
}

// attemptEnded records the end of an attempt.
func (o *Observing[IN, OUT]) attemptEnded(s *Slot[IN, OUT], out *attemptEnd) {
	g, r := o.core, o.tracks.get(s.index)
	if r == nil {
		return
	}
	a := observe.Outcome{
		Attempt: int(s.attempts), Results: out.results, Err: out.err, Duration: max(1, out.took),
		Reason: g.reasons.get(s.index).last, Retry: out.isRetried, Delay: out.delay,
	}
	if len(o.core.Counters) > 0 {
		o.attempts = append(o.attempts, counting.AttemptEnd{
			End: counting.EndOf(a.Results, a.Err), Reason: a.Reason, Duration: a.Duration, Retry: a.Retry, Delay: a.Delay,
		})
	}
	if len(o.core.Observers) > 0 {
		o.notes.Push(note{ctx: r.attempt, attempt: a})
		r.attempt, r.callCtx = nil, nil
	}
}

// ended records the end of an element. If the element has results, the driver calls
// RecordEnd when they have left.
func (o *Observing[IN, OUT]) ended(s *Slot[IN, OUT], how observe.EndKind) {
	r := o.tracks.get(s.index)
	if r == nil {
		return
	}
	if !o.core.abandoned { // otherwise the last offer to the sink needs the track
		*o.tracks.ref(s.index) = nil
	}
	e := &r.ending
	e.Reason = o.core.reasons.get(s.index).last
	e.Attempts, e.InDoubt = int(s.attempts), s.doubt != noDoubt
	switch how {
	case observe.Emitted:
		e.Results, e.InDoubt = len(s.attempt.Results), false
		o.leaving = r
		return
	case observe.Empty:
		e.InDoubt = false
	case observe.Abandoned, observe.Kept:
		e.Err = cmp.Or(o.core.state.Failure, s.err) // s.err if the run has not failed, but s was released
	default:
		e.Err = s.err
	}
	o.RecordEnd(r, how)
}

// TakeLeaving returns the track of the element that left last, or nil for a control
// element.
func (o *Observing[IN, OUT]) TakeLeaving() (r *Track) {
	r, o.leaving = o.leaving, nil
	return r
}

// RecordEnd records the end of an element. The driver calls it for the tracks that it has
// taken, with Emitted or Discarded. ended calls it for other elements.
func (o *Observing[IN, OUT]) RecordEnd(r *Track, how observe.EndKind) {
	o.core.refresh()
	e := &r.ending
	e.How, e.Total = how, o.core.now-r.accepted
	e.Queued = cmp.Or(r.started, e.Total)
	if how == observe.Discarded { // the results of the element are lost
		e.InDoubt = e.Attempts > 0
	}
	o.noteEnd(r.ctx, e, true)
	if o.core.abandoned {
		return
	}
	*r = Track{}
	if len(o.spare) < o.core.Queue.Cap() {
		o.spare = append(o.spare, r)
	}
}

// Refused records the end of an element that was received but not accepted: Discarded or
// Kept.
func (o *Observing[IN, OUT]) Refused(how observe.EndKind) {
	o.noteEnd(o.core.Host.Values, &observe.Ending{How: how}, false)
}

func (o *Observing[IN, OUT]) noteEnd(ctx context.Context, e *observe.Ending, isAccepted bool) {
	if len(o.core.Counters) > 0 {
		o.elements = append(o.elements, counting.Element{
			How: uint8(e.How), InDoubt: e.InDoubt, Accepted: isAccepted, Queued: e.Queued, Total: e.Total,
		})
	}
	if len(o.core.Observers) > 0 {
		o.notes.Push(note{ctx: ctx, element: *e, isEnd: true})
	}
}

// MayReport reports whether there are events for Report.
func (o *Observing[IN, OUT]) MayReport() bool {
	return o.notes.Len() > 0 || len(o.attempts) > 0 || len(o.elements) > 0
}

// Report calls counters and observers with the events, in order. The driver calls it once
// per step, and after the end.
func (o *Observing[IN, OUT]) Report() {
	for o.MayReport() {
		err := o.reportAll()
		if err != nil {
			o.core.User.LogObserverPanic(err)
		}
	}
}

func (o *Observing[IN, OUT]) reportAll() (err error) {
	o.core.ranCode = true
	returned := false
	defer func() {
		if !returned {
			err = o.core.noteBroken("an observer", recover())
		}
	}()
	for (len(o.attempts) > 0 || len(o.elements) > 0) && o.numCounted < len(o.core.Counters) {
		o.numCounted++
		o.core.Counters[o.numCounted-1].Count(o.attempts, o.elements)
	}
	o.numCounted = 0
	o.attempts, o.elements = emptied(o.attempts), emptied(o.elements)
	for ; o.notes.Len() > 0; o.notes.Pop() {
		for n := o.notes.Peek(); o.numInformed < len(o.core.Observers); {
			observer := o.core.Observers[o.numInformed]
			o.numInformed++
			if n.isEnd {
				observer.Ended(n.ctx, n.element)
			} else {
				observer.AttemptEnded(n.ctx, n.attempt)
			}
		}
		o.numInformed = 0
	}
	returned = true
	return nil
}

const keepEvents = 1024

func emptied[E any](s []E) []E {
	if cap(s) > keepEvents {
		return nil
	}
	return s[:0]
}
