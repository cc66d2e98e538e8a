package lookup_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/predicates"
)

var errBackend = errors.New("backend failed")

func TestFunctionStats_OneLoadPerKey(t *testing.T) {
	b := new(backend)
	f := lookup.New(b, nil)
	a1, a2 := ask(t, f, t.Context(), "a"), ask(t, f, t.Context(), "a")
	b1 := ask(t, f, t.Context(), "b")
	require.Equal(t, 2, b.count())
	require.Equal(t, lookup.Stats{Misses: 3, Shared: 1, Loads: 2, Loading: 2}, f.Stats())
	b.call(0).result.Complete(1, 2)
	checkResults(t, a1, 1, 2)
	checkResults(t, a2, 1, 2)
	checkWaits(t, b1)
	b.call(1).result.CompleteExceptionally(errBackend)
	checkFailed(t, b1, errBackend)
	require.ErrorIs(t, b.call(0).ctx.Err(), context.Canceled, "what the load has opened is dead")

	ask(t, f, t.Context(), "a") // that load has ended
	require.Equal(t, 3, b.count())
	b.call(2).result.Complete()
	require.Equal(t, lookup.Stats{Misses: 4, Shared: 1, Loads: 3, LoadErrors: 1}, f.Stats())
}

// The operator owns the slice that it gets.
func TestResultsAreNoOnesElse(t *testing.T) {
	b := new(backend)
	f := lookup.New(b, newMemory[string, int]())
	first, second := ask(t, f, t.Context(), "a"), ask(t, f, t.Context(), "a")
	b.call(0).result.Complete(1, 2)
	_, results, _ := first.get()
	clear(results)
	checkResults(t, second, 1, 2)
	third := ask(t, f, t.Context(), "a")
	_, results, _ = third.get()
	clear(results)
	checkResults(t, ask(t, f, t.Context(), "a"), 1, 2)
}

// The first completion counts, as everywhere (law A2).
func TestLateCompletionsOfALoad(t *testing.T) {
	b := new(backend)
	f := lookup.New(b, nil)
	w := ask(t, f, t.Context(), "a")
	b.call(0).result.Complete(1)
	b.call(0).result.Complete(2)
	b.call(0).result.CompleteExceptionally(nil)
	checkResults(t, w, 1)
	w = ask(t, f, t.Context(), "a")
	b.call(1).result.CompleteExceptionally(nil)
	_, _, err := w.get()
	assert.ErrorContains(t, err, "nil error")
}

// A lookup that leaves fails alone, even if it has begun the load. The load ends when the
// last lookup leaves.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(backend)
		f := lookup.New(b, nil)
		type value struct{}
		leader, cancelLeader := context.WithCancel(context.WithValue(t.Context(), value{}, "of the leader"))
		other, cancelOther := context.WithCancel(t.Context())
		deadline, cancelDeadline := context.WithTimeout(t.Context(), time.Hour)
		defer cancelDeadline()
		first, second := ask(t, f, leader, "a"), ask(t, f, other, "a")
		third := ask(t, f, deadline, "a")

		ctx := b.call(0).ctx
		cancelLeader()
		synctest.Wait()
		checkFailed(t, first, context.Canceled)
		checkWaits(t, second)
		require.NoError(t, ctx.Err())
		require.Equal(t, "of the leader", ctx.Value(value{}))
		_, limited := ctx.Deadline()
		require.False(t, limited, "a client would give up with one of those who wait")

		fourth := ask(t, f, t.Context(), "a") // a cancel gives no evidence about the load
		require.Equal(t, 1, b.count())
		b.call(0).result.Complete(7)
		for _, w := range []*future{second, third, fourth} {
			checkResults(t, w, 7)
		}
		cancelOther()
		synctest.Wait() // no lookup is completed twice

		last, cancelLast := context.WithCancel(t.Context())
		fifth := ask(t, f, last, "a")
		require.NoError(t, b.call(1).ctx.Err())
		cancelLast()
		synctest.Wait()
		checkFailed(t, fifth, context.Canceled)
		require.ErrorIs(t, b.call(1).ctx.Err(), context.Canceled)
		sixth := ask(t, f, t.Context(), "a") // it does not join the cancelled load
		require.Equal(t, 3, b.count())
		b.call(1).result.Complete(8) // has no effect
		checkWaits(t, sixth)
		b.call(2).result.Complete(9)
		checkResults(t, sixth, 9)
		require.Equal(t, 0, f.Stats().Loading)
		require.Zero(t, f.Joinable())
	})
}

// watched is a context that counts the watches of its end.
type watched struct {
	context.Context
	watches int
	first   func() // called before the watch begins, unless it is nil
}

