package asyncop_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Constructors: they start the flow, and panic on programmer errors.

// panicOf returns what f panics with, as a text.
func panicOf(f func()) (message string) {
	defer func() {
		if v := recover(); v != nil {
			message = fmt.Sprint(v)
		}
	}()
	f()
	return "no panic"
}

// The message names the constructor, the argument and its value.
func TestConstructorsRefuseNonsense(t *testing.T) {
	fn := newHand(t)
	side := newSideSink(false)
	retry := retryAll(1, time.Second)
	var nilFixed *strategies.FixedDelayStrategy[string]
	for _, c := range []struct {
		fn       function
		timeout  time.Duration
		capacity int
		strategy strategy // nil: the constructor without retry
		opts     []asyncop.Option
		want     string
	}{
		{nil, 0, 1, nil, nil, "nil function"},
		{(*hand)(nil), 0, 1, nil, nil, "nil function"},
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
		{fn, 0, 1, nil, options(nil), "option 0 is nil"},
		{
			fn, 0, 1, nil, options(asyncop.WithDropOnFailure(), asyncop.WithFailureSink(side.take)),
			"WithDropOnFailure and WithFailureSink exclude each other",
		},
		{
			fn, 0, 1, nil, options(asyncop.WithFailureSink(side.take), asyncop.WithDropOnFailure()),
			"WithFailureSink and WithDropOnFailure exclude each other",
		},
	} {
		for _, ordered := range []bool{true, false} {
			m := mode{ordered: ordered, capacity: c.capacity}
			name := m.constructor(c.strategy != nil)
			got := panicOf(func() { construct[string, string](m, c.fn, c.timeout, c.strategy, c.opts...) })
			require.Contains(t, got, c.want, name)
			require.Contains(t, got, "asyncop: ", name)
			if c.opts == nil {
				require.Contains(t, got, name)
			}
		}
	}
}

// constructor is the name of the one that construct calls.
func (m mode) constructor(retry bool) string {
	name := map[bool]string{true: "OrderedWait", false: "UnorderedWait"}[m.ordered]
	if retry {
		name += "WithRetry"
	}
	return name
}

// The constructors with retry refuse an untyped nil strategy, too.
func TestConstructorsRefuseANilStrategy(t *testing.T) {
	fn := newHand(t)
	require.Contains(t, panicOf(func() {
		asyncop.OrderedWaitWithRetry[string, string](fn, time.Second, 1, nil)
	}), "OrderedWaitWithRetry: nil strategy")
	require.Contains(t, panicOf(func() {
		asyncop.UnorderedWaitWithRetry[string, string](fn, time.Second, 1, nil)
	}), "UnorderedWaitWithRetry: nil strategy")
}

// Options name themselves and the value.
func TestOptionsRefuseNonsense(t *testing.T) {
	for want, f := range map[string]func(){
		"WithMaxConcurrentCalls: must be at least 1, got 0": func() { asyncop.WithMaxConcurrentCalls(0) },
		"WithAttemptTimeout: must be positive, got 0s":      func() { asyncop.WithAttemptTimeout(0) },
		"WithAttemptTimeout: must be positive, got -1s":     func() { asyncop.WithAttemptTimeout(-time.Second) },
		"WithHandlerLimit: must be positive, got 0s":        func() { asyncop.WithHandlerLimit(0) },
		"WithBuffer: negative number of places: -1":         func() { asyncop.WithBuffer(-1) },
		"WithClock: nil clock":                              func() { asyncop.WithClock(nil) },
		"WithContext: nil context":                          func() { asyncop.WithContext(nil) },
		"WithUpstreamCancel: nil function":                  func() { asyncop.WithUpstreamCancel(nil) },
		"WithLogger: nil logger":                            func() { asyncop.WithLogger(nil) },
		"WithFailureSink: nil function":                     func() { asyncop.WithFailureSink[string](nil) },
		"OrderedWait: WithFailureSink: func(context.Context, asyncop.Failure[int]) error does not take asyncop.Failure[string]": func() {
			asyncop.OrderedWait[string, string](newHand(t), 0, 1, asyncop.WithFailureSink(func(context.Context, asyncop.Failure[int]) error { return nil }))
		},
		"HandleFailure: nil function": func() { asyncop.HandleFailure[int, int](nil, nil) },
		"HandleFailure: nil fallback": func() { asyncop.HandleFailure[string, string](&hand{}, nil) },
	} {
		require.Contains(t, panicOf(f), want)
	}
}

// A refused operator leaves nothing running (goleak in TestMain checks that), and the smallest legal values work.
func TestSmallestLegalValues(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: 1, strategy: retryAll(0, 0), wrap: handled,
			opts: options(asyncop.WithBuffer(0), asyncop.WithMaxConcurrentCalls(1)),
		})
		r.answer = upper
		r.sendEach("abc")
		require.NoError(t, r.end())
		require.Equal(t, "A B C", r.outputs())
	}, 1)
}

// nilPredicate is a strategy without a predicate.
type nilPredicate struct{ typed bool }

