package asyncop_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Small benchmarks of the operator alone, with timeout and retry armed. bench/ has the
// large benchmarks and compares them with other libraries.
//
//	go test -bench . -run '^$' -count 10 ./asyncop | benchstat -col /flow -

type benchItem struct{ n int }

// benchFlow makes an operator with typical options.
func benchFlow(ordered bool, fn asyncop.AsyncFunction[*benchItem, *benchItem], capacity int) *asyncop.AsyncWaitOperator[*benchItem, *benchItem] {
	retry := strategies.FixedDelay[*benchItem](3, 100*time.Millisecond).
		RetryIfResult(predicates.EmptyResult).RetryIfException(predicates.HasException)
	if ordered {
		return asyncop.OrderedWaitWithRetry(fn, 5*time.Second, capacity, retry)
	}
	return asyncop.UnorderedWaitWithRetry(fn, 5*time.Second, capacity, retry)
}

func benchImmediate() asyncop.AsyncFunction[*benchItem, *benchItem] {
	return asyncop.Func(func(_ context.Context, it *benchItem, result asyncop.ResultFuture[*benchItem]) error {
		result.Complete(it)
		return nil
	})
}

func benchBlocking() asyncop.AsyncFunction[*benchItem, *benchItem] {
	return asyncop.Blocking(func(_ context.Context, it *benchItem) (*benchItem, error) { return it, nil })
}

// benchCallback completes from a few other goroutines, like a client with callbacks. done
// ends them.
func benchCallback() (fn asyncop.AsyncFunction[*benchItem, *benchItem], done func()) {
	type request struct {
		it     *benchItem
		result asyncop.ResultFuture[*benchItem]
	}
	requests := make(chan request, 1024)
	for range 2 {
		go func() {
			for r := range requests {
				r.result.Complete(r.it)
			}
		}()
	}
	fn = asyncop.Func(func(_ context.Context, it *benchItem, result asyncop.ResultFuture[*benchItem]) error {
		requests <- request{it, result}
		return nil
	})
	return fn, func() { close(requests) }
}

// stream sends n elements through f and waits for its end.
func stream(f streams.Flow, n int) (received int) {
	items := [64]benchItem{}
	go func() {
		in := f.In()
		for i := range n {
			in <- &items[i%len(items)]
		}
		close(in)
	}()
	for range f.Out() {
		received++
	}
	return received
}

func BenchmarkOperator(b *testing.B) {
	run := func(name string, newFlow func() streams.Flow) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			f := newFlow()
			b.ResetTimer()
			if n := stream(f, b.N); n != b.N {
				b.Fatalf("%d elements of %d came out", n, b.N)
			}
		})
	}
	run("call=none/flow=PassThrough", func() streams.Flow { return flow.NewPassThrough() })
	for _, ordered := range []bool{true, false} {
		mode := map[bool]string{true: "ordered", false: "unordered"}[ordered]
		run("call=immediate/flow="+mode, func() streams.Flow { return benchFlow(ordered, benchImmediate(), 1000) })
		run("call=blocking/flow="+mode, func() streams.Flow { return benchFlow(ordered, benchBlocking(), 100) })
		run("call=callback/flow="+mode, func() streams.Flow {
			fn, done := benchCallback()
			b.Cleanup(done)
			return benchFlow(ordered, fn, 1000)
		})
	}
}

// The allocations of an element are its attempt and the slice of results that the
// function passes on. A blocking call with one result does not need the slice. The test
// counts allocations and does not measure time.
func TestAllocationsPerElement(t *testing.T) {
	if suite.Race {
		t.Skip("the race detector allocates as well")
	}
	const elements, warmUp = 2000, 1000
	items := make([]benchItem, elements)
	for name, tc := range map[string]struct {
		fn     asyncop.AsyncFunction[*benchItem, *benchItem]
		atMost float64
	}{
		"at once":  {benchImmediate(), 2.01},
		"blocking": {benchBlocking(), 1.01},
	} {
		for mode, ordered := range map[string]bool{"ordered": true, "unordered": false} {
			t.Run(name+", "+mode, func(t *testing.T) {
				op := benchFlow(ordered, tc.fn, 100)
				through := func(n int) {
					for i := range n {
						op.In() <- &items[i]
						<-op.Out()
					}
				}
				through(warmUp)
				allocs := testing.AllocsPerRun(5, func() { through(elements) })
				assert.LessOrEqual(t, allocs/elements, tc.atMost)
				close(op.In())
				assert.NoError(t, op.Wait())
			})
		}
	}
}

// Many elements, a million in CI, in both modes, through blocking calls and through calls
// with callbacks.
func TestOperator_ManyElements(t *testing.T) {
	if suite.Race || testing.Short() {
		t.Skip("takes too long")
	}
	elements := 100_000
	if suite.Full() {
		elements = 1_000_000
	}
	callback, done := benchCallback()
	defer done()
	for name, fn := range map[string]asyncop.AsyncFunction[*benchItem, *benchItem]{
		"blocking": benchBlocking(), "callback": callback,
	} {
		for _, ordered := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, ordered %v", name, ordered), func(t *testing.T) {
				op := benchFlow(ordered, fn, 1000)
				items := make([]benchItem, elements)
				go func() {
					defer close(op.In())
					for i := range items {
						items[i].n = i
						op.In() <- &items[i]
					}
				}()
				seen := make([]bool, elements)
				next := 0
				for v := range op.Out() {
					n := v.(*benchItem).n
					if seen[n] || ordered && n != next {
						t.Fatalf("%d came out of place, or twice", n)
					}
					seen[n] = true
					next++
				}
				require.NoError(t, op.Wait())
				require.Equal(t, elements, next)
				s := op.Stats()
				require.EqualValues(t, elements, s.Completed)
				require.EqualValues(t, elements, s.Attempts)
				require.Zero(t, s.LateCompletions)
			})
		}
	}
}
