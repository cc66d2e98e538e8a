package docs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// payFor is a placeholder for a client with callbacks.
func payFor[T any](ctx context.Context, order T, result asyncop.ResultFuture[string]) error {
	go result.Complete("paid")
	return nil
}

func TestThirdAttemptWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls := time.Now(), 0
		lookup := asyncop.Blocking(func(ctx context.Context, key string) (string, error) {
			if calls++; calls < 3 {
				return "", errors.New("busy")
			}
			return key, nil
		})
		op := asyncop.OrderedWaitWithRetry(lookup, time.Minute, 10,
			strategies.FixedDelay[string](5, 10*time.Second).RetryIfException(predicates.HasException),
			asyncop.WithDrainRetries())
		for key, err := range op.Results(slices.Values([]string{"lhr"})) {
			assert.NoError(t, err)
			assert.Equal(t, "lhr", key)
		}
		assert.Equal(t, 20*time.Second, time.Since(began)) // exact, and over at once
	})
}

func TestMockClock(t *testing.T) {
	mock := clock.NewMock()
	failing := asyncop.Func(func(ctx context.Context, key string, result asyncop.ResultFuture[string]) error {
		return errors.New("busy")
	})
	op := asyncop.OrderedWaitWithRetry(failing, time.Minute, 10,
		strategies.FixedDelay[string](1, 10*time.Second).RetryIfException(predicates.HasException),
		asyncop.WithDrainRetries(), asyncop.WithDropOnFailure(), asyncop.WithClock(mock), asyncop.WithLogger(quiet))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range op.Results(slices.Values([]string{"lhr"})) {
		}
	}()
	for op.Stats().WaitingForRetry == 0 { // the back-off has begun
		time.Sleep(time.Millisecond)
	}
	mock.Add(10 * time.Second)
	<-done
	assert.EqualValues(t, 2, op.Stats().Attempts)
}

func Example_decide() {
	policy := strategies.ReasonAware(httpretry.Classifier[string](), nil)
	d := strategiestest.Decide(policy, predicates.Attempt[string]{Err: io.ErrUnexpectedEOF})
	fmt.Println(d)
	// Output:
	// no retry: refused (CONNECTION_LOST_IN_FLIGHT)
}

// sent is a sink that keeps what it gets.
type sent struct{ receipts []string }

func (s *sent) PutAll(ctx context.Context, ms []message.Message[string]) error {
	for _, m := range ms {
		s.receipts = append(s.receipts, m.Value)
	}
	return nil
}

func TestTesting_WorkerWithoutAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		orders := delivery.NewQueue[string](engine, "orders", delivery.RetryAfter(time.Minute, time.Hour))
		for _, id := range []string{"1", "2"} {
			require.NoError(t, orders.Put(t.Context(), "order "+id, delivery.ID(id)))
		}
		charge := func(ctx context.Context, order string) (string, error) {
			meta, _ := message.MetaFromContext(ctx)
			if order == "order 2" && meta.Visit < 3 {
				return "", errBusy // until the visit after the hour
			}
			return "receipt of " + order, nil
		}
		policy := strategies.PolicyOf(strategies.FixedDelay[string](1, time.Second).RetryIfException(predicates.HasException))
		op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(charge), 10*time.Second, 100, policy.Idempotent(),
			asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(quiet))
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Hour) // takes no time in a bubble
		defer stop()
		receipts := &sent{}
		summary, err := delivery.Run(ctx, orders, op, receipts, delivery.WithLogger(quiet))
		require.NoError(t, err)
		require.Equal(t, []string{"receipt of order 1", "receipt of order 2"}, receipts.receipts)
		require.Equal(t, 2, summary.HandedOver) // to the layer of a minute, and to the layer of an hour
		counts, err := orders.Counts(t.Context())
		require.NoError(t, err)
		require.Zero(t, counts)
	})
}
