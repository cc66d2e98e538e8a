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

// Token ties code that runs elsewhere to the element that waits for it (law A2). Tokens
// are not reused: user code may keep them.
type Token struct {
	Letter // posted when the code is done

	// Written before the start, then read-only.
	Host   *Host
	Number int32 // of the attempt, from 1; 0 for handlers and offers
	state  atomic.Uint32
	Until  time.Duration // the deadline, or NoDeadline

	signal atomic.Pointer[signal] // created when needed; always there for a message
}

// NoDeadline is the deadline of a token without one.
const NoDeadline = time.Duration(math.MaxInt64)

// The bits of a token's state are never cleared, except in the counters of requests.
const (
	// claimed: a caller completes the token. Later ones are late.
	claimed uint32 = 1 << iota
	// completed: the results or the error are written.
	completed
	// contextEnded: the context has ended.
	contextEnded
	// expired: the context ended by a timeout.
	expired
	// occupied: a function of the attempt runs after its invocation, and keeps the permit
	// until it returns.
	occupied
	// returned: that function has returned.
	returned
	// released: the loop has released the attempt, whose function may still run. Release
	// sets it only if a function runs.
	released
	// dispatching, sent, answered: reported stages. The latest counts.
	dispatching
	sent
	answered
	// withoutPermits: the attempt's Batch has its permits, or the attempt has a
	// Reservation.
	withoutPermits
	// postsLetter: completions post a letter, because AsyncInvoke has returned, or is
	// called later. See Completion in place in doc.go.
	postsLetter
	// inPlace: a completion found the mailbox empty, and had not seen postsLetter.
	inPlace
	// completesByReturning: weir's wrapper completes the attempt when the user's function
	// has returned, so the completion sets returned as well.
	completesByReturning
	// borrowed: no call was made. The outcome is from a call for another element or a
	// cache, or the step before the call has failed.
	borrowed
	// uncalled: the user's function was not called, so a late completion is not counted.
	uncalled
)

// The other bits count reported requests that were not refused. Deduplicated requests
// have their own counter.
const (
	request              uint32 = 1 << 16
	requests             uint32 = 1<<24 - request
	deduplicatedRequest  uint32 = 1 << 24
	deduplicatedRequests uint32 = 0xff000000
	// reports has all bits of stages and requests.
	reports = dispatching | sent | answered | requests | deduplicatedRequests
)

// EndInvoke notes that AsyncInvoke has returned, or is called later. It reports whether
// the attempt has completed in place, without a letter: see Completion in place in
// doc.go.
func (t *Token) EndInvoke() (isInPlace bool) {
	if t.state.Load()&inPlace != 0 { // cheaper than Or
		return true
	}
	before := t.state.Or(postsLetter)
	return before&inPlace != 0
}

// Carry sets the message of a new token, unless it was created with one.
func (t *Token) Carry(m Message) {
	if m != (Message{}) && t.signal.Load() == nil {
		t.signal.Store(&signal{message: m})
	}
}

var _ ctxkey.Borrower = (*Token)(nil)

// Borrow notes that the attempt makes no call: see borrowed.
func (t *Token) Borrow() { t.state.Or(borrowed) }

// Borrowed reports whether Borrow was called.
func (t *Token) Borrowed() bool { return t.state.Load()&borrowed != 0 }

// Completed reports whether the results or the error are written.
func (t *Token) Completed() bool { return t.state.Load()&completed != 0 }

// claim reports whether the caller may complete the token. Other callers are late.
func (t *Token) claim() bool {
	before := t.state.Or(claimed)
	if before&(claimed|contextEnded) != 0 {
		t.Host.late.Add(1)
		if before&completesByReturning != 0 { // the wrapper: the user's function has returned
			t.Returned()
		}
		return false
	}
	return true
}

// claimUncalled is claim for an attempt whose function was not called. It does not count
// a late completion.
func (t *Token) claimUncalled() bool {
	return t.state.Or(claimed|uncalled)&(claimed|contextEnded) == 0
}

// publish completes a token whose results or error are written. It posts the letter,
// unless the completion is late or in place.
func (t *Token) publish() {
	bits := completed | contextEnded
	switch s := t.state.Load(); {
	case s&completesByReturning != 0: // a blocking call
		bits |= returned
	case s&postsLetter == 0 && t.Host.Mail.Empty():
		bits |= inPlace
	}
	before := t.state.Or(bits)
	if t.Host.Seat != nil {
		t.freeBackendPermit(before, bits)
	}
	if before&contextEnded != 0 {
		if before&uncalled == 0 {
			t.Host.late.Add(1)
		}
		t.freeOperatorPermit(before, bits)
		return
	}
	if s := t.signal.Load(); s != nil {
		s.fire()
	}
	isInPlace := bits&inPlace != 0 && before&postsLetter == 0 // EndInvoke may have come between
	if !isInPlace {
		t.Host.Post(&t.Letter, &t.Letter)
	}
}

