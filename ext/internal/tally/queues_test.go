package tally

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// long is a store that takes long to count a queue.
type long struct {
	store.Inspector
	takes  atomic.Int64 // time.Duration
	counts atomic.Int64
}

func (s *long) Count(ctx context.Context, _ string, _ store.Filter) (store.Counts, error) {
	n := s.counts.Add(1)
	select {
	case <-time.After(time.Duration(s.takes.Load())):
		return store.Counts{Messages: int(n)}, nil
	case <-ctx.Done():
		return store.Counts{}, ctx.Err()
	}
}

// A queue that takes long to be counted is not counted at each scrape, and no scrape
// waits for it.
func TestLongQueuesAreCountedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &long{Inspector: memory.Open()}
		s.takes.Store(int64(3 * time.Second))
		q := NewQueues(s, clock.New())
		begun := time.Now()
		require.Zero(t, q.Count("orders"))
		require.Equal(t, 100*time.Millisecond, time.Since(begun))
		time.Sleep(15 * time.Second)
		for range 40 { // ten minutes
			before := time.Now()
			last := q.Count("orders")
			require.NoError(t, last.Err)
			require.NotZero(t, last.At)
			require.Positive(t, last.Counts.Messages)
			require.LessOrEqual(t, time.Since(before), 100*time.Millisecond)
			time.Sleep(15 * time.Second)
		}
		require.EqualValues(t, 9, s.counts.Load(), "a twentieth of the time, when a scrape comes")
		s.takes.Store(int64(time.Hour))
		time.Sleep(time.Minute)
		before := q.Count("orders")
		require.NoError(t, before.Err)
		time.Sleep(time.Minute)
		after := q.Count("orders")
		require.ErrorContains(t, after.Err, `queue "orders": context deadline exceeded`)
		require.Equal(t, 1, after.Failures)
		require.Equal(t, before.Counts, after.Counts, "a count that fails leaves the one before")
		require.Equal(t, before.At, after.At)
		time.Sleep(time.Hour)
	})
}
