package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
)

// As the README states, an order that fails waits for a minute, and later for an hour.
func TestWorker_OrderThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders := delivery.NewQueue[order](memory.Open(), "orders", delivery.RetryAfter(time.Minute, time.Hour))
		receipts := delivery.NewQueue[string](memory.Open(), "receipts")
		require.NoError(t, orders.Put(t.Context(), order{"1"}, delivery.ID("1")))
		var calls []time.Duration
		began := time.Now()
		busy := func(context.Context, order) (string, error) {
			calls = append(calls, time.Since(began))
			return "", errors.New("busy")
		}
		op := asyncop.OrderedWait(asyncop.Blocking(busy), 10*time.Second, 100,
			asyncop.WithMaxConcurrentCalls(1),
			asyncop.WithFailureSink(orders.TakeFailure))
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Hour)
		defer stop()
		_, err := delivery.Run(ctx, orders, op, receipts)
		require.NoError(t, err)
		require.Len(t, calls, 3)
		require.GreaterOrEqual(t, calls[1], time.Minute)
		require.GreaterOrEqual(t, calls[2], time.Hour)
		counts, err := orders.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, counts.Dead)
	})
}
