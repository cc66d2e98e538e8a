package call

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
)

// Batch is one call for several elements, its members. Each member is an attempt of its
// own; the permit is that of the batch.
//
//	loop:    NewBatch ─▶ Add ─▶ the member's function calls Join ─▶ Add … ─▶ Close
//	worker:  Run ─▶ the call ─▶ the outcomes of the members ─▶ the permit comes back
type Batch[IN, OUT any] struct {
	Stamp gate.Stamp // of the call at a backend; written before it is made

	host    *Host
	of      any               // the function
	members []Member[IN, OUT] // the loop's until Close, then read-only
	befores []before          // as members

	mu     sync.Mutex // a leaf
	closed bool       // guarded by mu

	// Guarded by mu until Close, then the worker's, and read-only during the call.
	ins  []IN
	outs []Future[OUT]
	ctxs []context.Context // of the calls of the function

	ended   atomic.Bool  // the call has returned, or there is none
	over    atomic.Int64 // so many of ctxs have ended, from the first one on; it may be more
	signal  signal       // the end of the call's context
	watched sync.Once    // that is asked for
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

// before is something that is done before the call, for a member that may be over
// earlier.
type before struct{ done, over <-chan struct{} }

// NewBatch returns a batch for calls of one function, with room for so many members. A
// permit of the operator, and a shared one, were taken for it.
func NewBatch[IN, OUT any](host *Host, of any, size int) *Batch[IN, OUT] {
	return &Batch[IN, OUT]{host: host, of: of, members: make([]Member[IN, OUT], 0, size)}
}

// Len returns the number of members.
func (b *Batch[IN, OUT]) Len() int { return len(b.members) }

// Add returns the attempt of another member. There must be room.
func (b *Batch[IN, OUT]) Add() *Attempt[OUT] {
	n := len(b.members)
	b.members = b.members[:n+1]
	m := &b.members[n]
	m.batch, m.Results = b, m.room[:0]
	m.state.Store(member)
	return &m.Attempt
}

// Context returns the context of the newest member's attempt.
func (b *Batch[IN, OUT]) Context() Cancellable {
	return &b.members[len(b.members)-1]
}

// After has the call wait until done is closed, or the newest member is over.
func (b *Batch[IN, OUT]) After(done <-chan struct{}) {
	b.befores = append(b.befores, before{done, b.Context().Done()})
}

// Join adds an element, with what the function was called with. It reports false if the
// batch is closed. Called from any goroutine.
func (b *Batch[IN, OUT]) Join(ctx context.Context, in IN, out Future[OUT]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	if b.ins == nil {
		size := cap(b.members)
		b.ins, b.outs, b.ctxs = make([]IN, 0, size), make([]Future[OUT], 0, size), make([]context.Context, 0, size)
	}
	b.ins, b.outs, b.ctxs = append(b.ins, in), append(b.outs, out), append(b.ctxs, ctx)
	return true
}

// Other is a call of other types than those of the operator: its wrapper makes them fit.
type Other interface{ CompleteExceptionally(err error) }

// otherFuture stands for an Other among the futures of a batch.
type otherFuture[OUT any] struct{ Other }

// Complete implements Future. It is not called: an Other knows its results.
func (otherFuture[OUT]) Complete(...OUT) {}

// JoinOther is Join for a call of other types.
func (b *Batch[IN, OUT]) JoinOther(ctx context.Context, call Other) bool {
	var none IN
	return b.Join(ctx, none, otherFuture[OUT]{call})
}

// Others returns the calls of other types that are not late, in the order of the
// elements. Called during the call.
func (b *Batch[IN, OUT]) Others() []Other {
	others := make([]Other, len(b.outs))
	for i, out := range b.outs {
		others[i] = out.(otherFuture[OUT]).Other
	}
	return others
}

// Close ends the forming. If no member has joined it reports false: there is no call, and
// the caller has the permits.
func (b *Batch[IN, OUT]) Close() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.ended.Store(len(b.ins) == 0)
	return len(b.ins) > 0
}

