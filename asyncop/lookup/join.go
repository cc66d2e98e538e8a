package lookup

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/guard"
)

// Join returns a function that combines each element with its value:
//
//	func(o Order, u User) Enriched { return Enriched{Order: o, Name: u.Name} })
//
// values is a [Function], or any function of keys. Its optional interfaces stay reachable
// if they do not depend on types. key is called on the loop, at least once for each
// attempt. join is called for each value, on the goroutine that delivers the value. An
// element without a value does not have a result. key and join must not block, and must
// be safe for concurrent use. A panic fails the element.
//
// Values are shared, and must not be changed. Join panics if an argument is nil, and if
// values has a Timeout method for other types, which would not be called: put
// asyncop.HandleFailure around the join.
func Join[K, V, IN, OUT any](
	values asyncop.AsyncFunction[K, V], key func(in IN) K, join func(in IN, value V) OUT,
) asyncop.AsyncFunction[IN, OUT] {
	switch {
	case guard.IsNil(values):
		panic("lookup: Join: nil function")
	case key == nil:
		panic("lookup: Join: nil key")
	case join == nil:
		panic("lookup: Join: nil join")
	}
	if _, fits := any(values).(asyncop.AsyncFunction[IN, OUT]); !fits {
		for fn := any(values); fn != nil; {
			if _, handles := fn.(asyncop.TimeoutHandler[K, V]); handles {
				panic(fmt.Sprintf("lookup: Join: the Timeout method of a %T would not be called: use asyncop.HandleFailure around the join", fn))
			}
			w, ok := fn.(call.Wrapper)
			if !ok {
				break
			}
			fn = w.Unwrap()
		}
	}
	j := &joined[K, V, IN, OUT]{values: values, key: key, join: join}
	shared := call.LookupsOf[K](values)
	if shared != nil {
		j.sharing = call.SharedBy[IN](j, joinedLookups[K, IN]{shared, key})
	}
	return j
}

type joined[K, V, IN, OUT any] struct {
	sharing[IN]

	values asyncop.AsyncFunction[K, V]
	key    func(in IN) K
	join   func(in IN, value V) OUT
}

func (j *joined[K, V, IN, OUT]) AsyncInvoke(ctx context.Context, in IN, result asyncop.ResultFuture[OUT]) error {
	return j.values.AsyncInvoke(ctx, j.key(in), &joining[V, IN, OUT]{result, j.join, in})
}

var _ call.Wrapper = (*joined[int, any, any, any])(nil)

// Unwrap returns the function of the values.
func (j *joined[K, V, IN, OUT]) Unwrap() any { return j.values }

// joining is the future of an element's value.
type joining[V, IN, OUT any] struct {
	result asyncop.ResultFuture[OUT]
	join   func(in IN, value V) OUT
	in     IN
}

func (j *joining[V, IN, OUT]) Complete(values ...V) {
	var g guard.Guard
	defer g.Close(func(recovered any) { j.result.CompleteExceptionally(guard.Recovered("asyncop", recovered)) }) // law A6
	results := make([]OUT, len(values))
	for i, v := range values {
		results[i] = j.join(j.in, v)
	}
	g.Returned()
	j.result.Complete(results...)
}

// Borrow implements borrower.
func (j *joining[V, IN, OUT]) Borrow() { borrow(j.result) }

func (j *joining[V, IN, OUT]) CompleteExceptionally(err error) { j.result.CompleteExceptionally(err) }

// joinedLookups are the lookups of a Join.
type joinedLookups[K, IN any] struct {
	values call.Lookups[K]
	key    func(in IN) K
}

// Reserve implements call.Lookups.
func (l joinedLookups[K, IN]) Reserve(in IN, number int) call.Reservation {
	return l.values.Reserve(l.key(in), number)
}

// LookupKey implements call.Lookups.
func (l joinedLookups[K, IN]) LookupKey(in IN) (any, bool) { return l.values.LookupKey(l.key(in)) }

// Changes implements call.Lookups.
func (l joinedLookups[K, IN]) Changes() int64 { return l.values.Changes() }