// Finish ends the token and posts its letter, at the end of the work. If completes is
// set, the work completes the element, and is late if the token has ended (law A2).
func (t *Token) Finish(completes bool) {
	bits := contextEnded
	if completes {
		bits |= completed
	}
	before := t.state.Or(bits)
	if completes && before&contextEnded != 0 {
		t.Host.late.Add(1)
	}
	t.endContext()
	t.Post()
}

// Post posts the letter. The token continues.
func (t *Token) Post() { t.Host.Post(&t.Letter, &t.Letter) }

// Late returns why a call must not start for the token (law A5), or nil. The goroutine of
// the call checks this, because the loop may not have noticed a cancel or the deadline.
func (t *Token) Late() error {
	switch h := t.Host; {
	case t.state.Load()&contextEnded != 0:
		return t.Err()
	case h.Cancelled() || h.Suspended.Load():
		return context.Canceled
	case t.Until != NoDeadline && h.Clock.Now() >= t.Until: // last, because the clock costs more
		return context.DeadlineExceeded
	}
	return nil
}

// endLate ends the context of a call that is not made. Its element ends by its timeout or
// with its operator.
func (t *Token) endLate(late error) {
	bits := contextEnded
	if late == context.DeadlineExceeded { //nolint:errorlint // from Late
		bits |= expired
	}
	before := t.state.Or(bits)
	t.freeBackendPermit(before, bits)
	if before&contextEnded == 0 {
		t.endContext()
	}
}

// Expire is Cut for a timeout.
func (t *Token) Expire() Released { return t.cut(contextEnded | expired | released) }

// Cut ends the token before its time, because the operator ends or the message was
// purged. A completion with an unread letter is late, unless the function was not called.
// Only the loop calls it.
func (t *Token) Cut() Released { return t.cut(contextEnded | released) }

// Released is the state of a token at its release.
type Released struct {
	Stage        predicates.Stage // the latest
	InDoubt      bool             // a request was reported and not refused
	Deduplicated bool             // the servers recognise all such requests
	// OperatorPermit is set if the operator's permit is free. Otherwise the token has no
	// permit (withoutPermits), or the goroutine of the call frees it.
	OperatorPermit bool
	// BackendPermit is set if Cut or Expire makes the backend's permit free. After a
	// completion, publish or Returned frees it.
	BackendPermit bool
}

// cut sets bits, and returns the state of the token: see Cut.
func (t *Token) cut(bits uint32) Released {
	for {
		before := t.state.Load()
		set := bits
		if before&contextEnded != 0 {
			set &^= expired // the completion has ended the context: Err keeps its result
		}
		if t.state.CompareAndSwap(before, before|set) {
			if before&completed != 0 && before&uncalled == 0 {
				t.Host.late.Add(1)
			}
			t.endContext()
			how := Released{OperatorPermit: becomesFree(before, set, released), BackendPermit: becomesFree(before, set, contextEnded)}
			how.Stage, how.InDoubt, how.Deduplicated = reported(before)
			return how
		}
	}
}

// Release releases a completed attempt. Only the loop calls it.
func (t *Token) Release() (how Released) {
	s := t.state.Load()
	runs := s&occupied != 0 && s&returned == 0
	if runs {
		s = t.state.Or(released)
		how.OperatorPermit = becomesFree(s, released, released)
	} else { // a function cannot occupy a completed attempt, so the bit released is not needed
		how.OperatorPermit = s&withoutPermits == 0
	}
	if s&reports != 0 {
		how.Stage, how.InDoubt, how.Deduplicated = reported(s)
	}
	return how
}

// Permits: see doc.go.

// permitIsFree reports whether a permit is free: the operator's if bit is released, the
// backend's if bit is contextEnded.
func permitIsFree(state, bit uint32) bool {
	return state&(bit|withoutPermits) == bit && (state&occupied == 0 || state&returned != 0)
}

// becomesFree reports whether setting bits frees the permit of bit.
func becomesFree(before, bits, bit uint32) bool {
	return !permitIsFree(before, bit) && permitIsFree(before|bits, bit)
}

// Occupy notes that a function will run. It keeps the permit until Returned or, if
// completes is set, until it completes the attempt.
func (t *Token) Occupy(completes bool) {
	bits := occupied
	if completes {
		bits |= completesByReturning
	}
	t.state.Or(bits)
}

// tryOccupy is Occupy(false), unless the attempt has ended or is occupied.
func (t *Token) tryOccupy() bool {
	for {
		s := t.state.Load()
		if s&(contextEnded|occupied) != 0 {
			return false
		}
		if t.state.CompareAndSwap(s, s|occupied) {
			return true
		}
	}
}

