package messages_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

var (
	errClosed = errors.New("the shop is closed")
	snoozed   = predicates.WithSnooze(errClosed, time.Hour)
)

// settlementsOf returns how op has settled n messages.
func settlementsOf(t *testing.T, op *asyncop.AsyncWaitOperator[int, int], n int) []message.Settlement {
	t.Helper()
	var mu sync.Mutex
	settlements := make([]message.Settlement, n)
	for m, err := range op.Messages(func(yield func(message.Message[int], error) bool) {
		for i := range n {
			m := message.New(i, &message.Meta{Key: "k"}, func(s message.Settlement) {
				mu.Lock()
				defer mu.Unlock()
				settlements[i] = s
			})
			if !yield(m, nil) {
				return
			}
		}
	}) {
		assert.NoError(t, err)
		m.Ack()
	}
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(settlements)
}

// A snoozed message is released: its call is not retried, and the failure sink does not
// get it. An element that is not a message fails.
func TestWithSnooze_IsNoFailure(t *testing.T) {
	for name, snooze := range map[string]error{"itself": snoozed, "wrapped": fmt.Errorf("sell: %w", snoozed)} {
		t.Run(name, func(t *testing.T) {
			var calls, offers int
			newOp := func() *asyncop.AsyncWaitOperator[int, int] {
				return asyncop.OrderedWaitWithRetry(asyncop.Blocking(func(_ context.Context, i int) (int, error) {
					calls++
					return 0, snooze
				}), time.Minute, 1, strategies.FixedDelay[int](3, 0).RetryIfException(predicates.HasException),
					asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
						offers++
						assert.ErrorIs(t, f.Err, errClosed)
						return nil
					}), silent)
			}
			op := newOp()
			got := settlementsOf(t, op, 1)
			require.Equal(t, message.Settlement{Kind: message.Released, Delay: time.Hour, Err: snooze}, got[0])
			require.Equal(t, 1, calls)
			require.Zero(t, offers)
			stats := op.Stats()
			require.EqualValues(t, 1, stats.Abandoned)
			require.Zero(t, stats.Failures)
			require.NoError(t, stats.LastError)

			calls = 0
			for range newOp().Results(slices.Values([]int{0})) {
				require.Fail(t, "it has a result")
			}
			require.Equal(t, 4, calls, "the strategy decides")
			require.Equal(t, 1, offers)
		})
	}
}

// If a batch returns a snooze, each of its messages is snoozed.
func TestWithSnooze_Batched(t *testing.T) {
	op := asyncop.OrderedWait(asyncop.Batched(func(context.Context, []int) ([]asyncop.Result[int], error) {
		return nil, snoozed
	}, 2, time.Millisecond), time.Minute, 4, silent)
	for _, s := range settlementsOf(t, op, 4) {
		require.Equal(t, message.Settlement{Kind: message.Released, Delay: time.Hour, Err: snoozed}, s)
	}
}

// The next element of a key is called when its predecessor is snoozed.
func TestWithSnooze_KeyOrder(t *testing.T) {
	op := asyncop.KeyOrderedWait(asyncop.Blocking(func(_ context.Context, i int) (int, error) {
		if i == 0 {
			return 0, snoozed
		}
		return i, nil
	}), func(int) string { return "k" }, time.Minute, 4, strategies.NoRetry[int](), silent)
	got := settlementsOf(t, op, 2)
	require.Equal(t, message.Released, got[0].Kind)
	require.Equal(t, message.Done, got[1].Kind)
}

// Law X1: after an attempt in doubt the failure is not forgotten, unless the call is
// idempotent.
func TestWithSnooze_AfterAnAttemptInDoubt(t *testing.T) {
	for _, isIdempotent := range []bool{false, true} {
		var inDoubt bool
		calls := 0
		policy := strategies.PolicyOf[int](strategies.FixedDelay[int](3, 0).RetryIfException(func(err error) bool {
			_, snoozes := predicates.SnoozeOf(err)
			return !snoozes
		}))
		if isIdempotent {
			policy = policy.Idempotent()
		}
		op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(func(context.Context, int) (int, error) {
			calls++
			if calls == 1 {
				return 0, errors.New("no answer")
			}
			return 0, snoozed
		}), time.Minute, 1, policy, asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error {
			inDoubt = f.InDoubt
			return nil
		}), silent)
		got := settlementsOf(t, op, 1)
		require.Equal(t, 2, calls)
		require.Equal(t, !isIdempotent, inDoubt)
		want := message.HandedOver
		if isIdempotent {
			want = message.Released
		}
		require.Equal(t, want, got[0].Kind)
	}
}

