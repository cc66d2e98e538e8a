package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// Laws D4 and W2: a message that a trigger refuses delays no other message, and its
// handling ends.
func TestEngine_RefusedMessageDelaysNoOther(t *testing.T) {
	t.Parallel()
	for _, event := range []string{"INSERT", "DELETE", "UPDATE"} {
		t.Run(event, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer // read after the run
			e, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "queues.db"), sqlite.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			require.NoError(t, err)
			defer e.Close()
			const good = 100
			for i := range good + 1 {
				id := strconv.Itoa(i)
				if i == 20 {
					id = "bad"
				}
				require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: id}, Payload: []byte(strconv.Quote(id))}))
			}
			row := map[string]string{"INSERT": "NEW", "DELETE": "OLD", "UPDATE": "OLD"}[event]
			_, err = e.DB().Writer().ExecContext(t.Context(), "CREATE TRIGGER refuse BEFORE "+event+" ON weir_messages WHEN "+row+
				".meta->>'id' = 'bad' BEGIN SELECT RAISE(ABORT, 'not this one'); END")
			require.NoError(t, err)
			orders := delivery.NewQueue[string](e, "orders", delivery.RetryAfter(time.Hour), delivery.WithLogger(quiet))
			op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, id string) (string, error) {
				if id == "bad" && event == "INSERT" {
					return "", errors.New("no")
				}
				return id, nil
			}), time.Minute, 50, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(quiet))
			ctx, stop := context.WithCancel(t.Context())
			monitor := &delivery.Monitor{}
			ended := make(chan error, 1)
			go func() {
				_, err := delivery.Run(ctx, orders, op, acknowledge{}, delivery.WithLogger(quiet), delivery.WithMonitor(monitor))
				ended <- err
			}()
			require.Eventually(t, func() bool {
				left, err := e.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 100})
				require.NoError(t, err)
				parked := event == "UPDATE" || len(left) > 0 && left[0].Meta.Due.After(time.Now().AddDate(50, 0, 0))
				return len(left) == 1 && left[0].LeasedUntil.IsZero() && parked
			}, time.Minute, 10*time.Millisecond)
			require.NoError(t, monitor.Status().Err)
			stop()
			require.NoError(t, <-ended)
			if event == "UPDATE" { // it is never leased
				require.Equal(t, 1, strings.Count(log.String(), "refuses to lease a message"), log.String())
			} else {
				require.Positive(t, monitor.Status().SettlementsRefused)
			}
		})
	}
}

// Law D4: the database refuses messages while a limit by key is set. The other messages of
// their keys are taken, within the limit.
func TestEngineTakeByKey_RefusedWithALimit(t *testing.T) {
	var log bytes.Buffer
	e, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "queues.db"), sqlite.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	require.NoError(t, err)
	defer e.Close()
	for i := range 4 {
		for _, key := range []string{"a", "b", "c"} {
			id := key + strconv.Itoa(i)
			require.NoError(t, e.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: id, Key: key}}))
		}
	}
	_, err = e.DB().Writer().ExecContext(t.Context(), `CREATE TRIGGER refuse BEFORE UPDATE ON weir_messages WHEN OLD.meta->>'id' = 'b0'
		BEGIN SELECT RAISE(ABORT, 'not this one'); END`)
	require.NoError(t, err)
	var got []string
	for range 3 {
		taken, _, err := e.TakeByKey(t.Context(), "q", store.KeyRound{Each: 2, Limit: 2}, 10, time.Minute)
		require.NoError(t, err)
		for _, m := range taken {
			got = append(got, m.Meta.ID)
		}
	}
	slices.Sort(got)
	require.Equal(t, []string{"a0", "a1", "b1", "b2", "c0", "c1"}, got)
	require.Equal(t, 1, strings.Count(log.String(), "refuses to lease a message"), log.String())
	require.Contains(t, log.String(), "position=2", "the position of b0")
}
