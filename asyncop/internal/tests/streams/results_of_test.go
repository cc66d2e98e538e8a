package streams_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/internal/testing/suite"
)

func TestChained(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		calls := map[string]int{}
		fn := asyncop.Func(func(_ context.Context, in string, result optest.Future) error {
			if calls[in]++; in == "b" && calls[in] == 1 {
				return optest.ErrBroken
			}
			time.AfterFunc(time.Duration('d'-in[0])*time.Millisecond, func() { result.Complete(in+"1", in+"2") })
			return nil
		})
		op := optest.Construct(m, fn, time.Second, optest.RetryAll(1, time.Second/2))
		got := <-optest.Chain(op, optest.ElementsOf("abc"), nil)
		require.Equal(t, m.Pick("a1 a2 b1 b2 c1 c2", "c1 c2 a1 a2 b1 b2"), got)
		require.NoError(t, op.Wait())
		s := op.Stats()
		require.EqualValues(t, 6, s.Emitted)
		require.EqualValues(t, 3, s.Completed)
		optest.CheckBalance(t, s)
	}, 3)
}

// While there is no slot for another element, completions, timers and results continue,
// and no goroutine is busy.
func TestChainedWithoutARoom(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		tries := 0
		fn := asyncop.Func(func(_ context.Context, in string, result optest.Future) error {
			switch in {
			case "at once":
				result.Complete(in)
			case "later":
				time.AfterFunc(time.Second, func() { result.Complete(in) })
			case "never":
			default:
				if tries++; tries < 3 {
					return optest.ErrBroken
				}
				result.Complete("third")
			}
			return nil
		})
		op := optest.Construct(m, fn, time.Minute, optest.RetryAll(5, time.Second), asyncop.WithDropOnFailure(),
			asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		var at []time.Duration
		start := time.Now()
		got := optest.Chain(op, asyncop.FromSlice([]string{"at once", "later", "retried", "never", "at once"}),
			func(string) { at = append(at, time.Since(start)) })
		require.Equal(t, m.Pick("at once later third at once", "at once at once later third"), <-got)
		require.NoError(t, op.Wait())
		require.EqualValues(t, 1, op.Stats().Dropped)
		if m.Ordered { // the last element waits for the one before it
			require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second, time.Minute}, at)
		} else {
			require.Equal(t, []time.Duration{0, 0, time.Second, 2 * time.Second}, at)
		}
	}, 4, 5)
}

// However the loop ends, the operator has ended when the loop is left. The panic, Goexit
// or break then continues.
func TestChainedBrokenOff(t *testing.T) {
	leave := map[string]func(){"break": nil, "panic": func() { panic("in the loop") }, "Goexit": runtime.Goexit}
	for _, where := range []string{"body", "input"} {
		for name, leave := range leave {
			if leave == nil && where == "input" {
				continue
			}
			t.Run(where+"/"+name, func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					var ctxEnd error
					fn := &closing{Function: asyncop.Func(func(ctx context.Context, in string, result optest.Future) error {
						switch in {
						case "a":
							result.Complete("A", "AA")
						case "b":
							context.AfterFunc(ctx, func() { ctxEnd = context.Cause(ctx) })
						}
						return nil
					})}
					op := optest.Construct(m, fn, time.Minute, nil)
					rest := "abcdefghijklmnopqrstuvwxyz"[:m.Capacity+1]
					input := func() (string, bool) {
						if len(rest) == 1 {
							if where == "input" {
								leave()
							}
							return "", false
						}
						e := rest[:1]
						rest = rest[1:]
						return e, true
					}
					left := make(chan any)
					go func() {
						defer close(left)
						defer func() {
							assert.True(t, fn.closed.Load(), "closed before the loop was left")
							if p := recover(); p != nil {
								left <- p
							}
						}()
						for _, err := range op.ResultsOf(input) {
							assert.NoError(t, err)
							if where == "input" {
								continue
							}
							if leave == nil {
								break
							}
							leave()
						}
					}()
					value := <-left
					if name == "panic" {
						require.Equal(t, "in the loop", value)
					}
					<-op.Done()
					synctest.Wait()
					require.ErrorIs(t, op.Err(), asyncop.ErrStopped)
					require.ErrorIs(t, ctxEnd, asyncop.ErrStopped)
					s := op.Stats()
					require.Positive(t, s.Abandoned)
					optest.CheckBalance(t, s)
				}, 2, 8)
			})
		}
	}
}

