package caller

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/message"
)

// checkList checks that the incomplete numbers are in order and counted (X3).
func checkList(t require.TestingT, tracker *Tracker) (numbers []int64) {
	tracker.mu.Lock()
	defer tracker.mu.Unlock()
	var last *element
	for e := tracker.head; e != nil; e = e.next {
		require.Same(t, last, e.prev)
		require.True(t, last == nil || last.number < e.number)
		numbers, last = append(numbers, e.number), e
	}
	require.Same(t, last, tracker.tail)
	require.Len(t, numbers, tracker.incomplete)
	return numbers
}

func mustID(t require.TestingT, ctx context.Context) exactlyonce.ID {
	id, err := NextID(ctx)
	require.NoError(t, err)
	require.NoError(t, id.Validate())
	return id
}

// All attempts have the same id, except for the attempt number and the first incomplete
// number.
func TestTrackerAcceptedAndClient_NumbersElements(t *testing.T) {
	tracker := NewTracker(Config{Clock: clock.NewMock()})
	c := tracker.Client()
	require.False(t, c.IsZero())
	require.NotEqual(t, c, NewTracker(Config{Clock: clock.NewMock()}).Client(), "an identity per incarnation")
	a, b := tracker.Accepted(t.Context(), "a", false), tracker.Accepted(t.Context(), "b", false)
	b1 := tracker.AttemptStarted(b, 1)
	require.Equal(t, exactlyonce.ID{Client: c, Sequence: 2, Attempt: 1, First: 1}, mustID(t, b1))
	require.Equal(t, exactlyonce.ID{Client: c, Sequence: 1, Attempt: 1, First: 1}, mustID(t, tracker.AttemptStarted(a, 1)))
	require.Equal(t, exactlyonce.ID{Client: c, Sequence: 1, Attempt: 2, First: 1}, mustID(t, tracker.AttemptStarted(a, 2)))
	tracker.Ended(a, observe.Ending{})
	tracker.Ended(a, observe.Ending{}) // has no effect
	require.Equal(t, exactlyonce.ID{Client: c, Sequence: 2, Attempt: 2, First: 2}, mustID(t, tracker.AttemptStarted(b, 2)))
	d := tracker.AttemptStarted(tracker.Accepted(t.Context(), "d", false), 1)
	require.Equal(t, exactlyonce.ID{Client: c, Sequence: 3, Attempt: 1, First: 2}, mustID(t, d))
	tracker.Ended(b, observe.Ending{})
	tracker.Ended(d, observe.Ending{})
	require.Empty(t, checkList(t, tracker))
	e := tracker.AttemptStarted(tracker.Accepted(t.Context(), "e", false), 1)
	require.Equal(t, exactlyonce.ID{Client: c, Sequence: 4, Attempt: 1, First: 4}, mustID(t, e))
}

// Attempts before a restart are counted.
func TestTrackerAttemptStarted_CountsAttempts(t *testing.T) {
	tracker := NewTracker(Config{})
	ctx := tracker.Accepted(t.Context(), nil, false)
	require.Equal(t, 3, mustID(t, tracker.AttemptStarted(ctx, 3)).Attempt)
	step := WithStep(tracker.AttemptStarted(ctx, 4), "s")
	require.Equal(t, 4, mustID(t, step).Attempt)
	require.Equal(t, 5, mustID(t, step).Attempt)
	require.Equal(t, 6, mustID(t, tracker.AttemptStarted(ctx, 5)).Attempt, "one of its own, whatever else has sent")
}

