package httpin_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/delivery/httpin"
	"github.com/weirflow/weir/delivery/memory"
)

// Requests go through a queue and a worker to a channel.
func TestWorkerBehindAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders := delivery.NewQueue[order](memory.Open(), "orders")
		h := httpin.NewHandler(orders, codec.JSON[order](), nil)
		ctx, stop := context.WithCancel(t.Context())
		names := make(chan string)
		ended := make(chan delivery.Summary)
		go func() { // ends with ctx
			op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, o order) (string, error) {
				return fmt.Sprint("order ", o.N), nil
			}), time.Minute, 10, asyncop.WithDropOnFailure())
			summary, err := delivery.Run(ctx, orders, op, channel.NewSink(names))
			if err != nil {
				panic(err)
			}
			ended <- summary
		}()
		for n := range 20 {
			require.Equal(t, http.StatusAccepted, serve(h, post(fmt.Sprintf(`{"N":%d}`, n))).Code)
			require.Equal(t, fmt.Sprint("order ", n), <-names)
		}
		stop()
		require.Equal(t, 20, (<-ended).Done)
		left, err := orders.Counts(t.Context())
		require.NoError(t, err)
		require.Zero(t, left.Waiting)
	})
}
