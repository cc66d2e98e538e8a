package caller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/message"
)

// carriedID returns the id carried by the message of ctx. found is true if ctx belongs to
// an element of a tracker.
func carriedID(ctx context.Context) (id exactlyonce.ID, found bool) {
	e, found := ctx.Value(ctxkey.Tracked{}).(ctxkey.TrackedElement)
	if found {
		id, _ = parseID(e.Carried())
	}
	return id, found
}

func accepted(t *testing.T, tracker *Tracker, meta message.Meta) context.Context {
	t.Helper()
	return tracker.Accepted(message.ContextWithMeta(t.Context(), meta), nil, false)
}

// Law X1: a message has the same id on each worker and in each visit, with a higher
// attempt number, and lacks a first incomplete number.
func TestMessagesKeepTheirIDs(t *testing.T) {
	charges := func() *Tracker {
		return NewTracker(Config{Name: "charges", Secret: []byte("0123456789abcdef"), Window: 1})
	}
	meta := message.Meta{ID: "orders/0/17", Visit: 1}
	a, b := charges(), charges()
	element := accepted(t, a, meta)
	first := mustID(t, a.AttemptStarted(element, 1))
	require.NoError(t, first.Validate())
	require.EqualValues(t, 1, first.Sequence)
	require.Equal(t, 2, first.Attempt, "it may have been sent before a crash: records are looked for")
	require.Zero(t, first.First)
	require.Equal(t, 3, mustID(t, a.AttemptStarted(element, 2)).Attempt)
	require.True(t, a.TryAdmit(), "it takes no number of the window")
	require.Empty(t, checkList(t, a))

	carried, found := carriedID(element)
	require.True(t, found)
	require.Equal(t, 3, carried.Attempt)
	a.Ended(element, observe.Ending{How: observe.HandedOver})
	_, err := NextID(a.AttemptStarted(element, 3))
	require.ErrorIs(t, err, ErrNoID)

	same := func(meta message.Meta, attempt int) {
		t.Helper()
		id := mustID(t, b.AttemptStarted(accepted(t, b, meta), 1))
		require.Equal(t, first.Client, id.Client)
		require.Equal(t, first.Sequence, id.Sequence)
		require.Equal(t, attempt, id.Attempt)
	}
	same(meta, 2) // a redelivery
	same(message.Meta{ID: meta.ID, Visit: 2, Attempts: 2}, 4)
	same(message.Meta{ID: meta.ID, Visit: 2, Attempts: 2, Request: carried.String()}, 4)
	same(message.Meta{ID: meta.ID, Merges: 2, Request: carried.String()}, 4) // merged, and still in doubt

	merged := mustID(t, b.AttemptStarted(accepted(t, b, message.Meta{ID: meta.ID, Merges: 1}), 1))
	require.Equal(t, first.Client, merged.Client)
	require.EqualValues(t, 2, merged.Sequence, "its earlier calls had no effect, or a person has looked: it is another request")

	other := mustID(t, b.AttemptStarted(accepted(t, b, message.Meta{ID: "orders/0/18"}), 1))
	require.NotEqual(t, first.Client, other.Client)
	refunds := NewTracker(Config{Name: "refunds", Secret: []byte("0123456789abcdef")})
	refund := mustID(t, refunds.AttemptStarted(accepted(t, refunds, message.Meta{ID: meta.ID, Request: carried.String()}), 1))
	require.NotEqual(t, first.Client, refund.Client, "the call in doubt is another operator's")
	require.EqualValues(t, 1, refund.Sequence)
	require.NotEqual(t, clientOf(nil, "ab", "c"), clientOf(nil, "a", "bc"))

	secret := func(s string) exactlyonce.ID {
		tracker := NewTracker(Config{Name: "charges", Secret: []byte(s)})
		return mustID(t, tracker.AttemptStarted(accepted(t, tracker, meta), 1))
	}
	require.Equal(t, secret("0123456789abcdef"), secret("0123456789abcdef"))
	require.Equal(t, first.Client, secret("0123456789abcdef").Client)
	require.NotEqual(t, first.Client, clientOf(nil, "charges", meta.ID), "computable from two names")
	require.NotEqual(t, secret("0123456789abcdeg").Client, secret("0123456789abcdef").Client)
	for text, c := range map[string]Config{
		`caller: NewTracker: Name is "charges", and Secret has 5 bytes, fewer than 16`: {Name: "charges", Secret: []byte("short")},
		`caller: NewTracker: Name is "charges", and Secret has 0 bytes, fewer than 16`: {Name: "charges"},
		`caller: NewTracker: there is a Secret without a Name`:                         {Secret: make([]byte, 16)},
	} {
		require.PanicsWithValue(t, text, func() { NewTracker(c) })
	}
	before := exactlyonce.ID{Client: clientOf(nil, "charges", meta.ID), Sequence: 3, Attempt: 5}
	inDoubt := mustID(t, b.AttemptStarted(accepted(t, b, message.Meta{ID: meta.ID, Visit: 2, Attempts: 5, Request: before.String()}), 1))
	require.Equal(t, before.Client, inDoubt.Client, "a predecessor had no secret: its call in doubt keeps its id")
	require.EqualValues(t, 3, inDoubt.Sequence)
}

