package core

import (
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/timers"
)

// Slot is what an element needs from its acceptance until it has left. Owned by the core.
//
// A slot is small, because a million of them may be waiting: what belongs to one call is in its attempt, which is
// garbage while the element waits for the next. What only some elements have is kept beside the slots: see side.
//
// Slots are used again: a pointer to one is good only while its element is in the queue, so nothing but the core and its driver may
// hold one. Others hold a reference: see slots.
type Slot[IN, OUT any] struct {
	in       IN
	accepted time.Duration                // when the slot was taken; the total timeout counts from here
	due      time.Duration                // its deadline, or Never
	first    time.Duration                // start of the first attempt
	last     time.Duration                // start of the last attempt
	attempt  *call.Attempt[OUT]           // the running one; when deciding, the one judged; when done, what has the results; else nil
	timer    timers.Timer[*Slot[IN, OUT]] // see phase for what it waits for
	err      error                        // of the last attempt that had one; when failing, the failure
	entry    *queue.Entry[*Slot[IN, OUT]] // in the queue
	turn     uint64                       // of what it waits for: see slots; 0: nothing from outside
	place    uint32                       // in slots
	attempts int32                        // begun so far
	phase    phase
	retry    RetryKind              // of the retry that waits
	doubt    doubt                  // whether an attempt may have taken effect: see asyncop.TimeoutError
	noRetry  decision.NoRetryReason // over its last outcome, if that asked for another attempt and there is none
	isOdd    bool                   // its deadline does not come in input order: see limit
	knows    bool                   // when the first attempt began, from before a restart
}

// doubt says whether an attempt may have taken effect, and whether the called side would know. The worst of all attempts counts.
type doubt uint8

const (
	noDoubt         doubt = iota
	deduplicated          // the servers of all requests that may have had an effect recognise them when they are repeated
	notDeduplicated       // a server may not
)

func doubtOf(isDeduplicated bool) doubt {
	if isDeduplicated {
		return deduplicated
	}
	return notDeduplicated
}

// RetryKind is what is known of a retry that waits: bits.
type RetryKind uint8

// What may be known.
const (
	ByResult RetryKind = 1 << iota // a result asked for it, not an error
	Demanded                       // a server demanded the wait: the end of the input does not cut it

	noRetry RetryKind = 1 << 6 // it waits for its first attempt as others do for a retry, and does not count as one of them
	notKept RetryKind = 1 << 7 // of a control element: it is in no checkpoint
)

// phase is where an element stands. Only Machine.enter changes it.
//
//	                       ┌───────── retry ◀── preparing ◀──┐
//	                       ▼                                 │
//	fresh ──────────▶ running ──▶ deciding ──▶ backoff ──▶ ready
//	  │                  │ └──── result ──▶ done ◀── results of the handler ──┐
//	  │                  │                   ▲                                │
//	  └ deadline, failure┴──────────────▶ handling ───────────────────────────┤
//	   (of all the others of the two         │                                ▼
//	    upper lines, too)                    └──────── failure ──────────▶ failing ──▶ ended
//
// Deciding, preparing, handling, failing and behind are phases of features. Deciding is for strategies that may block, preparing
// for retries with something to do first; the others pass them over, and from both an element may fail or be retried as from
// running. An element whose failure is not handled passes handling over; failing is for elements that are handed over. With key
// order an element is behind before it is fresh, until it is the first of its lane; one that times out there is done or failing,
// and waits so for its turn.
type phase uint8

const (
	controlElement phase = iota // a control element: a watermark, or a barrier that waits its turn
	fresh                       // waits for a permit to start its first attempt; timer, with key order: its place among the others
	behind                      // waits for an element of its key, or for a call that keeps the key
	preparing                   // its attempt has begun with what the strategy wants done first; timer: the attempt's timeout
	running                     // its attempt runs; timer: the attempt's timeout
	deciding                    // the strategy is being asked on a worker
	backoff                     // waits for its next retry, or for its deadline if no retry can start before; timer: the retry
	ready                       // its retry is due and waits for a permit; timer: its place among the others, by age, unless a call keeps its key
	handling                    // a handler runs for its failure; timer: the limit of that
	failing                     // has failed and is not handed over yet; timer: the next offer
	done                        // complete: its results, if any, wait for their turn
	ended                       // failed, and has nothing to emit
	phases
)

