package checkpoint_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
)

// failingStore fails to save a checkpoint a number of times.
type failingStore struct {
	*checkpointtest.MemoryStore
	fails atomic.Int64
}

func (s *failingStore) Save(ctx context.Context, snapshot *Snapshot) error {
	if s.fails.Add(-1) >= 0 {
		return errTest
	}
	return s.MemoryStore.Save(ctx, snapshot)
}

// A requested checkpoint is taken without an interval, once for many requests, and is
// repeated until it is complete.
func TestRequestedCheckpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &failingStore{MemoryStore: checkpointtest.NewMemoryStore()}
		c := must(NewCoordinator(store, WithLogger(quiet())))
		f := &fake{name: "f"}
		c.Host().Register("f", f)
		c.Host().RequestCheckpoint() // before the start: it waits
		synctest.Wait()
		require.Empty(t, f.history())
		require.NoError(t, c.Start())
		synctest.Wait()
		require.Equal(t, "p1 c1", f.history())

		f.onPending = func() { c.Host().RequestCheckpoint() } // its own barrier has passed already, so another checkpoint is needed
		f.onCompleted = func() { f.onPending = nil }
		c.Host().RequestCheckpoint()
		synctest.Wait()
		require.Equal(t, "p1 c1 p2 c2 p3 c3", f.history())

		store.fails.Store(3)
		began := time.Now()
		c.Host().RequestCheckpoint()
		c.Host().RequestCheckpoint()
		synctest.Wait()
		require.Equal(t, "p1 c1 p2 c2 p3 c3 p4 a4", f.history())
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, "p1 c1 p2 c2 p3 c3 p4 a4 p5 a5 p6 a6 p7 c7", f.history())
		require.Equal(t, 700*time.Millisecond, c.Stats().LastTime.Sub(began), "after 100, 200 and 400 ms")
		require.EqualValues(t, 3, c.Stats().Failed)
		require.NoError(t, c.Close())
	})
}

// A request while a checkpoint is under way needs another checkpoint, even if the first
// completes.
func TestRequestDuringACheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		f := &fake{name: "f", mute: true}
		c.Host().Register("f", f)
		require.NoError(t, c.Start())
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { _, _ = c.Trigger(ctx) }()
		synctest.Wait()
		c.Host().RequestCheckpoint()
		cancel(errTest)
		synctest.Wait()
		require.Equal(t, "p1 a1 p2", f.history())
		f.mu.Lock()
		b := f.last
		f.mu.Unlock()
		b.Report("f", participant.State{}, nil)
		synctest.Wait()
		require.Equal(t, "p1 a1 p2 c2", f.history())
		require.NoError(t, c.Close())
	})
}

// After the end of the run requests have no effect, and the goroutine that serves them
// ends.
func TestRequestAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &failingStore{MemoryStore: checkpointtest.NewMemoryStore()}
		store.fails.Store(1 << 40)
		c := must(NewCoordinator(store, WithLogger(quiet()), WithTolerableFailures(2)))
		f := &fake{name: "f"}
		c.Host().Register("f", f)
		require.NoError(t, c.Start())
		c.Host().RequestCheckpoint()
		require.ErrorContains(t, c.Wait(), "3 in a row have failed")
		c.Host().RequestCheckpoint()
		synctest.Wait()
		require.Equal(t, "p1 a1 p2 a2 p3 a3", f.history())
		require.NoError(t, c.Close())
	})
}