// X1: an id contains the time since its request was first sent, even after a restart.
func TestTrackerTellsAges(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Unix(1_000_000, 0))
	tracker := NewTracker(Config{Clock: mock})
	require.NoError(t, tracker.Restore(nil, nil, nil))
	tracker.Snapshot(1)
	tracker.Completed(1)
	idle := tracker.Accepted(t.Context(), nil, false)
	a := tracker.Accepted(t.Context(), nil, false)
	age := func(tracker *Tracker, element context.Context, n int) time.Duration {
		return mustID(t, tracker.AttemptStarted(element, n)).Age
	}
	mock.Add(time.Hour)
	require.Zero(t, age(tracker, a, 1))
	mock.Add(1500 * time.Millisecond)
	require.Equal(t, 2*time.Second, age(tracker, a, 2))
	state := tracker.Snapshot(2)
	mock.Add(time.Hour)
	require.Equal(t, time.Hour+2*time.Second, age(tracker, a, 3))
	require.Zero(t, age(tracker, idle, 1))

	mock.Add(24 * time.Hour)
	again := NewTracker(Config{Clock: mock})
	require.NoError(t, again.Restore(state, []int64{1, 2}, nil))
	want := 25*time.Hour + 2*time.Second
	require.Equal(t, want, age(again, again.Restored(t.Context(), nil, 2), 1))
	require.Equal(t, want, age(again, again.Restored(t.Context(), nil, 1), 1), "it may have been sent with the other")
	require.Zero(t, age(again, again.Accepted(t.Context(), nil, false), 1))

	unsent := NewTracker(Config{Clock: mock})
	require.NoError(t, unsent.Restore(nil, nil, nil))
	unsent.Snapshot(1)
	unsent.Completed(1)
	a = unsent.Accepted(t.Context(), nil, false)
	mock.Add(time.Minute)
	stateOfUnsent := unsent.Snapshot(2)
	require.Zero(t, age(unsent, a, 1))
	mock.Add(25 * time.Hour)
	again = NewTracker(Config{Clock: mock})
	require.NoError(t, again.Restore(stateOfUnsent, []int64{1}, nil))
	require.Equal(t, 25*time.Hour+time.Second, age(again, again.Restored(t.Context(), nil, 1), 1), "it may have been sent after the checkpoint")

	predecessor := slices.Clone(state[:18])
	predecessor[0] = 2
	old := NewTracker(Config{Clock: mock})
	require.NoError(t, old.Restore(predecessor, []int64{2}, nil), "law W4")
	require.Zero(t, age(old, old.Restored(t.Context(), nil, 2), 1))

	named := NewTracker(Config{Name: "charges", Secret: []byte("0123456789abcdef"), Clock: mock})
	element := accepted(t, named, message.Meta{ID: "m"})
	require.Zero(t, age(named, element, 1))
	carried, _ := carriedID(element)
	inDoubt := accepted(t, named, message.Meta{ID: "m", Request: carried.String(), FirstFailure: mock.Now()})
	mock.Add(time.Minute)
	require.Equal(t, time.Minute, age(named, inDoubt, 1))
	merged := accepted(t, named, message.Meta{ID: "m", Merges: 1, FirstFailure: mock.Now().Add(-24 * time.Hour)})
	require.Zero(t, age(named, merged, 1), "it is a new request")
}

func TestWithStep(t *testing.T) {
	tracker := NewTracker(Config{})
	element := tracker.Accepted(t.Context(), nil, false)
	for n := range 3 {
		ctx := tracker.AttemptStarted(element, n+1)
		require.Equal(t, "", mustID(t, ctx).Step)
		require.Equal(t, "reserve", mustID(t, WithStep(ctx, "reserve")).Step)
		require.Equal(t, "charge", mustID(t, WithStep(context.WithoutCancel(WithStep(ctx, "reserve")), "charge")).Step)
		require.Equal(t, "charge", mustID(t, WithStep(ctx, "charge")).Step, "the same request again")

		_, err := NextID(ctx)
		require.ErrorIs(t, err, ErrNoID)
		require.ErrorContains(t, err, "second request without a step in an attempt of element 1")
		_, err = NextID(WithStep(ctx, ""))
		require.ErrorIs(t, err, ErrNoID)
		_, err = NextID(WithStep(ctx, "a b"))
		require.ErrorIs(t, err, exactlyonce.ErrInvalid)
	}
	// The step of an enclosing element does not apply to this one.
	inner := NewTracker(Config{})
	outer := WithStep(tracker.AttemptStarted(element, 9), "outer")
	require.Equal(t, "", mustID(t, inner.AttemptStarted(inner.Accepted(outer, nil, false), 1)).Step)
}

