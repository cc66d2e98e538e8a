package streams_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/strategies"
)

// forever yields numbers until it is stopped. It reports how many it has yielded, and its
// end.
func forever(yielded *atomic.Int64, ended chan<- struct{}) iter.Seq[string] {
	return func(yield func(string) bool) {
		defer close(ended)
		for i := 0; yield(strconv.Itoa(i)); i++ {
			yielded.Add(1)
		}
	}
}

func TestResults(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		calls := map[string]int{}
		fn := asyncop.Func(func(_ context.Context, in string, result optest.Future) error {
			if calls[in]++; in == "b" && calls[in] == 1 {
				return optest.ErrBroken
			}
			time.AfterFunc(time.Duration('d'-in[0])*time.Millisecond, func() { result.Complete(in+"1", in+"2") })
			return nil
		})
		op := optest.Construct(m, fn, time.Minute, optest.Strategy(optest.RetryAll(3, time.Second)))
		var got []string
		for out, err := range op.Results(optest.Letters("abc")) {
			require.NoError(t, err)
			got = append(got, out)
		}
		require.Equal(t, m.Pick("a1 a2 b1 b2 c1 c2", map[int]string{
			1: "a1 a2 b1 b2 c1 c2", 2: "a1 a2 c1 c2 b1 b2", 16: "c1 c2 a1 a2 b1 b2",
		}[m.Capacity]), strings.Join(got, " "))
		require.NoError(t, op.Err())
		require.Equal(t, int64(1), op.Stats().RetriesOnError)
	}, 1, 2, 16)
}

// Results that the body does not ask for hold their slots. Timers continue.
func TestResultsThatNobodyAsksFor(t *testing.T) {
	for _, buffer := range []int{0, 1, 5} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			entries := map[int]int{0: 1, 1: 1, 5: 8}[buffer]
			silent := strconv.Itoa(entries/2 + 2) // finds no free entry
			timedOut := make(chan string, 1)
			fn := optest.TimeoutMethod(asyncop.Func(func(_ context.Context, in string, result optest.Future) error {
				if in != silent {
					result.Complete(in)
				}
				return nil
			}), func(_ context.Context, in string) ([]string, error) {
				timedOut <- in
				return nil, nil
			})
			op := optest.Construct(m, fn, time.Second, nil, asyncop.WithBuffer(buffer))
			var yielded atomic.Int64
			ended := make(chan struct{})
			start := time.Now()
			for out, err := range op.Results(forever(&yielded, ended)) {
				require.NoError(t, err)
				if out != "0" {
					break
				}
				synctest.Wait()
				s := op.Stats()
				require.Equal(t, int64(m.Capacity), s.InFlight, "all slots are taken")
				emitted, waiting := int(s.Emitted)-1, int(yielded.Load()-s.Accepted)
				require.True(t, entries/2 < emitted && emitted <= entries, "%d of %d entries are taken", emitted, entries)
				require.True(t, entries/2 < waiting && waiting <= entries, "%d of %d entries are taken", waiting, entries)
				require.Equal(t, silent, <-timedOut)
				require.Equal(t, time.Second, time.Since(start))
			}
			<-ended
		}, 1, 8, 20)
	}
}

// However the loop over the results ends, the operator has ended when the loop is left:
// the contexts of calls have ended, the function is closed, and the input has ended.
func TestResultsBrokenOff(t *testing.T) {
	ways := map[string]func() (goOn bool){
		"break":  func() bool { return false },
		"panic":  func() bool { panic("in the loop") },
		"Goexit": func() bool { runtime.Goexit(); return true },
	}
	for name, leave := range ways {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				var ctxEnd error
				fn := &closing{Function: asyncop.Func(func(ctx context.Context, in string, result optest.Future) error {
					switch in {
					case "0":
						result.Complete(in)
					case "1":
						context.AfterFunc(ctx, func() { ctxEnd = context.Cause(ctx) })
					}
					return nil
				})}
				var told error
				op := optest.Construct(m, optest.Function(fn), time.Minute, nil, asyncop.WithUpstreamCancel(func(err error) { told = err }))
				var yielded atomic.Int64
				ended := make(chan struct{})
				left := make(chan any)
				go func() {
					defer close(left)
					defer func() {
						assert.True(t, fn.closed.Load(), "closed before the loop was left")
						if p := recover(); p != nil {
							left <- p
						}
					}()
					for _, err := range op.Results(forever(&yielded, ended)) {
						assert.NoError(t, err)
						synctest.Wait()
						if !leave() {
							break
						}
					}
				}()
				value := <-left
				if name == "panic" {
					require.Equal(t, "in the loop", value)
				}
				<-ended
				<-op.Done()
				synctest.Wait()
				require.ErrorIs(t, op.Err(), asyncop.ErrStopped)
				require.ErrorIs(t, told, asyncop.ErrStopped)
				require.ErrorIs(t, ctxEnd, asyncop.ErrStopped)
				s := op.Stats()
				require.Equal(t, int64(m.Capacity), s.Abandoned)
				optest.CheckBalance(t, s)
				require.Equal(t, yielded.Load()+1, s.Accepted+s.Discarded, "every element that was yielded")
			})
		})
	}
}

