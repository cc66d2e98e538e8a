package delivery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

// putUndecodable puts n messages that a queue of int cannot decode, each with a key.
func putUndecodable(t *testing.T, engine *memory.Engine, queue string, n int) {
	t.Helper()
	ms := make([]store.Message, n)
	for i := range ms {
		var err error
		ms[i], err = leases.Encode(codec.JSON[string](), "not a number", message.Meta{ID: fmt.Sprintf("bad-%d", i), Key: fmt.Sprintf("k%d", i)})
		require.NoError(t, err)
	}
	require.NoError(t, engine.Put(t.Context(), queue, ms...))
}

// Law D5. Regression: a worker whose type had changed made dead letters of the whole
// queue at once, with a log line each, and its summary was empty.
func TestWithFloodGuard_UndecodableMessages(t *testing.T) {
	for name, options := range map[string][]delivery.QueueOption{
		"no option":     nil,
		"RetryAfter":    {delivery.RetryAfter(time.Minute)},
		"WithFairByKey": {delivery.WithFairByKey(0)},
		"WithOrdered":   {delivery.WithOrdered()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 1500
				engine := memory.Open()
				putUndecodable(t, engine, "q", n)
				var log bytes.Buffer
				logger := delivery.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
				q := delivery.NewQueue[int](engine, "q", append(options, logger)...)
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second) // probes after 1, 3 and 7 s
				defer cancel()
				summary, err := delivery.Run(ctx, q, operator(itoa), &collected{}, logger)
				require.NoError(t, err)
				require.Equal(t, 1, summary.Floods)
				require.Equal(t, 51+3*10, summary.Rejected, "most of the window, and three probes")
				require.Equal(t, summary.Rejected, summary.Received)
				counts, err := q.Counts(t.Context())
				require.NoError(t, err)
				require.Equal(t, summary.Rejected, counts.Dead)
				require.Equal(t, n-summary.Rejected, counts.Waiting)
				require.Equal(t, 2, strings.Count(log.String(), "a message cannot be decoded"), log.String())
				require.Contains(t, log.String(), "id=bad-0")
				require.Contains(t, log.String(), fmt.Sprintf("failures=%d", summary.Rejected-1))
			})
		})
	}
}

// The worker resumes when it can decode the messages of a probe.
func TestWithFloodGuard_UndecodableMessagesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[int](engine, "q", noLog)
		putUndecodable(t, engine, "q", 100)
		for i := range 50 {
			require.NoError(t, q.Put(t.Context(), i))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		summary, err := delivery.Run(ctx, q, operator(itoa), &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, 1, summary.Floods)
		require.Equal(t, 100, summary.Rejected)
		require.Equal(t, 50, summary.Done)
		require.Equal(t, 150, summary.Received)
	})
}

// A few messages that cannot be decoded do not stop the worker.
func TestWithFloodGuard_FewUndecodableMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[int](engine, "q", noLog)
		for i := range 200 {
			require.NoError(t, q.Put(t.Context(), i))
		}
		putUndecodable(t, engine, "q", 40)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		summary, err := delivery.Run(ctx, q, operator(itoa), &collected{}, silently)
		require.NoError(t, err)
		require.Zero(t, summary.Floods)
		require.Equal(t, 40, summary.Rejected)
		require.Equal(t, 200, summary.Done)
	})
}

// lockedLog is a log that is read while it is written.
type lockedLog struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes.String()
}

// Similar messages share a log line, a minute after the first one, even if the queue is
// empty by then.
func TestRun_UndecodableMessagesInAnEmptyQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		putUndecodable(t, engine, "q", 10)
		log := &lockedLog{}
		logger := delivery.WithLogger(slog.New(slog.NewTextHandler(log, nil)))
		q := delivery.NewQueue[int](engine, "q", logger)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan delivery.Summary, 1)
		go func() { // ends with ctx
			summary, err := delivery.Run(ctx, q, operator(itoa), &collected{}, logger)
			assert.NoError(t, err)
			ran <- summary
		}()
		time.Sleep(59 * time.Second)
		synctest.Wait()
		require.NotContains(t, log.String(), "failures=")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Contains(t, log.String(), "failures=9")
		cancel()
		require.Equal(t, 10, (<-ran).Rejected)
	})
}

