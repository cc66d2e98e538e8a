package jobs_test

import (
	"context"
	"io/fs"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/golden"
)

// Each order is in the log, and the log stays whole.
func TestJobs_PauseQueue(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(golden.At)
	j, err := jobs.New(memory.Open(memory.WithClock(mock)), jobs.Config{Clock: mock})
	require.NoError(t, err)
	paused, err := j.PauseQueue(t.Context(), "orders", "ann", "they migrate")
	require.NoError(t, err)
	require.Equal(t, jobs.QueueOrder{Queue: "orders", Event: "pause", Paused: true, By: "ann", Why: "they migrate", At: golden.At}, paused)
	_, err = j.PauseQueue(t.Context(), "orders", "bob", "it takes longer")
	require.NoError(t, err)
	_, err = j.PauseQueue(t.Context(), "mails", "bob", "the same")
	require.NoError(t, err)
	list, err := j.PausedQueues(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "mails", list[0].Queue)
	require.Equal(t, "bob", list[1].By)

	_, err = j.ResumeQueue(t.Context(), "orders", "ann", "done")
	require.NoError(t, err)
	_, err = j.ResumeQueue(t.Context(), "orders", "ann", "done")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.EqualError(t, err, `jobs: queue "orders" is not paused`)
	_, err = j.PauseQueue(t.Context(), "orders", "ann", "again")
	require.NoError(t, err)

	events := ""
	for line, err := range j.Log(t.Context()) {
		require.NoError(t, err)
		require.Nil(t, line.Backend)
		require.Zero(t, line.Job.ID)
		events += line.Event + " " + line.Queue.Queue + " " + line.By + "; "
	}
	require.Equal(t, "pause orders ann; pause orders bob; pause mails bob; resume orders ann; pause orders ann; ", events)
}

func TestJobs_PauseQueue_Refused(t *testing.T) {
	j, err := jobs.New(memory.Open(), jobs.Config{})
	require.NoError(t, err)
	for queue, want := range map[string]string{
		"orders-retry-1": `queue "orders-retry-1" belongs to queue "orders"`,
		"orders-dead":    `queue "orders-dead" belongs to queue "orders"`,
		"":               "no name",
	} {
		_, err := j.PauseQueue(t.Context(), queue, "ann", "why")
		require.ErrorContains(t, err, want)
	}
	_, err = j.PauseQueue(t.Context(), "orders", "", "why")
	require.ErrorContains(t, err, "who wants to pause")
	_, err = j.PauseQueue(t.Context(), "orders", "ann", "")
	require.ErrorContains(t, err, "who wants to pause")
	_, err = j.PauseQueue(t.Context(), "orders", "ann", "\xff")
	require.ErrorContains(t, err, "UTF-8")
	local, err := jobs.New(struct{ store.Inspector }{memory.Open()}, jobs.Config{Local: true})
	require.NoError(t, err)
	_, err = local.PauseQueue(t.Context(), "orders", "ann", "why")
	require.ErrorContains(t, err, "it is not a store.Keeper")
}

// Law W4: later versions read what this version has stored.
func TestQueueOrder_StoredNames(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.Write(ctx, store.Record{Kind: "paused", Name: "orders", Value: `{"queue":"orders","event":"pause","paused":true,"by":"ann","why":"they migrate","at":"2026-01-02T03:04:05Z","later":7}`})
	}))
	j, err := jobs.New(e, jobs.Config{})
	require.NoError(t, err)
	list, err := j.PausedQueues(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "ann", list[0].By)
	require.Equal(t, "they migrate", list[0].Why)
	require.Equal(t, "2026-01-02T03:04:05Z", list[0].At.Format(time.RFC3339))
	_, err = j.PauseQueue(t.Context(), "orders", "bob", "longer")
	require.NoError(t, err)
	rs, err := e.Records(t.Context(), "paused", "", 2)
	require.NoError(t, err)
	require.Len(t, rs, 1)
	require.Contains(t, rs[0].Value, `"queue":"orders","event":"pause","paused":true,"by":"bob","why":"longer","at":"`)
}

// Workers stay paused by an order that they cannot read, and people can remove it.
func TestJobs_PauseQueue_UnreadableRecord(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.Write(ctx, store.Record{Kind: "paused", Name: "orders", Value: "a later format"})
	}))
	j, err := jobs.New(e, jobs.Config{})
	require.NoError(t, err)
	list, err := j.PausedQueues(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.True(t, list[0].Paused)
	require.Contains(t, list[0].Why, "the order cannot be read")
	_, err = j.ResumeQueue(t.Context(), "orders", "ann", "nobody needs it")
	require.NoError(t, err)
	list, err = j.PausedQueues(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
}