// Law A6, except for Goexit, which ends the goroutine of the caller and therefore the
// operator.
func TestChainedCodeThatBreaks(t *testing.T) {
	for _, b := range optest.Breakages {
		t.Run(b.Name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				op := optest.Construct(m, asyncop.Func(func(_ context.Context, in string, result optest.Future) error {
					if in == "b" {
						b.Breaks()
					}
					result.Complete(in)
					return nil
				}), time.Minute, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for _, err := range op.ResultsOf(asyncop.FromSlice([]string{"a", "b", "c"})) {
						_ = err // Err has it, too
					}
				}()
				<-ended
				<-op.Done()
				var p *asyncop.PanicError
				require.ErrorAs(t, op.Err(), &p)
				require.Equal(t, b.Value, p.Value)
				optest.CheckBalance(t, op.Stats())
			}, 1, 4)
		})
	}
}

// A cancel while the body runs ends the operator, and the contexts of its calls, when the
// body returns.
func TestChainedCancelInTheBody(t *testing.T) {
	for _, leaves := range []string{"goes on", "breaks", "panics"} {
		t.Run(leaves, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				ctx, cancel := context.WithCancelCause(t.Context())
				var ended atomic.Int32
				fn := asyncop.Func(func(ctx context.Context, in string, result optest.Future) error {
					if in == "a" {
						result.Complete("A", "AA")
					} else {
						context.AfterFunc(ctx, func() { ended.Add(1) })
					}
					return nil
				})
				op := optest.Construct(m, fn, time.Minute, nil, asyncop.WithContext(ctx), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
				var errs []error
				func() {
					defer func() { require.Equal(t, leaves == "panics", recover() != nil) }()
					for _, err := range op.ResultsOf(asyncop.FromSlice([]string{"a", "b", "c"})) {
						errs = append(errs, err)
						if err != nil {
							continue
						}
						cancel(optest.ErrBroken)
						synctest.Wait()
						if leaves == "breaks" {
							break
						} else if leaves == "panics" {
							panic("in the loop")
						}
					}
				}()
				<-op.Done()
				require.ErrorIs(t, op.Err(), optest.ErrBroken)
				synctest.Wait()
				require.EqualValues(t, m.Capacity-1, ended.Load(), "contexts of calls have ended")
				if leaves == "goes on" {
					require.Len(t, errs, 2, "the second result of a does not follow")
					require.ErrorIs(t, errs[1], optest.ErrBroken)
				}
				optest.CheckBalance(t, op.Stats())
			}, 3)
		})
	}
}

// An operator in the body of another operator's loop, whose results are its input. The
// calls block.
func TestChainedNested(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		lookup := asyncop.Blocking(func(_ context.Context, in string) (string, error) {
			time.Sleep(time.Millisecond)
			return strings.ToUpper(in), nil
		})
		outer := optest.Construct(m, lookup, time.Minute, nil, asyncop.WithMaxConcurrentCalls(2))
		var got []string
		for v, err := range outer.ResultsOf(optest.ElementsOf("abcdefgh")) {
			require.NoError(t, err)
			inner := optest.Construct(m, lookup, time.Minute, nil, asyncop.WithMaxConcurrentCalls(1))
			for w, err := range inner.ResultsOf(asyncop.FromSlice([]string{v + "x", v + "y"})) {
				require.NoError(t, err)
				got = append(got, w)
			}
		}
		require.Len(t, got, 16)
		require.NoError(t, outer.Wait())
	}, 2, 16)
}

// The body may be slow. A retry that comes due meanwhile starts after it, before other
// results.
func TestChainedASlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var again time.Duration
		fn := asyncop.Func(func(ctx context.Context, in string, result optest.Future) error {
			if in == "z" && asyncop.AttemptFromContext(ctx) == 1 {
				return optest.ErrBroken
			} else if in == "z" {
				again = time.Since(start)
			}
			result.Complete(in)
			return nil
		})
		op := asyncop.UnorderedWaitWithRetry(fn, time.Minute, 10, optest.RetryAll(1, 15*time.Second))
		n := 0
		for _, err := range op.ResultsOf(optest.ElementsOf("zabcdefgh")) {
			require.NoError(t, err)
			n++
			time.Sleep(10 * time.Second)
		}
		require.Equal(t, 9, n)
		require.Equal(t, 20*time.Second, again)
	})
}

