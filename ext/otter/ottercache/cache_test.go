package ottercache_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/asyncop/lookup/lookuptest"
	"github.com/weirflow/weir/ext/otter/ottercache"
)

func TestMain(m *testing.M) {
	// The goroutines of a cache of otter end when the cache is garbage.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/maypok86/otter/v2.periodicCleanUp[...]"))
}

// manual is a clock that the test moves.
type manual struct {
	mu  sync.Mutex
	now int64
}

func (m *manual) NowNano() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

func (m *manual) Tick(time.Duration) <-chan time.Time { return nil }

func (m *manual) advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now += int64(d)
}

type (
	key   = string
	entry = lookup.Entry[int]
)

func newCache(t *testing.T, o otter.Options[key, entry]) (*ottercache.Cache[key, int], *manual) {
	t.Helper()
	clock := &manual{now: time.Now().UnixNano()}
	o.Clock = clock
	c, err := ottercache.New(&o)
	require.NoError(t, err)
	return c, clock
}

func TestConformance(t *testing.T) {
	for name, o := range map[string]otter.Options[key, entry]{
		"by number":     {MaximumSize: 1000},
		"by weight":     {MaximumWeight: 1000, Weigher: func(key, entry) uint32 { return 1 }},
		"after write":   {MaximumSize: 1000, ExpiryCalculator: otter.ExpiryWriting[key, entry](time.Hour)},
		"after access":  {MaximumSize: 1000, ExpiryCalculator: otter.ExpiryAccessing[key, entry](time.Hour)},
		"after create":  {MaximumSize: 1000, ExpiryCalculator: otter.ExpiryCreating[key, entry](time.Hour)},
		"without bound": {},
	} {
		t.Run(name, func(t *testing.T) {
			lookuptest.TestCache(t, func(t *testing.T) (lookup.Cache[key, int], func(time.Duration)) {
				c, clock := newCache(t, o)
				return c, clock.advance
			})
		})
	}
}

func has(c *ottercache.Cache[key, int], k key) bool {
	_, ok := c.Get(k)
	return ok
}

// Entries without a time of their own go by the user's calculator.
func TestExpiryOfTheUser(t *testing.T) {
	c, clock := newCache(t, otter.Options[key, entry]{ExpiryCalculator: otter.ExpiryWriting[key, entry](time.Minute)})
	c.Put("a", entry{Results: []int{1}})
	clock.advance(59 * time.Second)
	require.True(t, has(c, "a"))
	clock.advance(2 * time.Second) // a read does not prolong the entry
	require.False(t, has(c, "a"))

	c, clock = newCache(t, otter.Options[key, entry]{ExpiryCalculator: otter.ExpiryAccessing[key, entry](time.Minute)})
	c.Put("a", entry{Results: []int{1}})
	for range 5 {
		clock.advance(59 * time.Second)
		require.True(t, has(c, "a"))
	}
	clock.advance(61 * time.Second)
	require.False(t, has(c, "a"))

	c, clock = newCache(t, otter.Options[key, entry]{})
	c.Put("a", entry{Results: []int{1}})
	clock.advance(20 * 365 * 24 * time.Hour)
	require.True(t, has(c, "a"))
}

// A result replaces a negative entry with a short time, and does not inherit that time.
func TestEntryAfterOneWithATimeOfItsOwn(t *testing.T) {
	c, clock := newCache(t, otter.Options[key, entry]{ExpiryCalculator: otter.ExpiryCreating[key, entry](time.Hour)})
	c.Put("a", entry{TTL: time.Second})
	c.Put("a", entry{Results: []int{1}})
	clock.advance(time.Minute)
	require.True(t, has(c, "a"))
	clock.advance(time.Hour)
	require.False(t, has(c, "a"))
	c.Put("b", entry{Results: []int{1}, TTL: 1<<63 - 1})
	require.True(t, has(c, "b"))
}

// The number of entries is bounded.
func TestMaximumSize(t *testing.T) {
	c, _ := newCache(t, otter.Options[key, entry]{MaximumSize: 10})
	for i := range 1000 {
		c.Put(fmt.Sprint(i), entry{Results: []int{i}})
	}
	c.Otter().CleanUp()
	require.LessOrEqual(t, c.Otter().EstimatedSize(), 10)
}

func TestNewRefuses(t *testing.T) {
	_, err := ottercache.New[key, int](nil)
	require.EqualError(t, err, "ottercache: New: nil options")
	_, err = ottercache.New(&otter.Options[key, entry]{MaximumSize: -1})
	require.ErrorContains(t, err, "maximumSize")
}
