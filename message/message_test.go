package message_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/message"
)

var errTest = errors.New("no such card")

// settled returns a message, and the list of its settlements.
func settled[T any](v T) (message.Message[T], *[]message.Settlement) {
	settlements := new([]message.Settlement)
	meta := &message.Meta{ID: "orders/0/17", Key: "k"}
	return message.New(v, meta, func(v message.Settlement) { *settlements = append(*settlements, v) }), settlements
}

var (
	done     = message.Settlement{Kind: message.Done}
	handed   = message.Settlement{Kind: message.HandedOver, Err: errTest}
	rejected = message.Settlement{Kind: message.Rejected, Err: errTest}

	rejectedInDoubt = message.Settlement{Kind: message.Rejected, Err: errTest, UnsafeToRepeat: true}
)

func failed(d time.Duration) message.Settlement {
	return message.Settlement{Kind: message.Failed, Delay: d}
}

func released(d time.Duration) message.Settlement {
	return message.Settlement{Kind: message.Released, Delay: d}
}

// settle settles m by the method for v, if there is one.
func settle[T any](m message.Message[T], v message.Settlement) {
	switch v.Kind {
	case message.Done:
		m.Ack()
	case message.Failed:
		m.Nack(v.Delay)
	case message.Rejected:
		m.Reject(v.Err)
	case message.Released:
		if v.Delay == 0 {
			m.Release()
		} else {
			m.Settle(v)
		}
	case message.HandedOver:
		m.Settle(v)
	}
}

// D2: the first settlement counts, on whichever copy.
func TestAckNackRejectReleaseSettle_FirstCounts(t *testing.T) {
	for _, first := range []message.Settlement{done, failed(time.Second), rejected, released(0), handed} {
		for _, second := range []message.Settlement{done, failed(0), rejected, released(0), handed} {
			m, settlements := settled(1)
			other := message.With(m, "other")
			require.True(t, m.Pending() && other.Pending())
			settle(m, first)
			require.False(t, m.Pending() || other.Pending())
			require.Equal(t, first.Kind == message.Rejected, other.IsRejected())
			settle(m, second)
			settle(other, second)
			require.Equal(t, []message.Settlement{first}, *settlements, "then %v", second)
			require.Equal(t, first.Kind == message.Rejected, m.IsRejected())
		}
	}
	m, settlements := settled(1)
	m.Nack(-time.Second)
	require.Equal(t, []message.Settlement{failed(0)}, *settlements)
	m, settlements = settled(1)
	m.Reject(nil)
	require.EqualError(t, (*settlements)[0].Err, "delivery: rejected without an error")
}

// D2, from many goroutines.
func TestSettledOnceFromManyGoroutines(t *testing.T) {
	for range 200 {
		var settles atomic.Int32
		m := message.New("", nil, func(message.Settlement) { settles.Add(1) })
		parts := message.Split(m, 1, 2, 3)
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() { settle(parts[i%3], []message.Settlement{done, failed(0), rejected}[i/4]) })
		}
		all.Wait()
		require.EqualValues(t, 1, settles.Load())
	}
}

// A message without an acknowledgement is never pending.
func TestZeroMessage(t *testing.T) {
	history := message.New("a", &message.Meta{ID: "1"}, nil)
	for _, m := range []message.Message[string]{{}, {Value: "a"}, message.New("a", nil, nil), history} {
		require.False(t, m.Pending())
		m.Ack()
		m.Nack(time.Second)
		m.Reject(errTest)
		require.False(t, m.IsRejected())
		require.Equal(t, m.Meta(), message.With(m, 1).Meta())
		require.False(t, message.FindLost(m).Pending())
		parts := message.Split(m, 1, 2)
		require.Len(t, parts, 2)
		for i, part := range parts {
			require.Equal(t, i+1, part.Value)
			require.False(t, part.Pending())
			part.Nack(0)
		}
		require.Empty(t, message.Split[string, int](m))
	}
	require.Equal(t, "1", history.Meta().ID)
	require.Equal(t, "1#2", message.Split(history, 1, 2)[1].Meta().ID)
}

