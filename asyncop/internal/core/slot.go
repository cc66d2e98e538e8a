package core

import (
	"context"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/timers"
)

// Slot is an element in the queue. It is owned by the core.
//
// A slot is small, because there may be a million. Values that only some elements have
// are in a perSlot.
//
// Slots are reused. A pointer to a slot is valid only while its element is in the queue.
// So only the core and its driver hold pointers. Other code holds a call.Ref.
type Slot[IN, OUT any] struct {
	in             IN
	accepted       time.Duration                // when it took the slot, or earlier if it was restored with used time
	due            time.Duration                // deadline, or Never
	firstBegan     time.Duration                // start of the first attempt; 0 before
	lastBegan      time.Duration                // start of the last attempt; 0 before
	attempt        *call.Attempt[OUT]           // see phase; may be nil
	timer          timers.Timer[*Slot[IN, OUT]] // see phase
	err            error                        // the failure of the element or, until it has failed, the last error of an attempt
	entry          *queue.Entry[*Slot[IN, OUT]]
	generation     uint64 // of the awaited letter, or 0: see slots
	index          uint32 // in slots.table
	attempts       int32  // begun so far
	phase          phase
	retry          RetryKind              // the retry that it waits for
	doubt          doubt                  // about all its attempts
	noRetryReason  decision.NoRetryReason // why its retry was refused
	hasOwnDeadline bool                   // see ownDeadline
	knowsFirst     bool                   // firstBegan was restored, so the next attempt does not set it
	firstPutOff    bool                   // in phases backoff and ready: it waits for its first attempt, not for a retry (see putOff)
	isMarker       bool                   // a control element that checkpoints do not contain: see Marker
}

// doubt is the doubt whether a failed attempt has had an effect. For an element, the
// worst value of its attempts counts.
type doubt uint8

const (
	noDoubt         doubt = iota // it had no effect
	deduplicated                 // it may have had an effect, but all servers recognise a repeated request
	notDeduplicated              // it may have had an effect, and a server may not recognise a repeated request
)

func doubtOf(isDeduplicated bool) doubt {
	if isDeduplicated {
		return deduplicated
	}
	return notDeduplicated
}

// RetryKind is a set of bits about the awaited attempt. Checkpoints store it.
type RetryKind uint8

// The bits of RetryKind.
const (
	ByResult RetryKind = 1 << iota // a result asked for the retry; otherwise an error did
	Demanded                       // a server demanded the wait, so the end of the input does not cut it
)

// phase is the state of an element. takeSlot sets the first phase, enter all others.
//
//	        preparing
//	           ▲ │
//	           │ ▼
//	fresh ─▶ running ─┬─▶ deciding ─▶ backoff ─▶ ready
//	           ▲      │                           │
//	           │      └─ results ─▶ done          │
//	           └──────────────────────────────────┘
//
//	any of these ─── failure or deadline ──▶ handling ─── results ──▶ done
//	                                            │
//	                                            └─ failure ──▶ failing ──▶ endedWithoutResults
//
// The fields attempt and timer of Slot depend on the phase:
//
//	phase       the element waits for                attempt      timer
//	fresh       its first permit                                  its place in keyOrder.freshInOrder
//	behind      elements or calls of its key
//	preparing   a step before its call               its call     the timeout of the attempt
//	running     the outcome of its call              its call     the timeout of the attempt
//	deciding    the strategy, on a worker            its ended call
//	backoff     its next attempt                                  the end of the wait
//	ready       a permit for its next attempt                     its place in Machine.ready
//	handling    its handler, on a worker                          the limit of the handler
//	failing     the failure sink                                  the next offer
//	done        its turn to leave                    its results
//
// The step of phase preparing is the step of a retry (strategies.Action.Before), or the
// wait for a lease (law B5). A member of a batch stays in phase running during the step.
//
// An element that is put off goes from fresh or ready to backoff: see Machine.putOff.
//
// Phase behind comes before fresh. An element with key order is in it until it is the
// first of its line and no call holds its key. There is an exception: a restored element
// that has a back-off is in phases backoff and ready instead.
//
// If an element times out behind others, its results (phase done) or its offer to the
// sink (phase failing) wait until it is the first. If it is dropped, fails the run or is
// released, it ends at once.
//
// Only operators with a key order have phase behind and a timer in phase fresh. Deciding
// needs a strategy that may block, handling a handler, and failing a failure sink.
type phase uint8