func (*watched) Done() <-chan struct{} { return make(chan struct{}) }

func (w *watched) AfterFunc(func()) (stop func() bool) {
	if w.first != nil {
		w.first()
	}
	w.watches++
	return func() bool { w.watches--; return true }
}

// A lookup leaves no watch on a context that outlives it, whether it is answered
// immediately or later.
func TestFunction_LeavesNoWatchOnTheContext(t *testing.T) {
	b := new(backend)
	f := lookup.New(b, nil)
	ctx := &watched{Context: t.Context()}
	ask(t, f, ctx, "a")
	require.Equal(t, 1, ctx.watches)
	b.call(0).result.Complete(1)
	require.Zero(t, ctx.watches)

	ask(t, f, t.Context(), "a")
	ctx.first = func() { b.call(1).result.Complete(2) } // the load ends before the watch begins
	checkResults(t, ask(t, f, ctx, "a"), 2)
	require.Zero(t, ctx.watches)
}

// A load that hangs costs one timeout: later lookups do not join it.
func TestHangingLoadIsNotJoinedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(backend)
		cache := newMemory[string, int]()
		f := lookup.New(b, cache)
		within := func(d time.Duration) *future {
			ctx, cancel := context.WithTimeout(context.Background(), d)
			context.AfterFunc(t.Context(), cancel)
			return ask(t, f, ctx, "a")
		}
		first, second := within(time.Second), within(time.Minute)
		time.Sleep(time.Second)
		synctest.Wait()
		checkFailed(t, first, context.DeadlineExceeded)
		require.NoError(t, b.call(0).ctx.Err(), "the other still waits")
		third := within(time.Minute)
		require.Equal(t, 2, b.count())
		b.call(1).result.Complete(2)
		checkResults(t, third, 2)
		b.call(0).result.Complete(1) // the older result does not replace the newer one
		checkResults(t, second, 1)
		checkResults(t, within(time.Minute), 2)
	})
}

// A panic and runtime.Goexit are outcomes of all waiting lookups, and are not kept in the
// cache (law A6).
func TestPanicOfALoad(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":  func() { panic("boom") },
		"Goexit": runtime.Goexit,
	} {
		joined := make(chan struct{})
		t.Run(name+" in a blocking call", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := lookup.New(asyncop.Blocking(func(context.Context, string) (int, error) {
					time.Sleep(time.Second)
					end()
					return 0, nil
				}), newMemory[string, int](), lookup.WithErrorTTL(time.Hour, predicates.HasException))
				first, second := ask(t, f, t.Context(), "a"), ask(t, f, t.Context(), "a")
				time.Sleep(time.Second)
				synctest.Wait()
				for _, w := range []*future{first, second, ask(t, f, t.Context(), "a")} {
					time.Sleep(time.Second)
					synctest.Wait()
					_, _, err := w.get()
					var broken *asyncop.PanicError
					require.ErrorAs(t, err, &broken)
					require.NotEmpty(t, broken.Stack)
				}
				require.Equal(t, lookup.Stats{Misses: 3, Shared: 1, Loads: 2, LoadErrors: 2}, f.Stats())
			})
		})
		t.Run(name+" in AsyncInvoke", func(t *testing.T) {
			entered := make(chan struct{})
			f := lookup.New(asyncop.Func(func(context.Context, string, asyncop.ResultFuture[int]) error {
				close(entered)
				<-joined
				end()
				return nil
			}), nil)
			first := &future{t: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				assert.NoError(t, f.AsyncInvoke(t.Context(), "a", first))
			}()
			<-entered
			second := ask(t, f, t.Context(), "a")
			close(joined)
			<-done
			for _, w := range []*future{first, second} {
				_, _, err := w.get()
				var broken *asyncop.PanicError
				require.ErrorAs(t, err, &broken)
			}
			require.Equal(t, 0, f.Stats().Loading)
		})
	}
}

// If the future of a user's wrapper breaks, the other elements still get the outcome.
func TestPanicOfAFuture(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":  func() { panic("boom") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			b := new(backend)
			f := lookup.New(b, nil)
			broken := &breaking{future{t: t}, end}
			require.NoError(t, f.AsyncInvoke(t.Context(), "a", broken))
			second := ask(t, f, t.Context(), "a")
			done := make(chan struct{})
			go func() {
				defer close(done)
				b.call(0).result.Complete(1)
			}()
			<-done
			checkResults(t, second, 1)
			_, _, err := broken.get()
			var p *asyncop.PanicError
			require.ErrorAs(t, err, &p)
		})
	}
}