// closing is a function that records that it was closed.
type closing struct {
	optest.Function
	closed atomic.Bool
}

func (c *closing) Close() error {
	c.closed.Store(true)
	return nil
}

// An input that breaks fails the operator. Its end does not count as the end of the data.
func TestResultsOfAnInputThatBreaks(t *testing.T) {
	for _, b := range optest.Breakages {
		t.Run(fmt.Sprint(b.Value), func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				input := func(yield func(string) bool) {
					yield("a")
					b.Breaks()
				}
				op := optest.Construct(m, optest.Function(optest.NewHand(t)), time.Minute, nil)
				var last error
				for _, err := range op.Results(input) {
					last = err
				}
				panicked, ok := errors.AsType[*asyncop.PanicError](last)
				require.True(t, ok, "%v", last)
				require.Equal(t, b.Value, panicked.Value)
				require.ErrorContains(t, last, "input of Results")
				require.Equal(t, op.Err(), last)
			})
		})
	}
}

// goexitError is an error whose Error method ends the goroutine.
type goexitError struct{}

func (goexitError) Error() string { runtime.Goexit(); return "" }

func TestResultsOfAnInputThatPanicsWithAHostileError(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		op := optest.Construct(m, optest.Function(optest.NewHand(t)), time.Minute, nil)
		var last error
		for _, err := range op.Results(func(func(string) bool) { panic(goexitError{}) }) {
			last = err
		}
		panicked, ok := errors.AsType[*asyncop.PanicError](last)
		require.True(t, ok)
		require.Equal(t, goexitError{}, panicked.Value)
	})
}

func TestResultsOfAnOperatorThatFails(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		h := optest.NewHand(t)
		h.Answer = optest.Upper
		h.Script("c#1", optest.Fails)
		op := optest.Construct(m, optest.Function(h), time.Minute, nil)
		var yielded atomic.Int64
		ended := make(chan struct{})
		input := func(yield func(string) bool) {
			for s := range optest.Letters("abc") {
				yield(s)
				synctest.Wait()
			}
			forever(&yielded, ended)(yield)
		}
		var got []string
		var last error
		for out, err := range op.Results(input) {
			got = append(got, out)
			last = err
		}
		require.Equal(t, []string{"A", "B", ""}, got)
		failed, ok := errors.AsType[*asyncop.ElementError](last)
		require.True(t, ok, "%v", last)
		require.Equal(t, "c", failed.Element)
		<-ended
	})
}

// An operator that has already ended, or that another goroutine stops.
func TestResultsOfAnOperatorThatIsEnded(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		for name, end := range map[string]func(op *optest.Operator) error{
			"stopped": func(op *optest.Operator) error { return op.Stop(t.Context()) },
			"cancelled": func(op *optest.Operator) error {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				return op.Stop(ctx)
			},
		} {
			op := optest.Construct(m, optest.UpperFunc(), time.Minute, nil)
			want := end(op)
			if want == nil {
				want = asyncop.ErrStopped
			}
			var yielded atomic.Int64
			ended := make(chan struct{})
			n := 0
			for _, err := range op.Results(forever(&yielded, ended)) {
				require.Equal(t, want, err, name)
				n++
			}
			<-ended
			require.Equal(t, 1, n, name)
		}
		op := optest.Construct(m, optest.UpperFunc(), time.Minute, nil)
		var yielded atomic.Int64
		ended := make(chan struct{})
		n := int64(0)
		var last error
		for _, err := range op.Results(forever(&yielded, ended)) {
			if last = err; err != nil {
				break
			}
			if n++; n == 10 {
				go func() { assert.NoError(t, op.Stop(context.Background())) }()
			}
		}
		<-ended
		require.Equal(t, asyncop.ErrStopped, last)
		require.Equal(t, op.Stats().Accepted, n, "what was accepted is drained")
	})
}

