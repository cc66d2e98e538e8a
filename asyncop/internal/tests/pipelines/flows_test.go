package pipelines_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/extension"
	streamsflow "github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/flow"
)

// builtIn is a flow of go-streams: how it is put behind a stream of ints, and the ints
// that leave it again for 0 to n-1.
type builtIn struct {
	// put connects the flow, and steps that make ints of its elements, behind from, and
	// returns the end.
	put  func(from flow.Outlet) streams.Flow
	want func(in []int) []int
	any  bool // it changes the order
}

func all(in []int) []int { return in }

// firstInts returns 0 to n-1.
func firstInts(n int) (ints []int) {
	for i := range n {
		ints = append(ints, i)
	}
	return ints
}

// flatten makes ints of slices.
func flatten() streams.Flow { return streamsflow.Flatten[int](1) }

// one returns a step with a single flow.
func one(f func() streams.Flow) func(from flow.Outlet) streams.Flow {
	return func(from flow.Outlet) streams.Flow { return from.Via(f()) }
}

// slices of elements are made ints again.
func window(f func() streams.Flow) func(from flow.Outlet) streams.Flow {
	return func(from flow.Outlet) streams.Flow { return from.Via(f()).Via(flatten()) }
}

// sums are the running sums.
func sums(in []int) (out []int) {
	sum := 0
	for _, n := range in {
		sum += n
		out = append(out, sum)
	}
	return out
}

// builtIns are all flows of go-streams.
var builtIns = map[string]builtIn{
	"Map": {put: one(func() streams.Flow { return streamsflow.NewMap(func(n int) int { return n }, 1) }), want: all},
	"Map in parallel": {
		put: one(func() streams.Flow { return streamsflow.NewMap(func(n int) int { return n }, 4) }), want: all, any: true,
	},
	"Filter": {
		put: one(func() streams.Flow { return streamsflow.NewFilter(func(n int) bool { return n%2 == 0 }, 1) }),
		want: func(in []int) []int {
			return slices.DeleteFunc(slices.Clone(in), func(n int) bool { return n%2 != 0 })
		},
	},
	"FlatMap": {
		put: one(func() streams.Flow { return streamsflow.NewFlatMap(func(n int) []int { return []int{n, n} }, 1) }),
		want: func(in []int) (out []int) {
			for _, n := range in {
				out = append(out, n, n)
			}
			return out
		},
	},
	"PassThrough":    {put: one(func() streams.Flow { return streamsflow.NewPassThrough() }), want: all},
	"Batch, Flatten": {put: window(func() streams.Flow { return streamsflow.NewBatch[int](7, time.Hour) }), want: all},
	"TumblingWindow": {put: window(func() streams.Flow { return streamsflow.NewTumblingWindow[int](time.Second) }), want: all},
	"SessionWindow":  {put: window(func() streams.Flow { return streamsflow.NewSessionWindow[int](time.Second) }), want: all},
	"SlidingWindow": { // as a tumbling one; it emits the last window when that ends, if the input is still open
		put: func(from flow.Outlet) streams.Flow {
			open := flow.NewMap(func(n int) int { return n })
			go func() {
				for v := range from.Out() {
					open.In() <- v
				}
				time.Sleep(3 * time.Second)
				close(open.In())
			}()
			return open.Via(streamsflow.NewSlidingWindow[int](time.Second, time.Second)).Via(flatten())
		}, want: all,
	},
	"Reduce": {put: one(func() streams.Flow { return streamsflow.NewReduce(func(a, b int) int { return a + b }) }), want: sums},
	"Fold":   {put: one(func() streams.Flow { return streamsflow.NewFold(0, func(n, sum int) int { return n + sum }) }), want: sums},
	"Throttler": {
		put: one(func() streams.Flow { return streamsflow.NewThrottler(1000, time.Second, 10, streamsflow.Backpressure) }), want: all,
	},
	"Keyed": {
		put: one(func() streams.Flow {
			return streamsflow.NewKeyed(func(n int) int { return n % 3 }, func() streams.Flow { return streamsflow.NewPassThrough() })
		}), want: all, any: true,
	},
	"Split, Merge": {
		put: func(from flow.Outlet) streams.Flow {
			halves := streamsflow.Split(from, func(n int) bool { return n%2 == 0 })
			return streamsflow.Merge(halves[:]...)
		}, want: all, any: true,
	},
	"FanOut, Merge of weir": {
		put: func(from flow.Outlet) streams.Flow {
			both := streamsflow.FanOut(from, 2)
			return flow.Merge(both[0], both[1])
		},
		want: func(in []int) []int { return append(slices.Clone(in), in...) }, any: true,
	},
	"RoundRobin": {
		put: func(from flow.Outlet) streams.Flow {
			both := streamsflow.RoundRobin(from, 2)
			return flow.Merge(both[0], both[1])
		}, want: all, any: true,
	},
	"ZipWith": {
		put: func(from flow.Outlet) streams.Flow {
			halves := streamsflow.FanOut(from, 2)
			return streamsflow.ZipWith(func(pair []int) int { return pair[0] + pair[1] }, halves[0], halves[1])
		},
		want: func(in []int) (out []int) {
			for _, n := range in {
				out = append(out, 2*n)
			}
			return out
		},
	},
}

