package core

import (
	"context"
	"runtime"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// The cost of a waiting element and of a call depends on these sizes, rounded up to the
// size classes of the allocator.
func TestSizes(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("sizes are those of 64 bits")
	}
	entry := unsafe.Sizeof(queue.Entry[*Slot[*int, *int]]{})
	plain := unsafe.Sizeof(Slot[*int, *int]{})
	t.Logf("slot %d, entry %d, attempt %d, reasons %d", plain, entry, unsafe.Sizeof(call.Attempt[*int]{}), unsafe.Sizeof(reasons{}))
	assert.LessOrEqual(t, plain, uintptr(112))
	assert.LessOrEqual(t, entry, uintptr(48))
	assert.LessOrEqual(t, unsafe.Sizeof(call.Attempt[*int]{}), uintptr(96))
	assert.LessOrEqual(t, unsafe.Sizeof(reasons{}), uintptr(16)) // under a policy that uses them
}

// An element that waits for a retry keeps only its entry in the queue and, if the policy
// uses them, its reasons. This holds even if its strategy ran on a worker, and on its
// second retry.
func TestWaitingElementsKeepLittle(t *testing.T) {
	again := strategies.ReasonStrategyFunc[string](func(context.Context, *predicates.Attempt[string]) (strategies.Action, error) {
		return strategies.RetryAfter(time.Second), nil
	})
	policy := strategies.ReasonAware(
		predicates.ByException[string](predicates.HasException, predicates.NewReason("TEST", true, false)), again)
	for name, p := range map[string]strategies.Retry[string]{
		"asked on a worker": policy, "asked at once": policy.Immediate(),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, p, nil)
			r.feed("a")
			for _, attempt := range []string{"a#1", "a#2"} {
				r.fail(attempt)
				r.step()
				s := r.first()
				var asked weak.Pointer[question[string]]
				if q := r.questions.get(s.index); q != nil {
					asked = weak.Make(q)
				}
				require.Equal(t, name == "asked on a worker", asked.Value() != nil)
				r.work()
				r.step()
				require.Equal(t, "backoff", r.Oldest())
				runtime.GC()
				require.Nil(t, asked.Value())
				require.Nil(t, s.attempt)
				require.Nil(t, r.questions.get(s.index))
				require.Nil(t, r.retrySteps.get(s.index))
				r.pass(time.Second)
			}
			r.complete("a#3")
			r.step()
			r.end()
		})
	}
}
