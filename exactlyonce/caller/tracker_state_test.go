package caller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/oncewire"
)

// fresh returns a tracker that takes part in checkpoints and starts without one.
func fresh(t require.TestingT, window int) *Tracker {
	tracker := NewTracker(Config{Window: window})
	require.NoError(t, tracker.Restore(nil, nil, nil))
	return tracker
}

// restored returns a tracker that resumes from a checkpoint.
func restored(t require.TestingT, state []byte, numbers ...int64) *Tracker {
	tracker := NewTracker(Config{})
	require.NoError(t, tracker.Restore(state, numbers, nil))
	return tracker
}

// Before a checkpoint holds the identity, requests must not be sent under it, because a
// restart would not know them (X1).
func TestTracker_NoRequestBeforeTheFirstCheckpoint(t *testing.T) {
	tracker := fresh(t, 0)
	require.False(t, tracker.TryAdmit())
	_, err := NextID(tracker.AttemptStarted(tracker.Accepted(t.Context(), nil, false), 1))
	require.ErrorIs(t, err, ErrNoID)
	require.ErrorContains(t, err, "no checkpoint that holds the client's identity is complete")
	room := false
	tracker.Notify(func() { room = true })
	tracker.Completed(3) // not a checkpoint of this tracker
	require.False(t, tracker.TryAdmit())
	state := tracker.Snapshot(4)
	tracker.Snapshot(5)
	tracker.Completed(3)
	require.False(t, room)
	tracker.Completed(5) // 4 was aborted
	require.True(t, room)
	require.True(t, tracker.TryAdmit())
	require.EqualValues(t, 1, tracker.Number(tracker.Accepted(t.Context(), nil, false)), "one that was refused took no number")

	again := restored(t, state)
	require.Equal(t, tracker.Client(), again.Client())
	require.True(t, again.TryAdmit())
	require.EqualValues(t, 1, again.Number(again.Accepted(t.Context(), nil, false)))
}

// A number is released when a checkpoint without its element is complete.
func TestNumbersAreReleasedByCheckpoints(t *testing.T) {
	tracker := fresh(t, 3)
	tracker.Snapshot(1)
	tracker.Completed(1)
	a, b := tracker.Accepted(t.Context(), nil, false), tracker.Accepted(t.Context(), nil, false)
	tracker.Ended(a, observe.Ending{})
	tracker.Snapshot(2)
	tracker.Ended(b, observe.Ending{}) // 2 holds it
	require.Equal(t, []int64{1, 2}, checkList(t, tracker))
	tracker.Snapshot(3)
	c := tracker.Accepted(t.Context(), nil, false)
	require.False(t, tracker.TryAdmit())
	rooms := 0
	tracker.Notify(func() { rooms++ })
	tracker.Completed(2)
	require.Equal(t, 1, rooms)
	require.Equal(t, []int64{2, 3}, checkList(t, tracker))
	require.EqualValues(t, 2, mustID(t, tracker.AttemptStarted(c, 1)).First)
	tracker.Snapshot(4)
	tracker.Completed(4) // covers 3
	require.Equal(t, []int64{3}, checkList(t, tracker))
	require.EqualValues(t, 3, mustID(t, tracker.AttemptStarted(c, 2)).First)
}

// Checkpoints that never complete use no memory (X3).
func TestTrackerSnapshot_FailingCheckpointsCostNothing(t *testing.T) {
	tracker := fresh(t, 2)
	tracker.Snapshot(1)
	tracker.Completed(1)
	tracker.Ended(tracker.Accepted(t.Context(), nil, false), observe.Ending{})
	tracker.Ended(tracker.Accepted(t.Context(), nil, false), observe.Ending{})
	for n := range uint64(1000) {
		tracker.Snapshot(n + 2)
	}
	require.Len(t, tracker.saved.snapshots, 1)
	require.False(t, tracker.TryAdmit())
}

