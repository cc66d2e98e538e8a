package call

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

// Token ties something that runs elsewhere to the element that waits for it (law A2). It
// is never used again, since user code may keep it for ever.
type Token struct {
	Letter // to the loop, when it is done

	// Written before the start, as Ref is, then read-only: they bind the token to the
	// element that waits for it.
	Host   *Host
	Number int32         // of the attempt, from 1; 0 for the handler of a failure
	state  atomic.Uint32 // bits
	Until  time.Duration // the deadline, an instant; NoDeadline if there is none

	signal atomic.Pointer[signal] // made when the context's end is asked for; that of a message before the start
}

// NoDeadline is the deadline of a token that has none: the last instant.
const NoDeadline = time.Duration(math.MaxInt64)

// The bits of a token's state only ever get set, but for the requests.
const (
	// claimed: a caller completes the token; others that come later are late.
	claimed uint32 = 1 << iota
	// completed: the outcome is written.
	completed
	// over: the context has ended.
	over
	// expired: it ended by a timeout.
	expired
	// occupied: a function of the attempt runs beyond its invocation, and keeps the
	// permit until it returns.
	occupied
	// returned: that function has returned.
	returned
	// ended: the loop has let go of an attempt whose function may still run.
	ended
	// dispatching, sent, answered: the stages that the function reported; the latest
	// counts.
	dispatching
	sent
	answered
	// member: the attempt is one of a Batch, which has the permit.
	member
	// left: the function has returned to the loop, or is not called yet; if the attempt
	// is complete in place, nobody asks.
	left
	// inPlace: it was complete before that, and nothing was in the mailbox then.
	inPlace
	// returns: the function completes the attempt by returning: one step does both.
	returns
	// borrowed: the outcome is that of a call for another element, or of none.
	borrowed
	// uncalled: the function was not called, so a completion that comes too late does not
	// count as late.
	uncalled
)

// The rest of the state counts the requests that clients have reported and not taken
// back: those that their server recognises when they come again, and the others.
const (
	request              uint32 = 1 << 16
	requests             uint32 = 1<<24 - request
	deduplicatedRequest  uint32 = 1 << 24
	deduplicatedRequests uint32 = 0xff000000
	reports                     = dispatching | sent | answered | requests | deduplicatedRequests
)

// Leave says that the function has returned, or is not called yet, and reports whether
// the attempt is complete and goes before what is in the mailbox. If not, its letter is
// there, or will come.
func (t *Token) Leave() (first bool) {
	return t.state.Load()&inPlace != 0 || t.state.Or(left)&inPlace != 0
}

// Carry makes the context of a new token know the message that its element is, unless it
// was made with one.
func (t *Token) Carry(m Message) {
	if m != (Message{}) && t.signal.Load() == nil {
		t.signal.Store(&signal{message: m})
	}
}

// Borrow says that the outcome of the attempt is that of a call for another element, or
// of none: it came from a cache. It says nothing of the backend.
func (t *Token) Borrow() { t.state.Or(borrowed) }

// Borrowed reports whether Borrow was called.
func (t *Token) Borrowed() bool { return t.state.Load()&borrowed != 0 }

// Completed reports whether the outcome has been handed in.
func (t *Token) Completed() bool { return t.state.Load()&completed != 0 }

// claim reports whether the caller is the one to complete the token; others are counted
// as late.
func (t *Token) claim() bool {
	before := t.state.Or(claimed)
	if before&(claimed|over) != 0 {
		t.Host.late.Add(1)
		if before&returns != 0 {
			t.Returned()
		}
		return false
	}
	return true
}

// claimUncalled is claim for an attempt whose function was not called.
func (t *Token) claimUncalled() bool {
	return t.state.Or(claimed|uncalled)&(claimed|over) == 0
}

// publish completes a token whose outcome is written, and hands it to the loop. If the
// token has ended meanwhile, the completion is late. A token that is completed while the
// loop calls its function needs no letter if the mailbox is empty: the loop finds it
// complete when the function returns (law Q1).
func (t *Token) publish() {
	bits := completed | over
	switch s := t.state.Load(); {
	case s&returns != 0:
		bits |= returned
	case s&left == 0 && t.Host.Mail.Empty():
		bits |= inPlace
	}
	before := t.state.Or(bits)
	if t.Host.Seat != nil {
		t.release(before, bits)
	}
	if before&over != 0 {
		if before&uncalled == 0 {
			t.Host.late.Add(1)
		}
		t.giveBack(before, bits)
		return
	}
	if s := t.signal.Load(); s != nil {
		s.fire()
	}
	if bits&inPlace == 0 || before&left != 0 {
		t.Host.Post(&t.Letter, &t.Letter)
	}
}

