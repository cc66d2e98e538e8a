package asyncop

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/queue"
)

// attempt is one call for one element: the token that makes a completion count for this call and no other (law A2). It
// is the ResultFuture that user code holds and, as attemptContext, its context. It is never reused, since user code may
// keep it for ever.
type attempt[IN, OUT any] struct {
	// Written before the call, then read-only.
	core     *core[IN, OUT]
	number   int32         // from 1; 0 for a timeout handler
	state    atomic.Uint32 // attemptState bits
	deadline time.Duration // instant; noDeadline if there is none

	// Written by whoever sets claimed, before it sets completed; then the loop's.
	results []OUT
	err     error

	next  *attempt[IN, OUT]           // in the mailbox
	entry *queue.Entry[slot[IN, OUT]] // the loop's; nil when the attempt is over, as far as the loop is concerned

	signal atomic.Pointer[signal] // made when the context's end is asked for

	// then is called by the loop, if this is no call's attempt but an answer to the loop itself: see core.post. Written
	// before it is posted.
	then func()
}

// directAttempt is the attempt of a direct call, with a place for the one result it has as a rule.
type directAttempt[IN, OUT any] struct {
	attempt[IN, OUT]
	place [1]OUT
}

const noDeadline = time.Duration(-1)

// attemptState bits only ever get set, but for the requests.
const (
	// claimed: somebody completes the attempt; whoever comes later is late.
	claimed uint32 = 1 << iota
	// completed: results and err are written.
	completed
	// over: the context has ended.
	over
	// expired: it ended by a timeout.
	expired
	// held: a blocking call has the permit and will give it back.
	held
	// direct: the attempt is a blocking call that the loop has started without AsyncInvoke; its permit comes back with
	// its completion, in the mailbox or, if that is late, apart.
	direct
	// dispatching, sent, answered: the stages that the function reported; the latest counts.
	dispatching
	sent
	answered
	// early: the attempt is a timeout handler that was called before the deadline.
	early
)

// The upper half of an attempt's state counts the requests that a client has reported and not taken back.
const (
	request  uint32 = 1 << 16
	requests uint32 = 0xffff0000
)

func (a *attempt[IN, OUT]) isEarly() bool { return a.state.Load()&early != 0 }

// Complete implements [ResultFuture].
func (a *attempt[IN, OUT]) Complete(results ...OUT) { a.complete(results, nil) }

// CompleteExceptionally implements [ResultFuture].
func (a *attempt[IN, OUT]) CompleteExceptionally(err error) {
	if err == nil {
		err = ErrNilError
	}
	a.complete(nil, err)
}

// complete is called from any goroutine. Law A2: the first one counts, unless the attempt is over.
func (a *attempt[IN, OUT]) complete(results []OUT, err error) {
	if a.claim() {
		a.results, a.err = results, err
		a.publish()
	}
}

// completeOne is Complete with one result, without an allocation where the attempt has a place for it.
func (a *attempt[IN, OUT]) completeOne(result OUT) {
	if a.claim() {
		a.results = append(a.results, result)
		a.publish()
	}
}

// claim tells whether the caller is the one to complete the attempt.
func (a *attempt[IN, OUT]) claim() bool {
	before := a.state.Or(claimed)
	if before&claimed != 0 {
		a.core.late.Add(1)
	} else if before&over != 0 {
		a.tooLate(before)
	}
	return before&(claimed|over) == 0
}

// publish hands a claimed attempt with its outcome to the loop.
func (a *attempt[IN, OUT]) publish() {
	if a.conclude() {
		a.core.mail.post(a)
		a.core.wakeUp()
	}
}

// conclude ends a claimed attempt, unless it has been ended meanwhile.
func (a *attempt[IN, OUT]) conclude() bool {
	before := a.state.Or(completed | over)
	if before&over != 0 {
		a.tooLate(before)
		return false
	}
	a.endContext()
	return true
}

// late tells why nothing must begin for the attempt any more (law A5), asked on the goroutine that is about to: the loop may
// not have been told of a cancel yet, or may not have noticed that the time is over.
func (a *attempt[IN, OUT]) late() error {
	switch c := a.core; {
	case a.state.Load()&over != 0:
		return (*attemptContext[IN, OUT])(a).Err()
	case c.cancelled() || c.suspended.Load():
		return context.Canceled
	case a.deadline != noDeadline && c.timers.Now() >= a.deadline:
		return context.DeadlineExceeded
	}
	return nil
}

// cutOff ends the attempt of a call that is not made, before the loop does: its outcome is none of the element's, which ends
// by its timeout or with its operator.
func (a *attempt[IN, OUT]) cutOff(late error) {
	bits := over
	if late == context.DeadlineExceeded { //nolint:errorlint // from late
		bits |= expired
	}
	if a.state.Or(bits)&over == 0 {
		a.endContext()
	}
}

// tooLate counts the completion of an attempt that was over.
func (a *attempt[IN, OUT]) tooLate(state uint32) {
	a.core.late.Add(1)
	if state&direct != 0 {
		a.core.release()
	}
}

// expire ends the attempt by a timeout, or by the end of the operator; it returns the state before. A completion that
// was handed in by then is late, although it will be in the mailbox. Called by the loop.
func (a *attempt[IN, OUT]) expire(bits uint32) (before uint32) {
	for {
		before = a.state.Load()
		set := bits
		if before&over != 0 {
			set &^= expired // completed a moment ago: what Err has told does not change
		}
		if a.state.CompareAndSwap(before, before|set) {
			if before&completed != 0 {
				a.core.late.Add(1)
			}
			a.endContext()
			return before
		}
	}
}

// runBlocking implements blockingHost: it runs task on a goroutine of the operator. The call keeps the attempt's permit
// until task returns, unless the attempt is over already.
func (a *attempt[IN, OUT]) runBlocking(task func(late error)) {
	hold := false
	for !hold {
		s := a.state.Load()
		if s&(over|held|direct) != 0 {
			break // somebody else gives the permit back
		}
		hold = a.state.CompareAndSwap(s, s|held)
	}
	guarded := func(late error) {
		returned := false
		defer func() {
			if !returned { // the future is not the attempt but a wrapper's, and has failed (law A6)
				a.complete(nil, newPanicError(recover()))
			}
		}()
		task(late)
		returned = true
	}
	a.core.workers.run(job[IN, OUT]{attempt: a, wrapped: guarded, permit: hold})
}
