package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/testing/golden"
	"github.com/weirflow/weir/message"
)

// working runs Work on an engine, in virtual time. It returns a function that returns the
// keys that Cancelled got since its last call, with their queues.
func working(t *testing.T, e store.Keeper, isBusy func() bool) (cancelled func() string) {
	t.Helper()
	var mu sync.Mutex // guards keys
	var keys []string
	j, err := jobs.New(e, jobs.Config{Busy: isBusy, Cancelled: func(queue, key string) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, queue+" "+key)
	}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, nil)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		got := strings.Join(keys, ", ")
		keys = nil
		return got
	}
}

// cancels cancels keys, and waits for the jobs.
func cancels(t *testing.T, e store.Keeper, queue string, keys ...string) {
	t.Helper()
	j, err := jobs.New(e, jobs.Config{})
	require.NoError(t, err)
	for _, key := range keys {
		require.NoError(t, e.Put(t.Context(), queue, ofKey("of "+key, key)))
		job, err := j.CancelKey(t.Context(), queue, key, "ann", "test")
		require.NoError(t, err)
		job, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
		require.Equal(t, 1, job.Done)
	}
}

func TestWork_CancelledKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := memory.Open()
		cancels(t, e, "orders", "before")
		cancelled := working(t, e, nil)
		require.Equal(t, "orders ", cancelled(), "the worker may have taken messages before it started")
		for _, key := range []string{"a", "b", "b"} {
			cancels(t, e, "orders", key)
			require.Equal(t, "orders "+key, cancelled())
		}
		cancels(t, e, "mails", "a\x00\u202e")
		require.Equal(t, "mails a\x00\u202e", cancelled())
		time.Sleep(time.Minute)
		require.Empty(t, cancelled())
		rs, err := e.Records(t.Context(), "cancelled", "", 10)
		require.NoError(t, err)
		require.Equal(t, `{"keys":[{"number":1,"key":"before"},{"number":2,"key":"a"},{"number":4,"key":"b"}]}`, rs[1].Value)
	})
}

// unwatched cannot announce changes.
type unwatched struct{ store.Keeper }

func (unwatched) Watch(context.Context, func()) error { return errors.ErrUnsupported }

// A worker that was idle, or that sees many keys at once, looks for all of its messages.
func TestWork_CancelledKeysWithoutAnnouncements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := unwatched{memory.Open()}
		var isBusy atomic.Bool
		cancelled := working(t, e, isBusy.Load)
		require.Empty(t, cancelled())
		var keys []string
		for i := range 40 {
			keys = append(keys, fmt.Sprint("key ", i))
		}
		cancels(t, e, "orders", keys...)
		time.Sleep(time.Minute)
		require.Empty(t, cancelled(), "an idle worker reads nothing")
		isBusy.Store(true)
		time.Sleep(time.Second)
		require.Equal(t, "orders ", cancelled())
		cancels(t, e, "orders", "a")
		time.Sleep(time.Second)
		require.Equal(t, "orders a", cancelled())
		rs, err := e.Records(t.Context(), "cancelled", "", 10)
		require.NoError(t, err)
		require.Equal(t, 16, strings.Count(rs[0].Value, "number"), "old keys are forgotten (law W3)")
	})
}

// limited refuses larger records, as a stream of JetStream with a small maximum.
type limited struct {
	*memory.Engine
	most int // bytes
}

func (l limited) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	return l.Engine.Update(ctx, func(ctx context.Context, tx store.Tx) error { return f(ctx, limitedTx{tx, l.most}) })
}

type limitedTx struct {
	store.Tx
	most int
}

func (l limitedTx) Write(ctx context.Context, r store.Record) error {
	if r.Kind == "cancelled" && len(r.Value) > l.most {
		return fmt.Errorf("%w: maximum message size", message.ErrRefused)
	}
	return l.Tx.Write(ctx, r)
}

// The messages are removed although the record of the cancelled keys does not fit.
func TestCancelKey_RecordThatIsTooLarge(t *testing.T) {
	for _, most := range []int{500, 1500, 8 << 10} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := limited{memory.Open(), most}
				cancelled := working(t, e, nil)
				require.Empty(t, cancelled())
				for i := range 16 {
					key := fmt.Sprint(strings.Repeat("k", 1000), i)
					cancels(t, e, "orders", key)
					require.Contains(t, []string{"orders ", "orders " + key}, cancelled())
				}
				require.Empty(t, idsOf(t, e, "orders"))
			})
		})
	}
}

