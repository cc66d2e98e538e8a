package streams_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	weirflow "github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/internal/guard"
)

// From a source, through flows on both sides, to a sink. To returns when the sink has all
// results.
func TestPipeline(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		op := optest.Construct[int, int](m, optest.Slowly(0), time.Minute, optest.RetryAllOf[int](1, 0))
		out := make(chan any, 100)
		optest.Source(optest.Numbers(50)...).
			Via(flow.NewMap(func(i int) int { return i * 2 }, 1)).
			Via(op).
			Via(flow.NewFilter(func(i int) bool { return i%4 == 0 }, 1)).
			To(extension.NewChanSink(out))
		require.NoError(t, op.Wait())
		var want, got []any
		for i := 0; i < 100; i += 4 {
			want = append(want, i)
		}
		for v := range out {
			got = append(got, v)
		}
		optest.Same(t, m, want, got)
	})
}

func TestToAwaitsTheSink(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		op := echo[string](m)
		sink := &sleepySink{in: make(chan any, 1)}
		go func() { op.In() <- "a"; close(op.In()) }()
		op.To(sink)
		require.True(t, sink.completed.Load())
		require.NoError(t, op.Wait())
	})
}

type sleepySink struct {
	in        chan any
	completed atomic.Bool
}

func (s *sleepySink) In() chan<- any { return s.in }

func (s *sleepySink) AwaitCompletion() {
	time.Sleep(time.Second)
	s.completed.Store(true)
}

func TestVia_TwoOperators(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		first := optest.Construct[int, int](m, optest.Slowly(1000), time.Minute, nil)
		second := optest.Construct[int, int](m, optest.Slowly(1000), time.Minute, nil)
		got := optest.Drain(optest.Source(optest.Numbers(50)...).Via(first).Via(second))
		var want []any
		for i := range 50 {
			want = append(want, 2000+i)
		}
		optest.Same(t, m, want, got)
		require.NoError(t, first.Wait())
		require.NoError(t, second.Wait())
	})
}

// Watermarks pass through two operators and keep their position.
func TestWatermarksThroughTwoOperators(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		first, second := optest.Construct[int, int](m, optest.Slowly(0), 0, nil), optest.Construct[int, int](m, optest.Slowly(0), 0, nil)
		var elements []any
		for i := range 60 {
			elements = append(elements, i)
			if i%10 == 9 {
				elements = append(elements, optest.Mark(int64(i/10)))
			}
		}
		got := optest.Drain(optest.Source(elements...).Via(first).Via(second))
		require.Len(t, got, 66)
		for i, v := range got {
			if i%11 == 10 {
				require.Equal(t, optest.Mark(int64(i/11)), v)
			} else {
				require.Equal(t, i/11, v.(int)/10, "in its segment")
			}
		}
	})
}

// If the second of two operators fails, the first ends with it. With WithUpstreamRunning
// the first continues to its end without blocking, because the second discards its
// results.
func TestFailureOfTheSecondOfTwoOperators(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		broken := asyncop.Func(func(_ context.Context, _ int, _ asyncop.ResultFuture[int]) error { return optest.ErrBroken })
		for _, keeps := range []bool{false, true} {
			first := optest.Construct[int, int](m, optest.Slowly(0), time.Minute, nil)
			opts := optest.Options(asyncop.WithName("second"))
			if keeps {
				opts = append(opts, asyncop.WithUpstreamRunning())
			}
			second := optest.Construct[int, int](m, broken, time.Minute, nil, opts...)
			got := optest.Drain(optest.Source(optest.Numbers(500)...).Via(first).Via(second))
			require.Empty(t, got)
			require.ErrorIs(t, second.Wait(), optest.ErrBroken)
			err := first.Wait()
			time.Sleep(time.Minute) // calls that ignore the end of their context end, too
			s := first.Stats()
			if !keeps {
				failed, _ := errors.AsType[*asyncop.DownstreamError](err)
				require.Equal(t, `operator "second"`, failed.Step)
				require.EqualValues(t, 500, s.Accepted+s.Discarded)
				require.Less(t, s.Accepted, int64(500))
				continue
			}
			require.NoError(t, err)
			require.EqualValues(t, 500, s.Emitted)
			require.EqualValues(t, 500, second.Stats().Accepted+second.Stats().Discarded)
		}
	})
}

