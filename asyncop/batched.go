package asyncop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/internal/ctxkey"
)

// Batched makes an [AsyncFunction] of a blocking call for several elements, such as a
// bulk insert.
//
//	users := asyncop.Batched(func(ctx context.Context, ids []int) ([]asyncop.Result[User], error) {
//		return db.Users(ctx, ids) // a result for each id, in the order of ids
//	}, 100, 5*time.Millisecond)
//	op := asyncop.OrderedWaitWithRetry(users, 5*time.Second, 1000, strategy)
//
// The operator makes a batch of elements that may start: due retries, then first
// attempts, oldest first. A batch needs a permit. It starts when
//
//   - maxSize elements may start
//   - an element has waited for maxWait; with 0, elements that arrive together are a
//     batch
//   - all slots are taken, so that no other element can come
//   - the input has ended
//
// # Members
//
// Each member has its own slot, timeout, attempts and retries. call returns a result for
// each element, in order. Result.Err is its error; [ErrNoResult] means that it does not
// have a result. An error of call, a panic, and a wrong number of results are errors of
// all members. Members that failed, or whose result asks for a retry, are retried in
// later batches.
//
// The call continues after a member has timed out. Its context ends with the last member,
// and has the latest of their deadlines. Attempt numbers and values of observers are only
// in the contexts of [MemberContexts]: requests that exactlyonce tracks fail without them.
//
// # Permits
//
// A batch holds a permit ([WithMaxConcurrentCalls]) until call returns, and is a single
// call of its backend ([WithBackend]). Elements that wait for their batch hold only a
// slot.
//
// # Wrappers
//
// A wrapper of this function, as in package lookup, may have other types. It must have a
// method Unwrap() any, and call this function before its own AsyncInvoke returns, or its
// elements fail.
//
// call may keep and change the slice ins, but not the values its elements point to.
// maxWait should be well below the timeout. Batched panics if maxSize < 1 or maxWait < 0.
// The constructors refuse a nil call.
func Batched[IN, OUT any](
	call func(ctx context.Context, ins []IN) ([]Result[OUT], error), maxSize int, maxWait time.Duration,
) AsyncFunction[IN, OUT] {
	refuseIf(maxSize < 1, "Batched: maxSize must be at least 1, got %d", maxSize)
	refuseIf(maxWait < 0, "Batched: negative maxWait: %v", maxWait)
	if call == nil {
		return nil
	}
	return &batched[IN, OUT]{call: call, maxSize: maxSize, maxWait: maxWait}
}

// MemberContexts returns the contexts of the elements of a call of [Batched], in order,
// if ctx is the context of the call, and nil otherwise. They end with their attempts, and
// have the number of the attempt ([AttemptFromContext]) and the values of observers.
func MemberContexts(ctx context.Context) []context.Context {
	members, _ := ctx.Value(ctxkey.Members{}).([]context.Context)
	return slices.Clone(members) // the batch reads its own slice during the call
}

type batched[IN, OUT any] struct {
	call    func(ctx context.Context, ins []IN) ([]Result[OUT], error)
	maxSize int
	maxWait time.Duration
}

var (
	errNoBatch = errors.New("asyncop: Batched: no operator forms a batch for this call: " +
		"a wrapper of the function needs a method Unwrap() any")
	errLateForBatch = errors.New("asyncop: Batched: the batch of this element was called already: " +
		"a wrapper must call the function before its own AsyncInvoke returns")
)

// AsyncInvoke joins the batch in ctx.
func (f *batched[IN, OUT]) AsyncInvoke(ctx context.Context, in IN, result ResultFuture[OUT]) error {
	var joined bool
	switch b := ctx.Value(call.BatchKey{Of: f}).(type) {
	case *call.Batch[IN, OUT]:
		joined = b.Join(ctx, in, result)
	case otherBatch:
		joined = b.JoinOther(ctx, &batchedCall[IN, OUT]{result, in})
	default:
		return errNoBatch
	}
	if !joined {
		return errLateForBatch
	}
	return nil
}

// otherBatch is a [call.Batch] of other types.
type otherBatch interface {
	JoinOther(ctx context.Context, call call.Other) bool
}

var _ otherBatch = (*call.Batch[int, int])(nil)

type batchedCall[IN, OUT any] struct {
	ResultFuture[OUT]
	in IN
}

// invoke makes the call. completeAt completes the element at i.
func (f *batched[IN, OUT]) invoke(ctx context.Context, ins []IN) (completeAt func(i int, out call.Future[OUT])) {
	n := len(ins)
	results, err := f.call(ctx, ins)
	if err == nil && len(results) != n {
		err = fmt.Errorf("asyncop: Batched: the call has returned %d results for %d elements", len(results), n)
	}
	return func(i int, out call.Future[OUT]) {
		var r Result[OUT]
		r.Err = err
		if err == nil {
			r = results[i]
		}
		complete(out, r.Value, r.Err)
	}
}

// invokeOthers is invoke for calls of other types.
func (f *batched[IN, OUT]) invokeOthers(ctx context.Context, others []call.Other) (completeAt func(i int)) {
	ins := make([]IN, len(others))
	for i, o := range others {
		ins[i] = o.(*batchedCall[IN, OUT]).in
	}
	complete := f.invoke(ctx, ins)
	return func(i int) { complete(i, others[i].(*batchedCall[IN, OUT]).ResultFuture) }
}

func (f *batched[IN, OUT]) limits() (maxSize int, maxWait time.Duration) { return f.maxSize, f.maxWait }

// anyBatched is a function of Batched of any types.
type anyBatched interface {
	limits() (maxSize int, maxWait time.Duration)
	invokeOthers(ctx context.Context, others []call.Other) (completeAt func(i int))
}

// batchingOf returns the batches of fn, if fn is or wraps a function of Batched, or nil.
func batchingOf[IN, OUT any](fn AsyncFunction[IN, OUT]) *batching[IN, OUT] {
	inner, ok := find[anyBatched](fn)
	if !ok {
		return nil
	}
	own, _ := inner.(*batched[IN, OUT]) // nil if it has other types
	maxSize, maxWait := inner.limits()
	return &batching[IN, OUT]{Batching: core.Batching{Of: inner, MaxSize: maxSize, MaxWait: maxWait}, inner: inner, own: own}
}

// batching calls a function made by Batched.
type batching[IN, OUT any] struct {
	core.Batching
	inner anyBatched
	own   *batched[IN, OUT] // inner, or nil if it has other types
}

func (f *batching[IN, OUT]) call(b *call.Batch[IN, OUT]) {
	b.Run(func(ctx context.Context, ins []IN) (completeAt func(i int, out call.Future[OUT])) {
		if f.own != nil {
			return f.own.invoke(ctx, ins)
		}
		complete := f.inner.invokeOthers(ctx, b.Others())
		return func(i int, _ call.Future[OUT]) { complete(i) }
	})
}
