package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// A dead letter has the timeline of all its visits.
func TestMetaTimeline_OfADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		orders := delivery.NewQueue[order](engine, "orders", delivery.RetryAfter(time.Minute))
		begun := time.Now().UTC()
		require.NoError(t, orders.Put(t.Context(), order{Cents: 7}, delivery.ID("7")))
		n := 0
		charge := asyncop.Blocking(func(context.Context, order) (order, error) {
			n++
			time.Sleep(time.Duration(n) * time.Second)
			return order{}, fmt.Errorf("answer %d: %w", n, errors.ErrUnsupported)
		})
		ctx, cancel := context.WithCancel(t.Context())
		op := asyncop.OrderedWaitWithRetry(charge, time.Minute, 4,
			strategies.FixedDelay[order](1, 10*time.Second).RetryIfException(predicates.HasException),
			asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithBackend(backend.New("bank")))
		ended := make(chan error)
		go func() {
			_, err := delivery.Run(ctx, orders, op, delivery.NewQueue[order](engine, "receipts"))
			ended <- err
		}()
		time.Sleep(5 * time.Minute)
		cancel()
		require.NoError(t, <-ended)

		letters, err := engine.List(t.Context(), orders.DeadLetters(), store.Filter{}, store.Page{Max: 10})
		require.NoError(t, err)
		require.Len(t, letters, 1)
		calls := letters[0].Meta.Timeline
		require.Len(t, calls, 4)
		back := calls[2].Begun
		waited := back.Sub(letters[0].Meta.FirstFailure)
		require.GreaterOrEqual(t, waited, time.Minute)
		require.Less(t, waited, 73*time.Second, "a layer adds at most 20 %, and its feed a moment")
		var got []string
		for _, s := range calls {
			at := s.Begun.Sub(begun)
			if s.Visit > 1 {
				at = s.Begun.Sub(back)
			}
			got = append(got, fmt.Sprintf("%d.%d +%v %v %v %v %s %s", s.Visit, s.Attempt, at.Round(time.Second), s.Took, s.Wait, s.Retried, s.Backend, s.Error))
		}
		require.Equal(t, []string{
			"1.1 +0s 1s 10s true up answer 1: unsupported operation",
			"1.2 +11s 2s 0s false up answer 2: unsupported operation",
			"2.1 +0s 3s 10s true up answer 3: unsupported operation",
			"2.2 +13s 4s 0s false up answer 4: unsupported operation",
		}, got)
	})
}