// The failure reaches the source if the operator has WithUpstreamCancel.
func TestFailureReachesTheSource(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		ctx, cancel := context.WithCancelCause(t.Context())
		fn := asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
			if in == 10 {
				return optest.ErrBroken
			}
			result.Complete(in)
			return nil
		})
		op := optest.Construct[int, int](m, fn, 0, nil, asyncop.WithUpstreamCancel(cancel))
		endless := make(chan any)
		go func() {
			defer close(endless)
			for i := 0; ; i++ {
				select {
				case endless <- i:
				case <-ctx.Done():
					return
				}
			}
		}()
		optest.Drain(extension.NewChanSource(endless).Via(op))
		require.ErrorIs(t, op.Wait(), optest.ErrBroken)
		require.ErrorIs(t, context.Cause(ctx), optest.ErrBroken)
	})
}

// Merge, Split, FanOut, RoundRobin and ZipWith read Out directly.
func TestFlowsThatReadOutDirectly(t *testing.T) {
	collect := func(outlets ...streams.Flow) []any {
		results := make(chan []any)
		for _, o := range outlets {
			go func() { results <- optest.Drain(o) }()
		}
		var all []any
		for range outlets {
			all = append(all, <-results...)
		}
		return all
	}
	operators := func(m optest.Mode) (a, b *asyncop.AsyncWaitOperator[int, int]) {
		a, b = optest.Construct[int, int](m, optest.Slowly(0), time.Minute, nil), optest.Construct[int, int](m, optest.Slowly(100), time.Minute, nil)
		optest.Source(optest.Numbers(20)...).Via(a)
		optest.Source(optest.Numbers(20)...).Via(b)
		return a, b
	}
	var want []any
	for i := range 20 {
		want = append(want, i, 100+i)
	}
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		a, b := operators(m)
		require.ElementsMatch(t, want, collect(flow.Merge(a, b)))
		require.NoError(t, a.Wait())
		require.NoError(t, b.Wait())

		a, b = operators(m)
		even := flow.Split(a, func(i int) bool { return i%2 == 0 })
		high := flow.Split(b, func(i int) bool { return i < 110 })
		require.ElementsMatch(t, want, collect(even[0], even[1], high[0], high[1]))

		a, b = operators(m)
		require.ElementsMatch(t, slices.Concat(want, want), collect(slices.Concat(flow.FanOut(a, 2), flow.FanOut(b, 2))...))

		a, b = operators(m)
		require.ElementsMatch(t, want, collect(slices.Concat(flow.RoundRobin(a, 3), flow.RoundRobin(b, 3))...))

		a, b = operators(m)
		sums := optest.Drain(flow.ZipWith(func(pair []int) int { return pair[0] + pair[1] }, streams.Outlet(a), streams.Outlet(b)))
		require.Len(t, sums, 20)
		if m.Ordered {
			for i, v := range sums {
				require.Equal(t, 100+2*i, v)
			}
		}
	})
}

// Keyed, FlatMap, Reduce, Fold and Batch after an operator.
func TestFlowsAfterAnOperator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		keyed := flow.NewKeyed(func(i int) int { return i % 3 }, func() streams.Flow {
			return flow.NewMap(func(i int) string { return strconv.Itoa(i%3) + ":" + strconv.Itoa(i) }, 1)
		})
		op := optest.Construct[int, int](m, optest.Slowly(0), time.Minute, nil)
		got := optest.Drain(optest.Source(optest.Numbers(30)...).Via(op).Via(keyed))
		require.Len(t, got, 30)
		require.Contains(t, got, "2:29")

		op = optest.Construct[int, int](m, optest.Slowly(0), time.Minute, nil)
		got = optest.Drain(optest.Source(optest.Numbers(30)...).Via(op).
			Via(flow.NewFlatMap(func(i int) []int { return []int{i, i} }, 1)).
			Via(flow.NewFold(0, func(i, sum int) int { return i + sum })))
		require.Equal(t, 2*29*30/2, got[len(got)-1])
	})
}

