package delivery_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// An option with a wrong argument panics where it is written, with its name and the
// value.
func TestOptions_WrongArguments(t *testing.T) {
	for want, f := range map[string]func(){
		"delivery: WithClock: nil clock":                           func() { delivery.WithClock(nil) },
		"delivery: WithLogger: nil logger":                         func() { delivery.WithLogger(nil) },
		"delivery: WithCodec: nil codec":                           func() { delivery.WithCodec[int](nil) },
		"delivery: WithMonitor: nil monitor":                       func() { delivery.WithMonitor(nil) },
		"delivery: WithLease: a lease of 5ns is shorter than 1ms":  func() { delivery.WithLease(5) },
		"delivery: WithLease: a lease of -1ns is shorter than 1ms": func() { delivery.WithLease(-1) },
		"delivery: RetryAfter: delay 2 is 0s: want more than 0":    func() { delivery.RetryAfter(time.Second, 0) },
		"delivery: WithLayers: layer 1: {Delay:1ns Jitter:2 MaxConcurrent:0 Rate:0}: " +
			"want a positive Delay, no negative limit, and a Jitter from 0 to 1": func() { delivery.WithLayers(delivery.Layer{Delay: 1, Jitter: 2}) },
		"delivery: WithMaxDepth: 0 is less than 1: leave the option out for a queue without a bound": func() { delivery.WithMaxDepth(0) },
		"delivery: WithIdempotencyWindow: 0s is not positive: leave the option out if the service does not recognise ids": func() {
			delivery.WithIdempotencyWindow(0)
		},
		"delivery: WithFairByKey: -1 is negative: 0 means no limit":              func() { delivery.WithFairByKey(-1) },
		"delivery: WithBatch: 0 is less than 1":                                  func() { delivery.WithBatch(0) },
		"delivery: WithDrain: -1ns is negative: 0 releases all messages at once": func() { delivery.WithDrain(-1) },
	} {
		require.PanicsWithValue(t, want, f)
	}
	for _, f := range []func(){
		func() { delivery.WithFloodGuard(0, 100) },
		func() { delivery.WithFloodGuard(1.1, 100) },
		func() { delivery.WithFloodGuard(0.5, 0) },
	} {
		require.Panics(t, f)
	}
}

func TestNewQueue_NilOption(t *testing.T) {
	require.PanicsWithValue(t, "delivery: NewQueue: option 2 is nil", func() {
		delivery.NewQueue[int](memory.Open(), "q", noLog, nil)
	})
}

// Each message of a queue that is taken by key needs a key.
func TestWithFairByKey_MessageWithoutKey(t *testing.T) {
	q := delivery.NewQueue[int](memory.Open(), "q", delivery.WithFairByKey(0), noLog)
	require.ErrorIs(t, q.Put(t.Context(), 1), message.ErrRefused)
	require.NoError(t, q.Put(t.Context(), 1, delivery.Key("k")))
}

func TestRun_NilOption(t *testing.T) {
	op := operator(itoa)
	require.PanicsWithValue(t, "delivery: Run: option 1 is nil", func() {
		_, _ = delivery.Run(t.Context(), newList(1, false), op, &collected{}, nil)
	})
	require.NoError(t, op.Stop(t.Context()))
}

func TestWithCodec_TypeOfAnotherQueue(t *testing.T) {
	require.PanicsWithValue(t, `delivery: NewQueue: queue "q" has values of type int, and WithCodec a codec of string: give it a codec of int`,
		func() { delivery.NewQueue[int](memory.Open(), "q", delivery.WithCodec(codec.JSON[string]())) })
}

// The layers of several options are joined, and of other options the last one counts.
func TestWithLayersAndRetryAfter_SeveralOfAKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delivery.NewQueue[job](memory.Open(), "q", noLog, delivery.WithMaxDepth(5), delivery.RetryAfter(time.Minute),
			delivery.WithLayers(delivery.Layer{Delay: time.Hour}), delivery.WithMaxDepth(1))
		require.NoError(t, q.Put(t.Context(), "a", delivery.ID("a")))
		require.ErrorIs(t, q.Put(t.Context(), "b", delivery.ID("b")), store.ErrFull)
		var visits []time.Duration
		begun := time.Now()
		inOrder(t, q, 3*time.Hour, func(context.Context, job) error {
			visits = append(visits, time.Since(begun).Truncate(30*time.Minute))
			return errBusy
		})
		require.Equal(t, []time.Duration{0, 0, time.Hour}, visits)
	})
}

// One option serves a queue and its worker.
func TestWithLogger_QueueAndRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := delivery.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
		engine := memory.Open()
		require.NoError(t, delivery.NewQueue[string](engine, "q", noLog).Put(t.Context(), "not a number"))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := delivery.Run(ctx, delivery.NewQueue[int](engine, "q", logger), operator(itoa), &collected{}, logger)
		require.NoError(t, err)
		require.Contains(t, log.String(), "a message cannot be decoded and goes to the dead letters")
		require.Contains(t, log.String(), "the worker has ended")
	})
}

// Both a queue and a worker use the clock of the same option.
func TestWithClock_QueueEncodeAndRun(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	now := delivery.WithClock(mock)
	q := delivery.NewQueue[int](memory.Open(), "q", noLog, now)
	m, err := q.Encode(1, delivery.At(mock.Now().Add(time.Hour)))
	require.NoError(t, err)
	require.Equal(t, time.Hour, m.Delay)
	summary, err := delivery.Run(t.Context(), newList(3, false), operator(itoa), &collected{}, silently, now)
	require.NoError(t, err)
	require.Equal(t, 3, summary.Done)
	require.Zero(t, summary.Elapsed, "the clock of the worker stands still")
}
