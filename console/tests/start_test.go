package tests

import (
	"context"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// The start of an action on a long queue does not wait for its count: the job counts the
// messages when it runs. It affects the messages that the page before it was about.
func TestStart_QueueThatTakesLongToCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &counting{Engine: memory.Open(), slow: "orders-dead", takes: time.Millisecond}
		putLong(t, e)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet, Authorize: role(console.Actor, "ann")})
		require.NoError(t, err)
		page(t, h, "/") // the first look waits for the count
		html := page(t, h, "/start?do=merge&queue=orders-dead&to=orders")
		time.Sleep(time.Second)
		require.NoError(t, e.Put(t.Context(), "orders-dead", store.Message{Meta: message.Meta{ID: "later"}, Cause: store.Exhausted}))
		begun := time.Now()
		w := submitted(t, h, html, "/start", url.Values{"to": {"orders"}, "new": {"yes"}, "why": {"test"}, "max": {"0"}})
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
		require.LessOrEqual(t, time.Since(begun), 300*time.Millisecond)
		require.Contains(t, page(t, h, w.Header().Get("Location")), "running: 0 done, and all are counted when it runs")
		require.Contains(t, page(t, h, "/jobs"), `data-l="Of">–<`)

		j, err := jobs.New(e, jobs.Config{Logger: quiet})
		require.NoError(t, err)
		_, err = j.Pause(t.Context(), 1, "ann", "test")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Contains(t, page(t, h, "/"), "Job 1 is paused: 0 done, and all are counted when it runs.")
		e.hang("")
		_, err = j.Resume(t.Context(), 1, "ann", "test")
		require.NoError(t, err)
		job := awaitEnd(t, e, 1)
		require.Equal(t, []int{20_000, 19_984, 16}, []int{job.Total, job.Done, job.Unsafe})
		require.Contains(t, page(t, h, "/job?id=1"), "done: 19,984 of 20,000 done")
		cancel()
	})
}
