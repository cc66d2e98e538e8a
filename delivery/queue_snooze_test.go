package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

var errShopClosed = errors.New("the shop is closed")

// A snoozed message waits where it is, with its history, headers and provider. Its
// further visits are those that it would have had.
func TestWithSnooze_WaitsInItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute), noLog)
		headers := map[string]string{"Tenant": "north"}
		require.NoError(t, q.Put(t.Context(), "a", delivery.ID("a"), delivery.Key("k"), delivery.Headers(headers)))
		calls, begun := 0, time.Now()
		var times []time.Duration
		visits := inOrder(t, q, 24*time.Hour, func(ctx context.Context, _ job) error {
			meta, _ := message.MetaFromContext(ctx)
			assert.Equal(t, min(2, calls+1), meta.Visit)
			times = append(times, time.Since(begun).Truncate(time.Minute))
			calls++
			switch calls {
			case 1, 4:
				return errors.New("it fails")
			case 2:
				assert.NoError(t, q.SetProvider(ctx, "post"))
			case 3:
				waits := entriesOf(t, engine, "jobs-retry-1")
				assert.Len(t, waits, 1)
				assert.Equal(t, 1, waits[0].Meta.Visit)
				assert.Equal(t, 1, waits[0].Meta.Attempts)
				assert.Equal(t, headers, waits[0].Meta.Headers)
				assert.Equal(t, "post", waits[0].Meta.Provider)
				assert.Contains(t, waits[0].Meta.LastError, "it fails")
			}
			return predicates.WithSnooze(errShopClosed, time.Hour)
		})
		require.Len(t, visits, 4)
		require.Equal(t, []time.Duration{0, time.Minute, time.Hour + time.Minute, 2*time.Hour + time.Minute}, times)
		dead := entriesOf(t, engine, "jobs-dead")
		require.Len(t, dead, 1)
		require.Equal(t, store.Exhausted, dead[0].Cause)
		require.Equal(t, 2, dead[0].Meta.Visit)
		require.Equal(t, 2, dead[0].Meta.Attempts)
	})
}

// A message that is snoozed beyond its deadline is a dead letter.
func TestWithSnooze_Deadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[job](engine, "jobs", noLog)
		require.NoError(t, q.Put(t.Context(), "a", delivery.Deadline(time.Now().Add(90*time.Minute))))
		visits := inOrder(t, q, 24*time.Hour, func(context.Context, job) error { return predicates.WithSnooze(errShopClosed, time.Hour) })
		require.Len(t, visits, 2)
		dead := entriesOf(t, engine, "jobs-dead")
		require.Len(t, dead, 1)
		require.Equal(t, store.Expired, dead[0].Cause)
	})
}

// Later messages of a key wait for the message that is snoozed, and other keys do not.
func TestWithOrdered_Snooze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delivery.NewQueue[job](memory.Open(), "jobs", delivery.WithOrdered(), noLog)
		for _, id := range []string{"first", "second"} {
			require.NoError(t, q.Put(t.Context(), job(id), delivery.ID(id), delivery.Key("k")))
		}
		require.NoError(t, q.Put(t.Context(), "other", delivery.Key("o")))
		calls := 0
		visits := inOrder(t, q, 24*time.Hour, func(_ context.Context, j job) error {
			if j == "first" {
				calls++
				if calls < 3 {
					return predicates.WithSnooze(errShopClosed, time.Hour)
				}
			}
			return nil
		})
		require.ElementsMatch(t, []string{"first", "other"}, visits[:2])
		require.Equal(t, []string{"first", "first", "second"}, visits[2:])
	})
}

// Law D5: snoozed messages are not evidence for the flood guard.
func TestWithFloodGuard_Snooze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[job](engine, "jobs", noLog)
		const n = 500
		for i := range n {
			require.NoError(t, q.Put(t.Context(), job(fmt.Sprint(i))))
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		summary, err := delivery.Run(ctx, q, operate(q, func(context.Context, job) (string, error) {
			return "", predicates.WithSnooze(errShopClosed, time.Hour)
		}), sinkFunc(func(context.Context, []message.Message[string]) error { return nil }), silently)
		require.NoError(t, err)
		require.Equal(t, n, summary.Released)
		require.Equal(t, n, summary.Received)
		require.Zero(t, summary.Floods)
		require.Len(t, entriesOf(t, engine, "jobs"), n)
	})
}

// Law W5: a message that was purged while its call ran is not stored again by a snooze.
func TestWithSnooze_Purged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[job](engine, "jobs", noLog)
		require.NoError(t, q.Put(t.Context(), "a"))
		visits := inOrder(t, q, 24*time.Hour, func(ctx context.Context, _ job) error {
			entries := entriesOf(t, engine, "jobs")
			assert.NoError(t, engine.Update(ctx, func(ctx context.Context, tx store.Tx) error {
				_, err := tx.Edit(ctx, store.Edit{Do: store.Purge, Queue: "jobs", Entry: entries[0]})
				return err
			}))
			return predicates.WithSnooze(errShopClosed, time.Hour)
		})
		require.Len(t, visits, 1)
		require.Empty(t, entriesOf(t, engine, "jobs"))
	})
}
