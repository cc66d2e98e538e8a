package delivery_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/message"
)

// The costs of Provider and TakeFailure do not depend on how many messages are in flight.
func BenchmarkQueue_MessagesInFlight(b *testing.B) {
	for _, n := range []int{1000, 16000} {
		engine := memory.Open()
		q := delivery.NewQueue[string](engine, "q", noLog, delivery.WithLease(time.Hour), delivery.RetryAfter(time.Hour))
		for i := range n {
			require.NoError(b, q.Put(b.Context(), "value", delivery.ID(fmt.Sprint(i))))
		}
		var ms []message.Message[string]
		for len(ms) < n {
			got, err := q.Receive(b.Context(), n-len(ms))
			require.NoError(b, err)
			ms = append(ms, got...)
		}
		ctxs := make([]context.Context, n)
		for i, m := range ms {
			ctxs[i] = message.NewContext(b.Context(), m)
			require.NoError(b, q.SetProvider(ctxs[i], "north"))
		}
		b.Run(fmt.Sprintf("Provider/inflight=%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				_, err := q.Provider(ctxs[i%n], nil)
				if err != nil {
					b.Fatal(err)
				}
			}
		})
		// The same message again and again: its layer keeps one.
		failure := asyncop.Failure[string]{Element: "value", Err: errBusy, Attempts: 1}
		b.Run(fmt.Sprintf("TakeFailure/inflight=%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				err := q.TakeFailure(ctxs[i%100], failure)
				if err != nil {
					b.Fatal(err)
				}
			}
		})
		require.NoError(b, q.Close(b.Context()))
	}
}
