// Package lookuptest has the tests for every lookup.Cache.
package lookuptest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/lookup"
)

// TestCache tests a cache. open returns an empty cache for at least 100 entries. advance
// moves only its time.
func TestCache(t *testing.T, open func(t *testing.T) (cache lookup.Cache[string, int], advance func(d time.Duration))) {
	t.Helper()
	entry := func(results ...int) lookup.Entry[int] { return lookup.Entry[int]{Results: results} }

	t.Run("keeps what it was given last", func(t *testing.T) {
		c, _ := open(t)
		_, ok := c.Get("a")
		require.False(t, ok, "the cache is not empty")
		c.Put("a", entry(1, 2))
		c.Put("b", entry(3))
		c.Put("a", entry(4, 5))
		e, ok := c.Get("a")
		require.True(t, ok)
		require.Equal(t, entry(4, 5), e)
		e, ok = c.Get("b")
		require.True(t, ok)
		require.Equal(t, entry(3), e)
	})

	t.Run("deletes", func(t *testing.T) {
		c, _ := open(t)
		c.Delete("a")
		c.Put("a", entry(1))
		c.Put("b", entry(2))
		c.Delete("a")
		_, ok := c.Get("a")
		require.False(t, ok)
		_, ok = c.Get("b")
		require.True(t, ok)
	})

	t.Run("keeps that there is nothing, and errors", func(t *testing.T) {
		c, _ := open(t)
		failed := errors.New("failed")
		c.Put("none", entry())
		c.Put("failed", lookup.Entry[int]{Err: failed})
		e, ok := c.Get("none")
		require.True(t, ok)
		require.Empty(t, e.Results)
		require.NoError(t, e.Err)
		e, ok = c.Get("failed")
		require.True(t, ok)
		require.Same(t, failed, e.Err)
	})

	t.Run("an entry ends with its time", func(t *testing.T) {
		c, advance := open(t)
		c.Put("short", lookup.Entry[int]{Results: []int{1}, TTL: time.Second})
		c.Put("long", lookup.Entry[int]{Results: []int{2}, TTL: time.Minute})
		c.Put("again", lookup.Entry[int]{Results: []int{3}, TTL: time.Second})
		advance(900 * time.Millisecond)
		for _, key := range []string{"short", "long", "again"} {
			_, ok := c.Get(key)
			require.True(t, ok, key)
		}
		c.Put("again", lookup.Entry[int]{Results: []int{4}, TTL: time.Minute})
		advance(200 * time.Millisecond) // reading does not extend the time
		_, ok := c.Get("short")
		require.False(t, ok)
		for _, key := range []string{"long", "again"} {
			_, ok := c.Get(key)
			require.True(t, ok, key)
		}
		c.Put("long", lookup.Entry[int]{Results: []int{5}, TTL: time.Second}) // nor does replacing an entry
		advance(1100 * time.Millisecond)
		_, ok = c.Get("long")
		require.False(t, ok)
	})

	t.Run("is safe for concurrent use", func(t *testing.T) {
		c, _ := open(t)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() { useAll(t, c, g) })
		}
		wg.Wait()
	})
}

// useAll calls all methods with numbers as keys. The entry of a key is its number.
func useAll(t *testing.T, c lookup.Cache[string, int], from int) {
	t.Helper()
	for i := range 1000 {
		key := fmt.Sprint(i % 50)
		switch (i + from) % 3 {
		case 0:
			c.Put(key, lookup.Entry[int]{Results: []int{i % 50}})
		case 1:
			if e, ok := c.Get(key); ok && fmt.Sprint(e.Results[0]) != key {
				t.Errorf("the entry of %s is %v", key, e)
			}
		default:
			c.Delete(key)
		}
	}
}