func (p phase) String() string {
	return [...]string{
		"control", "fresh", "behind", "preparing", "running", "deciding", "backoff", "ready", "handling", "failing", "done", "ended",
	}[p]
}

// Failed reports whether the element of s, which Abandon has returned, has failed, and was not handed over yet.
func (s *Slot[IN, OUT]) Failed() bool { return s.phase == failing }

// isHurried reports whether an attempt that begins at an instant has less than half of the element's time.
func (s *Slot[IN, OUT]) isHurried(at time.Duration) bool {
	return s.due != Never && s.due-at < (s.due-s.accepted)/2
}

// next returns the element after s in the order of the input, or nil.
func (s *Slot[IN, OUT]) next() *Slot[IN, OUT] {
	if e := s.entry.Next(); e != nil {
		return e.Value
	}
	return nil
}

// nextIn returns the next element after s that is wanted. A cursor passes every element once, so this is constant time
// in the long run.
func nextIn[IN, OUT any](s *Slot[IN, OUT], wanted func(*Slot[IN, OUT]) bool) *Slot[IN, OUT] {
	for e := s.entry.Next(); e != nil; e = e.Next() {
		if wanted(e.Value) {
			return e.Value
		}
	}
	return nil
}

// first returns the oldest element of the queue, or nil.
func (g *Machine[IN, OUT]) first() *Slot[IN, OUT] {
	if e := g.Queue.First(); e != nil {
		return e.Value
	}
	return nil
}

// enter changes the phase of s and keeps the cursors on the oldest element of their kind.
func (g *Machine[IN, OUT]) enter(s *Slot[IN, OUT], p phase) {
	for _, f := range g.entering {
		f(s, p)
	}
	if s.phase == fresh {
		g.unbegun--
	}
	s.phase = p
	if p != preparing && p != running { // else it is the same attempt
		s.turn = 0
	}
	switch {
	case s != g.fresh:
	case g.nextFresh != nil:
		g.fresh = g.nextFresh()
	default:
		g.fresh = nextIn(s, func(s *Slot[IN, OUT]) bool { return s.phase == fresh })
	}
	if fresh <= p && p <= ready { // its deadline is live
		return
	}
	if s == g.live {
		g.live = nextIn(s, func(s *Slot[IN, OUT]) bool { return fresh <= s.phase && s.phase <= ready && !s.isOdd })
	}
	if s.isOdd {
		g.odd.Cancel(&g.limits.get(s.place).timer)
	}
}

// limit is a deadline that does not come in input order: the element has a timeout of its own, or is restored and does not have
// its whole timeout.
type limit[IN, OUT any] struct {
	total time.Duration                // the whole timeout
	timer timers.Timer[*Slot[IN, OUT]] // the deadline's place among the others
}

// limit gives the newest element a deadline of its own. total is the whole timeout.
func (g *Machine[IN, OUT]) limit(s *Slot[IN, OUT], due, total time.Duration) {
	own := &limit[IN, OUT]{total: max(0, total)}
	own.timer.Value = s
	s.due, s.isOdd = due, true
	*g.limits.ref(s.place) = own
	g.odd.Arm(&own.timer, due)
	if g.live == s {
		g.live = nil // no element follows
	}
}

// unhold returns what the phase of s holds, or nil, and lets go of it.
func (g *Machine[IN, OUT]) unhold(s *Slot[IN, OUT]) any {
	what := g.held.get(s.place)
	g.held.clear(s.place)
	return what
}

// doubts notes what an outcome that is not final says about its attempt: it may have taken effect, unless it was not sent or
// its reason proves otherwise.
func (s *Slot[IN, OUT]) doubts(reason predicates.Reason, stage predicates.Stage, isDeduplicated bool) {
	switch {
	case stage == predicates.ClientDispatch || reason.AllowsNonIdempotentRetry():
	case isDeduplicated:
		s.doubt = max(s.doubt, deduplicated)
	default:
		s.doubt = notDeduplicated
	}
}

