package jobs_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// moves takes the messages of a queue and moves them, as a worker does.
func moves(t *testing.T, e *memory.Engine, from, to string) {
	t.Helper()
	taken, err := e.Take(t.Context(), from, 100, time.Minute)
	require.NoError(t, err)
	require.NotEmpty(t, taken)
	for i := range taken {
		m := taken[i].Message
		m.Meta.Put = storearg.OriginOfPut(from, &m.Meta, taken[i].Position, taken[i].Lease.Entry)
		require.NoError(t, e.Move(t.Context(), store.Move{Lease: taken[i].Lease, Queue: to, Message: m}))
	}
}

// idsOf returns the ids of the messages of a queue.
func idsOf(t *testing.T, e store.Inspector, queue string) string {
	t.Helper()
	list, err := e.List(t.Context(), queue, store.Filter{}, store.Page{Max: 1000})
	require.NoError(t, err)
	var ids []string
	for i := range list {
		ids = append(ids, list[i].Meta.ID)
	}
	return strings.Join(ids, " ")
}

// pausedCancel starts to cancel the key c7 of orders, and pauses the job. end continues
// it.
func pausedCancel(t *testing.T, e store.Keeper) (end func() jobs.Job) {
	t.Helper()
	j, err := jobs.New(e, jobs.Config{})
	require.NoError(t, err)
	job, err := j.CancelKey(t.Context(), "orders", "c7", "ann", "left")
	require.NoError(t, err)
	_, err = j.Pause(t.Context(), job.ID, "ann", "wait")
	require.NoError(t, err)
	return func() jobs.Job {
		_, err := j.Resume(t.Context(), job.ID, "ann", "go")
		require.NoError(t, err)
		job, err := j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, "done", job.State())
		return job
	}
}

// puts puts a message of the key c7 in each of the queues.
func puts(t *testing.T, e store.Engine, prefix string, queues ...string) {
	t.Helper()
	for _, queue := range queues {
		require.NoError(t, e.Put(t.Context(), queue, ofKey(prefix+queue, "c7")))
	}
}

func TestCancelKey_MessagesPutLaterStay(t *testing.T) {
	e := memory.Open()
	queues := []string{"orders", "orders-blocked", "orders-retry-1", "orders-retry-2", "orders-dead"}
	puts(t, e, "old ", queues...)
	end := pausedCancel(t, e)
	puts(t, e, "new ", queues...)
	job := end()
	require.Equal(t, jobs.Progress{Done: 5}, job.Progress)
	for _, queue := range queues {
		require.Equal(t, "new "+queue, idsOf(t, e, queue))
	}
}

// Messages that were put before move on while the job is paused. So do later messages.
func TestCancelKey_MessagesThatMove(t *testing.T) {
	for _, to := range []string{"orders-blocked", "orders-retry-1", "orders-dead"} {
		t.Run(to, func(t *testing.T) {
			e := memory.Open()
			puts(t, e, "1 ", "orders")
			moves(t, e, "orders", "orders-retry-1") // the queue has no message when the job starts
			puts(t, e, "2 ", "orders-retry-1")      // as from a source that is not on this engine
			end := pausedCancel(t, e)
			moves(t, e, "orders-retry-1", "orders-retry-2")
			puts(t, e, "new ", "orders")
			moves(t, e, "orders", to)
			if to == "orders-retry-1" {
				moves(t, e, to, "orders-retry-2")
				to = "orders-retry-2"
			}
			require.Equal(t, 2, end().Done)
			require.Equal(t, "new orders", idsOf(t, e, to))
		})
	}
}

func TestCancelKey_MessageInFlightMoves(t *testing.T) {
	e := memory.Open()
	puts(t, e, "old ", "orders")
	end := pausedCancel(t, e)
	moves(t, e, "orders", "orders-dead")
	require.Equal(t, 1, end().Done)
	require.Empty(t, idsOf(t, e, "orders-dead"))
}

