package asyncop

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/strategies"
)

// KeyOrderedWait is [UnorderedWait] with calls in order for each key, such as changes of
// an account or messages of a chat. Different keys do not wait for each other (law K1).
//
//	in   -- a1 -- a2 -- b1 ----------------------------
//	calls   [a1-----------][a2------]
//	                    [b1-----]
//	out  ------------------------ b1' a1' ---- a2' ----
//
// At most one element of a key is called or waits for a retry. The next element starts
// when it has ended: its results are final, it was dropped, or the failure sink has taken
// it. Results and failures of a key leave in input order. The oldest element that may
// start goes first.
//
//   - The timeout of an element includes the wait for its key. If it runs out there, the
//     element fails without an attempt, or its [TimeoutHandler] is called. Results and
//     failures wait for earlier elements of the key; with [WithDropOnFailure] the element
//     is dropped at once.
//   - A [Blocking] call keeps its key until it returns, even if its attempt or its
//     element has timed out. So a call that ignores its context blocks its key, including
//     its own retries. A callback-style call ends with its attempt.
//   - A watermark keeps its position, but elements still wait for their keys across it.
//   - A restored element waits for earlier elements of its key. The state may be from an
//     unordered operator.
//   - A key is remembered while an element of it is in flight. The number of keys is
//     unlimited.
//
// key is called once for each element, on the operator's loop, and must not block. A
// panic fails the element (law A6). So does a key that a map cannot find, such as NaN or
// a slice in an interface.
//
// strategy is as in [OrderedWaitWithRetry], or nil for no retries. An element in back-off
// keeps its key.
//
// capacity limits all elements, including elements that wait for their key: see
// [WithMaxWaitingPerKey]. KeyOrderedWait panics like [OrderedWait], and if key is nil.
func KeyOrderedWait[K comparable, IN, OUT any](
	fn AsyncFunction[IN, OUT], key func(in IN) K, timeout time.Duration, capacity int,
	strategy strategies.Retry[OUT], opts ...Option,
) *AsyncWaitOperator[IN, OUT] {
	guard.RefuseNil("asyncop: KeyOrderedWait", "key function", key)
	opts = append(slices.Clone(opts), func(c *config) {
		c.keys = core.NewKeys[K, IN, OUT](key, func(key any) error {
			return fmt.Errorf("asyncop: unusable key %s: it is not equal to itself, or cannot be compared", defaultLabel(key, true))
		})
	})
	if guard.IsNil(strategy) {
		strategy = strategies.NoRetry[OUT]()
	}
	return newOperator("KeyOrderedWait", true, fn, timeout, capacity, strategy, opts)
}

// WithMaxWaitingPerKey limits the elements that wait for a key. When n elements of a key
// wait, the operator stops reading until it starts the first: meanwhile elements of all
// keys stay upstream, where their timeouts have not begun. By default the elements of a
// key may take all slots. The limit includes restored elements.
//
// It panics if n < 1. Constructors without key order panic with this option.
func WithMaxWaitingPerKey(n int) Option {
	refuseIf(n < 1, "WithMaxWaitingPerKey: must be at least 1, got %d", n)
	return func(c *config) { c.maxWaitingPerKey = n }
}
