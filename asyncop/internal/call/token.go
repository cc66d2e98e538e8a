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

// Token ties code that runs elsewhere to the element that waits for it (law A2). A token
// is never reused, because user code may keep it forever.
type Token struct {
	Letter // posted to the loop when the code is done

	// Written before the start, like Ref, then read-only. They bind the token to the
	// element that waits for it.
	Host   *Host
	Number int32         // of the attempt, from 1; 0 for the handler of a failure
	state  atomic.Uint32 // bits
	Until  time.Duration // the deadline; NoDeadline if the token has none

	signal atomic.Pointer[signal] // created when somebody asks for the end of the context, or before the start if the element is a message
}

// NoDeadline is the deadline of a token without a deadline: the last instant.
const NoDeadline = time.Duration(math.MaxInt64)

// The bits of a token's state. A bit that was set stays set. Only the counters of
// requests, below, also decrease.
const (
	// claimed: one caller completes the token. Later callers are late.
	claimed uint32 = 1 << iota
	// completed: the results or the error are written.
	completed
	// ended: the context has ended.
	ended
	// expired: the context ended by a timeout.
	expired
	// occupied: a function of the attempt runs on after its invocation, and keeps the
	// permit until it returns.
	occupied
	// returned: that function has returned.
	returned
	// released: the loop no longer needs the attempt. Its function may still run.
	released
	// dispatching, sent, answered: the stages that the function has reported. The latest
	// one counts.
	dispatching
	sent
	answered
	// member: the attempt belongs to a Batch, which has the permit.
	member
	// invoked: AsyncInvoke has returned to the loop, or was not called yet. The bit is
	// not set if the attempt completed in place.
	invoked
	// inPlace: the attempt was complete before AsyncInvoke returned, and the mailbox was
	// empty then.
	inPlace
	// returns: the function completes the attempt by returning, so one step does both.
	returns
	// borrowed: the outcome belongs to a call for another element, or comes from a cache.
	borrowed
	// uncalled: the function was not called, so a late completion is not counted as late.
	uncalled
)

// The other bits of the state count the requests that clients have reported and not taken
// back. Requests that their server recognises when they are repeated have a counter of
// their own.
const (
	request              uint32 = 1 << 16
	requests             uint32 = 1<<24 - request
	deduplicatedRequest  uint32 = 1 << 24
	deduplicatedRequests uint32 = 0xff000000
	reports                     = dispatching | sent | answered | requests | deduplicatedRequests
)

// Invoked notes that AsyncInvoke has returned, or was not called yet. It reports whether
// the attempt is complete and comes before the letters in the mailbox. If not, the letter
// of the attempt is in the mailbox, or will be posted.
func (t *Token) Invoked() (first bool) {
	return t.state.Load()&inPlace != 0 || t.state.Or(invoked)&inPlace != 0
}

// Carry sets the message in the context of a new token, for an element that is a message.
// It does nothing if the token was created with the message.
func (t *Token) Carry(m Message) {
	if m != (Message{}) && t.signal.Load() == nil {
		t.signal.Store(&signal{message: m})
	}
}

// Borrow notes that the outcome of the attempt belongs to a call for another element, or
// comes from a cache. Such an outcome is no evidence about the backend.
func (t *Token) Borrow() { t.state.Or(borrowed) }

// Borrowed reports whether Borrow was called.
func (t *Token) Borrowed() bool { return t.state.Load()&borrowed != 0 }

// Completed reports whether the results or the error are written.
func (t *Token) Completed() bool { return t.state.Load()&completed != 0 }

// claim reports whether the caller may complete the token. It counts other callers as
// late.
func (t *Token) claim() bool {
	before := t.state.Or(claimed)
	if before&(claimed|ended) != 0 {
		t.Host.late.Add(1)
		if before&returns != 0 {
			t.Returned()
		}
		return false
	}
	return true
}

// claimUncalled is like claim, for an attempt whose function was not called.
func (t *Token) claimUncalled() bool {
	return t.state.Or(claimed|uncalled)&(claimed|ended) == 0
}

