package core

import (
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/decision"
)

// lookups starts attempts that need no call of their own, without permits. Elements of a
// key share calls, and failures as well.
//
// For example, A, B and C have the same key. A makes the call, and B joins it. The call
// fails. A is judged first, and waits for a retry. B shares this decision. C, which comes
// before the retry, waits for the retry, too. So a failing key has one series of
// attempts: its lineage.
type lookups[IN, OUT any] struct {
	call.Lookups[IN]

	core            *Machine[IN, OUT]
	states          perSlot[lookingUp]
	lineages        map[any]*lineage // by key
	reservation     call.Reservation // while an attempt with a reservation begins; otherwise nil
	reservedRunning int              // running attempts without permits
	lastChanges     int64            // Changes at the last startOthers
}

// lookingUp is the state of an element.
type lookingUp struct {
	lineage    *lineage // of its key; nil until it makes or joins a call, or waits for a retry of its key
	began      uint64   // generation of its last attempt
	isReserved bool     // its attempt runs without permits
}

// lineage is the series of attempts for a key. It exists while elements share it.
type lineage struct {
	key       any
	members   int
	leader    *call.Token       // the running attempt that makes the call, or nil
	decidedAt uint64            // newest generation at the last decision; 0 before
	due       time.Duration     // of the retry, if the decision is Retried
	decision  decision.Decision // the last decision
}

// start makes s wait if its key waits for a retry. Otherwise it starts an attempt of s if
// that needs no call of its own. It reports whether it did either.
//
// The wait is checked first, because the function may still let s join a call that has
// failed. s would not share the decision about this call, which was made before the
// attempt of s began (see share). So s would get a retry of its own.
func (l *lookups[IN, OUT]) start(s *Slot[IN, OUT]) bool {
	g := l.core
	if !g.checkBegin(s) {
		return false
	}
	if l.waitForRetry(s) {
		return true
	}
	r := l.reserve(s)
	if r == nil {
		return false
	}
	defer r.Release()
	if g.backend != nil {
		g.backend.chargeNoRate(s)
	}
	forming := g.forming
	g.forming = nil // not a member of a batch
	l.reservation = r
	g.begin(s)
	l.reservation = nil
	g.forming = forming
	if s.phase == running && s.attempt.Completed() { // its letter was not read: see readMailEarly
		g.readMailEarly()
	}
	return true
}

// reserve returns a reservation for the next attempt of s, or nil. It returns nil for a
// retry with a step before it.
func (l *lookups[IN, OUT]) reserve(s *Slot[IN, OUT]) (r call.Reservation) {
	g := l.core
	if g.retrySteps.get(s.index) != nil {
		return nil
	}
	g.ranCode = true
	returned := false
	defer func() {
		if !returned {
			_ = g.noteBroken("the key function of a lookup", recover()) // the attempt panics again, and fails
		}
	}()
	r = l.Reserve(s.in, int(s.attempts)+1)
	returned = true
	return r
}

// find returns the lineage of the key of s, or nil. If mayMake is set, it makes a missing
// lineage.
func (l *lookups[IN, OUT]) find(s *Slot[IN, OUT], mayMake bool) (found *lineage) {
	g := l.core
	g.ranCode = true
	returned := false
	defer func() {
		if !returned {
			_ = g.noteBroken("the key function of a lookup", recover())
		}
	}()
	key, ok := l.LookupKey(s.in)
	if ok {
		found = l.lineages[key]
	}
	if ok && found == nil && mayMake {
		found = &lineage{key: key}
		l.lineages[key] = found
	}
	returned = true
	return found
}

// waitForRetry makes s wait for the retry of its key, and reports whether s waits. If the
// letter of the key's completed call was not read yet, s waits for the next step.
func (l *lookups[IN, OUT]) waitForRetry(s *Slot[IN, OUT]) bool {
	g := l.core
	if len(l.lineages) == 0 {
		return false
	}
	n := l.find(s, false)
	if n == nil {
		return false
	}
	if n.leader != nil && n.leader.Completed() {
		g.putOff(s, g.now)
		return true
	}
	if n.decidedAt == 0 || n.decision.NoRetryReason != decision.Retried {
		return false
	}
	d := &n.decision
	isCut := g.retriesEnded && d.Demanded == 0 // the end of the input cuts the wait
	if isCut || n.due <= g.now {
		return false
	}
	l.shareLineage(s, n)
	if s.err == nil {
		s.err = d.Err // the last error, if its time runs out
	}
	g.putOff(s, n.due)
	if d.Demanded > 0 {
		s.retry |= Demanded
	}
	return true
}

