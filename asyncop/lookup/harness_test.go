package lookup_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/asyncop/lookup/lookuptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a cache on the real clock, or on the clock of a synctest bubble.
type memory[K comparable, OUT any] struct {
	mu      sync.Mutex
	entries map[K]timed[OUT]
}

type timed[OUT any] struct {
	entry lookup.Entry[OUT]
	until time.Time // zero means for ever
}

func newMemory[K comparable, OUT any]() *memory[K, OUT] {
	return &memory[K, OUT]{entries: make(map[K]timed[OUT])}
}

func (m *memory[K, OUT]) Get(key K) (lookup.Entry[OUT], bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[key]
	if !ok || !e.until.IsZero() && !time.Now().Before(e.until) {
		return lookup.Entry[OUT]{}, false
	}
	return e.entry, true
}

func (m *memory[K, OUT]) Put(key K, entry lookup.Entry[OUT]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := timed[OUT]{entry: entry}
	if entry.TTL > 0 {
		e.until = time.Now().Add(entry.TTL)
	}
	m.entries[key] = e
}

func (m *memory[K, OUT]) Delete(key K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, key)
}

func (m *memory[K, OUT]) len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}

// A correct cache passes the suite.
func TestCacheOfTheTests(t *testing.T) {
	lookuptest.TestCache(t, func(*testing.T) (lookup.Cache[string, int], func(time.Duration)) {
		c := newMemory[string, int]()
		return c, func(d time.Duration) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for k, e := range c.entries {
				if !e.until.IsZero() {
					e.until = e.until.Add(-d)
					c.entries[k] = e
				}
			}
		}
	})
}

// future is the future of a lookup from outside an operator.
type future struct {
	t       *testing.T
	mu      sync.Mutex
	done    bool
	results []int
	err     error
}

func (f *future) Complete(results ...int) { f.complete(results, nil) }

func (f *future) CompleteExceptionally(err error) { f.complete(nil, err) }

func (f *future) complete(results []int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	assert.False(f.t, f.done, "completed twice")
	f.done, f.results, f.err = true, results, err
}

func (f *future) get() (done bool, results []int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done, f.results, f.err
}

// backend is a function whose calls the test ends.
type backend struct {
	mu    sync.Mutex
	calls []*backendCall
}

type backendCall struct {
	ctx    context.Context
	key    string
	result asyncop.ResultFuture[int]
}

func (b *backend) AsyncInvoke(ctx context.Context, key string, result asyncop.ResultFuture[int]) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, &backendCall{ctx, key, result})
	return nil
}

func (b *backend) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.calls)
}

func (b *backend) call(i int) *backendCall {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[i]
}

func itself(key string) string { return key }

// ask begins a lookup.
func ask(t *testing.T, f *lookup.Function[string, int], ctx context.Context, key string) *future {
	t.Helper()
	w := &future{t: t}
	assert.NoError(t, f.AsyncInvoke(ctx, key, w))
	return w
}

func checkResults(t *testing.T, f *future, want ...int) {
	t.Helper()
	done, results, err := f.get()
	assert.True(t, done, "not completed")
	assert.NoError(t, err)
	assert.Equal(t, want, results)
}

func checkFailed(t *testing.T, f *future, want error) {
	t.Helper()
	done, results, err := f.get()
	assert.True(t, done, "not completed")
	assert.ErrorIs(t, err, want)
	assert.Empty(t, results)
}

func checkWaits(t *testing.T, f *future) {
	t.Helper()
	done, _, _ := f.get()
	assert.False(t, done, "completed")
}
