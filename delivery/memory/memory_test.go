package memory_test

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLimitAndWithClock_WrongValues(t *testing.T) {
	require.PanicsWithValue(t, "memory: Limit: 0 is less than 1", func() { memory.Limit(0) })
	require.PanicsWithValue(t, "memory: WithClock: nil clock", func() { memory.WithClock(nil) })
}

func TestOpen_Conforms(t *testing.T) {
	deliverytest.RunStore(t, func(*testing.T) deliverytest.StoreSetup {
		mock := clock.NewMock()
		mock.Set(time.Unix(1_700_000_000, 0))
		engine := memory.Open(memory.WithClock(mock))
		return deliverytest.StoreSetup{
			Open:    func() (store.Store, error) { return engine.Reopen(), nil },
			Wait:    mock.Add,
			SetBack: func(d time.Duration) { mock.Set(mock.Now().Add(-d)) },
			Full:    func() (store.Store, error) { return memory.Open(memory.WithClock(mock), memory.Limit(100)), nil },
		}
	})
}