// A request without an identity fails clearly: the context of a call for many elements is
// not a member's context.
func TestNextID_WithoutAnIdentity(t *testing.T) {
	tracker, other := NewTracker(Config{}), NewTracker(Config{})
	element := tracker.Accepted(t.Context(), nil, false)
	batch, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, ctx := range map[string]context.Context{
		"no element":           t.Context(),
		"a batch":              batch,
		"no element's attempt": tracker.AttemptStarted(t.Context(), 1),
		"a step of none":       WithStep(t.Context(), "charge"),
	} {
		_, err := NextID(ctx)
		require.ErrorIs(t, err, ErrNoID, name)
		require.ErrorContains(t, err, "does not belong to an element", name)
	}
	// A timeout handler has no attempt, so its request needs a name.
	for _, beside := range []context.Context{element, other.AttemptStarted(element, 1)} {
		_, err := NextID(beside)
		require.ErrorIs(t, err, ErrNoID)
		require.ErrorContains(t, err, "does not belong to an attempt of its element: name it by WithStep")
		id := mustID(t, WithStep(beside, "cancel"))
		require.EqualValues(t, 1, id.Sequence)
		require.Equal(t, "cancel", id.Step)
	}
	member := tracker.AttemptStarted(element, 1)
	require.EqualValues(t, 1, mustID(t, member).Sequence)
	other.Ended(element, observe.Ending{})
	require.Zero(t, other.Number(element))
	require.EqualValues(t, 1, tracker.Number(member))

	tracker.first.Store(2) // the element ends while the id is made
	_, err := NextID(WithStep(member, "late"))
	require.ErrorIs(t, err, ErrNoID)
	tracker.first.Store(1)

	late := WithStep(member, "late")
	tracker.Ended(element, observe.Ending{})
	_, err = NextID(late)
	require.ErrorIs(t, err, ErrNoID)
	require.ErrorContains(t, err, "element 1 has ended")
}

func TestTrackerTryAdmitAndNotify_Window(t *testing.T) {
	tracker := NewTracker(Config{Window: 2})
	called := 0
	tracker.Notify(func() { called++ })
	require.Equal(t, 1, called, "there is room")

	require.True(t, tracker.TryAdmit())
	a := tracker.Accepted(t.Context(), nil, false)
	require.True(t, tracker.TryAdmit())
	require.True(t, tracker.TryAdmit(), "it takes no number")
	b := tracker.Accepted(t.Context(), nil, false)
	require.False(t, tracker.TryAdmit())
	tracker.Notify(func() { called++; tracker.TryAdmit() }) // it may call TryAdmit at once
	require.Equal(t, 1, called)
	tracker.Ended(b, observe.Ending{})
	require.Equal(t, 2, called)
	tracker.Ended(a, observe.Ending{})
	require.Equal(t, 2, called, "once")

	// Operators that share a tracker may exceed the window, and all their elements get
	// numbers.
	for range 3 {
		mustID(t, tracker.AttemptStarted(tracker.Accepted(t.Context(), nil, false), 1))
	}
	require.False(t, tracker.TryAdmit())
}

