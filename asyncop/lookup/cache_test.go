package lookup_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/predicates"
)

var errForbidden = errors.New("forbidden")

// answers is the outcome of a load.
type answers struct {
	results []int
	err     error
}

// Results, negative entries and errors each have their own rules.
func TestWithTTL_WithMissTTL_WithErrorTTL(t *testing.T) {
	found, none, failed := answers{results: []int{1}}, answers{}, answers{err: errBackend}
	for name, test := range map[string]struct {
		opts  []lookup.Option
		load  answers
		kept  time.Duration // at least
		until time.Duration // gone by then; 0 means kept for ever
	}{
		"results are kept as long as the cache likes": {nil, found, 1000 * time.Hour, 0},
		"so is that there are none":                   {nil, none, 1000 * time.Hour, 0},
		"errors are not kept":                         {nil, failed, -1, 1},
		"results for a time":                          {[]lookup.Option{lookup.WithTTL(time.Second)}, found, time.Second - 1, time.Second},
		"negative entries as long as results":         {[]lookup.Option{lookup.WithTTL(time.Second)}, none, time.Second - 1, time.Second},
		"negative entries for their own time": {
			[]lookup.Option{lookup.WithTTL(time.Hour), lookup.WithMissTTL(time.Second)}, none, time.Second - 1, time.Second,
		},
		"results beside them": {
			[]lookup.Option{lookup.WithMissTTL(time.Second), lookup.WithTTL(time.Hour)}, found, time.Hour - 1, time.Hour,
		},
		"no negative entries": {[]lookup.Option{lookup.WithMissTTL(0)}, none, -1, 1},
		"errors that are kept": {
			[]lookup.Option{lookup.WithErrorTTL(time.Second, predicates.ErrorIs(errBackend))}, failed, time.Second - 1, time.Second,
		},
		"other errors": {
			[]lookup.Option{lookup.WithErrorTTL(time.Second, predicates.ErrorIs(errForbidden))}, failed, -1, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := new(backend)
				f := lookup.New(b, newMemory[string, int](), test.opts...)
				ask(t, f, t.Context(), "a")
				if test.load.err != nil {
					b.call(0).result.CompleteExceptionally(test.load.err)
				} else {
					b.call(0).result.Complete(test.load.results...)
				}
				if test.kept >= 0 {
					time.Sleep(test.kept)
					w := ask(t, f, t.Context(), "a")
					require.Equal(t, 1, b.count(), "a load although it is kept")
					if test.load.err != nil {
						checkFailed(t, w, test.load.err)
					} else {
						checkResults(t, w, test.load.results...)
					}
					require.Equal(t, lookup.Stats{
						Hits: 1, Misses: 1, Loads: 1, LoadErrors: f.Stats().LoadErrors,
					}, f.Stats())
				}
				if test.until > 0 {
					time.Sleep(test.until - max(0, test.kept))
					ask(t, f, t.Context(), "a")
					require.Equal(t, 2, b.count(), "no load although it is not kept any more")
					b.call(1).result.Complete()
				}
			})
		})
	}
}

// A load that began before Forget is not kept after it.
func TestForget(t *testing.T) {
	b := new(backend)
	cache := newMemory[string, int]()
	f := lookup.New(b, cache)
	f.Forget("a") // has no entry
	first := ask(t, f, t.Context(), "a")
	f.Forget("a")
	second := ask(t, f, t.Context(), "a")
	require.Equal(t, 2, b.count())
	b.call(1).result.Complete(2)
	b.call(0).result.Complete(1)
	checkResults(t, first, 1)
	checkResults(t, second, 2)
	checkResults(t, ask(t, f, t.Context(), "a"), 2)
	f.Forget("a")
	require.Zero(t, cache.len())
	ask(t, f, t.Context(), "a")
	require.Equal(t, 3, b.count())
	b.call(2).result.Complete(3)

	s := lookup.New(b, nil) // without a cache
	ask(t, s, t.Context(), "a")
	s.Forget("a")
	ask(t, s, t.Context(), "a")
	require.Equal(t, 5, b.count())
}

// gated is a cache whose Put waits.
type gated struct {
	*memory[string, int]
	entered, gate chan struct{}
}

func (c gated) Put(key string, entry lookup.Entry[int]) {
	c.entered <- struct{}{}
	<-c.gate
	c.memory.Put(key, entry)
}

// Forget waits for an outcome that is just being kept. A lookup that asks meanwhile joins
// the load.
func TestForgetWhileAnEntryIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(backend)
		cache := gated{newMemory[string, int](), make(chan struct{}), make(chan struct{})}
		f := lookup.New(b, cache)
		first := ask(t, f, t.Context(), "a")
		go b.call(0).result.Complete(1)
		<-cache.entered
		second := ask(t, f, t.Context(), "a")
		require.Equal(t, 1, b.count())
		forgotten := make(chan struct{})
		var wg sync.WaitGroup
		var early atomic.Int64
		for range 2 {
			wg.Go(func() { f.Forget("a"); early.Add(1) })
		}
		go func() { defer close(forgotten); wg.Wait() }()
		synctest.Wait()
		require.Zero(t, early.Load(), "one did not wait")
		third := ask(t, f, t.Context(), "a") // the outcome could be stale
		require.Equal(t, 2, b.count())
		close(cache.gate)
		<-forgotten
		synctest.Wait()
		require.Zero(t, cache.len(), "kept after Forget")
		checkResults(t, first, 1)
		checkResults(t, second, 1)
		go b.call(1).result.Complete(2)
		<-cache.entered
		synctest.Wait()
		checkResults(t, third, 2)
	})
}

