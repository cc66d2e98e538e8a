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
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// A snoozed message is called again at its time, in the same visit, and not before. It has
// not failed: there is no retry, and its visits and layers are left for failures.
func TestSnooze_InAQueue(t *testing.T) {
	anything := strategies.FixedDelay[string](3, time.Second).RetryIfException(predicates.HasException)
	for name, strategy := range map[string]strategies.Retry[string]{"without a strategy": nil, "with retries": anything} {
		for _, snooze := range []error{message.Snooze(time.Hour), fmt.Errorf("not ready: %w", message.Snooze(time.Hour))} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					engine := memory.Open()
					jobs := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute), noLog)
					require.NoError(t, jobs.Put(t.Context(), job("a"), delivery.ID("a")))
					begun := time.Now()
					ctx, stop := context.WithCancel(t.Context())
					var at []time.Duration
					var visits []int
					call := asyncop.Blocking(func(ctx context.Context, _ job) (string, error) {
						meta, _ := message.MetaFromContext(ctx)
						at, visits = append(at, time.Since(begun)), append(visits, meta.Visit)
						if len(at) < 4 {
							return "", snooze
						}
						return "done", nil
					})
					sink := sinkFunc(func(context.Context, []message.Message[string]) error {
						stop()
						return nil
					})
					var op *asyncop.AsyncWaitOperator[job, string]
					if strategy == nil {
						op = asyncop.UnorderedWait(call, time.Minute, 10, asyncop.WithFailureSink(jobs.TakeFailure), asyncop.WithLogger(quiet))
					} else {
						op = asyncop.UnorderedWaitWithRetry(call, time.Minute, 10, strategy, asyncop.WithFailureSink(jobs.TakeFailure), asyncop.WithLogger(quiet))
					}
					summary, err := delivery.Run(ctx, jobs, op, sink, delivery.WithFloodGuard(0.5, 1), silently)
					require.NoError(t, err)
					require.Equal(t, []int{1, 1, 1, 1}, visits)
					for i, d := range at {
						require.GreaterOrEqual(t, d, time.Duration(i)*time.Hour)
						require.Less(t, d, time.Duration(i)*time.Hour+time.Minute)
					}
					require.Equal(t, 3, summary.Released, summary)
					require.Equal(t, 1, summary.Done, summary)
					require.Zero(t, summary.Floods)
					require.Zero(t, op.Stats().Failures)
				})
			})
		}
	}
}

// A release would forget that an earlier attempt may have taken effect, so the message
// fails then: it is not called again without a question.
func TestSnooze_AfterACallInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		charges := delivery.NewQueue[charged](engine, "charges", delivery.RetryAfter(time.Minute), noLog)
		require.NoError(t, charges.Put(t.Context(), charged{Amount: 1}, delivery.ID("a")))
		calls := 0
		call := asyncop.Blocking(func(ctx context.Context, _ charged) (string, error) {
			calls++
			if calls == 1 {
				<-ctx.Done() // its request may have arrived
				return "", ctx.Err()
			}
			return "", message.Snooze(time.Hour)
		})
		retry := strategies.FixedDelay[string](3, time.Second).RetryIfException(func(err error) bool {
			return errors.Is(err, context.DeadlineExceeded)
		})
		op := asyncop.UnorderedWaitWithRetry(call, time.Minute, 10, retry, asyncop.WithAttemptTimeout(time.Second),
			asyncop.WithFailureSink(charges.TakeFailure), asyncop.WithLogger(quiet))
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
		defer stop()
		summary, err := delivery.Run(ctx, charges, op, &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, 2, calls)
		require.Equal(t, 1, summary.HandedOver, summary)
		dead := entriesOf(t, engine, charges.DeadLetters())
		require.Len(t, dead, 1)
		require.True(t, dead[0].Meta.UnsafeToRepeat)
	})
}
