package exactlyonce

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/asyncop"
)

func restored(t require.TestingT, state []byte) *Tracker {
	tracker := NewTracker(TrackerConfig{Checkpoints: true})
	require.NoError(t, tracker.Restore(state))
	return tracker
}

// Before a checkpoint holds the identity, nothing may be sent under it: a restart would not know what was (X1).
func TestNothingIsSentBeforeTheFirstCheckpoint(t *testing.T) {
	tracker := NewTracker(TrackerConfig{Checkpoints: true})
	require.False(t, tracker.TryAdmit())
	_, err := NextID(tracker.AttemptStarted(tracker.Accepted(t.Context(), nil, false), 1))
	require.ErrorIs(t, err, ErrNoID)
	require.ErrorContains(t, err, "no checkpoint that holds the client's identity is complete")
	room := false
	tracker.Notify(func() { room = true })
	tracker.Completed(3) // not one of this tracker
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

// A number is released when the checkpoint that no longer holds its element is complete.
func TestNumbersAreReleasedByCheckpoints(t *testing.T) {
	tracker := NewTracker(TrackerConfig{Checkpoints: true, Window: 3})
	tracker.Snapshot(1)
	tracker.Completed(1)
	a, b := tracker.Accepted(t.Context(), nil, false), tracker.Accepted(t.Context(), nil, false)
	tracker.Ended(a, asyncop.Ending{})
	tracker.Snapshot(2)
	tracker.Ended(b, asyncop.Ending{}) // 2 holds it
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

// Checkpoints that never complete cost nothing (X3).
func TestFailingCheckpointsCostNothing(t *testing.T) {
	tracker := NewTracker(TrackerConfig{Checkpoints: true, Window: 2})
	tracker.Snapshot(1)
	tracker.Completed(1)
	tracker.Ended(tracker.Accepted(t.Context(), nil, false), asyncop.Ending{})
	tracker.Ended(tracker.Accepted(t.Context(), nil, false), asyncop.Ending{})
	for n := range uint64(1000) {
		tracker.Snapshot(n + 2)
	}
	require.Len(t, tracker.saved.snapshots, 1)
	require.False(t, tracker.TryAdmit())
}

func TestRestoredElementsKeepTheirNumbers(t *testing.T) {
	tracker := NewTracker(TrackerConfig{Checkpoints: true})
	tracker.Snapshot(1)
	tracker.Completed(1)
	var elements []context.Context
	for range 6 {
		elements = append(elements, tracker.Accepted(t.Context(), nil, false))
	}
	tracker.Ended(elements[0], asyncop.Ending{})
	tracker.Ended(elements[3], asyncop.Ending{})
	state := tracker.Snapshot(2)
	tracker.Completed(2)
	require.EqualValues(t, 7, tracker.Number(tracker.Accepted(t.Context(), "7", false)))

	again := restored(t, state)
	require.Equal(t, []int64{2, 3, 5, 6}, checkList(t, again))
	five := again.AttemptStarted(again.Restored(t.Context(), nil, 5), 2)
	require.Equal(t, ID{Client: tracker.Client(), Sequence: 5, Attempt: 2, First: 2}, mustID(t, five),
		"others that are not restored yet are incomplete, too")
	two := again.Restored(t.Context(), nil, 2)
	require.EqualValues(t, 7, again.Number(again.Restored(t.Context(), "7", 0)), "was not numbered when the checkpoint was taken")
	for _, number := range []int64{2, 4, 99, -1} {
		_, err := NextID(again.AttemptStarted(again.Restored(t.Context(), nil, number), 1))
		require.ErrorIs(t, err, ErrNoID, number)
		require.ErrorContains(t, err, fmt.Sprintf("number %d of a restored element", number))
	}
	again.Ended(two, asyncop.Ending{})
	again.Snapshot(3) // 3 and 6 were not restored: they had ended
	again.Completed(3)
	require.Equal(t, []int64{5, 7}, checkList(t, again))
	require.EqualValues(t, 5, mustID(t, WithStep(five, "s")).First)
}

func TestRestoreRefuses(t *testing.T) {
	good := NewTracker(TrackerConfig{Checkpoints: true})
	state := good.Snapshot(1)
	require.ErrorContains(t, NewTracker(TrackerConfig{}).Restore(state), "has no Checkpoints")
	require.ErrorContains(t, good.Restore(state), "in use")
	again := restored(t, state)
	require.ErrorContains(t, again.Restore(state), "in use")
	client := string(state[1:17])
	for bytes, message := range map[string]string{
		"":                     "cut off",
		"\x02":                 "version 2",
		string(state) + "\x00": "1 bytes too many",
		string(state[:10]):     "cut off",
		"\x01" + string(make([]byte, 16)) + "\x01\x00": "client is zero",
		"\x01" + client + "\x00\x00":                   "next number 0",
		"\x01" + client + "\x03\x01":                   "1 numbers in 0 bytes",
		"\x01" + client + "\x03\x01\x03":               "a number 3 above 0",
		"\x01" + client + "\x03\x02\x02\x00":           "a number 0 above 2",
		"\x01" + client + "\x03\x02\x02\x80":           "cut off",
	} {
		fresh := NewTracker(TrackerConfig{Checkpoints: true})
		before := fresh.Client()
		require.ErrorContains(t, fresh.Restore([]byte(bytes)), message)
		require.Equal(t, before, fresh.Client())
	}
}

func FuzzTrackerState(f *testing.F) {
	tracker := NewTracker(TrackerConfig{Checkpoints: true})
	f.Add(tracker.Snapshot(1))
	tracker.Completed(1)
	tracker.Accepted(f.Context(), nil, false)
	f.Add(tracker.Snapshot(2))
	f.Fuzz(func(t *testing.T, state []byte) {
		tracker := NewTracker(TrackerConfig{Checkpoints: true})
		if tracker.Restore(state) != nil {
			return
		}
		for _, number := range checkList(t, tracker) {
			mustID(t, tracker.AttemptStarted(tracker.Restored(t.Context(), nil, number), 1))
		}
		if tracker.next <= MaxSequence {
			require.Equal(t, state, tracker.Snapshot(1))
		}
	})
}

// Under any schedule of elements, checkpoints and crashes: each element keeps its number, the first incomplete number is never
// above one that may still be sent, and nothing is remembered but what is incomplete (X1, X3).
func TestTrackerFollowsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type checkpoint struct {
			id       uint64
			state    []byte
			position int           // elements read
			held     map[int]int64 // elements in flight, by position, with their numbers
		}
		tracker := NewTracker(TrackerConfig{Checkpoints: true})
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
					tracker.Ended(flying[p], asyncop.Ending{})
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
				tracker, pending = restored(t, durable.state), nil
				position, flying = durable.position, map[int]context.Context{}
				for _, p := range slices.Sorted(maps.Keys(durable.held)) {
					accept(tracker.Restored(context.Background(), nil, durable.held[p]), p)
				}
			},
			"": func(t *rapid.T) {
				list := checkList(t, tracker)
				may := map[int64]bool{} // numbers that a crash now would bring back, and those in flight
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
