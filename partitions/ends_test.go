package partitions_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/partitions"
)

// Law P1: a store that is fenced when it is opened again ends the partition, also if it was opened before.
func TestTakenOverBetweenTwoPipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(1, 10)
		pipelines := 0
		c := j.config(assigner(func(ctx context.Context, h partitions.Handler) error { return h.Assigned(ctx, "p0", 7) }))
		c.Pipeline = func(context.Context, partitions.Partition) error {
			pipelines++
			j.stores.mu.Lock()
			defer j.stores.mu.Unlock()
			j.stores.epochs["p0"] = 8
			return errTrial
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begun := time.Now()
		require.ErrorIs(t, partitions.Run(ctx, c), checkpoint.ErrFenced)
		require.Equal(t, 1, pipelines)
		require.Less(t, time.Since(begun), time.Minute)
	})
}

// openingStores open a store for as long as they may.
type openingStores struct{}

func (openingStores) Open(ctx context.Context, _ string, _ uint64) (checkpoint.Store, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("open: %w", context.Cause(ctx))
}

// A partition that is revoked while its store is being opened has been suspended: nothing of it has begun.
func TestRevokedWhileItsStoreIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newJob(1, 10).config(assigner(func(ctx context.Context, h partitions.Handler) error {
			err := h.Assigned(ctx, "p0", 1)
			synctest.Wait()
			return errors.Join(err, h.Revoked(ctx, "p0"))
		}))
		c.Stores = openingStores{}
		require.NoError(t, partitions.Run(t.Context(), c))
	})
}

// A partition that the handler does not take is given back, and taken again later.
func TestAssignedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &partitions.Leases{Locks: lock.NewMemory(clock.New()), Group: "g", Partitions: []string{"a"}, Logger: quiet}
		var calls, revoked atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- l.Run(ctx, handler{func(context.Context, string) error {
				if calls.Add(1) == 1 {
					return errTrial
				}
				return nil
			}, func(string) { revoked.Add(1) }, func(string) { t.Error("lost") }})
		}()
		time.Sleep(time.Minute)
		require.EqualValues(t, 2, calls.Load())
		require.EqualValues(t, 1, revoked.Load())
		stop()
		require.NoError(t, <-ended)
		require.EqualValues(t, 2, revoked.Load())
	})
}

// A revocation that ends late does not forget the next assignment of its partition (law P1).
func TestRevokedLostAndAssignedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		c := newJob(1, 10).config(assigner(func(ctx context.Context, h partitions.Handler) error {
			require.NoError(t, h.Assigned(ctx, "p0", 1))
			for epoch := uint64(2); epoch < 30; epoch++ {
				synctest.Wait()
				require.EqualValues(t, 1, running.Load())
				revoked := make(chan struct{})
				go func() {
					defer close(revoked)
					_ = h.Revoked(ctx, "p0") // it is lost meanwhile
				}()
				synctest.Wait()
				h.Lost("p0")
				require.NoError(t, h.Assigned(ctx, "p0", epoch))
				<-revoked
			}
			synctest.Wait()
			h.Lost("p0")
			return nil
		}))
		c.Pipeline = func(ctx context.Context, _ partitions.Partition) error {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			time.Sleep(time.Second)
			return context.Cause(ctx)
		}
		within, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_ = partitions.Run(within, c)
		require.Zero(t, running.Load())
	})
}