// A tracker's own number would change when the message is redelivered, so the message
// does not get one.
func TestMessagesNeedAName(t *testing.T) {
	tracker := NewTracker(Config{})
	element := accepted(t, tracker, message.Meta{ID: "orders/0/17"})
	_, err := NextID(tracker.AttemptStarted(element, 1))
	require.ErrorIs(t, err, ErrNoID)
	require.ErrorContains(t, err, `message "orders/0/17"`)
	require.ErrorContains(t, err, "Config.Name")
	id, found := carriedID(element)
	require.True(t, found)
	require.Zero(t, id)
	tracker.Ended(element, observe.Ending{})

	plain := accepted(t, tracker, message.Meta{Key: "no id"})
	require.EqualValues(t, 1, mustID(t, tracker.AttemptStarted(plain, 1)).Sequence)
	id, found = carriedID(plain)
	require.True(t, found)
	require.Zero(t, id, "a number cannot be carried away: the first incomplete one will pass it")
	_, found = carriedID(t.Context())
	require.False(t, found)
}

// With checkpoints a message has the number kept by the checkpoint, or, with a name, an
// id without a number in the checkpoint.
func TestMessagesWithCheckpoints(t *testing.T) {
	numbered := fresh(t, 0)
	numbered.Snapshot(1)
	numbered.Completed(1)
	element := accepted(t, numbered, message.Meta{ID: "a"})
	require.EqualValues(t, 1, numbered.Number(element))
	id, _ := carriedID(element)
	require.Zero(t, id)

	named := NewTracker(Config{Name: "charges", Secret: []byte("0123456789abcdef")})
	require.NoError(t, named.Restore(nil, nil, nil))
	state := named.Snapshot(1)
	named.Completed(1)
	ctx := message.ContextWithMeta(t.Context(), message.Meta{ID: "a"})
	element = named.Accepted(ctx, nil, false)
	require.Zero(t, named.Number(element))
	first := mustID(t, named.AttemptStarted(element, 1))
	again := NewTracker(Config{Name: "charges", Secret: []byte("0123456789abcdef")})
	require.NoError(t, again.Restore(state, nil, nil))
	second := mustID(t, again.AttemptStarted(again.Restored(ctx, nil, 0), 1))
	require.Equal(t, first, second)
}

// Elements of an operator that runs inside a message's call do not count as that message.
func TestOperatorsInsideOfACallForAMessage(t *testing.T) {
	ctx := message.ContextWithMeta(t.Context(), message.Meta{ID: "around"})
	tracker := NewTracker(Config{Name: "lines", Secret: []byte("0123456789abcdef")})
	var mu sync.Mutex
	var ids []string
	call := asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
		_, isMessage := message.MetaFromContext(ctx)
		id, err := NextID(ctx)
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, fmt.Sprint(id.Client == tracker.Client(), id.Sequence, isMessage))
		return in, err
	})
	op := asyncop.OrderedWait(call, time.Minute, 3, asyncop.WithObserver(tracker), asyncop.WithContext(ctx))
	for _, err := range op.Results(slices.Values([]int{1, 2})) {
		require.NoError(t, err)
	}
	slices.Sort(ids)
	require.Equal(t, []string{"true 1 false", "true 2 false"}, ids)
}

// The end of a message releases no number, because it has its own.
func TestMessagesBesideNumbers(t *testing.T) {
	tracker := NewTracker(Config{Name: "charges", Secret: []byte("0123456789abcdef")})
	a := tracker.Accepted(t.Context(), nil, false)
	message := tracker.Accepted(message.ContextWithMeta(t.Context(), message.Meta{ID: "m"}), nil, false)
	b := tracker.Accepted(t.Context(), nil, false)
	tracker.Ended(message, observe.Ending{})
	require.Equal(t, []int64{1, 2}, checkList(t, tracker))
	tracker.Ended(a, observe.Ending{})
	require.EqualValues(t, 2, mustID(t, tracker.AttemptStarted(b, 1)).First)
}

func parseID(text string) (id exactlyonce.ID, err error) {
	err = id.UnmarshalText([]byte(text))
	return id, err
}
