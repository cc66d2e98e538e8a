package delivery_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// A purge wins over running calls (laws D1 and W5): failures and results of a message
// that was purged from its queue while its call ran are not stored, and it is not called
// again.
func TestRun_PurgeBesideCalls(t *testing.T) {
	permanent := predicates.WithReason(errors.New("410"), predicates.NewRejection("GONE"))
	for name, c := range map[string]struct {
		answers       []int // results of the call, if err is nil
		err           error
		isOtherEngine bool // the sink is on another engine
	}{
		"a failure for a layer":      {err: errors.New("503")},
		"a dead letter":              {err: permanent},
		"a result":                   {answers: []int{1}},
		"parts":                      {answers: []int{1, 2, 3}},
		"no result":                  {},
		"a result in another engine": {answers: []int{1}, isOtherEngine: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := memory.Open()
				sinkEngine := engine
				if c.isOtherEngine {
					sinkEngine = memory.Open()
				}
				orders := delivery.NewQueue[charged](engine, "orders", delivery.RetryAfter(time.Second, time.Second), noLog)
				results := delivery.NewQueue[int](sinkEngine, "results", noLog)
				for i := range 3 {
					require.NoError(t, orders.Put(t.Context(), charged{Amount: i}, delivery.ID(strconv.Itoa(i)), delivery.Key("c1")))
				}
				require.NoError(t, orders.Put(t.Context(), charged{Amount: 3}, delivery.ID("3"), delivery.Key("c2")))
				var calls atomic.Int64
				answer := make(chan struct{})
				call := func(_ context.Context, _ charged, f asyncop.ResultFuture[int]) error {
					calls.Add(1)
					go func() {
						<-answer
						if c.err != nil {
							f.CompleteExceptionally(c.err)
							return
						}
						f.Complete(c.answers...)
					}()
					return nil
				}
				op := asyncop.UnorderedWait(asyncop.Func(call), 0, 10, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan delivery.Summary)
				go func() {
					summary, err := delivery.Run(ctx, orders, op, results, delivery.WithFloodGuard(1, 1), noLog)
					if err != nil {
						t.Error(err)
					}
					ended <- summary
				}()
				synctest.Wait()
				require.EqualValues(t, 4, calls.Load())
				n, err := engine.Purge(t.Context(), "orders", store.Filter{Key: "c1"})
				require.NoError(t, err)
				require.Equal(t, 3, n)
				if c.isOtherEngine {
					time.Sleep(10 * time.Second) // the leases are renewed, so the worker finds the purge
					synctest.Wait()
				}
				close(answer)
				time.Sleep(100 * time.Millisecond) // of virtual time: settlements are recorded
				var left []string
				for _, e := range []*memory.Engine{engine, sinkEngine} {
					names, err := e.Queues(t.Context())
					require.NoError(t, err)
					for _, queue := range names {
						for _, entry := range entriesOf(t, e, queue) {
							left = append(left, queue+" "+entry.Meta.Key)
						}
					}
				}
				require.NotContains(t, left, "orders c2", "it is settled")
				for _, entry := range left {
					require.Contains(t, entry, " c2", "all that is left: %v", left)
				}
				time.Sleep(10 * time.Second)
				stop()
				summary := <-ended
				if c.answers != nil || c.err == permanent {
					require.EqualValues(t, 4, calls.Load())
				}
				if c.answers != nil || c.err != nil { // without results, Run does not find the purge before the message is settled
					require.Equal(t, 3, summary.Purged, summary)
					require.Equal(t, summary.Received, summary.Done+summary.HandedOver+summary.Purged+summary.Failed+summary.Released+summary.Rejected)
				}
			})
		})
	}
}

// numbered may be called twice.
type numbered struct{ N int }

func (numbered) Idempotent() bool { return true }

// A purged message frees its key: the messages behind it are called next.
func TestWithOrdered_PurgeOfAMessageInFlight(t *testing.T) {
	for name, c := range map[string]struct {
		visit int64 // that the purge meets
		waits bool  // for a renewal
	}{
		"found at the settlement":     {visit: 2},
		"found by a renewal":          {visit: 2, waits: true},
		"at the first visit":          {visit: 1},
		"at the first visit, renewal": {visit: 1, waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := memory.Open()
				orders := delivery.NewQueue[numbered](engine, "orders", delivery.RetryAfter(time.Second), delivery.WithOrdered(), noLog)
				results := delivery.NewQueue[int](engine, "results", noLog)
				for i := range 8 {
					require.NoError(t, orders.Put(t.Context(), numbered{i}, delivery.ID(strconv.Itoa(i)), delivery.Key("k")))
				}
				var order []int // of the calls that end
				answer := make(chan struct{})
				var visits atomic.Int64
				call := asyncop.Blocking(func(ctx context.Context, o numbered) (int, error) {
					i := o.N
					if i == 0 && visits.Add(1) == c.visit {
						select {
						case <-answer:
						case <-ctx.Done():
						}
					}
					if i == 0 {
						return 0, errBusy
					}
					order = append(order, i)
					return i, nil
				})
				op := asyncop.UnorderedWait(call, 0, 2, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					_, err := delivery.Run(ctx, orders, op, results, noLog)
					ended <- err
				}()
				time.Sleep(3 * time.Second)
				synctest.Wait()
				require.EqualValues(t, c.visit, visits.Load())
				require.Empty(t, order)
				n, err := engine.Purge(t.Context(), "orders", store.Filter{IDs: []string{"0"}})
				require.NoError(t, err)
				require.Equal(t, 1, n)
				if c.waits {
					time.Sleep(30 * time.Second)
				}
				close(answer)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				require.Equal(t, []int{1, 2, 3, 4, 5, 6, 7}, order)
				require.EqualValues(t, c.visit, visits.Load())
				stop()
				require.NoError(t, <-ended)
			})
		})
	}
}