// Failures are handed over while the loop waits. An error of Open ends the loop.
func TestChainedFailures(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var mu sync.Mutex
		var failed []string
		op := optest.Construct(m, asyncop.Func(func(_ context.Context, in string, result optest.Future) error {
			if in == "b" {
				return optest.ErrBroken
			}
			time.AfterFunc(time.Duration(in[0])*time.Second, func() { result.Complete(in) })
			return nil
		}), time.Hour, nil, asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, f.Element)
			return nil
		}), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		require.Equal(t, "a c", <-optest.Chain(op, optest.ElementsOf("abc"), nil))
		require.Equal(t, []string{"b"}, failed)

		op = optest.Construct(m, optest.UpperFunc(), time.Minute, nil)
		got := optest.Chain(op, asyncop.FromSlice([]string(nil)), nil)
		require.Empty(t, <-got)

		broken := optest.Construct(m, optest.Function(opening{optest.UpperFunc()}), time.Minute, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		require.Equal(t, "asyncop: open: broken", <-optest.Chain(broken, optest.ElementsOf("abc"), nil))

		failing := optest.Construct(m, asyncop.Func(func(context.Context, string, optest.Future) error { return optest.ErrBroken }), time.Minute, nil,
			asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		var e *asyncop.ElementError
		for _, err := range failing.ResultsOf(optest.ElementsOf("abc")) {
			require.ErrorAs(t, err, &e)
		}
		require.ErrorAs(t, failing.Wait(), &e)
	}, 1, 4)
}

// opening is a function whose Open fails.
type opening struct{ optest.Function }

func (opening) Open(context.Context) error { return optest.ErrBroken }

// The time of an element ends when the body has returned (law O1).
func TestChainedElementsEndAfterTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := optest.NewTally(t)
		op := asyncop.OrderedWait(asyncop.Func(optest.Double), time.Minute, 4, asyncop.WithObserver(o))
		for _, err := range op.ResultsOf(asyncop.FromSlice([]int{0, 1, 2})) {
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		for name, want := range map[string]time.Duration{"0": time.Second, "1": 2 * time.Second, "2": 3 * time.Second} {
			require.Equal(t, want, o.Endings[name].Total, name)
		}
	})
}

// The time of an element begins when it takes its slot (law A3), after the input has made
// it.
func TestChainedSlowInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn := asyncop.Func(func(context.Context, int, asyncop.ResultFuture[int]) error { return optest.ErrBroken })
		var elapsed []time.Duration
		op := asyncop.OrderedWait(fn, time.Minute, 4, asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
			elapsed = append(elapsed, f.Elapsed)
			return nil
		}))
		n := 0
		for _, err := range op.ResultsOf(func() (int, bool) {
			if n < 3 {
				time.Sleep(time.Second)
			}
			n++
			return n, n <= 3
		}) {
			require.NoError(t, err)
		}
		require.Len(t, elapsed, 3)
		for i, d := range elapsed {
			require.LessOrEqual(t, d, time.Duration(2-i)*time.Second, "of element %d, with the time of those after it", i)
		}
	})
}

func TestChainedIsUsedOnce(t *testing.T) {
	op := asyncop.OrderedWait(optest.UpperFunc(), time.Minute, 4)
	require.PanicsWithValue(t, "asyncop: ResultsOf: nil function", func() { op.ResultsOf(nil) })
	for _, err := range op.ResultsOf(optest.ElementsOf("a")) {
		require.NoError(t, err)
	}
	require.PanicsWithValue(t, "asyncop: ResultsOf: the operator has run already, or still runs: make a new operator for each run", func() {
		for _, err := range op.ResultsOf(optest.ElementsOf("a")) {
			require.NoError(t, err)
		}
	})
	require.Panics(t, func() { op.In() })

	c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore())
	require.NoError(t, err)
	checked := asyncop.OrderedWait(optest.UpperFunc(), time.Minute, 4, asyncop.WithCheckpoints(c), asyncop.WithName("op"))
	require.PanicsWithValue(t, "asyncop: ResultsOf: an operator WithCheckpoints needs a source of barriers: use it as a flow",
		func() { checked.ResultsOf(optest.ElementsOf("a")) })
	require.True(t, errors.Is(checked.Stop(t.Context()), asyncop.ErrStopped))
	close(checked.In())
	require.NoError(t, c.Close())
}

// Many completions from other goroutines, for the race detector. The end comes at a
// random time.
func TestChainedUnderStress(t *testing.T) {
	n := 20_000
	if suite.Race || !suite.Full() {
		n = 3_000
	}
	for _, stop := range []int{0, 1, n / 2} {
		ctx, cancel := context.WithCancelCause(context.Background())
		op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, v int) (int, error) {
			if v%7 == 0 {
				runtime.Gosched()
			}
			return v, nil
		}), time.Minute, 100, asyncop.WithContext(ctx), asyncop.WithMaxConcurrentCalls(8), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		i, got := 0, 0
		var last error
		for _, err := range op.ResultsOf(func() (int, bool) { i++; return i, i <= n }) {
			if last = err; err == nil {
				got++
			}
			if got == stop {
				go cancel(optest.ErrBroken)
			}
		}
		if stop == 0 {
			require.Equal(t, n, got)
			require.NoError(t, last)
		} else {
			require.ErrorIs(t, op.Wait(), cmpErr(last))
		}
		optest.CheckBalance(t, op.Stats())
		cancel(nil)
	}
}