// publish completes a token whose results or error are written, and hands it to the loop.
// If the token has ended meanwhile, the completion is late. A token that completes while
// the loop calls its function needs no letter if the mailbox is empty, because the loop
// looks at it when the function returns (law Q1).
func (t *Token) publish() {
	bits := completed | ended
	switch s := t.state.Load(); {
	case s&returns != 0:
		bits |= returned
	case s&invoked == 0 && t.Host.Mail.Empty():
		bits |= inPlace
	}
	before := t.state.Or(bits)
	if t.Host.Seat != nil {
		t.freeSeat(before, bits)
	}
	if before&ended != 0 {
		if before&uncalled == 0 {
			t.Host.late.Add(1)
		}
		t.freePermit(before, bits)
		return
	}
	if s := t.signal.Load(); s != nil {
		s.fire()
	}
	if bits&inPlace == 0 || before&invoked != 0 {
		t.Host.Post(&t.Letter, &t.Letter)
	}
}

// Finish ends the token and posts its letter. The goroutine that has done the work calls
// it. If completes is set and the token had ended before, it is counted as late (law A2).
func (t *Token) Finish(completes bool) {
	bits := ended
	if completes {
		bits |= completed
	}
	if before := t.state.Or(bits); completes && before&ended != 0 {
		t.Host.late.Add(1)
	}
	t.endContext()
	t.Post()
}

// Post posts the letter and wakes the loop. It does not end the token, because the
// element may still use it.
func (t *Token) Post() { t.Host.Post(&t.Letter, &t.Letter) }

// Late returns the reason why no call may start for the token (law A5), or nil. The
// goroutine that is about to call asks, because the loop may not have noticed a cancel or
// the deadline yet.
func (t *Token) Late() error {
	switch h := t.Host; {
	case t.state.Load()&ended != 0:
		return t.Err()
	case h.Cancelled() || h.Suspended.Load():
		return context.Canceled
	case t.Until != NoDeadline && h.Clock.Now() >= t.Until: // a clock reading costs more
		return context.DeadlineExceeded
	}
	return nil
}

// cutOff ends the context of a call that is not made, before the loop does. The attempt
// has no outcome: its element ends by its timeout or with its operator.
func (t *Token) cutOff(late error) {
	bits := ended
	if late == context.DeadlineExceeded { //nolint:errorlint // from Late
		bits |= expired
	}
	before := t.state.Or(bits)
	t.freeSeat(before, bits)
	if before&ended == 0 {
		t.endContext()
	}
}

// ---- The loop releases a token

// Expire is Cut, for a timeout.
func (t *Token) Expire() Released { return t.cut(ended | expired | released) }

// Cut ends the token, because the operator ends. A completion that was published before
// is late, although its letter is in the mailbox. Only the loop calls it.
func (t *Token) Cut() Released { return t.cut(ended | released) }

// Released is the state of a token when the loop released it.
type Released struct {
	Stage        predicates.Stage // the latest stage that was reported
	InDoubt      bool             // a client has reported a request and not taken it back
	Deduplicated bool             // the servers of all such requests recognise them
	// OwnPermit is set if the operator's permit is free. Otherwise the goroutine of the
	// call frees it.
	OwnPermit bool
	// BackendPermit is set if the backend's permit is free now. It may also have been
	// free before.
	BackendPermit bool
}

func (t *Token) cut(bits uint32) Released {
	for {
		before := t.state.Load()
		set := bits
		if before&ended != 0 {
			set &^= expired // it has just completed: Err keeps its result
		}
		if t.state.CompareAndSwap(before, before|set) {
			if before&completed != 0 {
				t.Host.late.Add(1)
			}
			t.endContext()
			how := Released{OwnPermit: becomesFree(before, set, released), BackendPermit: becomesFree(before, set, ended)}
			how.Stage, how.InDoubt, how.Deduplicated = reported(before)
			return how
		}
	}
}

// Release releases a completed attempt. Only the loop calls it.
func (t *Token) Release() (how Released) {
	s := t.state.Load()
	if s&occupied == 0 || s&returned != 0 {
		how.OwnPermit = s&member == 0 // no function occupies it from now on, and Release is called once
	} else {
		s = t.state.Or(released)
		how.OwnPermit = becomesFree(s, released, released)
	}
	if s&reports != 0 {
		how.Stage, how.InDoubt, how.Deduplicated = reported(s)
	}
	return how
}

// ---- Permits

// The operator's permit becomes free when the loop has released the attempt and no
// function of it runs. The backend's permit becomes free when the attempt has ended and
// no function of it runs. A member of a batch has no permits.

// isFree reports whether the permit that waits for bit is free: for released the
// operator's permit, for ended the backend's permit.
func isFree(state, bit uint32) bool {
	return state&(bit|member) == bit && (state&occupied == 0 || state&returned != 0)
}

