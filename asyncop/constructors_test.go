package asyncop_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// The message names the constructor, the argument and its value.
func TestConstructorsRefuseNonsense(t *testing.T) {
	fn := optest.NewHand(t)
	sink := optest.NewSideSink(false)
	retry := optest.RetryAll(1, time.Second)
	var nilFixed *strategies.FixedDelayStrategy[string]
	for _, c := range []struct {
		fn       optest.Function
		timeout  time.Duration
		capacity int
		strategy optest.Strategy // nil means the constructor without retry
		opts     []asyncop.Option
		want     string
	}{
		{nil, 0, 1, nil, nil, "nil function"},
		{(*optest.Hand)(nil), 0, 1, nil, nil, "nil function"},
		{asyncop.Func[string, string](nil), 0, 1, nil, nil, "nil function"},
		{asyncop.Blocking[string, string](nil), 0, 1, nil, nil, "nil function"},
		{asyncop.BlockingMany[string, string](nil), 0, 1, nil, nil, "nil function"},
		{fn, -time.Second, 1, nil, nil, "negative timeout: -1s"},
		{fn, -1, 1, retry, nil, "negative timeout: -1ns"},
		{fn, 0, 0, nil, nil, "capacity must be at least 1, got 0"},
		{fn, time.Second, -5, retry, nil, "capacity must be at least 1, got -5"},
		{fn, time.Second, math.MinInt, nil, nil, "capacity must be at least 1"},
		{fn, 0, 1, retry, nil, "positive timeout, got 0s"},
		{fn, 0, 1, strategies.FixedDelay[string](0, 0), nil, "positive timeout, got 0s"},
		{fn, time.Second, 1, nilFixed, nil, "nil strategy"},
		{fn, 0, 1, nil, optest.Options(nil), "option 0 is nil"},
		{
			fn, 0, 1, nil, optest.Options(asyncop.WithDropOnFailure(), asyncop.WithFailureSink(sink.Take)),
			"WithDropOnFailure and WithFailureSink exclude each other",
		},
		{
			fn, 0, 1, nil, optest.Options(asyncop.WithFailureSink(sink.Take), asyncop.WithDropOnFailure()),
			"WithFailureSink and WithDropOnFailure exclude each other",
		},
	} {
		for _, ordered := range []bool{true, false} {
			m := optest.Mode{Ordered: ordered, Capacity: c.capacity}
			name := m.Constructor(c.strategy != nil)
			got := optest.PanicOf(func() { optest.Construct[string, string](m, c.fn, c.timeout, c.strategy, c.opts...) })
			require.Contains(t, got, c.want, name)
			require.Contains(t, got, "asyncop: ", name)
			if c.opts == nil {
				require.Contains(t, got, name)
			}
		}
	}
}

// A panic of a named operator includes the name, because a program may have many
// operators.
func TestWithName_PanicsOfConstructors(t *testing.T) {
	named := asyncop.WithName("rows")
	require.Equal(t, `asyncop: OrderedWait "rows": nil function`, optest.PanicOf(func() {
		asyncop.OrderedWait[string, string](nil, 0, 1, named)
	}))
	require.Equal(t, `asyncop: KeyOrderedWait "rows": nil function`, optest.PanicOf(func() {
		asyncop.KeyOrderedWait(optest.Function(nil), optest.FirstLetter, 0, 1, nil, named)
	}))
	require.Equal(t, `asyncop: UnorderedWait "rows": Cost, Tenant and Budget need WithBackend`, optest.PanicOf(func() {
		asyncop.UnorderedWait[string, string](optest.NewHand(t), 0, 1, named, asyncop.Budget(1))
	}))
}

