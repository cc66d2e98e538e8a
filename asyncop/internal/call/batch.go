package call

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
)

// Batch is a call for several elements. Each member is an attempt, and the batch has the
// permit.
//
//	loop:    NewBatch ─▶ Add ─▶ the member's function calls Join ─▶ Add … ─▶ Close
//	worker:  Run ─▶ the call ─▶ the outcomes of the members ─▶ the permit is free
type Batch[IN, OUT any] struct {
	Stamp gate.Stamp // at a backend; written before the call

	host    *Host
	of      any               // the function
	members []Member[IN, OUT] // the loop's until Close, then read-only
	waits   []wait            // the loop's until Close, then read-only

	mu     sync.Mutex // a leaf
	closed bool       // guarded by mu

	// Guarded by mu until Close, then owned by the worker. Read-only during the call.
	ins  []IN
	outs []Future[OUT]
	ctxs []context.Context // of the function's calls

	returned atomic.Bool  // the call has returned, or is not made
	numEnded atomic.Int64 // the first numEnded of ctxs are known to have ended
	signal   signal       // the end of the call's context
	watched  sync.Once    // starts watch when needed
}

// Future is asyncop.ResultFuture.
type Future[OUT any] interface {
	Complete(results ...OUT)
	CompleteExceptionally(err error)
}

// Member is the attempt of an element in a batch.
type Member[IN, OUT any] struct {
	Attempt[OUT]
	batch *Batch[IN, OUT]
	room  [1]OUT
}

// wait is for a task before the call, unless its member ends.
type wait struct{ done, ended <-chan struct{} }

// NewBatch returns a batch of at most size members, whose permits the caller has taken.
func NewBatch[IN, OUT any](host *Host, of any, size int) *Batch[IN, OUT] {
	return &Batch[IN, OUT]{host: host, of: of, members: make([]Member[IN, OUT], 0, size)}
}

// Len returns how many members there are.
func (b *Batch[IN, OUT]) Len() int { return len(b.members) }

// Add returns the attempt of a new member. The batch must not be full.
func (b *Batch[IN, OUT]) Add() *Attempt[OUT] {
	n := len(b.members)
	b.members = b.members[:n+1]
	m := &b.members[n]
	m.batch, m.Results = b, m.room[:0]
	m.state.Store(withoutPermits)
	return &m.Attempt
}

// Context returns the context of the newest member.
func (b *Batch[IN, OUT]) Context() Cancellable {
	return &b.members[len(b.members)-1]
}

// WaitFor makes the call wait until done is closed or the newest member has ended.
func (b *Batch[IN, OUT]) WaitFor(done <-chan struct{}) {
	b.waits = append(b.waits, wait{done, b.Context().Done()})
}

// Join adds an element and the arguments of its call. It returns false if the batch is
// closed. It is safe for concurrent use.
func (b *Batch[IN, OUT]) Join(ctx context.Context, in IN, out Future[OUT]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	if b.ins == nil {
		size := cap(b.members)
		b.ins = make([]IN, 0, size)
		b.outs = make([]Future[OUT], 0, size)
		b.ctxs = make([]context.Context, 0, size)
	}
	b.ins = append(b.ins, in)
	b.outs = append(b.outs, out)
	b.ctxs = append(b.ctxs, ctx)
	return true
}

// Other is a call behind a wrapper that converts types. The function of such a batch
// joins by JoinOther, and takes all calls from Others.
type Other interface{ CompleteExceptionally(err error) }

// otherFuture is an Other as a future.
type otherFuture[OUT any] struct{ Other }

// Complete is not called.
func (otherFuture[OUT]) Complete(...OUT) {}

// JoinOther is Join for a call of other types.
func (b *Batch[IN, OUT]) JoinOther(ctx context.Context, call Other) bool {
	var none IN
	return b.Join(ctx, none, otherFuture[OUT]{call})
}

// Others returns the calls of other types that are not late, in order, during the call.
func (b *Batch[IN, OUT]) Others() []Other {
	others := make([]Other, len(b.outs))
	for i, out := range b.outs {
		others[i] = out.(otherFuture[OUT]).Other
	}
	return others
}

// Close ends the collection of members, and reports whether one has joined. If it returns
// false, the call is not made, and the caller keeps the permits.
func (b *Batch[IN, OUT]) Close() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.returned.Store(len(b.ins) == 0)
	return len(b.ins) > 0
}

// Run makes the call, on a worker, for the elements that are not late (law A5). The
// result of call completes the element at i. A panic or runtime.Goexit in call fails all
// elements (law A6).
func (b *Batch[IN, OUT]) Run(call func(ctx context.Context, ins []IN) (outcome func(i int, out Future[OUT]))) {
	defer func() { // runs after runtime.Goexit, too, and last: letters are posted before the permit is free
		b.returned.Store(true)
		b.host.FreeBackendPermit(b.Stamp)
		b.host.freed.Add(1)
		b.host.WakeUp()
	}()
	for _, f := range b.waits {
		select {
		case <-f.done:
		case <-f.ended:
		}
	}
	end := b.beginCall()
	defer end()
	b.leaveOutLate()
	if len(b.ins) == 0 {
		return
	}
	var g guard.Guard
	defer g.Close(func(recovered any) {
		err := Panicked(recovered)
		b.returned.Store(true)
		b.deliver(b.outs, b.ctxs, func(_ int, out Future[OUT]) { out.CompleteExceptionally(err) })
	})
	outcome := call(b, b.ins)
	g.Returned()
	b.returned.Store(true)
	b.deliver(b.outs, b.ctxs, outcome)
}