// Run makes the call, on a worker, for the elements that are not late (law A5). outcome
// completes the element at i. A panic of the call, or runtime.Goexit, is the outcome of
// all (law A6).
func (b *Batch[IN, OUT]) Run(call func(ctx context.Context, ins []IN) (outcome func(i int, out Future[OUT]))) {
	defer func() { // also if a future ends the goroutine; after the outcomes, so that elements that take the freed slots are there
		b.ended.Store(true)
		b.host.LeaveSeat(b.Stamp)
		b.host.freed.Add(1)
		b.host.WakeUp()
	}()
	for _, f := range b.befores {
		select {
		case <-f.done:
		case <-f.over:
		}
	}
	if b.leaveOutLate(); len(b.ins) == 0 {
		return
	}
	var g guard.Guard
	defer g.Close(func(recovered any) {
		err := Panicked(recovered)
		b.ended.Store(true)
		b.deliver(b.outs, b.ctxs, func(_ int, out Future[OUT]) { out.CompleteExceptionally(err) })
	})
	outcome := call(b, b.ins)
	g.Returned()
	b.ended.Store(true)
	b.deliver(b.outs, b.ctxs, outcome)
}

// leaveOutLate removes the elements that are late. There is no outcome if the attempt is
// over, unless the future is another one, whose owner waits for it.
func (b *Batch[IN, OUT]) leaveOutLate() {
	var outs []Future[OUT]
	var ctxs []context.Context
	var errs []error
	n := 0
	for i, ctx := range b.ctxs {
		late, isOver := lateIn(ctx)
		if late == nil {
			b.ins[n], b.outs[n], b.ctxs[n] = b.ins[i], b.outs[i], ctx
			n++
		} else if _, own := b.outs[i].(*Attempt[OUT]); !own || !isOver {
			outs, ctxs, errs = append(outs, b.outs[i]), append(ctxs, ctx), append(errs, late)
		}
	}
	clear(b.ins[n:])
	clear(b.outs[n:])
	clear(b.ctxs[n:])
	b.ins, b.outs, b.ctxs = b.ins[:n], b.outs[:n], b.ctxs[:n]
	if len(outs) > 0 { // elsewhere, since a future that ends its goroutine would keep the others from being called
		b.host.Run(func() { b.deliver(outs, ctxs, func(i int, out Future[OUT]) { out.CompleteExceptionally(errs[i]) }) })
	}
}

// lateIn asks the attempt that ctx belongs to, or what stands for it, why no call must
// begin. If that is not over, ctx is one that a wrapper has derived, and ended.
func lateIn(ctx context.Context) (late error, isOver bool) {
	if host, ok := ctx.Value(HostKey{}).(interface{ Begin() error }); ok {
		if late := host.Begin(); late != nil {
			return late, true
		}
	}
	return ctx.Err(), false
}

// deliver completes elements. A future that breaks, as that of a user's wrapper may,
// fails its own attempt only.
func (b *Batch[IN, OUT]) deliver(outs []Future[OUT], ctxs []context.Context, outcome func(i int, out Future[OUT])) {
	i, all := 0, letters[OUT]{host: b.host}
	var g guard.Guard
	defer g.Close(func(recovered any) {
		all.post()
		if a, ok := ctxs[i].Value(HostKey{}).(*Attempt[OUT]); ok {
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

// HasReturned reports whether the call has returned, or there is none. Members that have
// joined may be called until then.
func (b *Batch[IN, OUT]) HasReturned() bool { return b.ended.Load() }

// letters are a future for one member after the other, whose letters are posted together:
// if the loop got to know some of them, it would fill their slots, find itself full, and
// send a small batch off.
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

// CompleteExceptionally implements Future; err is not nil.
func (l *letters[OUT]) CompleteExceptionally(err error) {
	var none OUT
	l.Return(none, err)
}

// Return is Complete with one result or, if err is not nil, CompleteExceptionally,
// without an allocation.
func (l *letters[OUT]) Return(result OUT, err error) {
	if l.of.claim() {
		if l.of.Failure = err; err == nil {
			l.of.Results = append(l.of.Results, result)
		}
		l.add()
	}
}

// add is publish for a member, which has no permit, without posting its letter.
func (l *letters[OUT]) add() {
	if before := l.of.state.Or(completed | over); before&over != 0 {
		l.host.late.Add(1)
		return
	}
	l.of.endContext()
	l.of.Next = l.newest
	if l.newest = &l.of.Letter; l.oldest == nil {
		l.oldest = l.newest
	}
}

func (l *letters[OUT]) post() {
	if l.newest != nil {
		l.host.Post(l.newest, l.oldest)
		l.newest, l.oldest = nil, nil
	}
}