func TestWithMaxConcurrentCalls_AboveCapacity(t *testing.T) {
	for calls, warns := range map[int]bool{4: false, 5: true} {
		var log strings.Builder
		op := asyncop.OrderedWait[string, string](optest.NewHand(t), 0, 4, asyncop.WithMaxConcurrentCalls(calls), asyncop.WithName("rows"),
			asyncop.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		close(op.In())
		require.NoError(t, op.Wait())
		require.EqualValues(t, 4, op.Stats().MaxCalls)
		require.Equal(t, warns, strings.Contains(log.String(), `level=WARN msg="asyncop: OrderedWait: WithMaxConcurrentCalls is above the capacity, `+
			`which limits the calls: raise the capacity" calls=5 capacity=4`), log.String())
	}
}

// The constructors with retry also refuse an untyped nil strategy.
func TestConstructorsRefuseANilStrategy(t *testing.T) {
	fn := optest.NewHand(t)
	require.Contains(t, optest.PanicOf(func() {
		asyncop.OrderedWaitWithRetry[string, string](fn, time.Second, 1, nil)
	}), "OrderedWaitWithRetry: nil strategy")
	require.Contains(t, optest.PanicOf(func() {
		asyncop.UnorderedWaitWithRetry[string, string](fn, time.Second, 1, nil)
	}), "UnorderedWaitWithRetry: nil strategy")
}

// The message of an option includes the option and the value.
func TestOptionsRefuseNonsense(t *testing.T) {
	for want, f := range map[string]func(){
		"WithMaxConcurrentCalls: must be at least 1, got 0": func() { asyncop.WithMaxConcurrentCalls(0) },
		"WithAttemptTimeout: must be positive, got 0s":      func() { asyncop.WithAttemptTimeout(0) },
		"WithAttemptTimeout: must be positive, got -1s":     func() { asyncop.WithAttemptTimeout(-time.Second) },
		"WithHandlerLimit: must be positive, got 0s":        func() { asyncop.WithHandlerLimit(0) },
		"WithBuffer: negative size: -1":                     func() { asyncop.WithBuffer(-1) },
		"WithClock: nil clock":                              func() { asyncop.WithClock(nil) },
		"WithContext: nil context":                          func() { asyncop.WithContext(nil) },
		"WithUpstreamCancel: nil function":                  func() { asyncop.WithUpstreamCancel(nil) },
		"WithLogger: nil logger":                            func() { asyncop.WithLogger(nil) },
		"WithFailureSink: nil function":                     func() { asyncop.WithFailureSink[string](nil) },
		"OrderedWait: WithFailureSink: func(context.Context, asyncop.Failure[int]) error does not take asyncop.Failure[string]": func() {
			asyncop.OrderedWait[string, string](optest.NewHand(t), 0, 1, asyncop.WithFailureSink(func(context.Context, asyncop.Failure[int]) error { return nil }))
		},
		"HandleFailure: nil function": func() { asyncop.HandleFailure[int, int](nil, nil) },
		"HandleFailure: nil fallback": func() { asyncop.HandleFailure[string, string](&optest.Hand{}, nil) },
	} {
		require.Contains(t, optest.PanicOf(f), want)
	}
}

// goleak in TestMain checks that a refused operator leaves no goroutine running. The
// smallest legal values work.
func TestSmallestLegalValues(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 1, Strategy: optest.RetryAll(0, 0), Wrap: optest.Handled,
			Opts: optest.Options(asyncop.WithBuffer(0), asyncop.WithMaxConcurrentCalls(1)),
		})
		r.Answer = optest.Upper
		r.SendEach("abc")
		require.NoError(t, r.End())
		require.Equal(t, "A B C", r.Outputs())
	}, 1)
}

// nilPredicate is a strategy without a predicate.
type nilPredicate struct{ typed bool }

func (nilPredicate) CanRetry(int) bool             { return true }
func (nilPredicate) BackoffTime(int) time.Duration { return 0 }

func (p nilPredicate) RetryPredicate() optest.PredicatesOfStrings {
	if p.typed {
		return (*noPredicate)(nil)
	}
	return nil
}

type noPredicate struct{}

func (*noPredicate) ResultPredicate() predicates.ResultPredicate[string] { panic("of a nil") }
func (*noPredicate) ExceptionPredicate() predicates.ExceptionPredicate   { panic("of a nil") }

// By default the buffers follow the capacity, within bounds.
func TestDefaultBuffer(t *testing.T) {
	for _, tt := range []struct {
		capacity, buffer int
		opts             []asyncop.Option
	}{
		{1, 1, nil},
		{10, 10, nil},
		{128, 128, nil},
		{1000, 128, nil},
		{1032, 129, nil},
		{4000, 500, nil},
		{8192, 1024, nil},
		{1_000_000, 1024, nil},
		{1_000_000, 0, []asyncop.Option{asyncop.WithBuffer(0)}},
		{10_000, 128, []asyncop.Option{asyncop.WithBuffer(128)}},
	} {
		op := asyncop.OrderedWait(asyncop.Func(func(_ context.Context, in string, result asyncop.ResultFuture[string]) error {
			result.Complete(in)
			return nil
		}), 0, tt.capacity, tt.opts...)
		require.Equal(t, tt.buffer, cap(op.In()), "In, capacity %d", tt.capacity)
		require.Equal(t, tt.buffer, cap(op.Out()), "Out, capacity %d", tt.capacity)
		close(op.In())
		require.NoError(t, op.Wait())
	}
}

