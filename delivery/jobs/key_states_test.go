package jobs_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// report writes the reports of workers.
func report(t *testing.T, e *memory.Engine, workers ...jobs.Worker) {
	t.Helper()
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		for _, w := range workers {
			text, err := json.Marshal(w)
			require.NoError(t, err)
			err = tx.Write(ctx, store.Record{Kind: "worker", Name: w.ID, Value: string(text)})
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

func keysOf(list []jobs.KeyState) (keys []string) {
	for _, s := range list {
		keys = append(keys, s.Key)
	}
	return keys
}

func TestKeyStates(t *testing.T) {
	mock := clock.NewMock()
	e := memory.Open(memory.WithClock(mock))
	require.NoError(t, e.Put(t.Context(), "orders", ofKey("1", "busy"), ofKey("2", "busy"), ofKey("3", "down"), ofKey("4", "held")))
	require.NoError(t, e.Put(t.Context(), "orders-dead", ofKey("5", "held"), ofKey("6", "dead")))
	j, err := jobs.New(e, jobs.Config{Clock: mock})
	require.NoError(t, err)
	for _, key := range []string{"held", "idle"} {
		_, err = j.HoldKey(t.Context(), "orders", key, "ann", "they migrate")
		require.NoError(t, err)
	}
	require.NoError(t, e.Put(t.Context(), "mails", ofKey("7", "busy")))
	_, err = j.HoldKey(t.Context(), "mails", "busy", "bob", "spam")
	require.NoError(t, err)
	since := mock.Now().Add(-time.Minute).UTC()
	report(t, e,
		jobs.Worker{ID: "w1", Reads: "orders", Seen: mock.Now(), KeysDown: []jobs.KeyDown{{Key: "down", State: "down", Why: "503", Since: since}}},
		jobs.Worker{ID: "w2", Reads: "mails", Seen: mock.Now(), KeysDown: []jobs.KeyDown{{Key: "busy", State: "down", Since: since}}})

	list, err := j.KeyStates(t.Context(), "orders", jobs.KeyFilter{})
	require.NoError(t, err)
	require.Equal(t, []string{"held", "down", "idle", "busy", "dead"}, keysOf(list))
	require.Equal(t, "they migrate", list[0].Hold.Why)
	require.Equal(t, "ann", list[0].Hold.By)
	require.Nil(t, list[0].Down)
	require.Equal(t, store.KeyCounts{Key: "held", Waiting: 1, Dead: 1, Oldest: mock.Now(), Next: list[0].Next}, list[0].KeyCounts)
	require.Nil(t, list[1].Hold)
	require.Equal(t, &jobs.KeyDown{Key: "down", State: "down", Why: "503", Since: since, Queue: "orders", In: 1, Workers: 1}, list[1].Down)
	require.NotNil(t, list[2].Hold)
	require.Zero(t, list[2].Waiting)
	for _, s := range list[3:] {
		require.True(t, s.IsCalled(), s.Key)
	}
	for _, s := range list[:3] {
		require.False(t, s.IsCalled(), s.Key)
	}

	for _, test := range []struct {
		filter jobs.KeyFilter
		want   []string
	}{
		{jobs.KeyFilter{Max: 1}, []string{"held"}},
		{jobs.KeyFilter{Max: 2}, []string{"held", "down"}},
		{jobs.KeyFilter{Max: 3}, []string{"held", "down", "idle"}},
		{jobs.KeyFilter{Max: 4}, []string{"held", "down", "idle", "busy"}},
		{jobs.KeyFilter{Contains: "d"}, []string{"held", "down", "idle", "dead"}},
		{jobs.KeyFilter{Contains: "us"}, []string{"busy"}},
		{jobs.KeyFilter{Contains: "unknown"}, []string{}},
	} {
		list, err := j.KeyStates(t.Context(), "orders", test.filter)
		require.NoError(t, err)
		require.Equal(t, test.want, append([]string{}, keysOf(list)...), "%+v", test.filter)
	}
	_, err = j.KeyStates(t.Context(), "orders", jobs.KeyFilter{Max: -1})
	require.ErrorContains(t, err, "must not be negative")
}

// A key is down until its workers report that it is up, or are silent.
func TestKeysDown(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	down := func(key, state, why string, minutes int) jobs.KeyDown {
		return jobs.KeyDown{Key: key, State: state, Why: why, Since: now.Add(-time.Duration(minutes) * time.Minute)}
	}
	list := jobs.KeysDown([]jobs.Worker{
		{ID: "1", Reads: "orders", Seen: now, KeysDown: []jobs.KeyDown{down("a", "probing", "503", 2), down("b", "down", "504", 1)}},
		{ID: "2", Reads: "orders", Seen: now, KeysDown: []jobs.KeyDown{down("a", "down", "505", 1)}},
		{ID: "3", Reads: "orders", Seen: now},
		{ID: "4", Reads: "orders", Seen: now.Add(-2 * jobs.SilentAfter), KeysDown: []jobs.KeyDown{down("silent", "down", "503", 9)}},
		{ID: "5", Reads: "mails", Seen: now, KeysDown: []jobs.KeyDown{down("a", "held", "spam", 3)}},
		{ID: "6", Outbox: "outbox", Seen: now},
		{ID: "7", Reads: "around", ReadsFirst: []string{"first"}, Seen: now, KeysDown: []jobs.KeyDown{down("c", "down", "503", 1)}},
	}, now)
	a, b, mail := down("a", "down", "505", 2), down("b", "down", "504", 1), down("a", "held", "spam", 3)
	a.Queue, b.Queue, mail.Queue = "orders", "orders", "mails"
	a.In, b.In, mail.In = 2, 1, 1
	a.Workers, b.Workers, mail.Workers = 3, 3, 1
	around := down("c", "down", "503", 1)
	around.Queue, around.In, around.Workers = "around", 1, 1
	first := around
	first.Queue = "first"
	require.Equal(t, []jobs.KeyDown{around, first, mail, a, b}, list)
	require.Empty(t, jobs.KeysDown(nil, now))
}