func TestOperatorInsideKeyed(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		keyed := flow.NewKeyed(func(i int) int { return i % 3 }, func() streams.Flow {
			return optest.Construct[int, int](m, optest.Slowly(0), time.Minute, nil)
		})
		got := optest.Drain(optest.Source(optest.Numbers(30)...).Via(keyed))
		require.ElementsMatch(t, optest.Numbers(30), got)
		if m.Ordered {
			var third []int
			for _, v := range got {
				if i := v.(int); i%3 == 1 {
					third = append(third, i)
				}
			}
			require.IsIncreasing(t, third)
		}
	})
}

// One function may serve several operators: each opens and closes it, and numbers its own
// attempts.
func TestFunctionSharedByTwoOperators(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var opened, closed, calls atomic.Int64
		fn := &shared{opened: &opened, closed: &closed, calls: &calls}
		a := optest.Construct[string, string](m, fn, time.Minute, optest.RetryAll(1, time.Second))
		b := optest.Construct[string, string](m, fn, time.Minute, nil)
		gotA, gotB := make(chan []any), make(chan []any)
		go func() { out, _ := through(a, "x", "y"); gotA <- out }()
		go func() { out, _ := through(b, "x", "z"); gotB <- out }()
		require.Equal(t, []any{"x1", "y1"}, <-gotA)
		require.Equal(t, []any{"x1", "z1"}, <-gotB)
		require.EqualValues(t, 4, calls.Load())
		require.EqualValues(t, 2, opened.Load())
		require.EqualValues(t, 2, closed.Load())
		require.NoError(t, a.Wait())
		require.NoError(t, b.Wait())
	})
}

type shared struct{ opened, closed, calls *atomic.Int64 }

func (s *shared) Open(context.Context) error { s.opened.Add(1); return nil }
func (s *shared) Close() error               { s.closed.Add(1); return nil }

func (s *shared) AsyncInvoke(ctx context.Context, in string, result optest.Future) error {
	s.calls.Add(1)
	result.Complete(fmt.Sprint(in, asyncop.AttemptFromContext(ctx)))
	return nil
}

// One strategy may serve several operators, too: it keeps no state of elements.
func TestStrategySharedByTwoOperators(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		s := optest.RetryAll(2, time.Second)
		a := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s, Opts: optest.Options(asyncop.WithDropOnFailure())})
		b := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s, Opts: optest.Options(asyncop.WithDropOnFailure())})
		a.Answer, b.Answer = optest.Fails, optest.Fails
		a.SendEach("a")
		b.SendEach("b")
		a.Advance(10 * time.Second)
		require.Equal(t, "a#1@0s a#2@1s a#3@2s", a.CallTimes())
		require.Equal(t, "b#1@0s b#2@1s b#3@2s", b.CallTimes())
	})
}

// An operator inside the function of another operator: contexts and permits do not mix.
func TestOperatorInsideAnOperator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		fn := asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
			inner := asyncop.OrderedWaitWithRetry(
				asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
					if asyncop.AttemptFromContext(ctx) == 1 {
						return "", optest.ErrBroken
					}
					return strings.ToUpper(in), nil
				}),
				time.Minute, 1, optest.RetryAll(1, time.Second), asyncop.WithContext(ctx), asyncop.WithDrainRetries())
			out, err := through(inner, in)
			if err != nil {
				return "", err
			}
			return fmt.Sprint(out[0], asyncop.AttemptFromContext(ctx)), nil
		})
		op := optest.Construct[string, string](m, fn, time.Minute, nil, asyncop.WithMaxConcurrentCalls(1))
		out, err := through(op, "a", "b", "c")
		require.NoError(t, err)
		require.Equal(t, []any{"A1", "B1", "C1"}, out)
		synctest.Wait()
		require.Zero(t, op.Stats().Running)
	})
}