// A worker that misses keys which the record no longer has looks for all of its messages.
func TestWork_CancelledKeysThatAreLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isBusy atomic.Bool
		isBusy.Store(true)
		e := unwatched{memory.Open()}
		cancelled := working(t, e, isBusy.Load)
		time.Sleep(time.Second)
		require.Empty(t, cancelled())
		isBusy.Store(false)
		time.Sleep(time.Second)
		for i := range 5 {
			cancels(t, e, "orders", fmt.Sprint(strings.Repeat("k", 1000), i))
		}
		require.Empty(t, cancelled())
		isBusy.Store(true)
		time.Sleep(time.Second)
		require.Equal(t, "orders ", cancelled())
		rs, err := e.Records(t.Context(), "cancelled", "", 10)
		require.NoError(t, err)
		require.LessOrEqual(t, len(rs[0].Value), 4096)
	})
}

// A record of a later version makes a worker look for all of its messages.
func TestWork_CancelledKeysOfALaterVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := memory.Open()
		cancelled := working(t, e, nil)
		require.Empty(t, cancelled())
		require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			tx.Announce()
			return tx.Write(ctx, store.Record{Kind: "cancelled", Name: "orders", Value: `["another format"]`})
		}))
		require.Equal(t, "orders ", cancelled())
	})
}

// forbidden is an engine whose user may not read which keys were cancelled.
type forbidden struct {
	store.Keeper
	reads atomic.Int64
}

func (f *forbidden) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	if kind != "cancelled" {
		return f.Keeper.Records(ctx, kind, after, limit)
	}
	f.reads.Add(1)
	return nil, guard.MarkPermanent(errors.New("no right to read"))
}

// A worker without the right to the records of jobs does not ask for them every second.
func TestWork_CancelledKeysThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &forbidden{Keeper: unwatched{memory.Open()}}
		j, err := jobs.New(e, jobs.Config{Cancelled: func(_, _ string) {}, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second) // ends between two reads
		defer cancel()
		j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, nil)
		require.GreaterOrEqual(t, e.reads.Load(), int64(2), "the right may be granted later")
		require.LessOrEqual(t, e.reads.Load(), int64(8), "by the worker, and by the poller of its process")
	})
}

func TestCancelKey_EngineWithoutJobs(t *testing.T) {
	j, err := jobs.New(struct{ store.Inspector }{memory.Open()}, jobs.Config{Local: true})
	require.NoError(t, err)
	_, err = j.CancelKey(t.Context(), "orders", "a", "ann", "test")
	require.ErrorContains(t, err, "it is not a store.Keeper. Use SQLite, PostgreSQL or JetStream")
}

// The record of the cancelled keys of a queue (law W4).
func TestFormatOfCancelledKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := memory.Open()
		cancels(t, e, "orders", "a", "b\x00ö")
		rs, err := e.Records(t.Context(), "cancelled", "", 10)
		require.NoError(t, err)
		require.Len(t, rs, 1)
		stored := golden.Written(t, "cancelled", []byte(rs[0].Value+"\n"))

		old := memory.Open()
		cancelled := working(t, old, nil)
		require.Empty(t, cancelled())
		require.NoError(t, old.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			tx.Announce()
			return tx.Write(ctx, store.Record{Kind: "cancelled", Name: "orders", Value: string(stored)})
		}))
		require.Equal(t, "orders a, orders b\x00ö", cancelled())
	})
}

func TestStart_FamilyWithoutAKey(t *testing.T) {
	j := jobsOf(t, memory.Open())
	_, err := j.Start(t.Context(), jobs.Spec{Do: store.Purge, Queue: "orders", Family: true, By: "ann", Why: "test"})
	require.EqualError(t, err, "jobs: Family is for the messages of a key, and Filter.Key is empty: set it to the key")
	_, same := j.CancelKey(t.Context(), "orders", "", "ann", "test")
	require.Equal(t, err, same)
}
