package jobs_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// hanging is an engine whose counts do not return while hangs is set, and fail while
// fails is.
type hanging struct {
	*memory.Engine
	hangs, fails atomic.Bool
}

var errCount = errors.New("the index is damaged")

func (h *hanging) Count(ctx context.Context, queue string, f store.Filter) (store.Counts, error) {
	if h.fails.Load() {
		return store.Counts{}, errCount
	}
	if h.hangs.Load() {
		<-ctx.Done()
		return store.Counts{}, ctx.Err()
	}
	return h.Engine.Count(ctx, queue, f)
}

// Start does not wait longer than CountTime for a count. The job leaves alone the
// messages that are put later, and counts its messages when it runs.
func TestConfig_CountTime(t *testing.T) {
	for name, tt := range map[string]struct {
		spec  jobs.Spec
		total int
		stay  string // in orders-dead
	}{
		"a purge":            {jobs.Spec{Do: store.Purge, Queue: "orders-dead"}, 3, "later"},
		"a filter":           {jobs.Spec{Do: store.Purge, Queue: "orders-dead", Filter: store.Filter{Key: "k"}}, 2, "b later"},
		"a few":              {jobs.Spec{Do: store.Purge, Queue: "orders-dead", Max: 1}, 3, "b c later"},
		"a cancel of a key":  {jobs.Spec{Do: store.Purge, Queue: "orders", Family: true, Filter: store.Filter{Key: "k"}}, 3, "b later"},
		"without dead ones":  {jobs.Spec{Do: store.Purge, Queue: "bills", Family: true, Filter: store.Filter{Key: "k"}}, 0, "a b c later"},
		"of an empty queue":  {jobs.Spec{Do: store.Purge, Queue: "bills-dead"}, 0, "a b c later"},
		"that matches none":  {jobs.Spec{Do: store.Purge, Queue: "orders-dead", Filter: store.Filter{Key: "x"}}, 0, "a b c later"},
		"messages made due":  {jobs.Spec{Do: store.Due, Queue: "orders-dead"}, 3, "a b c later"},
		"messages sent back": {jobs.Spec{Do: store.Merge, Queue: "orders-dead", To: "orders"}, 3, "later"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &hanging{Engine: memory.Open()}
				require.NoError(t, e.Put(t.Context(), "orders-dead", ofKey("a", "k"), ofKey("b", ""), ofKey("c", "k")))
				require.NoError(t, e.Put(t.Context(), "orders", ofKey("waits", "k")))
				j, err := jobs.New(e, jobs.Config{CountTime: 50 * time.Millisecond})
				require.NoError(t, err)
				tt.spec.By, tt.spec.Why = "ann", "test"
				e.hangs.Store(true)
				begun := time.Now()
				job, err := j.Start(t.Context(), tt.spec)
				require.NoError(t, err)
				require.Equal(t, 50*time.Millisecond, time.Since(begun))
				require.True(t, job.Uncounted)

				e.hangs.Store(false)
				require.NoError(t, e.Put(t.Context(), "orders-dead", ofKey("later", "")))
				job, err = j.Run(t.Context(), job.ID, nil)
				require.NoError(t, err)
				require.Equal(t, "done", job.State())
				require.False(t, job.Uncounted)
				require.GreaterOrEqual(t, job.Total, tt.total)
				require.LessOrEqual(t, job.Total, tt.total+1, "the message that was put before the count")
				require.Equal(t, tt.stay, idsOf(t, e, "orders-dead"))
			})
		})
	}
}

// Start counts at once if that is fast, and reports the error of a count.
func TestConfig_CountTimeSuffices(t *testing.T) {
	e := &hanging{Engine: memory.Open()}
	require.NoError(t, e.Put(t.Context(), "orders-dead", letter(1)))
	j, err := jobs.New(e, jobs.Config{CountTime: time.Hour})
	require.NoError(t, err)
	job, err := j.Start(t.Context(), jobs.Spec{Do: store.Hold, Queue: "orders-dead", By: "ann", Why: "test"})
	require.NoError(t, err)
	require.Equal(t, []any{1, false}, []any{job.Total, job.Uncounted})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = j.Start(ctx, jobs.Spec{Do: store.Hold, Queue: "orders-dead", By: "ann", Why: "test"})
	require.ErrorIs(t, err, context.Canceled)
	e.fails.Store(true)
	_, err = j.Start(t.Context(), jobs.Spec{Do: store.Hold, Queue: "orders-dead", By: "ann", Why: "test"})
	require.ErrorIs(t, err, errCount)
	_, err = jobs.New(e, jobs.Config{CountTime: -1})
	require.EqualError(t, err, "jobs: CountTime -1ns is negative: use 0 for no limit")
}

// A job that is paused or cancelled while its messages are counted stays so, and changes
// no message.
func TestConfig_CountTime_StoppedWhileCounting(t *testing.T) {
	for _, isPause := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			e := &hanging{Engine: memory.Open()}
			require.NoError(t, e.Put(t.Context(), "orders-dead", ofKey("a", "k")))
			j, err := jobs.New(e, jobs.Config{CountTime: time.Second, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			e.hangs.Store(true)
			job, err := j.Start(t.Context(), jobs.Spec{Do: store.Purge, Queue: "orders-dead", By: "ann", Why: "test"})
			require.NoError(t, err)
			order := j.Cancel
			if isPause {
				order = j.Pause
			}
			time.AfterFunc(time.Minute, func() { _, _ = order(t.Context(), job.ID, "ann", "test") })
			job, err = j.Run(t.Context(), job.ID, nil)
			require.NoError(t, err)
			require.True(t, job.Uncounted)
			require.Equal(t, "a", idsOf(t, e, "orders-dead"))
			if isPause {
				e.hangs.Store(false)
				_, err = j.Resume(t.Context(), job.ID, "ann", "test")
				require.NoError(t, err)
				job, err = j.Run(t.Context(), job.ID, nil)
				require.NoError(t, err)
				require.Equal(t, []int{1, 1}, []int{job.Done, job.Total})
			}
		})
	}
}

// An engine that keeps no jobs finds the last position without claiming messages.
func TestConfig_CountTimeOfALocalEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &hanging{Engine: memory.Open()}
		require.NoError(t, e.Put(t.Context(), "orders-dead", letter(1), letter(2)))
		j, err := jobs.New(struct{ store.Inspector }{e}, jobs.Config{CountTime: time.Millisecond, Local: true})
		require.NoError(t, err)
		e.hangs.Store(true)
		job, err := j.Start(t.Context(), jobs.Spec{Do: store.Purge, Queue: "orders-dead", By: "ann", Why: "test"})
		require.NoError(t, err)
		e.hangs.Store(false)
		free, err := e.Claim(t.Context(), "orders-dead", store.Filter{}, store.Page{Max: 10}, time.Nanosecond)
		require.NoError(t, err)
		require.Len(t, free, 2)
		time.Sleep(time.Second)
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, []int{2, 2}, []int{job.Done, job.Total})
	})
}