// The same holds when the lookups that waited for the outcome have left meanwhile.
func TestForgetWhileAnEntryIsKeptForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(backend)
		cache := gated{newMemory[string, int](), make(chan struct{}), make(chan struct{})}
		f := lookup.New(b, cache)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		first := ask(t, f, ctx, "a")
		go b.call(0).result.Complete(1)
		<-cache.entered
		time.Sleep(time.Second)
		synctest.Wait()
		checkFailed(t, first, context.DeadlineExceeded)
		forgotten := make(chan struct{})
		go func() { defer close(forgotten); f.Forget("a") }()
		synctest.Wait()
		close(cache.gate)
		<-forgotten
		synctest.Wait()
		require.Zero(t, cache.len(), "kept after Forget")
	})
}

// broken is a cache that breaks.
type broken struct {
	*memory[string, int]
	put func()
}

func (broken) Get(string) (e lookup.Entry[int], ok bool) { return e, false }
func (c broken) Put(string, lookup.Entry[int])           { c.put() }

// If the cache breaks, the waiting lookups fail (law A6) with the panic as their error.
func TestCacheThatBreaks(t *testing.T) {
	for name, put := range map[string]func(){"panics": func() { panic("boom") }, "ends its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			b := new(backend)
			f := lookup.New(b, lookup.Cache[string, int](broken{newMemory[string, int](), put}))
			first, second := ask(t, f, t.Context(), "a"), ask(t, f, t.Context(), "a")
			done := make(chan struct{})
			go func() { defer close(done); b.call(0).result.Complete(1) }()
			<-done
			for _, w := range []*future{first, second} {
				_, _, err := w.get()
				var p *asyncop.PanicError
				require.ErrorAs(t, err, &p)
			}
			require.Equal(t, lookup.Stats{Misses: 2, Shared: 1, Loads: 1, LoadErrors: 1}, f.Stats())
			third := ask(t, f, t.Context(), "a") // begins another load
			require.Equal(t, 2, b.count())
			go b.call(1).result.CompleteExceptionally(errBackend)
			require.Eventually(t, func() bool { done, _, _ := third.get(); return done }, time.Minute, time.Millisecond)
		})
	}
	var none *memory[string, int]
	require.NotPanics(t, func() { lookup.New(new(backend), lookup.Cache[string, int](none)).Forget("a") }, "a typed nil is none")
}

// hookedCache calls afterMiss after a lookup has found no entry.
type hookedCache struct {
	*memory[string, int]
	afterMiss func()
}

func (c *hookedCache) Get(key string) (lookup.Entry[int], bool) {
	entry, ok := c.memory.Get(key)
	if !ok && c.afterMiss != nil {
		hook := c.afterMiss
		c.afterMiss = nil
		hook()
	}
	return entry, ok
}

// A lookup that has missed the cache shortly before a load stores its outcome does not
// begin another load.
func TestFunction_LoadEndsBetweenMissAndJoin(t *testing.T) {
	futures := make(chan asyncop.ResultFuture[int], 1)
	fn := asyncop.Func(func(_ context.Context, _ string, result asyncop.ResultFuture[int]) error {
		futures <- result
		return nil
	})
	cache := &hookedCache{memory: newMemory[string, int]()}
	f := lookup.New(fn, cache)
	ended := make(chan struct{})
	op := asyncop.OrderedWait(f, time.Minute, 2)
	go func() {
		defer close(ended)
		for range op.Out() { // read to its end
		}
	}()
	op.In() <- "a"
	first := <-futures
	second := &recorded{done: make(chan struct{})}
	cache.afterMiss = func() {
		first.Complete(7)
		require.Eventually(t, func() bool { return f.Stats().Loading == 0 }, time.Minute, time.Millisecond)
	}
	require.NoError(t, f.AsyncInvoke(t.Context(), "a", second))
	select {
	case <-second.done:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the lookup waits for a load of its own")
	}
	require.Equal(t, []int{7}, second.results)
	close(op.In())
	require.NoError(t, op.Wait())
	<-ended
	s := f.Stats()
	require.EqualValues(t, 1, s.Loads)
	require.EqualValues(t, 1, s.Hits)
	require.EqualValues(t, 1, s.Misses)
}

// recorded is a future that keeps its results.
type recorded struct {
	results []int
	done    chan struct{}
}

func (r *recorded) Complete(results ...int) {
	r.results = results
	close(r.done)
}

func (r *recorded) CompleteExceptionally(error) { close(r.done) }