// Messages of a second stage keep the origins of their puts in the first stage.
func TestCancelKey_MessagesOfAnotherQueue(t *testing.T) {
	e := memory.Open()
	for i := range 3 {
		puts(t, e, fmt.Sprint(i, " "), "baskets")
	}
	moves(t, e, "baskets", "orders")
	end := pausedCancel(t, e)
	puts(t, e, "new ", "baskets")
	moves(t, e, "baskets", "orders")
	moves(t, e, "orders", "orders-retry-1")
	require.Equal(t, 3, end().Done)
	require.Equal(t, "new baskets", idsOf(t, e, "orders-retry-1"))
}

// listing is an engine that calls a function before each List of a queue.
type listing struct {
	*memory.Engine
	queue  string
	before func()
}

func (l *listing) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if queue == l.queue && l.before != nil {
		l.before()
	}
	return l.Engine.List(ctx, queue, f, p)
}

// A job ends although a message of the key reaches the queue in each of its steps.
func TestCancelKey_KeyThatFailsFasterThanAStep(t *testing.T) {
	const most = 50 // far more than the job lists a queue
	for _, queue := range []string{"orders", "orders-blocked", "orders-retry-1", "orders-dead"} {
		t.Run(queue, func(t *testing.T) {
			e := &listing{Engine: memory.Open(), queue: queue}
			puts(t, e, "old ", "orders", "orders-blocked", "orders-retry-1", "orders-dead")
			end := pausedCancel(t, e)
			later := 0
			e.before = func() {
				if later < most {
					puts(t, e, fmt.Sprint("new ", later, " "), queue)
					later++
				}
			}
			require.Equal(t, jobs.Progress{Done: 4}, end().Progress)
			require.Less(t, later, most)
			require.NotContains(t, idsOf(t, e.Engine, queue), "old")
		})
	}
}

// In an outage, a message returns to the last layer, or to the queue if it has no layers.
func TestCancelKey_MessageThatReturnsToItsQueue(t *testing.T) {
	for _, queue := range []string{"orders", "orders-retry-1"} {
		t.Run(queue, func(t *testing.T) {
			e := &listing{Engine: memory.Open(), queue: queue}
			puts(t, e, "old ", "orders")
			if queue != "orders" {
				moves(t, e.Engine, "orders", queue)
			}
			end := pausedCancel(t, e)
			e.before = func() {
				e.before = nil
				puts(t, e, "new ", queue)
				moves(t, e.Engine, queue, queue)
			}
			require.Equal(t, 1, end().Done)
			require.Equal(t, "new "+queue, idsOf(t, e.Engine, queue))
		})
	}
}

// The results of a message have ids with numbers, and the origin of the message.
func TestCancelKey_ResultsOfAMessage(t *testing.T) {
	e := memory.Open()
	put := func(id, origin string) {
		m := ofKey(id, "c7")
		m.Meta.Put = origin
		require.NoError(t, e.Put(t.Context(), "orders-retry-1", m))
	}
	put("old#1", "baskets//17")
	put("old#2", "baskets//17")
	end := pausedCancel(t, e)
	put("new#1", "baskets//18")
	moves(t, e, "orders-retry-1", "orders-retry-2")
	require.Equal(t, 2, end().Done)
	require.Equal(t, "new#1", idsOf(t, e, "orders-retry-2"))
}

// Regression: a page of large messages ends before it has the number of messages that was
// asked for. The messages behind it stayed.
func TestCancelKey_LargeMessages(t *testing.T) {
	e := memory.Open()
	for i := range 20 {
		m := ofKey(fmt.Sprint(i), "c7")
		m.Payload = make([]byte, 1<<20)
		require.NoError(t, e.Put(t.Context(), "orders", m))
	}
	require.Equal(t, jobs.Progress{Done: 20}, pausedCancel(t, e)().Progress)
	require.Empty(t, idsOf(t, e, "orders"))
}

func TestCancelKey_ManyOrigins(t *testing.T) {
	e := memory.Open()
	for i := range 101 {
		puts(t, e, "", fmt.Sprint("source", i))
		moves(t, e, fmt.Sprint("source", i), "orders")
		_, err := jobsOf(t, e).CancelKey(t.Context(), "orders", "c7", "ann", "left")
		if i < 100 {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, `jobs: the messages of key "c7" of queue "orders" come from more than 100 sources, so it would not be known `+
			`whether a message that moves was put before: purge the queue, its layers and its dead letters one after another, with a filter of the key`)
	}
}