// A snooze is not evidence about the service: neither a lost call nor an answer. It was
// sent, so it uses its share of the rate.
func TestWithSnooze_Backend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := backend.New("service", backend.Rate(1, time.Hour), backend.WithLogger(slog.New(slog.DiscardHandler)))
		begun := time.Now()
		op := asyncop.UnorderedWait(asyncop.Blocking(func(context.Context, int) (int, error) {
			return 0, predicates.WithSnooze(&httpretry.StatusError{StatusCode: 503}, time.Hour)
		}), 0, 10, asyncop.WithBackend(service), silent)
		got := settlementsOf(t, op, 8)
		require.Equal(t, 7*time.Hour, time.Since(begun))
		for _, s := range got {
			require.Equal(t, message.Released, s.Kind)
		}
		stats := service.Stats()
		require.EqualValues(t, 8, stats.Started)
		require.Zero(t, stats.Lost)
		require.Equal(t, backend.Up, stats.State)
	})
}

// An error whose Unwrap panics is judged as any other.
func TestWithSnooze_BrokenError(t *testing.T) {
	op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, int) (int, error) { return 0, brokenError{} }), time.Minute, 1,
		asyncop.WithDropOnFailure(), silent)
	got := settlementsOf(t, op, 1)
	require.Equal(t, message.HandedOver, got[0].Kind)
}

type brokenError struct{}

func (brokenError) Error() string { return "broken" }
func (brokenError) Unwrap() error { panic("broken") }

// Law A6: if the method Idempotent of an element ends its goroutine, the message is not
// snoozed, and the run continues.
func TestWithSnooze_IdempotentExits(t *testing.T) {
	var exits atomic.Bool
	calls := 0
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(func(context.Context, exiting) (int, error) {
		calls++
		if calls == 1 {
			return 0, errors.New("no answer")
		}
		exits.Store(true)
		return 0, snoozed
	}), time.Minute, 1, strategies.FixedDelay[int](1, 0).RetryIfException(predicates.HasException), asyncop.WithDropOnFailure(), silent)
	var got message.Settlement
	for _, err := range op.Messages(func(yield func(message.Message[exiting], error) bool) {
		yield(message.New(exiting{&exits}, nil, func(s message.Settlement) { got = s }), nil)
	}) {
		require.NoError(t, err)
	}
	require.NoError(t, op.Err())
	require.Equal(t, 2, calls)
	require.False(t, exits.Load())
	require.Equal(t, message.HandedOver, got.Kind)
}

// exiting is an element whose method Idempotent calls runtime.Goexit once exits is set.
type exiting struct{ exits *atomic.Bool }

func (e exiting) Idempotent() bool {
	if e.exits.CompareAndSwap(true, false) {
		runtime.Goexit()
	}
	return true
}

// If the probe of a backend or a tenant that is down is snoozed, the next call is the
// probe.
func TestWithSnooze_Probe(t *testing.T) {
	for name, breaker := range map[string][]backend.Option{"backend": nil, "tenant": {backend.TenantBreaker()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := backend.New("service", append(breaker, backend.WithLogger(slog.New(slog.DiscardHandler)))...)
				const lost = 5 // take down a backend or a tenant
				var calls int
				op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, int) (int, error) {
					calls++
					switch {
					case calls <= lost:
						return 0, &httpretry.StatusError{StatusCode: 503}
					case calls == lost+1:
						return 0, snoozed
					}
					return 0, nil
				}), 10*time.Second, 1, asyncop.WithBackend(service), asyncop.WithDropOnFailure(), silent)
				var kinds []message.Kind
				for m, err := range op.Messages(func(yield func(message.Message[int], error) bool) {
					for i := range lost + 2 {
						if !yield(message.New(i, &message.Meta{Key: "k"}, func(s message.Settlement) { kinds = append(kinds, s.Kind) }), nil) {
							return
						}
						time.Sleep(10 * time.Minute) // longer than any pause
					}
				}) {
					assert.NoError(t, err)
					m.Ack()
				}
				want := append(slices.Repeat([]message.Kind{message.HandedOver}, lost), message.Released, message.Done)
				require.Equal(t, want, kinds)
				require.Equal(t, lost+2, calls)
			})
		})
	}
}