// Results from before the call of Via or To go first. Results that were promised to one
// receiver cannot be taken by another.
func TestOperator_ResultsHaveOneReceiver(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		op := optest.Construct(m, optest.UpperFunc(), time.Minute, nil, asyncop.WithBuffer(4))
		for _, e := range []string{"a", "b", "c"} {
			op.In() <- e
		}
		synctest.Wait() // they are in Out
		out := make(chan any, 10)
		sink := extension.NewChanSink(out)
		go func() {
			for _, e := range []string{"d", "e", "f"} {
				op.In() <- e
			}
			close(op.In())
		}()
		op.To(sink)
		var got []string
		for v := range out {
			got = append(got, v.(string))
		}
		require.Equal(t, []string{"A", "B", "C", "D", "E", "F"}, got)
		const taken = "Via or To takes the results already: for several sinks use flow.FanOut"
		require.PanicsWithValue(t, "asyncop: Out: "+taken, func() { op.Out() })
		require.PanicsWithValue(t, "asyncop: Via: "+taken, func() { op.Via(nil) })
		require.PanicsWithValue(t, "asyncop: To: "+taken, func() { op.To(sink) })

		piped := optest.Construct(m, optest.UpperFunc(), time.Minute, nil)
		next := optest.Construct(m, optest.UpperFunc(), time.Minute, nil)
		piped.Via(next)
		require.PanicsWithValue(t, "asyncop: To: "+taken, func() { piped.To(sink) })
		close(piped.In())
		require.NoError(t, next.Wait())

		shared := optest.Construct(m, optest.UpperFunc(), time.Minute, nil)
		first := shared.Out()
		shared.In() <- "a"
		require.Equal(t, "A", <-first)
		go func() {
			shared.In() <- "b"
			close(shared.In())
		}()
		out = make(chan any, 10)
		shared.To(extension.NewChanSink(out))
		require.Equal(t, "B", <-out)
		require.PanicsWithValue(t, "asyncop: To: "+taken, func() { shared.To(sink) }, "one of the two would get nothing")
		require.PanicsWithValue(t, "asyncop: Via: "+taken, func() { shared.Via(nil) })
		require.Equal(t, first, shared.Out(), "it shares the results with To")
	}, 1, 16)
}

// Via and To share the results with a receiver that already reads from Out, which is not
// closed before the end.
func TestOutStaysOpenBesideTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 4)
		out := op.Out()
		next := &optest.Inlet{Input: make(chan any)}
		go op.To(next)
		synctest.Wait()
		select {
		case <-out:
			t.Error("it is closed")
		default:
		}
		close(op.In())
		_, ok := <-next.Input
		require.False(t, ok)
		require.NoError(t, op.Wait())
	})
}

func TestResultsOfTheEndedAreTaken(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		op := optest.Construct(m, optest.UpperFunc(), time.Minute, nil)
		op.In() <- "a"
		close(op.In())
		require.NoError(t, op.Wait())
		out := make(chan any, 10)
		op.To(extension.NewChanSink(out))
		require.Equal(t, "A", <-out)
	})
}

// Law A6: an operator behind a flow whose function has panicked fails with that panic,
// with checkpoints and without.
func TestFlowBeforeTheOperatorBreaks(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		for _, checks := range []bool{false, true} {
			c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore(), checkpoint.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			opts := optest.Options(asyncop.WithLogger(slog.New(slog.DiscardHandler)))
			if checks {
				opts = append(opts, asyncop.WithName("op"), asyncop.WithCheckpoints(c))
			}
			broken := weirflow.NewMap(func(n int) int { return 10 / (n - 3) })
			op := optest.Construct[int, int](m, optest.Slowly(0), time.Minute, nil, opts...)
			require.NoError(t, c.Start())
			done := make(chan []any)
			go func() { done <- optest.Drain(op) }()
			optest.Source(optest.Numbers(500)...).Via(broken).Via(op)
			var p *guard.PanicError
			require.ErrorAs(t, op.Wait(), &p)
			require.ErrorContains(t, op.Err(), "upstream: flow: Map: panic in user code: runtime error: integer divide by zero")
			require.LessOrEqual(t, len(<-done), 3)
			if checks {
				require.ErrorIs(t, c.Wait(), p)
			}
			require.NoError(t, c.Close())
		}
	}, 2, 100)
}
