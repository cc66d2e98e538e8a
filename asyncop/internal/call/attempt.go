package call

import (
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/guard"
)

// Attempt is one call for one element: the token that makes a completion count for this call and no other. It is the
// ResultFuture that user code holds, and the context of the call.
type Attempt[OUT any] struct {
	Token

	// Written by the goroutine that sets claimed, before it sets completed; then the loop's.
	results []OUT
	err     error
}

// roomy is an attempt with room for the one result that a blocking call has as a rule.
type roomy[OUT any] struct {
	Attempt[OUT]
	room [1]OUT
}

// NewRoomy returns an attempt that has room for one result.
func NewRoomy[OUT any]() *Attempt[OUT] {
	d := new(roomy[OUT])
	d.results = d.room[:0]
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
	c.results = c.room[:0]
	c.own.message = m
	c.signal.Store(&c.own)
	return &c.Attempt
}

// Outcome returns that of a completed attempt.
func (a *Attempt[OUT]) Outcome() (results []OUT, err error) { return a.results, a.err }

// Results returns those of a completed attempt.
func (a *Attempt[OUT]) Results() []OUT { return a.results }

// DropResults forgets them.
func (a *Attempt[OUT]) DropResults() { a.results = nil }

// Value is [Token.Value], and knows the attempt, for blocking calls and for those who report stages.
func (a *Attempt[OUT]) Value(key any) any {
	switch key := key.(type) {
	case NumberKey:
		return int(a.number)
	case HostKey:
		return a
	case BackendKey:
		if a.host.Backend != nil && a.host.Backend == key.Backend {
			return true
		}
	case ctxkey.Stage:
		return (*Stages)(&a.Token)
	case ctxkey.Members: // those of a call around the operator are not its own
		return nil
	}
	return a.Token.Value(key)
}

// Complete implements ResultFuture.
func (a *Attempt[OUT]) Complete(results ...OUT) { a.finish(results, nil) }

// CompleteExceptionally implements ResultFuture.
func (a *Attempt[OUT]) CompleteExceptionally(err error) {
	if err == nil {
		err = a.host.NilError
	}
	a.finish(nil, err)
}

// Return completes the attempt with one result or, if err is not nil, with that: without an allocation where the attempt has room.
func (a *Attempt[OUT]) Return(result OUT, err error) {
	if a.claim() {
		if a.err = err; err == nil {
			a.results = append(a.results, result)
		}
		a.publish(0, true)
	}
}

// finish is called from any goroutine. Law A2: the first one counts, unless the attempt is over.
func (a *Attempt[OUT]) finish(results []OUT, err error) {
	if a.claim() {
		a.results, a.err = results, err
		a.publish(0, true)
	}
}

// Refuse completes an attempt whose function has not been called. If it is over, this is not a completion, and is not counted.
func (a *Attempt[OUT]) Refuse(err error) {
	if a.state.Or(claimed)&(claimed|over) == 0 {
		a.err = err
		a.publish(0, false)
	}
}

// Returning is an attempt as the future of a function that completes it by returning: one step then does both.
type Returning[OUT any] Attempt[OUT]

// Complete implements ResultFuture.
func (r *Returning[OUT]) Complete(results ...OUT) {
	if r.claimed() {
		r.results, r.err = results, nil
		r.publish(returned, true)
	}
}

// CompleteExceptionally implements ResultFuture.
func (r *Returning[OUT]) CompleteExceptionally(err error) {
	if r.claimed() {
		if r.results, r.err = nil, err; err == nil {
			r.err = r.host.NilError
		}
		r.publish(returned, true)
	}
}

// Return completes the attempt with one result or, if err is not nil, with that.
func (r *Returning[OUT]) Return(result OUT, err error) {
	if r.claimed() {
		if r.err = err; err == nil {
			r.results = append(r.results, result)
		}
		r.publish(returned, true)
	}
}

// claimed is claim; the function has returned in any case.
func (r *Returning[OUT]) claimed() bool {
	if r.state.Or(claimed)&(claimed|over) == 0 {
		return true
	}
	r.host.late.Add(1)
	r.Returned()
	return false
}

// Begin returns why the call must not be made any more, or nil. A call that is not made has no outcome.
func (a *Attempt[OUT]) Begin() (late error) {
	if late = a.Late(); late != nil {
		a.cutOff(late)
	}
	return late
}

// RunBlocking runs task on a goroutine of the operator; late, if not nil, is why the call must not be made any more. The call
// keeps the attempt's permit until task returns, unless the attempt is over already.
func (a *Attempt[OUT]) RunBlocking(task func(late error)) {
	occupies := a.tryOccupy()
	a.host.Run(func() {
		if occupies {
			defer a.Returned() // even if the call ends its goroutine
		}
		late := a.Begin()
		var g guard.Guard
		defer g.Close(func(recovered any) { // the future is not the attempt but a wrapper's, and has failed (law A6)
			a.finish(nil, a.host.Panicked(recovered))
		})
		task(late)
		g.Returned()
	})
}

// Handling is the token of the handler of a failure. Its outcome is final.
type Handling[OUT any] struct {
	Token
	TimedOut bool // the failure is a timeout

	// Written by Run, then the loop's.
	results  []OUT
	err      error
	panicked bool
}

// Run calls the handler, on a worker, unless it is late.
func (h *Handling[OUT]) Run(handle func() ([]OUT, error)) {
	if h.Late() != nil {
		return
	}
	var g guard.Guard
	defer g.Close(func(recovered any) { h.finish(nil, h.host.Panicked(recovered), true) })
	results, err := handle()
	g.Returned()
	h.finish(results, err, false)
}

func (h *Handling[OUT]) finish(results []OUT, err error, panicked bool) {
	if h.claim() {
		h.results, h.err, h.panicked = results, err, panicked
		h.publish(0, true)
	}
}

// Outcome returns that of a handler which has answered. panicked says that err is its panic, not what it returned.
func (h *Handling[OUT]) Outcome() (results []OUT, err error, panicked bool) {
	return h.results, h.err, h.panicked
}