const (
	controlElement      phase = iota // a watermark, the marker of the end of the input, or a barrier of an operator without checkpoints
	fresh                            // no attempt has begun
	behind                           // not the first of its line, or a call holds its key
	preparing                        // its attempt has begun, but not its call
	running                          // its call runs
	deciding                         // its attempt has ended, and the strategy is asked
	backoff                          // waits for its next attempt or, if that would be too late, for its deadline
	ready                            // its wait has ended; Machine.ready lacks it while it may not be called: see keyOrder.mayBeCalled
	handling                         // has failed, and its handler runs
	failing                          // has failed, and is offered to the failure sink
	done                             // complete
	endedWithoutResults              // dropped, handed over or released, or failed the run
)

// A deadline is live in the phases from firstLive to lastLive: the element times out at
// it.
const (
	firstLive = fresh
	lastLive  = ready
)

func (p phase) String() string {
	return [...]string{
		"control", "fresh", "behind", "preparing", "running", "deciding", "backoff", "ready", "handling", "failing", "done", "ended",
	}[p]
}

// WaitsForSink reports whether the element waits for the failure sink.
func (s *Slot[IN, OUT]) WaitsForSink() bool { return s.phase == failing }

func (s *Slot[IN, OUT]) next() *Slot[IN, OUT] {
	if e := s.entry.Next(); e != nil {
		return e.Value
	}
	return nil
}

// nextIn returns the next element that matches, or nil. It moves the cursors
// Machine.fresh, live and oldest. They only go forward, so the average cost is constant.
func nextIn[IN, OUT any](s *Slot[IN, OUT], matches func(*Slot[IN, OUT]) bool) *Slot[IN, OUT] {
	for e := s.entry.Next(); e != nil; e = e.Next() {
		if matches(e.Value) {
			return e.Value
		}
	}
	return nil
}

func (g *Machine[IN, OUT]) first() *Slot[IN, OUT] {
	if e := g.Queue.First(); e != nil {
		return e.Value
	}
	return nil
}

// enter changes the phase of s, and moves the cursors that have pointed to s.
func (g *Machine[IN, OUT]) enter(s *Slot[IN, OUT], p phase) {
	if g.keys != nil {
		g.keys.noteEnter(s, p)
	}
	if s.phase == fresh {
		g.numFresh--
	}
	s.phase = p
	if p != preparing && p != running { // otherwise s waits for the same letter
		s.generation = 0
	}
	if s == g.fresh { // with key order, noteEnter has moved it
		g.fresh = nextIn(s, func(s *Slot[IN, OUT]) bool { return s.phase == fresh })
	}
	if firstLive <= p && p <= lastLive {
		return
	}
	if g.lookups != nil {
		g.lookups.leave(s)
	}
	if s == g.live {
		g.live = nextIn(s, func(s *Slot[IN, OUT]) bool { return firstLive <= s.phase && s.phase <= lastLive && !s.hasOwnDeadline })
	}
	if s.hasOwnDeadline {
		g.outOfOrder.Cancel(&g.ownDeadlines.get(s.index).timer)
	}
}

// ownDeadline is the deadline of an element out of input order. There are three cases:
// the element has its own timeout, it was restored with a part of its timeout, or
// timeouts begin with the first attempt (FromAttempt).
type ownDeadline[IN, OUT any] struct {
	total time.Duration                // whole timeout
	timer timers.Timer[*Slot[IN, OUT]] // in Machine.outOfOrder, while Slot.hasOwnDeadline is set
}

// setDeadline sets a deadline of its own for s, whose whole timeout is total. s is the
// newest element, unless FromAttempt is set.
func (g *Machine[IN, OUT]) setDeadline(s *Slot[IN, OUT], due, total time.Duration) {
	own := &ownDeadline[IN, OUT]{total: max(0, total)}
	own.timer.Value = s
	s.due, s.hasOwnDeadline = due, true
	*g.ownDeadlines.ref(s.index) = own
	g.outOfOrder.Arm(&own.timer, due)
	if g.live == s {
		g.live = nil // s is the newest element, so there is no next one
	}
}

// addDoubt adds the doubt about an attempt of s. An attempt is not in doubt if it was not
// sent, or if its reason allows to repeat any call. Such a reason means that the attempt
// had no effect, or that a FLIP-232 predicate asks to repeat a result.
func (s *Slot[IN, OUT]) addDoubt(reason predicates.Reason, stage predicates.Stage, isDeduplicated bool) {
	switch {
	case stage == predicates.ClientDispatch || reason.AllowsNonIdempotentRetry():
	case isDeduplicated:
		s.doubt = max(s.doubt, deduplicated)
	default:
		s.doubt = notDeduplicated
	}
}

