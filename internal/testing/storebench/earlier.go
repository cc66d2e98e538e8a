package storebench

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// Earlier checks that a worker delivers the messages of a key that an earlier version
// has left: message 0 waits in a layer, 1 and 2 wait behind it, and 3 waits in the
// queue. With isOrdered they are delivered in this order.
func Earlier(t *testing.T, s store.Inspector, isOrdered bool) {
	t.Helper()
	const n = 4
	for i, queue := range []string{"jobs-retry-1", "jobs-blocked", "jobs-blocked", "jobs"} {
		m := store.Message{Meta: message.Meta{ID: strconv.Itoa(i), Key: "k"}, Payload: []byte(strconv.Itoa(i))}
		if i == 0 {
			m.Delay = 3 * time.Second
		}
		require.NoError(t, s.Put(t.Context(), queue, m))
	}
	quiet := slog.New(slog.DiscardHandler)
	opts := []delivery.QueueOption{delivery.WithCodec(Raw), delivery.WithLogger(quiet)}
	if isOrdered {
		opts = append(opts, delivery.WithOrdered())
	}
	q := delivery.NewQueue[[]byte](s, "jobs", opts...)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var delivered []string
	sink := &counted{left: n, enough: stop, Sink: sinkFunc(func(ms []message.Message[[]byte]) {
		for _, m := range ms {
			delivered = append(delivered, string(m.Value))
		}
	})}
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, v []byte) ([]byte, error) { return v, nil }), time.Minute, n,
		asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet))
	_, err := delivery.Run(ctx, q, op, sink, delivery.WithLogger(quiet))
	require.NoError(t, err)
	want := []string{"0", "1", "2", "3"}
	if isOrdered {
		require.Equal(t, want, delivered)
	} else {
		require.ElementsMatch(t, want, delivered)
	}
	queues, err := s.Queues(t.Context())
	require.NoError(t, err)
	require.Empty(t, queues)
}

// sinkFunc is a sink that takes all messages.
type sinkFunc func(ms []message.Message[[]byte])

func (f sinkFunc) PutAll(_ context.Context, ms []message.Message[[]byte]) error {
	f(ms)
	return nil
}