// cmpErr returns the error that Wait returns after a loop that ended with last.
func cmpErr(last error) error {
	if last == nil {
		return nil
	}
	return optest.ErrBroken
}

// Law O1: an observer is notified of every element, in the step after the body has
// returned.
func TestChainedIsObserved(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		fn := asyncop.Func(func(_ context.Context, in string, result optest.Future) error {
			switch in {
			case "a":
				return optest.ErrBroken
			case "b":
				result.Complete()
			case "z": // never completes
			default:
				result.Complete(in, in)
			}
			return nil
		})
		o := optest.NewTally(t)
		op := optest.Construct(m, fn, time.Hour, nil, asyncop.WithObserver(o), asyncop.WithDropOnFailure(),
			asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		n := 0
		for _, err := range op.ResultsOf(optest.ElementsOf("abcdez")) {
			require.NoError(t, err)
			if n++; n == 5 {
				break // between the results of e
			}
		}
		<-op.Done()
		s := op.Stats()
		require.EqualValues(t, o.Begun, s.Accepted)
		require.Equal(t, o.Begun, o.Sum())
		require.Equal(t, 2, o.Over[observe.Emitted])
		require.Equal(t, 1, o.Over[observe.Empty])
		require.Equal(t, 1, o.Over[observe.Dropped])
		require.Equal(t, o.Begun-4, o.Over[observe.Abandoned])
		optest.CheckBalance(t, s)
	}, 1, 8)
}

// A gate holds the input back, and wakes the loop.
func TestChainedGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := &optest.Door{Tally: *optest.NewTally(t)}
		op := asyncop.OrderedWait(optest.UpperFunc(), time.Minute, 4, asyncop.WithObserver(gate))
		got := optest.Chain(op, optest.ElementsOf("abc"), nil)
		synctest.Wait()
		require.Zero(t, op.Stats().Accepted)
		gate.Open.Store(true)
		gate.Bell()
		require.Equal(t, "A B C", <-got)
		require.Equal(t, 3, gate.Over[observe.Emitted])
	})
}

// A permit that operators share is returned when the call ends, even while the body runs.
func TestChainedSharesPermits(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		permits := optest.Limited(1)
		slow := asyncop.Func(func(_ context.Context, in string, result optest.Future) error {
			time.AfterFunc(time.Second, func() { result.Complete(in) })
			return nil
		})
		outer := optest.Construct(m, slow, time.Hour, nil, asyncop.WithBackend(permits))
		n := 0
		for v, err := range outer.ResultsOf(optest.ElementsOf("abcdef")) {
			require.NoError(t, err)
			inner := optest.Construct(m, slow, time.Hour, nil, asyncop.WithBackend(permits))
			for _, err := range inner.ResultsOf(asyncop.FromSlice([]string{v, v})) {
				require.NoError(t, err)
				n++
			}
		}
		require.Equal(t, 12, n)
	}, 2, 8)
}

// A permit that operators share is returned even if the cost function ends the goroutine.
func TestChainedCostThatBreaksSharesPermits(t *testing.T) {
	for _, b := range optest.Breakages {
		for _, batched := range []bool{false, true} {
			t.Run(fmt.Sprint(b.Name, batched), func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					permits := optest.Limited(1)
					var fn optest.Function = optest.UpperFunc()
					if batched {
						fn = asyncop.Batched(func(context.Context, []string) ([]asyncop.Result[string], error) { return nil, nil }, 2, 0)
					}
					op := optest.Construct(m, fn, time.Minute, nil, asyncop.WithBackend(permits, asyncop.Cost(func(string) float64 { b.Breaks(); return 1 })),
						asyncop.WithLogger(slog.New(slog.DiscardHandler)))
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						for _, err := range op.ResultsOf(optest.ElementsOf("ab")) {
							assert.Error(t, err)
						}
					}()
					<-ended
					require.Error(t, op.Wait())
					require.Zero(t, permits.Stats().InUse)
				}, 1, 4)
			})
		}
	}
}

// Law A1: elements that completed immediately are abandoned if the body breaks before
// their results.
func TestChainedBreakBeforeWhatHasEndedAtOnce(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		op := optest.Construct(m, optest.UpperFunc(), time.Minute, nil)
		for v, err := range op.ResultsOf(asyncop.FromSlice(strings.Split("abcdef", ""))) {
			require.NoError(t, err)
			require.Equal(t, "A", v)
			break
		}
		require.ErrorIs(t, op.Wait(), asyncop.ErrStopped)
		s := op.Stats()
		require.EqualValues(t, 4, s.Accepted)
		require.EqualValues(t, 1, s.Completed)
		require.EqualValues(t, 3, s.Abandoned)
		optest.CheckBalance(t, s)
	}, 4)
}