// Returned notes that the function which occupied the attempt has returned or will not be
// called.
func (t *Token) Returned() {
	before := t.state.Or(returned)
	t.freeBackendPermit(before, returned)
	t.freeOperatorPermit(before, returned)
}

// HasReturned reports whether that function has returned.
func (t *Token) HasReturned() bool { return t.state.Load()&returned != 0 }

// freeBackendPermit frees the backend's permit of an attempt if setting bits makes it
// free.
func (t *Token) freeBackendPermit(before, bits uint32) {
	if t.Host.Seat != nil && becomesFree(before, bits, contextEnded) {
		t.Host.Seat.Release(t.Ref.Stamp)
	}
}

// freeOperatorPermit frees the operator's permit if setting bits makes it free. The loop
// takes it by Host.TakeFreed.
func (t *Token) freeOperatorPermit(before, bits uint32) {
	if becomesFree(before, bits, released) {
		t.Host.freed.Add(1)
		t.Host.WakeUp()
	}
}

// Attempt is a call for an element: the context of the call and the ResultFuture that
// user code completes. A completion counts only for its own attempt.
type Attempt[OUT any] struct {
	Token

	// Written by the goroutine that sets claimed, before it sets completed; then owned by
	// the loop.
	Results []OUT
	Failure error // of the call
}

// NewReserving returns an attempt for a [Reservation], without permits.
func NewReserving[OUT any]() *Attempt[OUT] {
	a := new(Attempt[OUT])
	a.state.Store(withoutPermits | borrowed)
	return a
}

type roomy[OUT any] struct {
	Attempt[OUT]
	room [1]OUT
}

// NewRoomy returns an attempt with space for one result.
func NewRoomy[OUT any]() *Attempt[OUT] {
	d := new(roomy[OUT])
	d.Results = d.room[:0]
	return &d.Attempt
}

// carrying is an attempt with a message, in one allocation.
type carrying[OUT any] struct {
	roomy[OUT]
	own signal
}

// NewCarrying returns an attempt with space for one result and the message m.
func NewCarrying[OUT any](m Message) *Attempt[OUT] {
	c := new(carrying[OUT])
	c.Results = c.room[:0]
	c.own.message = m
	c.signal.Store(&c.own)
	return &c.Attempt
}

// Value is [Token.Value] with the keys of an attempt: see the table in doc.go.
func (a *Attempt[OUT]) Value(key any) any {
	switch key := key.(type) {
	case NumberKey:
		return int(a.Number)
	case AttemptKey:
		return a
	case BackendKey:
		if a.Host.Backend != nil && a.Host.Backend == key.Backend {
			return a.Ref.Stamp
		}
	case ctxkey.Stage:
		return (*Stages)(&a.Token)
	case CostKey, ctxkey.Borrow:
		return &a.Token
	case ctxkey.Members: // outer members are not its own
		return nil
	case ReservationKey: // see WithReservation
		return nil
	}
	return a.Token.Value(key)
}

// Complete implements ResultFuture. The first completion counts, unless the attempt has
// ended (law A2).
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

// Return completes the attempt with one result or, if err is not nil, with err. It does
// not allocate if there is space.
func (a *Attempt[OUT]) Return(result OUT, err error) {
	if a.claim() {
		a.Failure = err
		if err == nil {
			a.Results = append(a.Results, result)
		}
		a.publish()
	}
}

// Refuse completes an attempt whose function was not called. It is never a late
// completion.
func (a *Attempt[OUT]) Refuse(err error) {
	if a.claimUncalled() {
		a.Failure = err
		a.publish()
	}
}

// CheckLate returns why the call must not be made, or nil. If there is a reason, it ends
// the context of the attempt, and later completions do not count.
func (a *Attempt[OUT]) CheckLate() (late error) {
	late = a.Late()
	if late != nil {
		a.endLate(late)
	}
	return late
}

// RunBlocking runs task, which makes a call, on a goroutine of the operator. ctx is the
// context of the call, which may outlast the attempt. late is the reason why task must
// not make the call, or nil. After the end of ctx, task must not make the call, either.
//
// The call keeps the attempt's permit until task returns. There is an exception: if the
// attempt has ended before RunBlocking, its permit may be free already.
func (a *Attempt[OUT]) RunBlocking(ctx context.Context, task func(late error)) {
	occupies := a.tryOccupy()
	a.Host.Run(func() {
		if occupies {
			defer a.Returned() // even after runtime.Goexit
		}
		end, err := a.Host.beginCall(ctx, a.Ref.Stamp)
		defer end()
		late := a.CheckLate()
		if late == nil {
			late = err
		}
		var g guard.Guard
		defer g.Close(func(recovered any) { // task has completed the future of a user's wrapper, which broke (law A6)
			a.CompleteExceptionally(Panicked(recovered))
		})
		task(late)
		g.Returned()
	})
}