// started records an attempt of s. If it makes or joins a call, it shares the lineage of
// its key.
func (l *lookups[IN, OUT]) started(s *Slot[IN, OUT], t *call.Token) {
	of := l.states.ref(s.index)
	of.began = s.generation
	of.isReserved = l.reservation != nil
	if of.isReserved {
		l.reservedRunning++
	}
	isHit := of.isReserved && !l.reservation.Joins()
	if isHit || !l.core.Policy.ConsidersErrors {
		return
	}
	n := of.lineage
	if n == nil {
		n = l.find(s, true)
	}
	if n == nil {
		return
	}
	l.shareLineage(s, n)
	if !of.isReserved {
		n.leader = t
	}
}

func (l *lookups[IN, OUT]) attemptEnded(s *Slot[IN, OUT], t *call.Token) {
	of := l.states.ref(s.index)
	if of.isReserved {
		of.isReserved = false
		l.reservedRunning--
	}
	if of.lineage != nil && of.lineage.leader == t {
		of.lineage.leader = nil
	}
}

// share lets s share the decision of its lineage, if the last attempt of s began before
// that decision. It reports whether it did. d is the decision about the attempt, which
// share replaces.
func (l *lookups[IN, OUT]) share(s *Slot[IN, OUT], d *decision.Decision) bool {
	g := l.core
	of := l.states.get(s.index)
	n := of.lineage
	beganBefore := n != nil && of.began <= n.decidedAt // decidedAt is 0 before the first decision
	if !beganBefore {
		return false
	}
	g.refresh()
	err := d.Err
	*d = n.decision
	if err != nil {
		d.Err = err
	}
	d.Delay = max(0, n.due-g.now)
	d.Demanded = min(d.Demanded, d.Delay)
	return true
}

// keepDecision keeps the decision about the last failed attempt of s for the other
// elements of its key.
func (l *lookups[IN, OUT]) keepDecision(s *Slot[IN, OUT], d *decision.Decision) {
	g := l.core
	if d.Capped { // by the deadline of s, which is not the deadline of others
		return
	}
	n := l.states.get(s.index).lineage
	if n == nil { // a hit that failed
		return
	}
	g.refresh()
	n.decidedAt = g.slots.generations
	n.due = later(g.now, max(d.Delay, d.Demanded))
	n.decision = *d
	n.decision.NeedsBudget, n.decision.Before = false, nil // they are for s only
}

// sharesKey reports whether s has made or joined a call, or waited for a retry of its
// key.
func (l *lookups[IN, OUT]) sharesKey(s *Slot[IN, OUT]) bool {
	return l.states.get(s.index).lineage != nil
}

func (l *lookups[IN, OUT]) shareLineage(s *Slot[IN, OUT], n *lineage) {
	of := l.states.ref(s.index)
	if of.lineage == nil {
		of.lineage = n
		n.members++
	}
}

// leave removes s, which has ended, from its lineage.
func (l *lookups[IN, OUT]) leave(s *Slot[IN, OUT]) {
	n := l.states.get(s.index).lineage
	if n == nil {
		return
	}
	l.states.ref(s.index).lineage = nil
	n.members--
	if n.members == 0 {
		delete(l.lineages, n.key)
	}
}

// startOthers starts all attempts that need no call of their own, if the backend has
// refused a call in this step, or the budget is spent. Then startWaiting has stopped at
// the refused call.
//
// Without a refusal, startWaiting tries elements as long as there are free permits, and
// at most stepLimit in a step. Elements beyond them wait for a permit, even if they need
// no call of their own since they were accepted: to try all would cost too much.
func (l *lookups[IN, OUT]) startOthers() {
	g := l.core
	changes := l.Changes()
	refusesCalls := g.backend != nil && (g.backend.wasRefused || g.backend.refusedByBudget)
	if !refusesCalls || l.lastChanges == changes {
		return
	}
	l.lastChanges = changes
	for s := g.first(); s != nil && g.state.Failure == nil; {
		next := s.next()
		isWaiting := s.phase == fresh || s.phase == ready && s.timer.Armed() // not armed while it may not be called: see retryNow
		if isWaiting {
			l.start(s)
		}
		s = next
	}
}

func (l *lookups[IN, OUT]) forget() {
	l.lineages, l.reservation = nil, nil
}