// Finish ends the token and posts its letter: what was to be done is done. Called by the
// goroutine that did it. If that completes the element, it counts as late if it is (law
// A2).
func (t *Token) Finish(completes bool) {
	bits := over
	if completes {
		bits |= completed
	}
	if before := t.state.Or(bits); completes && before&over != 0 {
		t.Host.late.Add(1)
	}
	t.endContext()
	t.Post()
}

// Post posts the letter and wakes the loop. It does not end the token: the element may go
// on with it.
func (t *Token) Post() { t.Host.Post(&t.Letter, &t.Letter) }

// Late returns why nothing must begin for the token any more (law A5), or nil. It is
// asked on the goroutine that is about to call: the loop may not know of a cancel yet, or
// may not have noticed that the time is over.
func (t *Token) Late() error {
	switch h := t.Host; {
	case t.state.Load()&over != 0:
		return t.Err()
	case h.Cancelled() || h.Suspended.Load():
		return context.Canceled
	case t.Until != NoDeadline && h.Clock.Now() >= t.Until: // a clock reading costs more
		return context.DeadlineExceeded
	}
	return nil
}

// cutOff ends the context of a call that is not made, before the loop does: its outcome
// does not count for the element, which ends by its timeout or with its operator.
func (t *Token) cutOff(late error) {
	bits := over
	if late == context.DeadlineExceeded { //nolint:errorlint // from Late
		bits |= expired
	}
	before := t.state.Or(bits)
	t.release(before, bits)
	if before&over == 0 {
		t.endContext()
	}
}

// ---- The loop lets go

// Expire is Cut for a timeout.
func (t *Token) Expire() Released { return t.cut(over | expired | ended) }

// Cut ends the token, since the operator ends. A completion that was handed in by then is
// late, although it will be in the mailbox. Called by the loop.
func (t *Token) Cut() Released { return t.cut(over | ended) }

// Released is how a token was when the loop let go of it.
type Released struct {
	Stage        predicates.Stage // the latest that was reported
	InDoubt      bool             // a client has reported a request and not taken it back
	Deduplicated bool             // the servers of all such requests recognise them
	Freed        bool             // the permit is the loop's; if not, the goroutine of the call gives it back
	Over         bool             // the same for the permit that operators share; it may have come back before
}

func (t *Token) cut(bits uint32) Released {
	for {
		before := t.state.Load()
		set := bits
		if before&over != 0 {
			set &^= expired // completed just now: Err keeps its result
		}
		if t.state.CompareAndSwap(before, before|set) {
			if before&completed != 0 {
				t.Host.late.Add(1)
			}
			t.endContext()
			how := Released{Freed: comesBack(before, set, ended), Over: comesBack(before, set, over)}
			how.Stage, how.InDoubt, how.Deduplicated = reported(before)
			return how
		}
	}
}

// LetGo lets go of a completed attempt. Called by the loop.
func (t *Token) LetGo() (how Released) {
	s := t.state.Load()
	if s&occupied == 0 || s&returned != 0 {
		how.Freed = s&member == 0 // nothing occupies it from now on, and it comes here once
	} else {
		s = t.state.Or(ended)
		how.Freed = comesBack(s, ended, ended)
	}
	if s&reports != 0 {
		how.Stage, how.InDoubt, how.Deduplicated = reported(s)
	}
	return how
}

// ---- Permits

// The permit of the operator comes back when the loop has let go (ended) and no function
// runs, that of the backend when the attempt is over and none does. A member has neither.

// isBack reports whether the permit is back that waits for bit.
func isBack(state, bit uint32) bool {
	return state&(bit|member) == bit && (state&occupied == 0 || state&returned != 0)
}

// comesBack reports whether setting bits has brought that about.
func comesBack(before, bits, bit uint32) bool {
	return !isBack(before, bit) && isBack(before|bits, bit)
}

// Occupy says that a function runs from now on, which keeps the permit until Returned or,
// if completes, until it completes the attempt. Called before it does.
func (t *Token) Occupy(completes bool) {
	bits := occupied
	if completes {
		bits |= returns
	}
	t.state.Or(bits)
}

// tryOccupy is Occupy(false), unless the attempt is over or occupied.
func (t *Token) tryOccupy() bool {
	for {
		s := t.state.Load()
		if s&(over|occupied) != 0 {
			return false
		}
		if t.state.CompareAndSwap(s, s|occupied) {
			return true
		}
	}
}

// Returned says that the function which occupied the attempt has returned, or is not
// called.
func (t *Token) Returned() {
	before := t.state.Or(returned)
	t.release(before, returned)
	t.giveBack(before, returned)
}