// D1: a whole is acknowledged behind all its parts, and one part that is not done has the
// whole delivered again.
func TestSplit(t *testing.T) {
	second := message.Settlement{Kind: message.Rejected, Err: errors.New("second")}
	for _, c := range []struct {
		parts []message.Settlement
		want  message.Settlement
	}{
		{[]message.Settlement{done, done, done}, done},
		{[]message.Settlement{done, failed(time.Second), done}, failed(time.Second)},
		{[]message.Settlement{failed(0), done}, failed(0)},
		{[]message.Settlement{failed(time.Second), failed(time.Minute), failed(0)}, failed(time.Minute)},
		{[]message.Settlement{done, rejected}, rejected},
		{[]message.Settlement{rejected, second, done}, rejected},
		{[]message.Settlement{failed(time.Second), rejected}, failed(time.Second)},
		{[]message.Settlement{rejected, failed(time.Second)}, failed(time.Second)},
		{[]message.Settlement{done, handed, done}, handed},
		{[]message.Settlement{handed, rejected}, rejectedInDoubt},
		{[]message.Settlement{rejected, done, handed}, rejectedInDoubt},
		{[]message.Settlement{handed, done, rejected, second}, rejectedInDoubt},
		{[]message.Settlement{rejected, released(time.Second)}, released(time.Second)},
		{[]message.Settlement{failed(time.Second), released(time.Minute)}, failed(time.Minute)},
	} {
		m, settlements := settled("whole")
		values := make([]int, len(c.parts))
		for i := range values {
			values[i] = i
		}
		parts := message.Split(m, values...)
		for i, part := range parts {
			require.Equal(t, i, part.Value)
			require.Empty(t, *settlements, "%v", c.parts)
			settle(part, c.parts[i])
			settle(part, failed(time.Hour))
		}
		require.Equal(t, []message.Settlement{c.want}, *settlements, "%v", c.parts)
	}
}

func TestSplitIntoNoneAndOne(t *testing.T) {
	m, settlements := settled("whole")
	require.Empty(t, message.Split[string, int](m))
	require.Equal(t, []message.Settlement{done}, *settlements)

	m, settlements = settled("whole")
	one := message.Split(m, 5)
	require.Len(t, one, 1)
	require.Equal(t, "orders/0/17", one[0].Meta().ID)
	one[0].Nack(time.Second)
	require.Equal(t, []message.Settlement{failed(time.Second)}, *settlements)

	m, settlements = settled("whole") // parts of a settled message
	m.Ack()
	for _, part := range message.Split(m, 1, 2) {
		require.False(t, part.Pending())
		part.Nack(0)
	}
	require.Equal(t, []message.Settlement{done}, *settlements)
}

// D6: parts have ids of their own, and the rest of the history. Else a store would take
// the second part for the first.
func TestHistoryOfParts(t *testing.T) {
	m, _ := settled("whole")
	parts := message.Split(m, 1, 2)
	ids := []string{m.Meta().ID, parts[0].Meta().ID, parts[1].Meta().ID}
	for _, inner := range message.Split(parts[1], "a", "b") {
		require.Equal(t, "k", inner.Meta().Key)
		ids = append(ids, inner.Meta().ID, message.FindLost(inner).Meta().ID)
	}
	require.Equal(t, []string{
		"orders/0/17", "orders/0/17#1", "orders/0/17#2", "orders/0/17#2#1", "orders/0/17#2#1", "orders/0/17#2#2", "orders/0/17#2#2",
	}, ids)
	unnamed := message.Split(message.New(1, nil, func(message.Settlement) {}), 1, 2)
	require.Zero(t, unnamed[0].Meta())
}

// ranks are the kinds in the order in which the settlement of a part decides about its
// whole.
var ranks = []message.Kind{message.Done, message.HandedOver, message.Rejected, message.Released, message.Failed}

// D1, D2: trees of parts against a model: settled once, when the last leaf is, and never
// done if one leaf is not.
func TestRandomTrees(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		m, settlements := settled(0)
		leaves := []message.Message[int]{m}
		want, left := done, 1
		handsOver := false
		for left > 0 {
			i := random.IntN(len(leaves))
			leaf := leaves[i]
			leaves = append(leaves[:i], leaves[i+1:]...)
			require.Empty(t, *settlements)
			left--
			if n := random.IntN(4); n > 0 && left < 10 && random.IntN(2) == 0 {
				leaves = append(leaves, message.Split(leaf, make([]int, n)...)...)
				left += n
				continue
			}
			delay := time.Duration(random.IntN(5))
			v := []message.Settlement{done, done, done, handed, failed(delay), released(delay), rejected}[random.IntN(7)]
			longest := max(want.Delay, v.Delay)
			if slices.Index(ranks, v.Kind) > slices.Index(ranks, want.Kind) {
				want = v
			}
			want.Delay = longest
			handsOver = handsOver || v.Kind == message.HandedOver
			settle(leaf, v)
		}
		want.UnsafeToRepeat = want.Kind == message.Rejected && handsOver
		require.Equal(t, []message.Settlement{want}, *settlements, "seed %d", seed)
	}
}

func TestFromElement(t *testing.T) {
	type own struct{ message.Message[int] }
	m, settlements := settled(5)
	for _, v := range []any{nil, 5, "a", (*message.Message[int])(nil), &m, own{m}, &own{m}, []message.Message[int]{m}} {
		_, ok := message.FromElement(v)
		require.False(t, ok, "%T", v)
	}
	got, ok := message.FromElement(m)
	require.True(t, ok)
	require.Equal(t, 5, got.Value)
	require.Equal(t, "orders/0/17", got.Meta().ID)
	again, ok := message.FromElement(got)
	require.True(t, ok)
	require.Equal(t, got, again)
	message.With(got, struct{}{}).Ack()
	require.Equal(t, []message.Settlement{done}, *settlements)

	none, ok := message.FromElement(message.Message[error]{})
	require.True(t, ok)
	require.Nil(t, none.Value)
}

