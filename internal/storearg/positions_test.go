package storearg_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// queue is a queue of messages in the order of their positions. It counts the calls of
// List, and the messages that these have compared with a filter of times.
type queue struct {
	store.Lister // nil
	entries      []store.Entry
	reads        int
	compared     int
}

func (q *queue) List(_ context.Context, _ string, f store.Filter, p store.Page) (list []store.Entry, err error) {
	q.reads++
	behind := sort.Search(len(q.entries), func(i int) bool { return q.entries[i].Position > p.After })
	for _, e := range q.entries[behind:] {
		if len(list) == p.Max || p.Until > 0 && e.Position > p.Until {
			break
		}
		if !f.Since.IsZero() {
			q.compared++
		}
		if f.Match(&e) {
			list = append(list, e)
		}
	}
	return list, nil
}

// newQueue returns messages of a day, whose order is wrong by up to disorder.
func newQueue(r *rand.Rand, n int, disorder time.Duration) *queue {
	q := &queue{}
	begun := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	position := int64(0)
	for i := range n {
		position += 1 + r.Int64N(10)
		at := begun.Add(time.Duration(i) * 24 * time.Hour / time.Duration(n))
		e := store.Entry{Position: position, Arrived: at.Add(-time.Duration(r.Int64N(int64(disorder) + 1)))}
		q.entries = append(q.entries, e)
	}
	return q
}

// All messages of a time lie between the positions, also if the clock of the engine was
// set back by up to a minute.
func TestArrivedBetween_NoMatchIsLost(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		q := newQueue(r, r.IntN(60), time.Minute)
		f := store.Filter{}
		day := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
		if r.IntN(3) > 0 {
			f.Since = day.Add(time.Duration(r.Int64N(int64(26*time.Hour))) - time.Hour)
		}
		if r.IntN(3) > 0 {
			f.Before = day.Add(time.Duration(r.Int64N(int64(26*time.Hour))) - time.Hour)
		}
		span, err := storearg.ArrivedBetween(t.Context(), q, "orders", f.Since, f.Before)
		require.NoError(t, err)
		for _, e := range q.entries {
			if f.Match(&e) {
				require.Less(t, span.After, e.Position)
				require.LessOrEqual(t, e.Position, span.Until)
			}
		}
		if f.Before.IsZero() {
			require.Equal(t, int64(math.MaxInt64), span.Until)
		}
	}
}

// The positions of an hour of a long queue are found with few reads, and there are few
// others between them.
func TestArrivedBetween_LongQueue(t *testing.T) {
	q := newQueue(rand.New(rand.NewPCG(1, 2)), 20_000, 0)
	since := time.Date(2026, 1, 2, 20, 0, 0, 0, time.UTC)
	span, err := storearg.ArrivedBetween(t.Context(), q, "orders", since, since.Add(time.Hour))
	require.NoError(t, err)
	require.LessOrEqual(t, q.reads, 100)
	between := 0
	for _, e := range q.entries {
		if e.Position > span.After && e.Position <= span.Until {
			between++
		}
	}
	require.InDelta(t, 62*20_000/(24*60), between, 2)

	// A day later, and a day earlier, there are no messages.
	span, err = storearg.ArrivedBetween(t.Context(), q, "orders", since.AddDate(0, 0, 1), time.Time{})
	require.NoError(t, err)
	require.Equal(t, storearg.Span{After: q.entries[len(q.entries)-1].Position, Until: math.MaxInt64}, span)
	span, err = storearg.ArrivedBetween(t.Context(), q, "orders", time.Time{}, since.AddDate(0, 0, -1))
	require.NoError(t, err)
	require.Equal(t, storearg.Span{Until: q.entries[0].Position - 1}, span)
}

// A message whose time is wrong does not hide the others: not even the first or the last
// one of the queue.
func TestArrivedBetween_WrongTime(t *testing.T) {
	day := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	for _, wrong := range []int{0, 1, 2, 998, 999} {
		for _, days := range []int{-2, 2} {
			q := newQueue(rand.New(rand.NewPCG(1, 2)), 1000, 0)
			q.entries[wrong].Arrived = day.AddDate(0, 0, days)
			span, err := storearg.ArrivedBetween(t.Context(), q, "orders", day.Add(6*time.Hour), day.Add(12*time.Hour))
			require.NoError(t, err)
			require.Less(t, span.After, q.entries[250].Position)
			require.Greater(t, span.Until, q.entries[499].Position)
		}
	}
}

// Messages of a time are read backward without most of the others.
func TestReadBackward_Times(t *testing.T) {
	q := newQueue(rand.New(rand.NewPCG(1, 2)), 20_000, 0)
	since := time.Date(2026, 1, 2, 20, 0, 0, 0, time.UTC)
	f := store.Filter{Since: since, Before: since.Add(time.Hour)}
	b := storearg.ReadBackward(q, "orders", f, store.Counts{})
	found, steps := 0, 0
	for !b.IsDone() {
		entries, err := b.Step(t.Context())
		require.NoError(t, err)
		found += len(entries)
		steps++
	}
	require.InDelta(t, 20_000/24, found, 1)
	require.LessOrEqual(t, steps, 20)
	require.LessOrEqual(t, q.compared, 3000)
}

func TestLastPosition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 50 {
		q := newQueue(r, n, 0)
		want := int64(0)
		if n > 0 {
			want = q.entries[n-1].Position
		}
		last, err := storearg.LastPosition(t.Context(), q, "orders")
		require.NoError(t, err)
		require.Equal(t, want, last)
	}
}