func (nilPredicate) CanRetry(int) bool             { return true }
func (nilPredicate) BackoffTime(int) time.Duration { return 0 }

func (p nilPredicate) RetryPredicate() predicatesOfStrings {
	if p.typed {
		return (*noPredicate)(nil)
	}
	return nil
}

type noPredicate struct{}

func (*noPredicate) ResultPredicate() predicates.ResultPredicate[string] { panic("of a nil") }
func (*noPredicate) ExceptionPredicate() predicates.ExceptionPredicate   { panic("of a nil") }

// By default the buffers grow with the capacity, within bounds.
func TestDefaultBuffer(t *testing.T) {
	for _, tt := range []struct {
		capacity, places int
		opts             []asyncop.Option
	}{
		{1, 128, nil},
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
		require.Equal(t, tt.places, cap(op.In()), "In, capacity %d", tt.capacity)
		require.Equal(t, tt.places, cap(op.Out()), "Out, capacity %d", tt.capacity)
		close(op.In())
		require.NoError(t, op.Wait())
	}
}

// A nil RetryPredicate means no retry; so does one whose two predicates are nil.
func TestNilRetryPredicateMeansNoRetry(t *testing.T) {
	empty := ownPredicates{}
	for _, s := range []strategy{nilPredicate{}, nilPredicate{typed: true}, empty} {
		forEachMode(t, func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Second, strategy: s, opts: options(asyncop.WithDropOnFailure())})
			r.answer = fails
			r.sendEach("ab")
			require.NoError(t, r.end())
			require.Equal(t, "a#1 b#1", r.calls())
			require.Zero(t, r.stats().Exhausted)
		})
	}
}

// ownPredicates is a strategy with a pair of nil predicates.
type ownPredicates struct{ nilPredicate }

func (ownPredicates) RetryPredicate() predicatesOfStrings {
	return predicates.RetryIf[string](nil, nil)
}

// The later of two options of a kind wins.
func TestLaterOptionWins(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{opts: options(asyncop.WithMaxConcurrentCalls(1), asyncop.WithMaxConcurrentCalls(2))})
		r.sendEach("abc")
		require.Equal(t, "a#1 b#1", r.calls())
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
	})
}

// ---- Optional interfaces

// full is a function with every optional interface, and wrapped one without any of its own.
type full struct {
	*hand
	events chan string
}

func (f *full) Open(ctx context.Context) error {
	f.events <- fmt.Sprint("open ", ctx.Value(valueKey{}))
	return nil
}

func (f *full) Close() error { f.events <- "close"; return nil }

func (f *full) Timeout(_ context.Context, in string) ([]string, error) {
	return []string{"timeout of " + in}, nil
}

// Optional interfaces are found through wrappers, the outermost first.
func TestOptionalInterfacesAreFoundThroughWrappers(t *testing.T) {
	for depth := range 3 {
		forEachMode(t, func(t *testing.T, m mode) {
			events := make(chan string, 10)
			r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
				var fn function = &full{h, events}
				for range depth {
					fn = &wrapper{fn}
				}
				return fn
			}})
			r.sendEach("a")
			r.advance(time.Second)
			require.NoError(t, r.end())
			require.Equal(t, "a#1", r.calls())
			require.Equal(t, "timeout of a", r.outputs())
			require.Equal(t, "open of the operator", <-events)
			require.Equal(t, "close", <-events)
			require.Empty(t, events)
		})
	}
}

// The Timeout method of a wrapper goes before that of the function it wraps; the rest of the function stays reachable.
func TestTimeoutMethodKeepsTheRest(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		events := make(chan string, 10)
		r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function { return handledBy(&full{h, events}) }})
		r.sendEach("a")
		r.advance(time.Second)
		require.NoError(t, r.end())
		require.Equal(t, "a!", r.outputs())
		require.Len(t, events, 2)
	})
}

func handledBy(fn function) function {
	return timeoutMethod(fn, func(_ context.Context, in string) ([]string, error) { return []string{in + "!"}, nil })
}

// A blocking function with optional interfaces: a type that embeds it has them.
type blockingWithOpen struct {
	function
	opened *bool
}

func (b blockingWithOpen) Open(context.Context) error { *b.opened = true; return nil }
func (b blockingWithOpen) Unwrap() any                { return b.function }

func TestOptionalInterfacesAroundBlocking(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		opened := false
		r := newRig(t, m, setup{
			timeout: time.Second,
			wrap: func(h *hand) function {
				return handledBy(&wrapper{blockingWithOpen{blockingHand(h, false), &opened}})
			},
			opts: options(asyncop.WithMaxConcurrentCalls(1)),
		})
		r.sendEach("a")
		require.True(t, opened)
		r.advance(time.Second)
		require.Equal(t, "a!", r.outputs())
		r.sendEach("bc")
		require.Equal(t, "a#1 b#1", r.calls())
		r.complete("b#1", "B")
		r.complete("c#1", "C")
		require.NoError(t, r.end())
	})
}