func TestRestoredElementsKeepTheirNumbers(t *testing.T) {
	tracker := fresh(t, 0)
	tracker.Snapshot(1)
	tracker.Completed(1)
	var elements []context.Context
	for range 6 {
		elements = append(elements, tracker.Accepted(t.Context(), nil, false))
	}
	tracker.Ended(elements[0], observe.Ending{})
	tracker.Ended(elements[3], observe.Ending{})
	state := tracker.Snapshot(2)
	tracker.Completed(2)
	require.EqualValues(t, 7, tracker.Number(tracker.Accepted(t.Context(), "7", false)))

	again := restored(t, state, 2, 3, 5, 6)
	require.Equal(t, []int64{2, 3, 5, 6}, checkList(t, again))
	five := again.AttemptStarted(again.Restored(t.Context(), nil, 5), 1)
	id := mustID(t, five)
	require.NotZero(t, id.Age)
	id.Age = 0
	require.Equal(t, exactlyonce.ID{Client: tracker.Client(), Sequence: 5, Attempt: 2, First: 2}, id,
		"others that are not restored yet are incomplete, too; and an attempt may have been sent before")
	two := again.Restored(t.Context(), nil, 2)
	require.Equal(t, 7, mustID(t, again.AttemptStarted(two, 7)).Attempt, "those before the restart count")
	require.EqualValues(t, 7, again.Number(again.Restored(t.Context(), "7", 0)), "was not numbered when the checkpoint was taken")
	for _, number := range []int64{2, 4, 99, -1} {
		lost := again.Restored(t.Context(), nil, number)
		_, err := NextID(again.AttemptStarted(lost, 1))
		require.ErrorIs(t, err, ErrNoID, number)
		require.ErrorContains(t, err, fmt.Sprintf("number %d of a restored element", number))
		require.EqualValues(t, -1, again.Number(lost), "it is not to be taken for a new one after the next restart (X1)")
	}
	again.Snapshot(3)
	again.Ended(two, observe.Ending{})
	again.Completed(3)
	require.Equal(t, []int64{2, 3, 5, 6, 7}, checkList(t, again), "3 holds it; 3 and 6 wait for a slot")
	again.Snapshot(4)
	again.Completed(4)
	require.Equal(t, []int64{3, 5, 6, 7}, checkList(t, again))
	require.EqualValues(t, 3, mustID(t, WithStep(five, "s")).First)
}

func TestRestoreRefuses(t *testing.T) {
	good := fresh(t, 0)
	state := good.Snapshot(1)
	require.ErrorContains(t, NewTracker(Config{Refuse: true}).Restore(nil, nil, nil), "has Refuse")
	require.ErrorContains(t, good.Restore(state, nil, nil), "in use")
	require.ErrorContains(t, good.Restore(nil, nil, nil), "each operator has one of its own")
	again := restored(t, state)
	require.ErrorContains(t, again.Restore(state, nil, nil), "in use")
	counting := NewTracker(Config{})
	counting.Accepted(t.Context(), nil, false)
	require.ErrorContains(t, counting.Restore(nil, nil, nil), "in use, its next number is 2")
	client := string(state[1:17])
	for bytes, message := range map[string]string{
		"":                     "cut off",
		"\x01":                 "version 1",
		string(state) + "\x00": "1 bytes too many",
		string(state[:10]):     "cut off",
		string(state[:17]):     "cut off",
		"\x02" + string(make([]byte, 16)) + "\x01":           "client is zero",
		"\x02" + client + "\x00":                             "next number 0",
		"\x02" + client + "\xff\xff\xff\xff\xff\xff\xff\x7f": "is not between 1 and",
	} {
		untouched := NewTracker(Config{})
		before := untouched.Client()
		require.ErrorContains(t, untouched.Restore([]byte(bytes), nil, nil), message)
		require.Equal(t, before, untouched.Client())
		require.NoError(t, untouched.Restore(nil, nil, nil))
	}
	five := []byte("\x02" + client + "\x05")
	for _, numbers := range [][]int64{{0}, {-1}, {1, 1}, {2, 1}, {5}, {1, 2, 3, 4, 6}} {
		require.ErrorContains(t, NewTracker(Config{}).Restore(five, numbers, nil), "of an element follows")
	}
	require.ErrorContains(t, NewTracker(Config{}).Restore(nil, []int64{1}, nil), "number 1 of an element follows 0, and the next one is 1")
}

// A tracker requests the first checkpoint at once, and another one if it would let
// elements in. It requests each once.
func TestTrackerAsksForCheckpoints(t *testing.T) {
	tracker, asked := NewTracker(Config{Window: 2}), 0
	require.NoError(t, tracker.Restore(nil, nil, func() { asked++ }))
	require.Zero(t, asked, "not yet: the program is being built")
	require.False(t, tracker.TryAdmit())
	require.False(t, tracker.TryAdmit())
	require.Equal(t, 1, asked)
	tracker.Snapshot(1)
	require.False(t, tracker.TryAdmit())
	require.Equal(t, 1, asked, "it is under way")
	tracker.Completed(1)
	require.True(t, tracker.TryAdmit())
	a, b := tracker.Accepted(t.Context(), nil, false), tracker.Accepted(t.Context(), nil, false)
	require.False(t, tracker.TryAdmit())
	require.Equal(t, 1, asked, "both run: a checkpoint releases nothing")
	room := 0
	tracker.Notify(func() { room++ })
	tracker.Ended(a, observe.Ending{})
	require.Equal(t, 2, asked)
	tracker.Ended(b, observe.Ending{})
	require.Equal(t, 2, asked)
	tracker.Snapshot(2)
	tracker.Completed(2)
	require.Equal(t, 1, room)
	tracker.Ended(tracker.Accepted(t.Context(), nil, false), observe.Ending{})
	require.True(t, tracker.TryAdmit())
	require.Equal(t, 2, asked, "there is room")
}

