package tally

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// long is a store whose queue takes time to be counted.
type long struct {
	store.Inspector
	takes  time.Duration
	counts int
}

func (s *long) Count(ctx context.Context, _ string, _ store.Filter) (store.Counts, error) {
	s.counts++
	select {
	case <-time.After(s.takes):
		return store.Counts{Messages: s.counts}, nil
	case <-ctx.Done():
		return store.Counts{}, ctx.Err()
	}
}

// A queue that takes long to be counted is not counted at each scrape, and no scrape waits for it.
func TestLongQueuesAreCountedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &long{Inspector: memory.Open(), takes: 3 * time.Second}
		q := NewQueues(s, clock.New())
		begun := time.Now()
		_, at, err := q.Count("orders")
		require.NoError(t, err)
		require.Zero(t, at)
		require.Equal(t, 100*time.Millisecond, time.Since(begun))
		time.Sleep(15 * time.Second)
		for range 40 { // ten minutes
			before := time.Now()
			c, at, err := q.Count("orders")
			require.NoError(t, err)
			require.NotZero(t, at)
			require.Positive(t, c.Messages)
			require.LessOrEqual(t, time.Since(before), 100*time.Millisecond)
			time.Sleep(15 * time.Second)
		}
		require.Equal(t, 9, s.counts, "a twentieth of the time, when a scrape comes")
		s.takes = time.Hour
		time.Sleep(time.Minute)
		_, _, err = q.Count("orders")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		_, _, err = q.Count("orders")
		require.ErrorContains(t, err, `queue "orders": context deadline exceeded`)
		time.Sleep(time.Hour)
	})
}
