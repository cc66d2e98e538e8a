package fleettest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// Recover checks that a worker makes a message in a layer due that an outage of its
// backend made fail, when the backend recovers (law D3). Another message waits for its
// delay.
func Recover(t *testing.T, keeper store.Keeper) {
	t.Helper()
	quiet := delivery.WithLogger(slog.New(slog.DiscardHandler))
	orders := delivery.NewQueue[string](keeper, "recovers", delivery.RetryAfter(time.Hour), quiet)
	for id, outage := range map[string]string{"failed in the outage": "1;1h;recovering", "failed": ""} {
		m, err := orders.Encode(id, delivery.ID(id))
		require.NoError(t, err)
		m.Meta.Visit = 1
		m.Meta.Outage = outage
		m.Delay = time.Hour
		require.NoError(t, keeper.Put(t.Context(), "recovers-retry-1", m))
	}
	require.NoError(t, orders.Put(t.Context(), "probe", delivery.ID("probe")))

	b := backend.New("recovering", backend.Limit(10), backend.WithLogger(slog.New(slog.DiscardHandler)))
	b.Hold("migration")
	resume := time.AfterFunc(2*time.Second, b.Resume)
	defer resume.Stop()
	called := make(chan string, 10)
	op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, order string) (string, error) {
		called <- order
		return order, nil
	}), time.Minute, 10, asyncop.WithBackend(b), asyncop.WithFailureSink(orders.TakeFailure))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { // ends with ctx
		_, err := delivery.Run(ctx, orders, op, discard{}, quiet)
		ended <- err
	}()
	for _, want := range []string{"probe", "failed in the outage"} {
		select {
		case got := <-called:
			require.Equal(t, want, got)
		case <-time.After(patience):
			t.Fatalf("%q is not delivered", want)
		}
	}
	stop()
	require.NoError(t, <-ended)
	require.Empty(t, called)
	waits, err := keeper.List(t.Context(), "recovers-retry-1", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, waits, 1)
	require.Equal(t, "failed", waits[0].Meta.ID)
	require.Greater(t, time.Until(waits[0].Meta.Due), 30*time.Minute)
}

// discard is a sink that takes everything.
type discard struct{}

func (discard) PutAll(context.Context, []message.Message[string]) error { return nil }