// A program that acknowledges a message before it puts a result has settled the message
// itself: the result is stored.
func TestQueuePutAll_AfterTheAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		orders := delivery.NewQueue[numbered](engine, "orders", noLog)
		results := delivery.NewQueue[int](engine, "results", noLog)
		require.NoError(t, orders.Put(t.Context(), numbered{1}, delivery.ID("1")))
		ms, err := orders.Receive(t.Context(), 1)
		require.NoError(t, err)
		ms[0].Ack()
		time.Sleep(time.Minute) // the acknowledgement is recorded
		require.Empty(t, entriesOf(t, engine, "orders"))
		require.NoError(t, results.PutAll(t.Context(), []message.Message[int]{message.With(ms[0], 7)}))
		require.Len(t, entriesOf(t, engine, "results"), 1)
		require.NoError(t, orders.Close(t.Context()))
	})
}

// A worker whose lease has ended, and whose message another worker has taken, hands the
// failure over nevertheless: if the other worker dies, the message is not lost.
func TestQueueTakeFailure_AfterAnotherWorkerTookTheMessage(t *testing.T) {
	engine := memory.Open()
	orders := delivery.NewQueue[charged](engine, "orders", delivery.RetryAfter(time.Minute), delivery.WithLease(time.Hour), noLog)
	require.NoError(t, orders.Put(t.Context(), charged{Amount: 1}, delivery.ID("a")))
	ms, err := orders.Receive(t.Context(), 1)
	require.NoError(t, err)
	entries := entriesOf(t, engine, "orders")
	require.NoError(t, engine.Release(t.Context(), 0, store.Lease{Queue: "orders", Entry: strconv.FormatInt(entries[0].Position, 10), Fence: entries[0].Fence}))
	other, err := engine.Take(t.Context(), "orders", 1, time.Hour)
	require.NoError(t, err)
	require.Len(t, other, 1)
	failure := asyncop.Failure[charged]{Element: charged{Amount: 1}, Err: errBusy}
	require.NoError(t, orders.TakeFailure(message.NewContext(t.Context(), ms[0]), failure))
	require.Len(t, entriesOf(t, engine, "orders-retry-1"), 1)
	require.Len(t, entriesOf(t, engine, "orders"), 1)

	require.NoError(t, engine.Done(t.Context(), other[0].Lease)) // the other worker has finished
	_, err = engine.Purge(t.Context(), "orders-retry-1", store.Filter{})
	require.NoError(t, err)
	require.NoError(t, orders.TakeFailure(message.NewContext(t.Context(), ms[0]), failure))
	require.Empty(t, entriesOf(t, engine, "orders-retry-1"), "the message is settled, so it is not called again")
	require.NoError(t, orders.Close(t.Context()))
}

// A renewal of the leases finds the purge: the contexts of the calls end, no retry is
// made, and the other calls continue.
func TestRun_PurgeEndsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		orders := delivery.NewQueue[charged](engine, "orders", delivery.RetryAfter(time.Second), delivery.WithLease(9*time.Second), noLog)
		results := delivery.NewQueue[int](engine, "results", noLog)
		for i := range 4 {
			key := "c1"
			if i == 3 {
				key = "c2"
			}
			require.NoError(t, orders.Put(t.Context(), charged{Amount: i}, delivery.ID(strconv.Itoa(i)), delivery.Key(key)))
		}
		var calls, purged atomic.Int64
		begun := time.Now()
		call := asyncop.Blocking(func(ctx context.Context, o charged) (int, error) {
			calls.Add(1)
			switch o.Amount {
			case 0: // it waits for its retry when the purge is found
				return 0, errBusy
			case 1: // it ignores its context
				time.Sleep(30 * time.Second)
				return 1, nil
			}
			select {
			case <-ctx.Done():
				if errors.Is(context.Cause(ctx), message.ErrPurged) && time.Since(begun) < 10*time.Second {
					purged.Add(1)
				}
				return 0, ctx.Err()
			case <-time.After(20 * time.Second):
				return o.Amount, nil
			}
		})
		backoff := strategies.FixedDelay[int](3, time.Minute).RetryIfException(predicates.HasException)
		op := asyncop.UnorderedWaitWithRetry(call, time.Hour, 10, backoff, asyncop.WithFailureSink(orders.TakeFailure),
			asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan delivery.Summary)
		go func() {
			summary, err := delivery.Run(ctx, orders, op, results, noLog)
			if err != nil {
				t.Error(err)
			}
			ended <- summary
		}()
		time.Sleep(time.Second)
		require.EqualValues(t, 4, calls.Load())
		_, err := engine.Purge(t.Context(), "orders", store.Filter{Key: "c1"})
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		require.EqualValues(t, 1, purged.Load())
		require.EqualValues(t, 4, calls.Load(), "no retry is made")
		stop()
		summary := <-ended
		require.Equal(t, 3, summary.Purged, summary)
		require.Equal(t, 1, summary.Done, summary)
		left := entriesOf(t, engine, "results")
		require.Len(t, left, 1)
		require.Equal(t, "c2", left[0].Meta.Key)
		names, err := engine.Queues(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"results"}, names)
	})
}