// HasReturned reports whether the function which occupied the attempt has returned.
func (t *Token) HasReturned() bool { return t.state.Load()&returned != 0 }

// release gives the permit of the backend back, if bits have brought that about: the
// attempt is over, and no function of it runs. Other than its operator's own permit it
// does not wait for the loop. Handlers have no number, and no permit.
func (t *Token) release(before, bits uint32) {
	if t.Host.Seat != nil && t.Number != 0 && comesBack(before, bits, over) {
		t.Host.Seat.Release(t.Ref.Stamp)
	}
}

// giveBack gives the permit back from another goroutine than the loop, if that is due.
func (t *Token) giveBack(before, bits uint32) {
	if comesBack(before, bits, ended) {
		t.Host.freed.Add(1)
		t.Host.WakeUp()
	}
}

// Attempt is one call for one element: the token that makes a completion count for this
// call and no other. It is the ResultFuture that user code holds, and the context of the
// call.
type Attempt[OUT any] struct {
	Token

	// Written by the goroutine that sets claimed, before it sets completed; then the
	// loop's.
	Results []OUT
	Failure error // of the call
}

// roomy is an attempt with room for the one result that a blocking call has as a rule.
type roomy[OUT any] struct {
	Attempt[OUT]
	room [1]OUT
}

// NewRoomy returns an attempt that has room for one result.
func NewRoomy[OUT any]() *Attempt[OUT] {
	d := new(roomy[OUT])
	d.Results = d.room[:0]
	return &d.Attempt
}

// carrying is an attempt for an element that is a message, in one piece.
type carrying[OUT any] struct {
	roomy[OUT]
	own signal
}

// NewCarrying returns an attempt that has room for one result, and whose context knows m.
func NewCarrying[OUT any](m Message) *Attempt[OUT] {
	c := new(carrying[OUT])
	c.Results = c.room[:0]
	c.own.message = m
	c.signal.Store(&c.own)
	return &c.Attempt
}

// Value is [Token.Value], and knows the attempt, for blocking calls and for those who
// report stages.
func (a *Attempt[OUT]) Value(key any) any {
	switch key := key.(type) {
	case NumberKey:
		return int(a.Number)
	case HostKey:
		return a
	case BackendKey:
		if a.Host.Backend != nil && a.Host.Backend == key.Backend {
			return true
		}
	case ctxkey.Stage:
		return (*Stages)(&a.Token)
	case ctxkey.Members: // those of a call around the operator are not its own
		return nil
	}
	return a.Token.Value(key)
}

// Complete implements ResultFuture. Law A2: the first completion counts, unless the
// attempt is over.
func (a *Attempt[OUT]) Complete(results ...OUT) {
	if a.claim() {
		a.Results, a.Failure = results, nil
		a.publish()
	}
}

// CompleteExceptionally implements ResultFuture.
func (a *Attempt[OUT]) CompleteExceptionally(err error) {
	if err == nil {
		err = ErrNil
	}
	if a.claim() {
		a.Results, a.Failure = nil, err
		a.publish()
	}
}

// Return completes the attempt with one result or, if err is not nil, with that: without
// an allocation where the attempt has room.
func (a *Attempt[OUT]) Return(result OUT, err error) {
	if a.claim() {
		if a.Failure = err; err == nil {
			a.Results = append(a.Results, result)
		}
		a.publish()
	}
}

// Refuse completes an attempt whose function has not been called. If the attempt has
// ended, that does not count as a late completion.
func (a *Attempt[OUT]) Refuse(err error) {
	if a.claimUncalled() {
		a.Failure = err
		a.publish()
	}
}

// Begin returns why the call must not be made any more, or nil. A call that is not made
// has no outcome.
func (a *Attempt[OUT]) Begin() (late error) {
	if late = a.Late(); late != nil {
		a.cutOff(late)
	}
	return late
}

// RunBlocking runs task on a goroutine of the operator; late, if not nil, is why the call
// must not be made any more. The call keeps the attempt's permit until task returns,
// unless the attempt is over already.
func (a *Attempt[OUT]) RunBlocking(task func(late error)) {
	occupies := a.tryOccupy()
	a.Host.Run(func() {
		if occupies {
			defer a.Returned() // even if the call ends its goroutine
		}
		late := a.Begin()
		var g guard.Guard
		defer g.Close(func(recovered any) { // the future is not the attempt but a wrapper's, and has failed (law A6)
			a.CompleteExceptionally(Panicked(recovered))
		})
		task(late)
		g.Returned()
	})
}