// A message costs one pointer, and a new value in it does not allocate.
func TestWith_Cost(t *testing.T) {
	require.Equal(t, unsafe.Sizeof(uintptr(0)), unsafe.Sizeof(message.Message[struct{}]{}))
	require.Equal(t, 2*unsafe.Sizeof(uintptr(0)), unsafe.Sizeof(message.Message[uintptr]{}))
	m, _ := settled(5)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		s := message.With(m, "a")
		m = message.With(s, 5)
	}))
	element, values := any(m), []int{1, 2, 3, 4, 5, 6, 7, 8}
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { // small numbers are boxed without an allocation
		if _, ok := message.FromElement(element); !ok {
			t.Fail()
		}
	}), 0.0)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { message.Split(m, values...) }), 3.0)
}

func TestSettlement_String(t *testing.T) {
	for v, want := range map[message.Settlement]string{
		done:        "done",
		failed(5e9): "failed for 5s",
		failed(0):   "failed",
		rejected:    "rejected: no such card",
		{Kind: 7}:   "Kind(7)",
	} {
		assert.Equal(t, want, fmt.Sprint(v))
	}
}

func TestContextWithMeta_MetaFromContext(t *testing.T) {
	_, ok := message.MetaFromContext(context.Background())
	require.False(t, ok)
	m, ok := message.MetaFromContext(message.ContextWithMeta(context.Background(), message.Meta{Visit: 2}))
	require.True(t, ok)
	require.Equal(t, 2, m.Visit)
}

// A call for a message has succeeded and must not be repeated: every rejection of a
// result reports that, and no other settlement does.
func TestWatch_NoteUnsafeToRepeat(t *testing.T) {
	for name, settle := range map[string]func(m message.Message[int]){
		"the message":       func(m message.Message[int]) { m.Reject(errTest) },
		"another value":     func(m message.Message[int]) { message.With(m, "x").Reject(errTest) },
		"a watched message": func(m message.Message[int]) { message.Watch(m, m.Settle).Reject(errTest) },
		"one part of several": func(m message.Message[int]) {
			parts := message.Split(m, 1, 2)
			parts[0].Ack()
			parts[1].Reject(errTest)
		},
	} {
		for _, isUnsafe := range []bool{false, true} {
			m, got := settled(5)
			if isUnsafe {
				message.NoteUnsafeToRepeat(m)
			}
			settle(m)
			require.Equal(t, []message.Settlement{{Kind: message.Rejected, Err: errTest, UnsafeToRepeat: isUnsafe}}, *got, name)
		}
	}
	m, got := settled(5)
	message.NoteUnsafeToRepeat(m)
	m.Ack()
	require.Equal(t, []message.Settlement{{Kind: message.Done}}, *got)
	message.NoteUnsafeToRepeat(message.Message[int]{})
}

// Law X1: a call for one part has succeeded, and another part is rejected. The dead
// letter of the whole is in doubt, because a merge would repeat the call for the first
// part.
func TestNoteUnsafeToRepeat_OfAPart(t *testing.T) {
	for name, settle := range map[string]func(done, rejected message.Message[int]){
		"the call has succeeded first": func(done, rejected message.Message[int]) {
			message.NoteUnsafeToRepeat(done)
			done.Ack()
			rejected.Reject(errTest)
		},
		"the call succeeds last": func(done, rejected message.Message[int]) {
			rejected.Reject(errTest)
			message.NoteUnsafeToRepeat(done)
			done.Ack()
		},
		"a part of a part": func(done, rejected message.Message[int]) {
			inner := message.Split(done, 1, 2)
			message.NoteUnsafeToRepeat(inner[0])
			inner[0].Ack()
			inner[1].Ack()
			rejected.Reject(errTest)
		},
		"of a watched part": func(done, rejected message.Message[int]) {
			watched := message.Watch(message.FindLost(done), done.Settle)
			message.NoteUnsafeToRepeat(watched)
			watched.Ack()
			message.FindLost(rejected).Reject(errTest)
		},
		"a part of a watched part": func(done, rejected message.Message[int]) {
			inner := message.Split(message.FindLost(done), 1, 2)
			message.NoteUnsafeToRepeat(inner[0])
			inner[0].Ack()
			inner[1].Ack()
			rejected.Reject(errTest)
		},
	} {
		m, got := settled(5)
		parts := message.Split(m, 1, 2)
		settle(parts[0], parts[1])
		require.Equal(t, []message.Settlement{{Kind: message.Rejected, Err: errTest, UnsafeToRepeat: true}}, *got, name)
	}
}
