package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
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