func TestTrackerRefuses(t *testing.T) {
	tracker := NewTracker(Config{Window: 1, Refuse: true})
	a := tracker.Accepted(t.Context(), nil, false)
	require.True(t, tracker.TryAdmit())
	called := 0
	tracker.Notify(func() { called++ })
	require.Equal(t, 1, called)
	b, c := tracker.Accepted(t.Context(), nil, false), tracker.Accepted(t.Context(), nil, false)
	first := tracker.AttemptStarted(b, 1)
	_, err := NextID(first)
	require.ErrorIs(t, err, exactlyonce.ErrFull)
	require.Zero(t, tracker.Number(b))
	tracker.Ended(a, observe.Ending{})
	_, err = NextID(WithStep(first, "again"))
	require.ErrorIs(t, err, exactlyonce.ErrFull, "an attempt has a number from its start on, or none")
	require.EqualValues(t, 2, mustID(t, tracker.AttemptStarted(b, 2)).Sequence)
	tracker.Ended(c, observe.Ending{}) // it had no number
	require.Equal(t, []int64{2}, checkList(t, tracker))
	_, err = NextID(tracker.AttemptStarted(c, 1))
	require.ErrorIs(t, err, exactlyonce.ErrFull)
	tracker.Ended(b, observe.Ending{})
	require.Empty(t, checkList(t, tracker))
	_, err = NextID(tracker.AttemptStarted(c, 2))
	require.Error(t, err, "it has ended")
	require.Empty(t, checkList(t, tracker))
}

// Law X3: a slow request keeps its own number, but does not hold back later ones.
func TestTracker_SlowRequestKeepsOnlyItsNumber(t *testing.T) {
	tracker := NewTracker(Config{Window: 4})
	slow := tracker.AttemptStarted(tracker.Accepted(t.Context(), nil, false), 1)
	for range 100_000 {
		require.True(t, tracker.TryAdmit())
		e := tracker.Accepted(t.Context(), nil, false)
		require.Equal(t, 2, tracker.incomplete)
		tracker.Ended(e, observe.Ending{})
	}
	last := tracker.AttemptStarted(tracker.Accepted(t.Context(), nil, false), 1)
	require.EqualValues(t, 1, mustID(t, last).First)
	require.Equal(t, []int64{1, 100_002}, checkList(t, tracker))
	require.EqualValues(t, 1, mustID(t, slow).Sequence)
	tracker.Ended(slow, observe.Ending{})
	require.EqualValues(t, 100_002, mustID(t, WithStep(last, "s")).First)
}

func TestTrackerConfigs(t *testing.T) {
	require.PanicsWithValue(t, "caller: NewTracker: negative window: -1", func() { NewTracker(Config{Window: -1}) })
	require.Equal(t, defaultWindow, NewTracker(Config{}).config.Window)
}

// No id is below a first incomplete number that was sent before (Kudu's multi-thread
// test), and attempt numbers are unique.
func TestTrackerIsSafeForConcurrentUse(t *testing.T) {
	tracker := NewTracker(Config{Window: 64})
	var mu sync.Mutex
	highestFirst, seen := int64(0), map[exactlyonce.ID]bool{}
	send := func(ctx context.Context) {
		mu.Lock() // so that the order of sending is known
		defer mu.Unlock()
		id, err := NextID(ctx)
		if errors.Is(err, ErrNoID) {
			return // late: its element has ended
		}
		assert.NoError(t, err)
		assert.GreaterOrEqual(t, id.Sequence, highestFirst)
		highestFirst = max(highestFirst, id.First)
		id.First = 0
		assert.False(t, seen[id], id)
		seen[id] = true
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 300 {
				room := make(chan struct{})
				tracker.Notify(func() { close(room) })
				<-room
				element := tracker.Accepted(t.Context(), nil, false)
				var hedges sync.WaitGroup
				for n := range 2 {
					ctx := WithStep(tracker.AttemptStarted(element, n+1), "s")
					hedges.Go(func() { send(ctx) })
					hedges.Go(func() { send(ctx) })
				}
				tracker.Ended(element, observe.Ending{})
				hedges.Wait()
			}
		})
	}
	wg.Wait()
	require.Empty(t, checkList(t, tracker))
	require.Empty(t, tracker.waiting)
}