// A break does not wait for an input that is blocked.
func TestResultsOfAnInputThatWaits(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		elements := make(chan string)
		op := optest.Construct(m, optest.UpperFunc(), time.Minute, nil, asyncop.WithUpstreamCancel(func(error) { close(elements) }))
		input := func(yield func(string) bool) {
			for e := range elements {
				if !yield(e) {
					return
				}
			}
		}
		go func() { elements <- "a" }()
		for out, err := range op.Results(input) {
			require.NoError(t, err)
			require.Equal(t, "A", out)
			break
		}
		require.ErrorIs(t, op.Err(), asyncop.ErrStopped)
	})
}

func TestResultsAndFlowsExcludeEachOther(t *testing.T) {
	drain := func(op *optest.Operator) {
		for _, err := range op.Results(optest.Letters("a")) {
			require.NoError(t, err)
		}
	}
	m := optest.Mode{Capacity: 1}
	op := optest.Construct(m, optest.UpperFunc(), time.Minute, nil)
	drain(op)
	require.PanicsWithValue(t, "asyncop: Results: the operator has run already, or still runs: make a new operator for each run", func() { drain(op) })
	require.PanicsWithValue(t, "asyncop: In: the operator is driven by Results", func() { op.In() })
	require.PanicsWithValue(t, "asyncop: Out: the operator is driven by Results", func() { op.Out() })
	require.PanicsWithValue(t, "asyncop: Via: the operator is driven by Results", func() { op.Via(nil) })
	require.PanicsWithValue(t, "asyncop: To: the operator is driven by Results", func() { op.To(nil) })

	op = optest.Construct(m, optest.UpperFunc(), time.Minute, nil)
	close(op.In())
	require.PanicsWithValue(t, "asyncop: Results: the operator is driven by In, Out, Via or To already",
		func() { drain(op) })
	require.PanicsWithValue(t, "asyncop: Results: nil input", func() { op.Results(nil) })
	require.NoError(t, op.Wait())

	coordinator, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore())
	require.NoError(t, err)
	op = optest.Construct(m, optest.UpperFunc(), time.Minute, nil, asyncop.WithName("x"), asyncop.WithCheckpoints(coordinator))
	require.PanicsWithValue(t, "asyncop: Results: an operator WithCheckpoints needs a source of barriers: use it as a flow",
		func() { op.Results(optest.Letters("a")) })
	require.NoError(t, coordinator.Close())
	close(op.In())
	<-op.Done()
}

// No result is lost between goroutines that sleep and wake each other in real time.
func TestRingsUnderStress(t *testing.T) {
	runs, n := 300, 500
	if suite.Race || !suite.Full() {
		runs = 40
	}
	fn := asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
		if in%3 == 0 {
			go result.Complete(in)
		} else {
			result.Complete(in)
		}
		return nil
	})
	for i := range runs {
		m := optest.Mode{Ordered: i%2 == 0, Capacity: 1 + i%7}
		op := optest.Construct[int, int](m, fn, time.Minute, strategies.NoRetry[int](), asyncop.WithBuffer(i%5))
		input := func(yield func(int) bool) {
			for j := range n {
				if j%(1+i%11) == 0 {
					runtime.Gosched()
				}
				if !yield(j) {
					return
				}
			}
		}
		sum, count := 0, 0
		take := func(out int) {
			if m.Ordered {
				require.Equal(t, count, out)
			}
			sum += out
			if count++; count%(1+i%13) == 0 {
				runtime.Gosched()
			}
		}
		if i%4 < 2 {
			for out, err := range op.Results(input) {
				require.NoError(t, err)
				take(out)
			}
		} else {
			out := make(chan any)
			go op.To(extension.NewChanSink(out))
			go func() {
				defer close(op.In())
				for j := range input {
					op.In() <- j
				}
			}()
			for v := range out {
				take(v.(int))
			}
		}
		require.Equal(t, n, count)
		require.Equal(t, n*(n-1)/2, sum)
	}
}

// Law A6: a panic of the input is not lost if it comes while the loop is in a step, so
// that the loop sees the end of the input, too.
func TestResultsOfAnInputThatPanicsInAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retried := make(chan struct{})
		op := asyncop.OrderedWaitWithRetry(optest.SlowRetry(retried), time.Minute, 5, optest.RetryAll(3, time.Second))
		var last error
		for _, err := range op.Results(func(yield func(string) bool) {
			yield("a")
			<-retried
			panic("the input is broken")
		}) {
			last = err
		}
		require.ErrorContains(t, last, "the input is broken")
		require.Equal(t, last, op.Err())
	})
}
