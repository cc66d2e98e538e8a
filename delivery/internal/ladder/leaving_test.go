package ladder_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Short waits stay in the operator. An element leaves it if its next delay is long, or if
// too many wait (law D4): not as a delayed result, but as a failure, so an ordered
// operator continues.
func TestLadder_ElementsThatLeaveTheOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		c.Layers = c.Layers[:1]
		l := build(t, c)
		begun := time.Now()
		fail := func(ctx context.Context, err error) (string, error) { return "", err }
		call := asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
			meta, _ := message.MetaFromContext(ctx)
			switch {
			case in == "2" && asyncop.AttemptFromContext(ctx) == 1:
				return fail(ctx, errors.New("short")) // the next attempt is good
			case in == "4" && meta.Visit < 2, in == "7":
				return fail(ctx, predicates.WithPushback(errors.New("busy"), 2*time.Minute))
			}
			return in, nil
		})
		op := asyncop.OrderedWaitWithRetry(call, time.Hour, 100,
			strategies.ReasonAware(predicates.ByException[string](predicates.HasException, predicates.NewReason("BUSY", true, false)), nil).WithMaxDelay(10*time.Second),
			asyncop.WithFailureSink(l.TakeFailure))
		source := l.Source(messages(10))
		var order []string
		for m, err := range op.Messages(receive(t.Context(), source)) {
			require.NoError(t, err)
			order = append(order, m.Value)
			m.Ack()
		}
		require.NoError(t, op.Wait())
		require.Equal(t, []string{"0", "1", "2", "3", "5", "6", "8", "9"}, order)
		require.Less(t, time.Since(begun), 10*time.Second)
		waiting, err := s.List(t.Context(), "1m", store.Filter{}, store.Page{Max: 10})
		require.NoError(t, err)
		ids := map[string]bool{}
		for _, e := range waiting {
			ids[e.Meta.ID] = true
			require.WithinDuration(t, begun.Add(2*time.Minute), e.Meta.Due, 10*time.Second, "the server's demand is longer than the layer's delay")
			require.Equal(t, 1, e.Meta.Attempts)
		}
		require.Equal(t, []string{"4", "7"}, slices.Sorted(maps.Keys(ids)))
		require.NoError(t, source.Close(t.Context()))
	})
}

// FLIP-232's formula: elements that wait for retries take slots. A bound on their share
// lets the rest continue (law D4).
func TestLadder_ShareOfSlotsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		c.Layers = c.Layers[:1]
		l := build(t, c)
		call := asyncop.Blocking(func(context.Context, string) (string, error) { return "", errRefused })
		op := asyncop.UnorderedWaitWithRetry(call, time.Hour, 10,
			strategies.PolicyOf(strategies.FixedDelay[string](1, 9*time.Second).RetryIfException(predicates.HasException)).WithMaxWaiting(5),
			asyncop.WithFailureSink(l.TakeFailure))
		source := l.Source(messages(100))
		begun := time.Now()
		for _, err := range op.Messages(receive(t.Context(), source)) {
			require.NoError(t, err)
			require.Fail(t, "nothing comes out")
		}
		require.NoError(t, op.Wait())
		require.Less(t, time.Since(begun), time.Minute, "without the bound: 100 elements / 10 slots × 9 s")
		counts, err := s.Count(t.Context(), "1m", store.Filter{})
		require.NoError(t, err)
		require.Equal(t, 100, counts.Messages)
		require.EqualValues(t, 95, op.Stats().TooManyWaiting)
		require.NoError(t, source.Close(t.Context()))
	})
}