// becomesFree reports whether the permit that waits for bit becomes free when bits are
// set.
func becomesFree(before, bits, bit uint32) bool {
	return !isFree(before, bit) && isFree(before|bits, bit)
}

// Occupy notes that a function starts to run. It keeps the permit until Returned is
// called or, if completes is set, until it completes the attempt.
func (t *Token) Occupy(completes bool) {
	bits := occupied
	if completes {
		bits |= returns
	}
	t.state.Or(bits)
}

// tryOccupy is Occupy(false). It reports false if the attempt has ended or is occupied.
func (t *Token) tryOccupy() bool {
	for {
		s := t.state.Load()
		if s&(ended|occupied) != 0 {
			return false
		}
		if t.state.CompareAndSwap(s, s|occupied) {
			return true
		}
	}
}

// Returned notes that the function which occupied the attempt has returned, or will not
// be called.
func (t *Token) Returned() {
	before := t.state.Or(returned)
	t.freeSeat(before, returned)
	t.freePermit(before, returned)
}

// HasReturned reports whether the function which occupied the attempt has returned.
func (t *Token) HasReturned() bool { return t.state.Load()&returned != 0 }

// freeSeat frees the backend's permit if it becomes free when bits are set. Unlike the
// operator's permit it does not wait for the loop. Handlers have no number and no permit.
func (t *Token) freeSeat(before, bits uint32) {
	if t.Host.Seat != nil && t.Number != 0 && becomesFree(before, bits, ended) {
		t.Host.Seat.Release(t.Ref.Stamp)
	}
}

// freePermit frees the operator's permit if it becomes free when bits are set. Goroutines
// other than the loop call it.
func (t *Token) freePermit(before, bits uint32) {
	if becomesFree(before, bits, released) {
		t.Host.freed.Add(1)
		t.Host.WakeUp()
	}
}

// Attempt is one call for one element. It is the ResultFuture that user code completes,
// and the context of the call. A completion counts only for the attempt that it was made
// on.
type Attempt[OUT any] struct {
	Token

	// Written by the goroutine that sets claimed, before it sets completed. The loop owns
	// them afterwards.
	Results []OUT
	Failure error // of the call
}

// roomy is an attempt with room for one result: most blocking calls have one.
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

// carrying is an attempt for an element that is a message, in one allocation.
type carrying[OUT any] struct {
	roomy[OUT]
	own signal
}

// NewCarrying returns an attempt with room for one result, whose context has the message
// m.
func NewCarrying[OUT any](m Message) *Attempt[OUT] {
	c := new(carrying[OUT])
	c.Results = c.room[:0]
	c.own.message = m
	c.signal.Store(&c.own)
	return &c.Attempt
}

// Value is [Token.Value], and also answers the keys that an attempt has: see the table in
// the package documentation.
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
	case CostKey:
		return &a.Token
	case ctxkey.Members: // the members of a call around the operator are not members of this call
		return nil
	}
	return a.Token.Value(key)
}

// Complete implements ResultFuture. Law A2: the first completion counts, unless the
// attempt has ended.
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

// Return completes the attempt with one result, or with err if that is not nil. It does
// not allocate if the attempt has room.
func (a *Attempt[OUT]) Return(result OUT, err error) {
	if a.claim() {
		a.Failure = err
		if err == nil {
			a.Results = append(a.Results, result)
		}
		a.publish()
	}
}

// Refuse completes an attempt whose function was not called. If the attempt has ended, it
// is not counted as a late completion.
func (a *Attempt[OUT]) Refuse(err error) {
	if a.claimUncalled() {
		a.Failure = err
		a.publish()
	}
}

// Begin returns the reason why the call must not be made, or nil. A call that is not made
// has no outcome.
func (a *Attempt[OUT]) Begin() (late error) {
	late = a.Late()
	if late != nil {
		a.cutOff(late)
	}
	return late
}

// RunBlocking runs task on a goroutine of the operator. If late is not nil, task must not
// make the call; late is the reason. The call keeps the attempt's permit until task
// returns, unless the attempt has ended before.
func (a *Attempt[OUT]) RunBlocking(task func(late error)) {
	occupies := a.tryOccupy()
	a.Host.Run(func() {
		if occupies {
			defer a.Returned() // even if the call ends its goroutine
		}
		late := a.Begin()
		var g guard.Guard
		defer g.Close(func(recovered any) { // the future belongs to a wrapper, and has failed (law A6)
			a.CompleteExceptionally(Panicked(recovered))
		})
		task(late)
		g.Returned()
	})
}
