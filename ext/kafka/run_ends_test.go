package kafka

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// acknowledged is a sink that discards its results.
type acknowledged struct{}

func (acknowledged) PutAll(context.Context, []message.Message[string]) error { return nil }

// The error of Counts names the alternatives.
func TestQueueCounts_OnKafka(t *testing.T) {
	_, err := queueOn(newCluster(t, 1, "orders").engine(), "orders").Counts(t.Context())
	require.ErrorContains(t, err, "kafka.OpenView")
	require.ErrorContains(t, err, "weir layers --db 'kafka://HOST:PORT?group=orders'")
}

// Laws D1, D4 and W2: a fault that only a person can fix ends the run with its reason.
// The message that could not be handed over is not committed.
func TestRun_HandOverThatOnlyAPersonCanFix(t *testing.T) {
	for name, tt := range map[string]struct {
		topic   string
		refusal *kerr.Error
		err     error // of the calls
		want    []string
	}{
		"no right to a layer": {
			"orders-retry-1", kerr.TopicAuthorizationFailed, errors.New("down"),
			[]string{"WRITE on the topic", "orders-retry-1"},
		},
		"no right to the dead letters": {
			"orders-dead", kerr.TopicAuthorizationFailed, predicates.WithReason(errors.New("no"), predicates.NewRejection("NO")),
			[]string{"WRITE on the topic", "orders-dead"},
		},
		"dead letters refuse even a pointer": {
			"orders-dead", kerr.InvalidRecord, predicates.WithReason(errors.New("no"), predicates.NewRejection("NO")),
			[]string{"INVALID_RECORD", "record orders/0/0", `topic "orders-dead"`, "max.message.bytes"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, "orders", "orders-retry-1", "orders-dead")
			c.produce("orders", 1, "0", "1")
			c.inMemory()
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: tt.topic, Err: tt.refusal, Count: -1})
			orders := queueOn(c.engine(), "orders", delivery.Layer{Delay: time.Hour})
			op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(func(_ context.Context, v string) (string, error) {
				if v == "0" {
					return "", tt.err
				}
				return v, nil
			}), 10*time.Second, 10, strategies.PolicyOf(strategies.NoRetry[string]()).Idempotent(), asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(silent))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := delivery.Run(ctx, orders, op, acknowledged{}, delivery.WithLogger(silent), delivery.WithDrain(time.Second))
			require.NoError(t, ctx.Err(), "the run has not ended")
			require.Error(t, err)
			require.True(t, guard.IsPermanent(err))
			for _, want := range tt.want {
				require.ErrorContains(t, err, want)
			}
			offsets, err := kadm.NewClient(c.admin).FetchOffsets(t.Context(), "orders")
			require.NoError(t, err)
			o, _ := offsets.Lookup("orders", 0)
			require.LessOrEqual(t, o.At, int64(0), "law D1")
		})
	}
}