func FuzzTrackerState(f *testing.F) {
	tracker := fresh(f, 0)
	f.Add(tracker.Snapshot(1))
	tracker.Completed(1)
	tracker.Accepted(f.Context(), nil, false)
	f.Add(tracker.Snapshot(2))
	f.Fuzz(func(t *testing.T, state []byte) {
		tracker := NewTracker(Config{})
		if tracker.Restore(state, nil, nil) != nil {
			return
		}
		require.NotEmpty(t, state)
		client, next, _, err := parseState(state) // ignore the time: there are no elements yet
		require.NoError(t, err)
		c, n, _, err := parseState(tracker.Snapshot(1))
		require.NoError(t, err)
		require.Equal(t, client, c)
		require.Equal(t, next, n)
		if tracker.next <= oncewire.MaxSequence {
			mustID(t, tracker.AttemptStarted(tracker.Accepted(t.Context(), nil, false), 1))
		}
	})
}

// Under any schedule of elements, checkpoints and crashes each element keeps its number,
// the first incomplete number is never above a number that may still be sent, and only
// incomplete numbers are stored (X1, X3).
func TestTrackerFollowsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type checkpoint struct {
			id       uint64
			state    []byte
			position int           // elements read
			held     map[int]int64 // elements in flight, by position, with their numbers
		}
		tracker := fresh(t, 0)
		client := tracker.Client()
		numbers := map[int]int64{} // of every element, over all restarts
		position, id := 0, uint64(1)
		flying := map[int]context.Context{} // by position
		var pending []checkpoint
		durable := checkpoint{id: id, state: tracker.Snapshot(id)}
		tracker.Completed(id)
		highestFirst := int64(0)
		accept := func(ctx context.Context, p int) {
			number := tracker.Number(ctx)
			if known, ok := numbers[p]; ok {
				require.Equal(t, known, number)
			}
			numbers[p], flying[p] = number, ctx
		}
		read := func(*rapid.T) {
			require.True(t, tracker.TryAdmit())
			position++
			accept(tracker.Accepted(context.Background(), nil, false), position)
		}
		pick := func(t *rapid.T) (int, bool) {
			keys := slices.Sorted(maps.Keys(flying))
			if len(keys) == 0 {
				return 0, false
			}
			return rapid.SampledFrom(keys).Draw(t, "element"), true
		}
		t.Repeat(map[string]func(*rapid.T){
			"read":  read,
			"read2": read,
			"send": func(t *rapid.T) {
				if p, ok := pick(t); ok {
					sent := mustID(t, tracker.AttemptStarted(flying[p], 1))
					require.Equal(t, client, sent.Client)
					require.Equal(t, numbers[p], sent.Sequence)
					require.GreaterOrEqual(t, sent.Sequence, highestFirst, "below a number that was declared complete")
					highestFirst = max(highestFirst, sent.First)
				}
			},
			"end": func(t *rapid.T) {
				if p, ok := pick(t); ok {
					tracker.Ended(flying[p], observe.Ending{})
					delete(flying, p)
				}
			},
			"snapshot": func(*rapid.T) {
				id++
				c := checkpoint{id: id, state: tracker.Snapshot(id), position: position, held: map[int]int64{}}
				for p, ctx := range flying {
					c.held[p] = tracker.Number(ctx)
				}
				pending = append(pending, c)
			},
			"complete": func(t *rapid.T) {
				if len(pending) > 0 {
					i := rapid.IntRange(0, len(pending)-1).Draw(t, "checkpoint")
					durable, pending = pending[i], pending[i+1:]
					tracker.Completed(durable.id)
				}
			},
			"crash": func(t *rapid.T) {
				tracker, pending = restored(t, durable.state, slices.Sorted(maps.Values(durable.held))...), nil
				position, flying = durable.position, map[int]context.Context{}
				for _, p := range slices.Sorted(maps.Keys(durable.held)) {
					accept(tracker.Restored(context.Background(), nil, durable.held[p]), p)
				}
			},
			"": func(t *rapid.T) {
				list := checkList(t, tracker)
				may := map[int64]bool{} // numbers in flight, and numbers that a crash now would restore
				for p := range flying {
					may[numbers[p]] = true
				}
				for p, n := range numbers {
					if _, held := durable.held[p]; held || p > durable.position && p <= position {
						may[n] = true
					}
				}
				require.Equal(t, slices.Sorted(maps.Keys(may)), append([]int64(nil), list...))
			},
		})
	})
}