// slots has the slots of elements, by their places. What is outside of the core, a call that runs or a question to a strategy, holds
// a call.Ref: a place and a turn. A turn is what the element waits for: a call, an answer. When the element goes on, its turn is over, and
// what comes for that turn finds nothing (law A2).
type slots[IN, OUT any] struct {
	table []*Slot[IN, OUT] // by place
	free  []*Slot[IN, OUT] // not taken, to be used again
	gone  []uint32         // places without a slot
	taken int
	turns uint64    // begun so far: no turn comes twice
	sides *[]asSide // in use
}

// reasons are those for which an element was retried, and that of its last outcome; kept for policies that look at reasons.
type reasons struct {
	retried predicates.ReasonSet
	last    predicates.Reason
}

// keepSlots is how many free slots are kept, so that a burst does not pin memory.
const keepSlots = 1024

// take returns a slot that is not taken. All of it is zero but its place.
func (t *slots[IN, OUT]) take() *Slot[IN, OUT] {
	t.taken++
	if n := len(t.free); n > 0 {
		s := t.free[n-1]
		t.free = t.free[:n-1]
		return s
	}
	s := new(Slot[IN, OUT])
	s.timer.Value = s
	if n := len(t.gone); n > 0 {
		s.place = t.gone[n-1]
		t.gone = t.gone[:n-1]
		t.table[s.place] = s
		return s
	}
	s.place = uint32(len(t.table))
	t.table = append(t.table, s)
	return s
}

// forget lets go of all that is kept by place: no place is used any more.
func (t *slots[IN, OUT]) forget() {
	for _, side := range *t.sides {
		side.drop()
	}
	*t.sides = nil
	*t = slots[IN, OUT]{turns: t.turns, sides: t.sides}
}

// leave takes back the slot of an element that has left.
func (t *slots[IN, OUT]) leave(s *Slot[IN, OUT]) {
	t.taken--
	for _, side := range *t.sides {
		side.clear(s.place)
	}
	switch {
	case t.taken == 0 && len(t.table) > keepSlots: // a burst is over
		t.forget()
	case len(t.free) == keepSlots:
		t.table[s.place] = nil
		t.gone = append(t.gone, s.place)
	default:
		*s = Slot[IN, OUT]{place: s.place}
		s.timer.Value = s
		t.free = append(t.free, s)
	}
}

// find returns the slot whose turn r is, or nil.
func (t *slots[IN, OUT]) find(r call.Ref) *Slot[IN, OUT] {
	if int(r.Place) < len(t.table) {
		if s := t.table[r.Place]; s != nil && s.turn == r.Turn && r.Turn != 0 {
			return s
		}
	}
	return nil
}

// side is what some elements have beside their slots, by place: for the core or a feature. It is empty while none has. Its memory goes
// when a burst is over.
type side[T any] struct {
	at   []T
	used *[]asSide
}

// asSide is a side of any type.
type asSide interface {
	clear(place uint32)
	drop()
}

func newSide[T, IN, OUT any](g *Machine[IN, OUT]) side[T] { return side[T]{used: g.slots.sides} }

func (t *side[T]) get(place uint32) (v T) {
	if int(place) < len(t.at) {
		v = t.at[place]
	}
	return v
}

// ref returns what an element has, to be changed at once: it may move when another one gets something.
func (t *side[T]) ref(place uint32) *T {
	if n := int(place) + 1 - len(t.at); n > 0 {
		if t.at == nil {
			*t.used = append(*t.used, t)
		}
		t.at = append(t.at, make([]T, n)...)
	}
	return &t.at[place]
}

// clear sets what an element has to zero.
func (t *side[T]) clear(place uint32) {
	if int(place) < len(t.at) {
		var none T
		t.at[place] = none
	}
}

// drop lets go of everything.
func (t *side[T]) drop() { t.at = nil }
