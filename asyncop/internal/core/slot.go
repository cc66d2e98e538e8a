package core

import (
	"context"
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
// garbage while the element waits for the next.
//
// Slots are used again: a pointer to one is good only while its element is in the queue, so nothing but the core and its driver may
// hold one. Others hold a reference: see slots.
type Slot[IN, OUT any] struct {
	in       IN
	extra    *extra[IN, OUT]              // what not all elements need; nil for the others
	accepted time.Duration                // when the slot was taken; the total timeout counts from here
	first    time.Duration                // start of the first attempt
	last     time.Duration                // start of the last attempt
	attempt  *call.Attempt[OUT]           // the running one; when deciding, the one judged; when done, the one whose results are emitted; else nil
	timer    timers.Timer[*Slot[IN, OUT]] // see phase for what it waits for
	err      error                        // of the last attempt that had one; when failing, the failure
	entry    *queue.Entry[*Slot[IN, OUT]] // in the queue
	turn     uint64                       // of what it waits for: see slots; 0: nothing from outside
	place    uint32                       // in slots
	attempts int32                        // begun so far
	phase    phase
	retry    RetryKind        // of the retry that waits
	doubt    doubt            // whether an attempt may have taken effect: see asyncop.TimeoutError
	verdict  decision.Verdict // over its last outcome, if that asked for another attempt and there is none
}

// doubt says whether an attempt may have taken effect, and whether the called side would know. The worst of all attempts counts.
type doubt uint8

const (
	noDoubt   doubt = iota
	tracked         // the servers of all requests that may have had an effect recognise them when they come again
	untracked       // a server may not
)

func doubtOf(isTracked bool) doubt {
	if isTracked {
		return tracked
	}
	return untracked
}

// RetryKind is what is known of a retry that waits: bits.
type RetryKind uint8

// What may be known.
const (
	ByResult RetryKind = 1 << iota // a result asked for it, not an error
	Demanded                       // a server demanded the wait: the end of the input does not cut it

	carried RetryKind = 1 << 7 // of a slot in phase done: what was emitted carries its message on
)

func kindOfRetry(isByResult, isDemanded bool) (k RetryKind) {
	if isByResult {
		k |= ByResult
	}
	if isDemanded {
		k |= Demanded
	}
	return k
}

// extra is what not all elements need, so that the others need not pay for it. Under a policy that looks at reasons every element
// that waits for a retry has one, so it is small.
type extra[IN, OUT any] struct {
	// reasons are those for which the element was retried, and reason is that of its last outcome; kept for policies that look
	// at reasons.
	reasons predicates.ReasonSet
	reason  predicates.Reason
	rare    *rare[IN, OUT] // or nil
}

// rare is what few elements need.
type rare[IN, OUT any] struct {
	// held is what some phases have besides. Control: the element, a queue.Watermark, or the participant.Barrier of an operator
	// that takes no part in checkpoints. Deciding: the *question. Backoff and ready: what the strategy wants done before the
	// next attempt, a func(context.Context) error. Handling: the *call.Handling. Failing: the *handing, once it was offered. Done:
	// results that are not those of an attempt, a *kept.
	held any
	// limit is the deadline of an element that has a timeout of its own, or is restored and does not have its whole timeout; nil for the
	// others.
	limit *limit[IN, OUT]
	// message is the one that the element is, without its value; zero if it is none.
	message call.Message
	// rider is for those who observe the element; nil if there are none.
	rider *Rider
	// place is that in its lane; nil without key order.
	inLane *place[IN, OUT]
}

// extraAndRare are both in one piece.
type extraAndRare[IN, OUT any] struct {
	extra[IN, OUT]
	also rare[IN, OUT]
}

// limit is a deadline of an element's own.
type limit[IN, OUT any] struct {
	due   time.Duration
	total time.Duration                // the whole timeout
	first bool                         // when the first attempt began is known from before the restart
	odd   timers.Timer[*Slot[IN, OUT]] // its place among the others: they do not come in input order
}

// knowsFirst reports whether it is known from before a restart when the first attempt began.
func (s *Slot[IN, OUT]) knowsFirst() bool { return s.limited() && s.extra.rare.limit.first }

// limited reports whether the element has a deadline of its own.
func (s *Slot[IN, OUT]) limited() bool {
	return s.extra != nil && s.extra.rare != nil && s.extra.rare.limit != nil
}

// note keeps the reason of the last outcome.
func (s *Slot[IN, OUT]) note(reason predicates.Reason) {
	if s.extra != nil || !reason.IsZero() {
		s.needExtra().reason = reason
	}
}

func (s *Slot[IN, OUT]) needExtra() *extra[IN, OUT] {
	if s.extra == nil {
		s.extra = &extra[IN, OUT]{}
	}
	return s.extra
}

// more returns what few elements need, to be written to.
func (s *Slot[IN, OUT]) more() *rare[IN, OUT] {
	switch {
	case s.extra == nil:
		both := &extraAndRare[IN, OUT]{}
		s.extra, both.rare = &both.extra, &both.also
	case s.extra.rare == nil:
		s.extra.rare = &rare[IN, OUT]{}
	}
	return s.extra.rare
}

// more is Slot.more, with memory of an element that has left: for what all elements of a stream may have.
func (g *Machine[IN, OUT]) more(s *Slot[IN, OUT]) *rare[IN, OUT] {
	if n := len(g.extras); n > 0 && s.extra == nil {
		s.extra, g.extras = g.extras[n-1], g.extras[:n-1]
	}
	return s.more()
}

// keepExtra keeps the memory of an element that leaves for another one, if that may need as much.
func (g *Machine[IN, OUT]) keepExtra(s *Slot[IN, OUT]) {
	x := s.extra
	if x.rare == nil || len(g.extras) == g.Queue.Cap() || !g.observed && s.message() == (call.Message{}) {
		return
	}
	s.extra = nil
	if *x.rare != (rare[IN, OUT]{}) { // to clear it costs write barriers
		*x.rare = rare[IN, OUT]{}
	}
	if fresh := (extra[IN, OUT]{rare: x.rare}); *x != fresh {
		*x = fresh
	}
	g.extras = append(g.extras, x)
}

// rare returns what few elements need, or nil.
func (s *Slot[IN, OUT]) rare() *rare[IN, OUT] {
	if s.extra == nil {
		return nil
	}
	return s.extra.rare
}

// take returns what the phase of the element holds besides, which ends. An element that may wait for long keeps nothing empty.
func (s *Slot[IN, OUT]) take() (held any) {
	r := s.extra.rare
	held, r.held = r.held, nil
	if *r == (rare[IN, OUT]{}) {
		s.extra.rare = nil
	}
	return held
}

// kept are results that are not those of an attempt: of the handler of a failure, or of a checkpoint.
type kept[OUT any] struct{ results []OUT }

// Results returns them.
func (k *kept[OUT]) Results() []OUT { return k.results }

// results returns what an element in phase done emits.
func (s *Slot[IN, OUT]) results() []OUT {
	if s.attempt != nil {
		return s.attempt.Results()
	}
	if r := s.rare(); r != nil {
		if k, ok := r.held.(*kept[OUT]); ok {
			return k.results
		}
	}
	return nil
}

// doFirst keeps what is to be done before the next attempt; nil: nothing.
func (s *Slot[IN, OUT]) doFirst(before func(ctx context.Context) error) {
	if before != nil {
		s.more().held = before
	}
}

// retried notes that the reason of the last outcome has led to a retry, which begins now.
func (s *Slot[IN, OUT]) retried() {
	if r := s.reason(); !r.IsZero() {
		s.extra.reasons = s.extra.reasons.With(r)
	}
}

// doubts notes what an outcome that is not final says about its attempt: it may have taken effect, unless it was not sent or
// its reason proves otherwise.
func (s *Slot[IN, OUT]) doubts(reason predicates.Reason, stage predicates.Stage, isTracked bool) {
	if stage != predicates.ClientDispatch && !reason.AllowsNonIdempotentRetry() {
		s.doubt = max(s.doubt, doubtOf(isTracked))
	}
}

// reasons returns those for which the element was retried.
func (s *Slot[IN, OUT]) reasons() predicates.ReasonSet {
	if s.extra == nil {
		return predicates.ReasonSet{}
	}
	return s.extra.reasons
}

// reason returns that of the last outcome.
func (s *Slot[IN, OUT]) reason() predicates.Reason {
	if s.extra == nil {
		return predicates.Reason{}
	}
	return s.extra.reason
}

// takeBefore returns what is to be done before the attempt that starts now, or nil.
func (s *Slot[IN, OUT]) takeBefore() (before func(ctx context.Context) error) {
	if r := s.rare(); r != nil && r.held != nil {
		before = s.take().(func(ctx context.Context) error)
	}
	return before
}

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
// Deciding is for strategies that may block, preparing for retries with something to do first; the others pass them
// over, and from both an element may fail or be retried as from running. An element whose failure is not handled passes
// handling over; failing is for HandOver only. With key order an element is behind before it is fresh, until it is the first of its
// lane; one that times out there is done or failing, and waits so for its turn.
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
	handling                    // Handle runs for its failure; timer: the limit of that
	failing                     // has failed and is not handed over yet; timer: the next offer
	done                        // complete: its results, if any, wait for their turn
	ended                       // failed, and has nothing to emit
)

func (p phase) String() string {
	return [...]string{
		"control", "fresh", "behind", "preparing", "running", "deciding", "backoff", "ready", "handling", "failing", "done", "ended",
	}[p]
}

// live reports whether the deadline still applies.
func (p phase) live() bool { return p >= fresh && p <= ready }