// isRefused reports whether a request tracker knows that the servers have refused all
// requests of the element of ctx. A server that deduplicates gives later attempts the
// answer that it gave the first one. So if a later attempt is refused, an earlier attempt
// whose answer was lost was refused, too, and had no effect. judge asks this only if all
// servers deduplicate, because others may refuse a request that they have carried out
// before.
func isRefused(ctx context.Context) bool {
	e, ok := ctx.Value(ctxkey.Tracked{}).(ctxkey.TrackedElement)
	return ok && e.AllRefused()
}

// slots has the slots of all elements. Code outside the core holds a call.Ref: an index
// and a generation. A generation lasts while an element waits for a call or an answer. A
// letter of an earlier generation finds no slot (law A2).
type slots[IN, OUT any] struct {
	table       []*Slot[IN, OUT] // by index
	free        []*Slot[IN, OUT]
	vacant      []uint32 // indexes without a slot
	taken       int
	generations uint64        // begun so far, never reused
	sideTables  *[]anyPerSlot // the perSlot tables of the core that are in use
}

// reasons are the reasons of an element's attempts.
type reasons struct {
	retried predicates.ReasonSet // of retries that began
	last    predicates.Reason    // of the last attempt, if it failed or asked for a retry
}

// keepSlots is how many free slots survive a burst.
const keepSlots = 1024

// take returns a slot that is zero except for its index.
func (t *slots[IN, OUT]) take() *Slot[IN, OUT] {
	t.taken++
	if n := len(t.free); n > 0 {
		s := t.free[n-1]
		t.free = t.free[:n-1]
		return s
	}
	s := new(Slot[IN, OUT])
	s.timer.Value = s
	if n := len(t.vacant); n > 0 {
		s.index = t.vacant[n-1]
		t.vacant = t.vacant[:n-1]
		t.table[s.index] = s
		return s
	}
	s.index = uint32(len(t.table))
	t.table = append(t.table, s)
	return s
}

// forget frees all memory. The generations continue, because old letters may still come.
func (t *slots[IN, OUT]) forget() {
	for _, other := range *t.sideTables {
		other.drop()
	}
	*t.sideTables = nil
	*t = slots[IN, OUT]{generations: t.generations, sideTables: t.sideTables}
}

func (t *slots[IN, OUT]) putBack(s *Slot[IN, OUT]) {
	t.taken--
	for _, other := range *t.sideTables {
		other.clear(s.index)
	}
	switch {
	case t.taken == 0 && len(t.table) > keepSlots: // after a burst
		t.forget()
	case len(t.free) == keepSlots:
		t.table[s.index] = nil
		t.vacant = append(t.vacant, s.index)
	default:
		*s = Slot[IN, OUT]{index: s.index}
		s.timer.Value = s
		t.free = append(t.free, s)
	}
}

func (t *slots[IN, OUT]) find(r call.Ref) *Slot[IN, OUT] {
	if int(r.Index) < len(t.table) {
		if s := t.table[r.Index]; s != nil && s.generation == r.Generation && r.Generation != 0 {
			return s
		}
	}
	return nil
}

// perSlot stores a value for some elements, by slot index. It needs memory only after the
// first ref, until slots.forget.
type perSlot[T any] struct {
	at   []T
	used *[]anyPerSlot // slots.sideTables
}

type anyPerSlot interface {
	clear(index uint32)
	drop()
}

func newPerSlot[T, IN, OUT any](g *Machine[IN, OUT]) perSlot[T] {
	return perSlot[T]{used: g.slots.sideTables}
}

func (t *perSlot[T]) get(index uint32) (v T) {
	if int(index) < len(t.at) {
		v = t.at[index]
	}
	return v
}

// ref returns the address of a value, which is valid until the next ref.
func (t *perSlot[T]) ref(index uint32) *T {
	if n := int(index) + 1 - len(t.at); n > 0 {
		if t.at == nil {
			*t.used = append(*t.used, t)
		}
		t.at = append(t.at, make([]T, n)...)
	}
	return &t.at[index]
}

func (t *perSlot[T]) take(index uint32) T {
	v := t.get(index)
	t.clear(index)
	return v
}

func (t *perSlot[T]) clear(index uint32) {
	if int(index) < len(t.at) {
		var zero T
		t.at[index] = zero
	}
}

func (t *perSlot[T]) drop() { t.at = nil }

// retryStep is a step before a retry: strategies.Action.Before.
type retryStep = func(ctx context.Context) error
