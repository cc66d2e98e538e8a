package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
)

var errTest = errors.New("no such card")

// settled returns a message and where its verdicts are noted.
func settled[T any](v T) (delivery.Message[T], *[]delivery.Verdict) {
	verdicts := new([]delivery.Verdict)
	meta := &delivery.Meta{ID: "orders/0/17", Key: "k"}
	return delivery.New(v, meta, func(v delivery.Verdict) { *verdicts = append(*verdicts, v) }), verdicts
}

var (
	acked    = delivery.Verdict{Kind: delivery.Acked}
	rejected = delivery.Verdict{Kind: delivery.Rejected, Err: errTest}
)

func nacked(d time.Duration) delivery.Verdict {
	return delivery.Verdict{Kind: delivery.Nacked, Delay: d}
}

// settle does what a verdict says.
func settle[T any](m delivery.Message[T], v delivery.Verdict) {
	switch v.Kind {
	case delivery.Acked:
		m.Ack()
	case delivery.Nacked:
		m.Nack(v.Delay)
	case delivery.Rejected:
		m.Reject(v.Err)
	}
}

// D2: the first verdict counts, on whichever copy.
func TestSettledOnce(t *testing.T) {
	for _, first := range []delivery.Verdict{acked, nacked(time.Second), rejected} {
		for _, second := range []delivery.Verdict{acked, nacked(0), rejected} {
			m, verdicts := settled(1)
			other := delivery.With(m, "other")
			require.True(t, m.Pending() && other.Pending())
			settle(m, first)
			require.False(t, m.Pending() || other.Pending())
			settle(m, second)
			settle(other, second)
			require.Equal(t, []delivery.Verdict{first}, *verdicts, "then %v", second)
		}
	}
	m, verdicts := settled(1)
	m.Nack(-time.Second)
	require.Equal(t, []delivery.Verdict{nacked(0)}, *verdicts)
	m, verdicts = settled(1)
	m.Reject(nil)
	require.EqualError(t, (*verdicts)[0].Err, "delivery: rejected without an error")
}

// D2, from many goroutines.
func TestSettledOnceFromManyGoroutines(t *testing.T) {
	for range 200 {
		var settles atomic.Int32
		m := delivery.New("", nil, func(delivery.Verdict) { settles.Add(1) })
		parts := delivery.Split(m, 1, 2, 3)
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() { settle(parts[i%3], []delivery.Verdict{acked, nacked(0), rejected}[i/4]) })
		}
		all.Wait()
		require.EqualValues(t, 1, settles.Load())
	}
}

// A message without an acknowledgement is one that nobody waits for.
func TestZeroMessage(t *testing.T) {
	history := delivery.New("a", &delivery.Meta{ID: "1"}, nil)
	for _, m := range []delivery.Message[string]{{}, {Value: "a"}, delivery.New("a", nil, nil), history} {
		require.False(t, m.Pending())
		m.Ack()
		m.Nack(time.Second)
		m.Reject(errTest)
		require.Equal(t, m.Meta(), delivery.With(m, 1).Meta())
		require.False(t, delivery.FindLost(m).Pending())
		parts := delivery.Split(m, 1, 2)
		require.Len(t, parts, 2)
		for i, part := range parts {
			require.Equal(t, i+1, part.Value)
			require.False(t, part.Pending())
			part.Nack(0)
		}
		require.Empty(t, delivery.Split[string, int](m))
	}
	require.Equal(t, "1", history.Meta().ID)
	require.Equal(t, "1#2", delivery.Split(history, 1, 2)[1].Meta().ID)
}

// D1: a whole is acknowledged behind all its parts, and one part that is not done has the whole delivered again.
func TestSplit(t *testing.T) {
	second := delivery.Verdict{Kind: delivery.Rejected, Err: errors.New("second")}
	for _, c := range []struct {
		parts []delivery.Verdict
		want  delivery.Verdict
	}{
		{[]delivery.Verdict{acked, acked, acked}, acked},
		{[]delivery.Verdict{acked, nacked(time.Second), acked}, nacked(time.Second)},
		{[]delivery.Verdict{nacked(0), acked}, nacked(0)},
		{[]delivery.Verdict{nacked(time.Second), nacked(time.Minute), nacked(0)}, nacked(time.Minute)},
		{[]delivery.Verdict{acked, rejected}, rejected},
		{[]delivery.Verdict{rejected, second, acked}, rejected},
		{[]delivery.Verdict{nacked(time.Second), rejected}, nacked(time.Second)},
		{[]delivery.Verdict{rejected, nacked(time.Second)}, nacked(time.Second)},
	} {
		m, verdicts := settled("whole")
		values := make([]int, len(c.parts))
		for i := range values {
			values[i] = i
		}
		parts := delivery.Split(m, values...)
		for i, part := range parts {
			require.Equal(t, i, part.Value)
			require.Empty(t, *verdicts, "%v", c.parts)
			settle(part, c.parts[i])
			settle(part, nacked(time.Hour))
		}
		require.Equal(t, []delivery.Verdict{c.want}, *verdicts, "%v", c.parts)
	}
}

