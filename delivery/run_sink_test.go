package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// later is a source whose first Receives return their messages at set times.
type later struct {
	list  *list
	begun time.Time
	at    []time.Duration // of the i-th Receive
	i     int
}

func (l *later) Receive(ctx context.Context, n int) ([]message.Message[int], error) {
	if l.i == len(l.at) {
		return l.list.Receive(ctx, n) // ends when all are settled
	}
	select {
	case <-time.After(time.Until(l.begun.Add(l.at[l.i]))):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.i++
	if l.i == 1 {
		return l.list.Receive(ctx, 20)
	}
	return l.list.Receive(ctx, 1)
}
func (l *later) Close(ctx context.Context) error { return l.list.Close(ctx) }

// Law D5: a result is not rejected because of an outage. The sink refuses it, is down for
// 19 s, takes another result, refuses it again, and is down for an hour. The errors of the
// first outage do not show that the sink was up.
func TestRun_SinkRefusesAResultBetweenOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		source := &later{list: newList(21, false), begun: begun, at: []time.Duration{0, 21 * time.Second}}
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			since := time.Since(begun)
			if since >= time.Second && since < 20*time.Second || since > 40*time.Second && since < time.Hour {
				return errors.New("connection refused")
			}
			if since < time.Hour && slices.ContainsFunc(ms, func(m message.Message[string]) bool { return m.Value == "7" }) {
				return fmt.Errorf("row 7 conflicts with transaction %d", since)
			}
			return nil
		})
		summary, err := delivery.Run(t.Context(), source, operator(itoa), sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 21, Done: 21}, withoutTime(summary))
	})
}

// Law W2: the sink refuses a result forever, which is the last one after an outage.
func TestRun_SinkRefusesTheLastResultAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		source := &later{list: newList(21, false), begun: begun, at: []time.Duration{0, 21 * time.Second}}
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			since := time.Since(begun)
			if since >= time.Second && since < 20*time.Second {
				return errors.New("connection refused")
			}
			if slices.ContainsFunc(ms, func(m message.Message[string]) bool { return m.Value == "7" }) {
				return errors.New("row 7 is too long")
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		summary, err := delivery.Run(ctx, source, operator(itoa), sink, silently)
		require.NoError(t, err)
		require.Less(t, time.Since(begun), 5*time.Minute)
		require.Equal(t, delivery.Summary{Received: 21, Done: 20, Rejected: 1}, withoutTime(summary))
	})
}

// Law W2: the first put of a result times out while the sink takes others. Then the sink
// refuses it for another reason, and there are no other results. Its tries count after an
// hour.
func TestRun_SinkRefusesTheLastResultAfterATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, begun := newList(20, false), time.Now()
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			if !slices.ContainsFunc(ms, func(m message.Message[string]) bool { return m.Value == "7" }) {
				return nil
			}
			if time.Since(begun) < 50*time.Millisecond {
				return context.DeadlineExceeded
			}
			return errors.New("row 7 violates the check constraint")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		summary, err := delivery.Run(ctx, source, operator(itoa), sink, silently)
		require.NoError(t, err)
		require.Greater(t, time.Since(begun), time.Hour)
		require.Less(t, time.Since(begun), 2*time.Hour)
		require.Equal(t, delivery.Summary{Received: 20, Done: 19, Rejected: 1}, withoutTime(summary))
	})
}

// purgedAt is the delivery of a message that is purged at a time.
type purgedAt struct {
	message.Delivery
	at time.Time
}

func (d purgedAt) IsPurged() bool { return !time.Now().Before(d.at) }
func (purgedAt) Provider() string { return "" }

// Regression (law D5): in an outage of the sink, the purge of a message counted as a
// result that the sink had taken. So the tries of the others counted, and after ten tries
// their messages were rejected.
func TestRun_PurgeInAnOutageOfTheSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		source := newList(3, false)
		source.deliveryOf = func(i int) message.Delivery {
			if i == 1 {
				return purgedAt{at: begun.Add(50 * time.Millisecond)}
			}
			return nil
		}
		var stored []string
		sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
			if time.Since(begun) < 30*time.Minute {
				return errors.New("connection refused")
			}
			for _, m := range ms {
				stored = append(stored, m.Value)
			}
			return nil
		})
		summary, err := delivery.Run(t.Context(), source, operator(itoa), sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 3, Done: 2, Purged: 1}, withoutTime(summary))
		require.ElementsMatch(t, []string{"0", "2"}, stored)
	})
}

// unreachable is an engine that cannot put messages until a time.
type unreachable struct {
	*memory.Engine
	until time.Time
}

func (u unreachable) Put(ctx context.Context, queue string, ms ...store.Message) error {
	if time.Now().Before(u.until) {
		return errors.New("connection refused")
	}
	return u.Engine.Put(ctx, queue, ms...)
}

// Regression (law D5): in an outage of its engine, a queue still rejected the results that
// its codec cannot encode. These counted as results that the queue had taken, so the
// messages of other results were rejected after ten tries.
func TestRun_QueueRejectsResultsInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		engine := unreachable{memory.Open(), begun.Add(30 * time.Minute)}
		even := codec.Func(func(dst []byte, v string) ([]byte, error) {
			if strings.ContainsAny(v[len(v)-1:], "13579") {
				return nil, errors.New("it cannot be encoded")
			}
			return append(dst, v...), nil
		}, func(src []byte) (string, error) { return string(src), nil })
		results := delivery.NewQueue[string](engine, "results", delivery.WithCodec(even), noLog)
		source := &later{list: newList(60, false), begun: begun}
		for i := range 41 {
			source.at = append(source.at, time.Duration(i)*10*time.Second)
		}
		summary, err := delivery.Run(t.Context(), source, operator(itoa), results, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 60, Done: 30, Rejected: 30}, withoutTime(summary))
		require.Len(t, entriesOf(t, engine.Engine, "results"), 30)
	})
}

// A sink that refuses all results for good does not look like a sink that is down: the
// worker does not pause between them.
func TestRun_SinkRefusesAllResultsForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		sink := sinkFunc(func(context.Context, []message.Message[string]) error { return message.ErrRefused })
		summary, err := delivery.Run(t.Context(), newList(100, false), operator(itoa), sink, silently)
		require.NoError(t, err)
		require.Equal(t, delivery.Summary{Received: 100, Rejected: 100}, withoutTime(summary))
		require.Less(t, time.Since(begun), 100*time.Millisecond)
	})
}