// Every built-in flow works before and after an operator: no element is lost, and the
// order is kept if both keep it. All goroutines end, which the bubble checks.
func TestOperator_BesideEveryBuiltInFlow(t *testing.T) {
	for name, b := range builtIns {
		t.Run(name, func(t *testing.T) {
			for _, before := range []bool{true, false} {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					op := optest.Construct(m, asyncop.Blocking(failsAt(-1)), time.Minute, nil, asyncop.WithLogger(quiet))
					in, out := make(chan any, 100), make(chan any, 300)
					for n := range 100 {
						in <- n
					}
					close(in)
					var last streams.Flow
					if before {
						last = b.put(extension.NewChanSource(in)).Via(op)
					} else {
						last = b.put(extension.NewChanSource(in).Via(op))
					}
					last.To(extension.NewChanSink(out))
					require.NoError(t, op.Wait())
					var got []int
					for v := range out {
						got = append(got, v.(int))
					}
					want := b.want(firstInts(100))
					switch {
					case name == "Reduce" || name == "Fold": // behind an operator that changes the order, the sums are others
						if !before && !m.Ordered {
							require.Len(t, got, 100)
							require.Equal(t, want[99], slices.Max(got))
							break
						}
						fallthrough
					default:
						if b.any || !m.Ordered {
							slices.Sort(got)
							want = slices.Sorted(slices.Values(want))
						}
						require.Equal(t, want, got)
					}
					time.Sleep(5 * time.Second) // timers of windows and of the throttler end
					synctest.Wait()
				}, 1, 16)
			}
		})
	}
}

// An operator whose sink is blocked reads as much as its documentation states.
func TestWithBuffer_ReadAheadFollowsTheCapacity(t *testing.T) {
	for _, c := range []struct{ capacity, buffer int }{{1, 1}, {10, 10}, {100, 100}, {1000, 128}, {20_000, 1024}} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			in, read := make(chan any), 0
			op := optest.Construct(m, asyncop.Blocking(identity), 0, nil, asyncop.WithLogger(quiet))
			sink := &stalledSink{in: make(chan any), released: make(chan struct{})}
			go op.To(sink)
			synctest.Wait() // results that leave before To begins are in Out
			go func() {
				defer close(op.In())
				for v := range in {
					op.In() <- v
				}
			}()
			for blocked := false; !blocked; {
				select {
				case in <- read:
					read++
				case <-time.After(time.Second): // the pipeline is idle
					blocked = true
				}
			}
			ring := 1
			for ring < c.buffer {
				ring *= 2
			}
			s := op.Stats()
			// The slots, the buffer of results, and the result that To holds. A full
			// buffer may have a free entry that the loop does not use.
			require.Contains(t, []int{c.capacity + ring, c.capacity + ring + 1}, int(s.Accepted))
			require.Equal(t, int(s.Accepted)+c.buffer+1, read, "and the buffer of In, and one that the source holds")
			close(in)
			go func() {
				for range sink.in {
				}
				close(sink.released)
			}()
			require.NoError(t, op.Wait())
			synctest.Wait()
		}, c.capacity)
	}
}