// A message whose workers have died is counted as well. It is not evidence of a fault of
// the program.
func TestRun_MessageWhoseWorkersHaveDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[int](engine, "q", noLog)
		require.NoError(t, q.Put(t.Context(), 1))
		for range 5 {
			taken, err := engine.Take(t.Context(), "q", 1, time.Second)
			require.NoError(t, err)
			require.Len(t, taken, 1)
			time.Sleep(2 * time.Second)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		summary, err := delivery.Run(ctx, q, operator(itoa), &collected{}, silently, delivery.WithFloodGuard(0.5, 1))
		require.NoError(t, err)
		require.Equal(t, 1, summary.Rejected)
		require.Equal(t, 1, summary.Received)
		require.Zero(t, summary.Floods)
	})
}

// If failed calls stop the worker while a Receive waits, the messages that come then stay
// in their queue.
func TestWithFloodGuard_UndecodableMessagesAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[int](engine, "q", noLog)
		for i := range 55 {
			require.NoError(t, q.Put(t.Context(), i))
		}
		op := operator(func(context.Context, int) (string, error) {
			time.Sleep(time.Second)
			return "", errors.New("the provider is down")
		})
		time.AfterFunc(10*time.Second, func() { putUndecodable(t, engine, "q", 10) }) // the last failures were after 6 s
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)               // one probe after 11 s
		defer cancel()
		summary, err := delivery.Run(ctx, q, op, &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, 1, summary.Floods)
		require.Equal(t, 55, summary.HandedOver)
		require.Equal(t, 10, summary.Rejected)
	})
}

// An engine without leases passes bytes, which the queue decodes.
func TestRun_UndecodableMessageOfAConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &topics{value: `"not a number"`}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		summary, err := delivery.Run(ctx, delivery.NewQueue[int](engine, "q", noLog), operator(itoa), &collected{}, silently)
		require.NoError(t, err)
		require.Len(t, engine.rejected, 1)
		require.Equal(t, 1, summary.Rejected)
		require.Equal(t, 1, summary.Received)
	})
}

// rejecting is a source that rejects messages itself, and whose Receive then ends slowly.
type rejecting struct {
	onReject func(meta message.Meta, err error) bool
	rejected int
}

func (r *rejecting) OnReject(f func(meta message.Meta, err error) bool) { r.onReject = f }

func (r *rejecting) Receive(ctx context.Context, _ int) ([]message.Message[int], error) {
	for ctx.Err() == nil {
		if r.onReject(message.Meta{ID: fmt.Sprint(r.rejected), Visit: 1}, decoder.Unreadable(errors.New("not a number"))) {
			r.rejected++
		}
	}
	time.Sleep(300 * time.Millisecond)
	return nil, context.Cause(ctx)
}

func (*rejecting) Close(context.Context) error { return nil }

// Regression: the log named the flood guard's stop of a Receive as a failure of the source
// if the run ended before the Receive had returned.
func TestWithFloodGuard_RunEndsBeforeTheReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		source := &rejecting{}
		summary, err := delivery.Run(ctx, source, operator(itoa), &collected{}, delivery.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, err)
		require.Equal(t, 1, summary.Floods)
		require.Equal(t, source.rejected, summary.Rejected)
		require.NotContains(t, log.String(), "the source has failed", log.String())
	})
}

// A message that has failed before, or has killed its workers, counts as rejected. The
// flood guard leaves it out, as the guard leaves out all messages that are not new.
func TestWithFloodGuard_RejectedMessagesThatAreNotNew(t *testing.T) {
	for name, visit := range map[string]int{"later visit": 2, "lapsed": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := decoder.Unreadable(errors.New("not a number"))
				if name == "lapsed" {
					err = settle.LapsedError(5)
				}
				source := &rejectingAll{visit: visit, err: err, n: 300}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				summary, runErr := delivery.Run(ctx, source, operator(itoa), &collected{}, silently)
				require.NoError(t, runErr)
				require.Zero(t, summary.Floods)
				require.Equal(t, 300, summary.Rejected)
			})
		})
	}
}

// rejectingAll is a source that rejects n messages.
type rejectingAll struct {
	rejecting
	visit, n int
	err      error
}

func (r *rejectingAll) Receive(ctx context.Context, _ int) ([]message.Message[int], error) {
	for ; r.n > 0; r.n-- {
		r.onReject(message.Meta{ID: fmt.Sprint(r.n), Visit: r.visit}, r.err)
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}
