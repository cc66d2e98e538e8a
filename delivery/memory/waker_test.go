package memory_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// wakes counts the calls of wake for a queue, until the test ends.
type wakes struct {
	count atomic.Int32
	ended chan error
}

func listen(t *testing.T, m *memory.Engine, queue string) *wakes {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &wakes{ended: make(chan error, 1)}
	go func() {
		w.ended <- m.Wake(ctx, queue, func(misses bool) {
			assert.False(t, misses)
			w.count.Add(1)
		})
	}()
	t.Cleanup(cancel)
	synctest.Wait()
	require.EqualValues(t, 1, w.since(), "the first look")
	return w
}

// since returns the wakes since the last call.
func (w *wakes) since() int {
	synctest.Wait()
	return int(w.count.Swap(0))
}

func TestWake_WhenAMessageCanBeTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.Open()
		w := listen(t, m, "q")
		take := func() []store.Lease {
			taken, err := m.Take(t.Context(), "q", 10, time.Minute)
			require.NoError(t, err)
			require.Len(t, taken, 1)
			return []store.Lease{taken[0].Lease}
		}

		require.NoError(t, m.Put(t.Context(), "other", message("1", 0)))
		require.Zero(t, w.since())
		require.NoError(t, m.Put(t.Context(), "q", message("1", 0)))
		require.Positive(t, w.since(), "put")

		lease := take()
		time.Sleep(59 * time.Second)
		w.since()
		require.NoError(t, m.Release(t.Context(), 0, lease...))
		require.Positive(t, w.since(), "released")

		lease = take()
		require.NoError(t, m.Release(t.Context(), time.Minute, lease...))
		time.Sleep(59 * time.Second)
		require.LessOrEqual(t, w.since(), 1)
		time.Sleep(time.Second)
		require.Positive(t, w.since(), "released with a delay")

		take()
		time.Sleep(59 * time.Second)
		w.since()
		time.Sleep(time.Second)
		require.Positive(t, w.since(), "the lease has ended")
		require.NoError(t, m.Done(t.Context(), take()...))

		w.since()
		require.NoError(t, m.Put(t.Context(), "q", message("late", 2*time.Hour), message("early", time.Hour)))
		time.Sleep(time.Hour - time.Second)
		require.Zero(t, w.since())
		time.Sleep(time.Second)
		require.Positive(t, w.since(), "the delay has ended")

		require.NoError(t, m.Close())
		require.ErrorIs(t, <-w.ended, store.ErrClosed)
	})
}

// A due message that is not taken does not hide another message that becomes due.
func TestWake_BehindAMessageThatIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.Open()
		w := listen(t, m, "q")
		require.NoError(t, m.Put(t.Context(), "q", message("due", 0), message("later", time.Minute)))
		time.Sleep(time.Minute - time.Millisecond)
		w.since()
		time.Sleep(100 * time.Millisecond)
		require.Positive(t, w.since())
	})
}

func TestWake_IdleQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.Open()
		w := listen(t, m, "q")
		time.Sleep(80 * time.Hour)
		require.Zero(t, w.since())
	})
}

// The clock of a test may move at any time.
func TestWake_MockClock(t *testing.T) {
	mock := clock.NewMock()
	m := memory.Open(memory.WithClock(mock))
	ctx, cancel := context.WithCancel(t.Context())
	woken, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- m.Wake(ctx, "q", func(misses bool) {
			assert.True(t, misses)
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}()
	<-woken
	for i := range 1000 {
		delay := []time.Duration{time.Minute, 900 * time.Microsecond}[i%2]
		require.NoError(t, m.Put(t.Context(), "q", message("m", delay)))
		mock.Add(delay)
		for {
			<-woken
			taken, err := m.Take(t.Context(), "q", 1, time.Minute)
			require.NoError(t, err)
			if len(taken) > 0 {
				require.NoError(t, m.Done(t.Context(), taken[0].Lease))
				break
			}
		}
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func message(id string, delay time.Duration) store.Message {
	m := store.Message{Payload: []byte("1"), Delay: delay}
	m.Meta.ID = id
	return m
}