type breaking struct {
	future
	end func()
}

func (b *breaking) Complete(...int) { b.end() }

// An error that AsyncInvoke returns is the outcome, unless the load was completed before.
func TestErrorOfAsyncInvoke(t *testing.T) {
	complete := false
	f := lookup.New(asyncop.Func(func(_ context.Context, _ string, result asyncop.ResultFuture[int]) error {
		if complete {
			result.Complete(1)
		}
		return errBackend
	}), nil)
	checkFailed(t, ask(t, f, t.Context(), "a"), errBackend)
	complete = true
	checkResults(t, ask(t, f, t.Context(), "a"), 1)
}

// Keys that are not equal to themselves cannot be shared, and leave no entry behind. Keys
// that cannot be compared fail their element.
func TestFunction_OddKeys(t *testing.T) {
	calls := 0
	count := asyncop.Func(func(_ context.Context, _ float64, result asyncop.ResultFuture[int]) error {
		calls++
		result.Complete(calls)
		return nil
	})
	f := lookup.New(count, newMemory[float64, int]())
	for i := range 3 {
		w := &future{t: t}
		require.NoError(t, f.AsyncInvoke(t.Context(), math.NaN(), w))
		checkResults(t, w, i+1)
	}
	require.Equal(t, lookup.Stats{Misses: 3, Loads: 3}, f.Stats())
	require.Zero(t, f.Joinable())

	g := lookup.New(asyncop.Blocking(func(context.Context, any) (int, error) { return 1, nil }), nil)
	op := asyncop.OrderedWait(lookup.Join(g, func(int) any { return []int{1} }, func(_, v int) int { return v }), time.Second, 1,
		asyncop.WithDropOnFailure())
	for range op.Results(slices.Values([]int{1, 2})) {
		t.Error("a result")
	}
	require.EqualValues(t, 2, op.Stats().Dropped)
}

// fakeHost is an operator that runs blocking calls when the test asks for it.
type fakeHost struct {
	mu    sync.Mutex
	tasks []func(late error)
	late  error
}

func (h *fakeHost) RunBlocking(_ context.Context, task func(late error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tasks = append(h.tasks, task)
}

func (h *fakeHost) Late() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.late
}

// run runs the tasks, as a worker does.
func (h *fakeHost) run() {
	for _, task := range h.tasks {
		task(h.Late())
	}
	h.tasks = nil
}

func (h *fakeHost) context(t *testing.T) context.Context {
	t.Helper()
	return context.WithValue(t.Context(), call.AttemptKey{}, h)
}

// The lookup that has begun the load is late before a worker runs the call. The call is
// made for the other lookups.
func TestLateLeader(t *testing.T) {
	calls := 0
	f := lookup.New(asyncop.Blocking(func(context.Context, string) (int, error) { calls++; return calls, nil }), nil)
	leader, other := new(fakeHost), new(fakeHost)
	ask(t, f, leader.context(t), "a")
	second := ask(t, f, other.context(t), "a")
	leader.late = context.DeadlineExceeded
	leader.run()
	checkResults(t, second, 1)
	require.Empty(t, other.tasks)
}

// If all waiting lookups are late, no call is made (law A5), and the next lookup does not
// wait for it.
func TestFunction_AllLookupsAreLate(t *testing.T) {
	calls := 0
	f := lookup.New(asyncop.Blocking(func(context.Context, string) (int, error) { calls++; return calls, nil }), nil)
	leader, other, next := new(fakeHost), new(fakeHost), new(fakeHost)
	first, second := ask(t, f, leader.context(t), "a"), ask(t, f, other.context(t), "a")
	leader.late, other.late = context.Canceled, context.Canceled
	leader.run()
	require.Zero(t, calls)
	checkWaits(t, first) // their operators end them
	checkWaits(t, second)
	third := ask(t, f, next.context(t), "a")
	next.run()
	checkResults(t, third, 1)
	require.Equal(t, 0, f.Stats().Loading)
}

// Shared functions in a row: the inner function asks the lookups of the outer function
// whether they are late.
func TestLateLookupsInARow(t *testing.T) {
	calls := 0
	inner := lookup.New(asyncop.Blocking(func(context.Context, string) (int, error) { calls++; return calls, nil }), nil)
	outer := lookup.New(inner, nil)
	leader, other := new(fakeHost), new(fakeHost)
	ask(t, outer, leader.context(t), "a")
	second := ask(t, outer, other.context(t), "a")
	leader.late = context.DeadlineExceeded
	leader.run()
	checkResults(t, second, 1)

	ask(t, outer, leader.context(t), "b")
	ask(t, outer, other.context(t), "b")
	other.late = context.DeadlineExceeded
	leader.run()
	require.Equal(t, 1, calls)
}