func TestSplitIntoNoneAndOne(t *testing.T) {
	m, verdicts := settled("whole")
	require.Empty(t, delivery.Split[string, int](m))
	require.Equal(t, []delivery.Verdict{acked}, *verdicts)

	m, verdicts = settled("whole")
	one := delivery.Split(m, 5)
	require.Len(t, one, 1)
	require.Equal(t, "orders/0/17", one[0].Meta().ID)
	one[0].Nack(time.Second)
	require.Equal(t, []delivery.Verdict{nacked(time.Second)}, *verdicts)

	m, verdicts = settled("whole") // parts of what is settled already
	m.Ack()
	for _, part := range delivery.Split(m, 1, 2) {
		require.False(t, part.Pending())
		part.Nack(0)
	}
	require.Equal(t, []delivery.Verdict{acked}, *verdicts)
}

// D6: parts have ids of their own, and the rest of the history. Else a store would take the second part for the first.
func TestHistoryOfParts(t *testing.T) {
	m, _ := settled("whole")
	parts := delivery.Split(m, 1, 2)
	ids := []string{m.Meta().ID, parts[0].Meta().ID, parts[1].Meta().ID}
	for _, inner := range delivery.Split(parts[1], "a", "b") {
		require.Equal(t, "k", inner.Meta().Key)
		ids = append(ids, inner.Meta().ID, delivery.FindLost(inner).Meta().ID)
	}
	require.Equal(t, []string{
		"orders/0/17", "orders/0/17#1", "orders/0/17#2", "orders/0/17#2#1", "orders/0/17#2#1", "orders/0/17#2#2", "orders/0/17#2#2",
	}, ids)
	unnamed := delivery.Split(delivery.New(1, nil, func(delivery.Verdict) {}), 1, 2)
	require.Zero(t, unnamed[0].Meta())
}

// D1, D2: trees of parts against a model: settled once, when the last leaf is, and never acknowledged if one leaf was not.
func TestRandomTrees(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		m, verdicts := settled(0)
		leaves := []delivery.Message[int]{m}
		want, left := acked, 1
		for left > 0 {
			i := random.IntN(len(leaves))
			leaf := leaves[i]
			leaves = append(leaves[:i], leaves[i+1:]...)
			require.Empty(t, *verdicts)
			left--
			if n := random.IntN(4); n > 0 && left < 10 && random.IntN(2) == 0 {
				leaves = append(leaves, delivery.Split(leaf, make([]int, n)...)...)
				left += n
				continue
			}
			v := []delivery.Verdict{acked, acked, acked, nacked(time.Duration(random.IntN(5))), rejected}[random.IntN(5)]
			if v.Kind > want.Kind || v.Kind == want.Kind && v.Delay > want.Delay {
				want = v
			}
			settle(leaf, v)
		}
		require.Equal(t, []delivery.Verdict{want}, *verdicts, "seed %d", seed)
	}
}

func TestFromElement(t *testing.T) {
	type own struct{ delivery.Message[int] }
	m, verdicts := settled(5)
	for _, v := range []any{nil, 5, "a", (*delivery.Message[int])(nil), &m, own{m}, &own{m}, []delivery.Message[int]{m}} {
		_, ok := delivery.FromElement(v)
		require.False(t, ok, "%T", v)
	}
	got, ok := delivery.FromElement(m)
	require.True(t, ok)
	require.Equal(t, 5, got.Value)
	require.Equal(t, "orders/0/17", got.Meta().ID)
	again, ok := delivery.FromElement(got)
	require.True(t, ok)
	require.Equal(t, got, again)
	delivery.With(got, struct{}{}).Ack()
	require.Equal(t, []delivery.Verdict{acked}, *verdicts)

	none, ok := delivery.FromElement(delivery.Message[error]{})
	require.True(t, ok)
	require.Nil(t, none.Value)
}

// One handle, and nothing for a value in its place.
func TestCost(t *testing.T) {
	require.Equal(t, unsafe.Sizeof(uintptr(0)), unsafe.Sizeof(delivery.Message[struct{}]{}))
	require.Equal(t, 2*unsafe.Sizeof(uintptr(0)), unsafe.Sizeof(delivery.Message[uintptr]{}))
	m, _ := settled(5)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		s := delivery.With(m, "a")
		m = delivery.With(s, 5)
	}))
	element, values := any(m), []int{1, 2, 3, 4, 5, 6, 7, 8}
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { // small numbers are boxed for nothing
		if _, ok := delivery.FromElement(element); !ok {
			t.Fail()
		}
	}), 0.0)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { delivery.Split(m, values...) }), 3.0)
}

func TestVerdictString(t *testing.T) {
	for v, want := range map[delivery.Verdict]string{
		acked:       "acked",
		nacked(5e9): "nacked for 5s",
		nacked(0):   "nacked",
		rejected:    "rejected: no such card",
		{Kind: 7}:   "Kind(7)",
	} {
		assert.Equal(t, want, fmt.Sprint(v))
	}
}

func TestMetaInContext(t *testing.T) {
	_, ok := delivery.MetaFromContext(context.Background())
	require.False(t, ok)
	m, ok := delivery.MetaFromContext(delivery.ContextWithMeta(context.Background(), delivery.Meta{Visit: 2}))
	require.True(t, ok)
	require.Equal(t, 2, m.Visit)
}