// A nil RetryPredicate, or one with two nil predicates, means no retry.
func TestNilRetryPredicateMeansNoRetry(t *testing.T) {
	empty := ownPredicates{}
	for _, s := range []optest.Strategy{nilPredicate{}, nilPredicate{typed: true}, empty} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: s, Opts: optest.Options(asyncop.WithDropOnFailure())})
			r.Answer = optest.Fails
			r.SendEach("ab")
			require.NoError(t, r.End())
			require.Equal(t, "a#1 b#1", r.Calls())
			require.Zero(t, r.Stats().Exhausted)
		})
	}
}

// ownPredicates is a strategy with a pair of nil predicates.
type ownPredicates struct{ nilPredicate }

func (ownPredicates) RetryPredicate() optest.PredicatesOfStrings {
	return predicates.RetryIf[string](nil, nil)
}

func TestLaterOptionWins(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithMaxConcurrentCalls(2))})
		r.SendEach("abc")
		require.Equal(t, "a#1 b#1", r.Calls())
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
	})
}

// ---- Optional interfaces

// full is a function with every optional interface, and wrapped is a function without
// any.
type full struct {
	*optest.Hand
	events chan string
}

func (f *full) Open(ctx context.Context) error {
	f.events <- fmt.Sprint("open ", ctx.Value(optest.ValueKey{}))
	return nil
}

func (f *full) Close() error { f.events <- "close"; return nil }

func (f *full) Timeout(_ context.Context, in string) ([]string, error) {
	return []string{"timeout of " + in}, nil
}

// Optional interfaces are found through wrappers, starting with the outermost.
func TestOptionalInterfacesAreFoundThroughWrappers(t *testing.T) {
	for depth := range 3 {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			events := make(chan string, 10)
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
				var fn optest.Function = &full{h, events}
				for range depth {
					fn = &optest.Wrapper{Inner: fn}
				}
				return fn
			}})
			r.SendEach("a")
			r.Advance(time.Second)
			require.NoError(t, r.End())
			require.Equal(t, "a#1", r.Calls())
			require.Equal(t, "timeout of a", r.Outputs())
			require.Equal(t, "open of the operator", <-events)
			require.Equal(t, "close", <-events)
			require.Empty(t, events)
		})
	}
}

// The Timeout method of a wrapper takes precedence over the Timeout method of the
// function that it wraps. The rest of the function stays reachable.
func TestTimeoutMethodKeepsTheRest(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		events := make(chan string, 10)
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function { return optest.HandledBy(&full{h, events}) }})
		r.SendEach("a")
		r.Advance(time.Second)
		require.NoError(t, r.End())
		require.Equal(t, "a!", r.Outputs())
		require.Len(t, events, 2)
	})
}

// A blocking function with optional interfaces: a type that embeds it has them.
type blockingWithOpen struct {
	optest.Function
	opened *bool
}

func (b blockingWithOpen) Open(context.Context) error { *b.opened = true; return nil }
func (b blockingWithOpen) Unwrap() any                { return b.Function }

func TestOptionalInterfacesAroundBlocking(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		opened := false
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second,
			Wrap: func(h *optest.Hand) optest.Function {
				return optest.HandledBy(&optest.Wrapper{Inner: blockingWithOpen{optest.BlockingHand(h, false), &opened}})
			},
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.SendEach("a")
		require.True(t, opened)
		r.Advance(time.Second)
		require.Equal(t, "a!", r.Outputs())
		r.SendEach("bc")
		require.Equal(t, "a#1 b#1", r.Calls())
		r.Complete("b#1", "B")
		r.Complete("c#1", "C")
		require.NoError(t, r.End())
	})
}

// A number without a unit is taken as nanoseconds.
func TestWarningOfATimeoutWithoutAUnit(t *testing.T) {
	const warning = `level=WARN msg="asyncop: %s is below a millisecond: is its unit missing, as in 5*time.Second?" timeout=%v`
	for timeout, warned := range map[time.Duration]bool{5000: true, time.Millisecond - 1: true, time.Millisecond: false, 0: false} {
		run := func(timeout time.Duration, opts ...asyncop.Option) string {
			var lines strings.Builder
			op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, string) (string, error) { return "", nil }), timeout, 1,
				append(opts, asyncop.WithLogger(slog.New(slog.NewTextHandler(&lines, nil))))...)
			close(op.In())
			require.NoError(t, op.Wait())
			return lines.String()
		}
		if warned {
			assert.Contains(t, run(timeout), fmt.Sprintf(warning, "OrderedWait: the timeout", timeout))
			assert.Contains(t, run(0, asyncop.WithAttemptTimeout(timeout)), fmt.Sprintf(warning, "WithAttemptTimeout: the limit", timeout))
			continue
		}
		assert.Empty(t, run(timeout))
		if timeout > 0 {
			assert.Empty(t, run(0, asyncop.WithAttemptTimeout(timeout)))
		}
	}
}