// Random lookups that come, leave and are answered: each is completed once, a key has one
// load at a time unless a lookup has left it without a result, and no load is left
// behind.
func TestRandomLookups(t *testing.T) {
	var inFlight [4]atomic.Int64
	var calls atomic.Int64
	f := lookup.New(asyncop.Blocking(func(ctx context.Context, key int) (int, error) {
		if n := inFlight[key].Add(1); n > 1 {
			t.Errorf("%d loads of key %d at a time", n, key)
		}
		defer inFlight[key].Add(-1)
		switch calls.Add(1) % 5 {
		case 0:
			return 0, errBackend
		case 1:
			panic("boom")
		default:
			runtime.Gosched()
			return key, nil
		}
	}), newMemory[int, int](), lookup.WithTTL(100*time.Microsecond))
	var wg sync.WaitGroup
	var completed atomic.Int64
	const goroutines, each = 4, 1000
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				key := (g + i) % len(inFlight)
				// One lookup of each key stays, so that a lookup that leaves is never the
				// last.
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan struct{})
				err := f.AsyncInvoke(ctx, key, doneFuture(func(results []int, err error) {
					completed.Add(1)
					var p *asyncop.PanicError
					if err == nil && !slices.Equal(results, []int{key}) ||
						err != nil && !errors.Is(err, errBackend) && !errors.As(err, &p) {
						t.Errorf("key %d: %v %v", key, results, err)
					}
					close(done)
				}))
				if err != nil {
					t.Error(err)
				}
				if i%3 == 0 {
					f.Forget(-1 - key)
				}
				<-done
				cancel()
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, goroutines*each, completed.Load())
	s := f.Stats()
	require.Equal(t, s.Misses, s.Loads+s.Shared)
	require.EqualValues(t, goroutines*each, s.Hits+s.Misses)
	require.Equal(t, calls.Load(), s.Loads)
	require.Zero(t, s.Loading)
}

// The same with lookups that cancel and forget. Only the number of completions is
// checked: each is completed once.
func TestRandomLeaving(t *testing.T) {
	f := lookup.New(asyncop.Blocking(func(ctx context.Context, key int) (int, error) {
		if key == 0 {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		return key, nil
	}), newMemory[int, int](), lookup.WithTTL(50*time.Microsecond))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				key := (g + i) % 3
				ctx, cancel := context.WithCancel(context.Background())
				var count atomic.Int64
				done := make(chan struct{})
				if err := f.AsyncInvoke(ctx, key, doneFuture(func([]int, error) {
					if count.Add(1) == 1 {
						close(done)
					} else {
						t.Error("completed twice")
					}
				})); err != nil {
					t.Error(err)
				}
				if i%5 == 0 {
					f.Forget(key)
				}
				cancel()
				<-done
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return f.Stats().Loading == 0 }, time.Minute, time.Millisecond)
}

type doneFuture func(results []int, err error)

func (f doneFuture) Complete(results ...int)         { f(results, nil) }
func (f doneFuture) CompleteExceptionally(err error) { f(nil, err) }

func TestPanics(t *testing.T) {
	b := new(backend)
	require.PanicsWithValue(t, "lookup: New: nil function", func() { lookup.New[string, int](nil, nil) })
	join := func(s string, _ int) string { return s }
	require.PanicsWithValue(t, "lookup: Join: nil function", func() { lookup.Join[string, int](nil, itself, join) })
	require.PanicsWithValue(t, "lookup: Join: nil key", func() { lookup.Join[string, int, string](b, nil, join) })
	require.PanicsWithValue(t, "lookup: Join: nil join", func() { lookup.Join[string, int, string, string](b, itself, nil) })
	require.PanicsWithValue(t, "lookup: Join: the Timeout method of a *lookup_test.rich would not be called: use asyncop.HandleFailure "+
		"around the join", func() { lookup.Join(lookup.New(&rich{AsyncFunction: b}, nil), itself, join) })
	require.PanicsWithValue(t, "lookup: WithTTL: nonpositive time: 0s", func() { lookup.WithTTL(0) })
	require.PanicsWithValue(t, "lookup: WithMissTTL: negative time: -1ns", func() { lookup.WithMissTTL(-1) })
	require.PanicsWithValue(t, "lookup: WithErrorTTL: nonpositive time: 0s",
		func() { lookup.WithErrorTTL(0, predicates.HasException) })
	require.PanicsWithValue(t, "lookup: WithErrorTTL: nil predicate", func() { lookup.WithErrorTTL(1, nil) })
}
