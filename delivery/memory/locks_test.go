package memory_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
)

func TestLocks(t *testing.T) {
	deliverytest.RunLocks(t, func(*testing.T) deliverytest.LockSetup {
		mock := clock.NewMock()
		m := memory.Open(memory.WithClock(mock)).Locks()
		return deliverytest.LockSetup{Open: func() (lock.Locks, error) { return m, nil }, Wait: mock.Add}
	})
}

// Law W3: an unused name is forgotten, but its fencing numbers keep rising.
func TestLocks_ForgetNames(t *testing.T) {
	mock := clock.NewMock()
	engine := memory.Open(memory.WithClock(mock))
	m := engine.Locks()
	acquire := func(name string) lock.Grant {
		g, err := m.Acquire(t.Context(), name, "me", time.Minute)
		require.NoError(t, err)
		return g
	}
	for range 7 {
		g := acquire("a")
		require.NoError(t, m.Release(t.Context(), g))
	}
	held := acquire("held")
	for i := range 1000 {
		acquire(strconv.Itoa(i))
		mock.Add(time.Hour)
		if i == 20 {
			require.NoError(t, m.Extend(t.Context(), held, 10_000*time.Hour), "its lease has ended, and nobody else has it")
		}
	}
	require.Less(t, engine.Names(), 200)
	require.Greater(t, acquire("a").Fence, uint64(7))
	require.ErrorIs(t, m.Extend(t.Context(), lock.Grant{Name: "1", Owner: "me", Fence: 1}, time.Hour), lock.ErrLost)
}