// beginCall calls [Host.beginCall] with the contexts of the elements until one succeeds.
// Each may wait until its context ends. If all fail, leaveOutLate removes all elements.
func (b *Batch[IN, OUT]) beginCall() (end func()) {
	for _, ctx := range b.ctxs {
		end, err := b.host.beginCall(ctx, b.Stamp)
		if err == nil {
			return end
		}
	}
	return func() {}
}

// leaveOutLate removes late elements, and completes each one that waits for an outcome.
func (b *Batch[IN, OUT]) leaveOutLate() {
	var outs []Future[OUT]
	var ctxs []context.Context
	var errs []error
	n := 0
	for i, ctx := range b.ctxs {
		late, hasEnded := lateIn(ctx)
		if late == nil {
			b.ins[n] = b.ins[i]
			b.outs[n] = b.outs[i]
			b.ctxs[n] = ctx //nolint:fatcontext // a context moves within its slice
			n++
			continue
		}
		_, isAttempt := b.outs[i].(*Attempt[OUT])
		awaitsOutcome := !isAttempt || !hasEnded // a wrapper waits for its future even after the end of the attempt
		if awaitsOutcome {
			outs = append(outs, b.outs[i])
			ctxs = append(ctxs, ctx)
			errs = append(errs, late)
		}
	}
	clear(b.ins[n:])
	clear(b.outs[n:])
	clear(b.ctxs[n:])
	b.ins = b.ins[:n]
	b.outs = b.outs[:n]
	b.ctxs = b.ctxs[:n]
	if len(outs) > 0 { // on another worker: a future may end its goroutine
		b.host.Run(func() { b.deliver(outs, ctxs, func(i int, out Future[OUT]) { out.CompleteExceptionally(errs[i]) }) })
	}
}

// LateChecker is the value of [AttemptKey]: an [Attempt], or the load of a lookup.
type LateChecker interface{ CheckLate() (late error) }

// lateIn returns why a call must not start for the attempt of ctx, or nil. hasEnded is
// false if only a wrapper's context has ended.
func lateIn(ctx context.Context) (late error, hasEnded bool) {
	if attempt, ok := ctx.Value(AttemptKey{}).(LateChecker); ok {
		if late := attempt.CheckLate(); late != nil {
			return late, true
		}
	}
	return ctx.Err(), false
}

// deliver completes elements. A panic of a future, such as a user's wrapper, fails only
// its own attempt.
func (b *Batch[IN, OUT]) deliver(outs []Future[OUT], ctxs []context.Context, outcome func(i int, out Future[OUT])) {
	i, all := 0, letters[OUT]{host: b.host}
	var g guard.Guard
	defer g.Close(func(recovered any) {
		all.post()
		if a, ok := ctxs[i].Value(AttemptKey{}).(*Attempt[OUT]); ok {
			a.CompleteExceptionally(Panicked(recovered))
		}
		next := i + 1
		b.deliver(outs[next:], ctxs[next:], func(i int, out Future[OUT]) { outcome(next+i, out) })
	})
	for ; i < len(outs); i++ {
		if a, own := outs[i].(*Attempt[OUT]); own {
			all.of = a
			outcome(i, &all)
		} else {
			all.post() // in order (law Q1)
			outcome(i, outs[i])
		}
	}
	g.Returned()
	all.post()
}

// HasReturned reports whether the call has returned or is not made.
func (b *Batch[IN, OUT]) HasReturned() bool { return b.returned.Load() }

// letters is the future of one member after another. It posts all letters together, so
// that the loop does not fill some slots and send a small batch.
type letters[OUT any] struct {
	host           *Host
	of             *Attempt[OUT]
	newest, oldest *Letter
}

// Complete implements Future.
func (l *letters[OUT]) Complete(results ...OUT) {
	if l.of.claim() {
		l.of.Results = results
		l.add()
	}
}

// CompleteExceptionally implements Future. err is not nil.
func (l *letters[OUT]) CompleteExceptionally(err error) {
	var none OUT
	l.Return(none, err)
}

// Return completes with one result or, if err is not nil, with err. It does not allocate.
func (l *letters[OUT]) Return(result OUT, err error) {
	if l.of.claim() {
		l.of.Failure = err
		if err == nil {
			l.of.Results = append(l.of.Results, result)
		}
		l.add()
	}
}

// add is [Token.publish] without posting the letter.
func (l *letters[OUT]) add() {
	before := l.of.state.Or(completed | contextEnded)
	if before&contextEnded != 0 {
		l.host.late.Add(1)
		return
	}
	l.of.endContext()
	l.of.Next = l.newest
	l.newest = &l.of.Letter
	if l.oldest == nil {
		l.oldest = l.newest
	}
}

func (l *letters[OUT]) post() {
	if l.newest != nil {
		l.host.Post(l.newest, l.oldest)
		l.newest, l.oldest = nil, nil
	}
}
