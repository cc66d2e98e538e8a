package drive

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/queue"
)

func testCodec(tb testing.TB, results bool) StateCodec[string, int] {
	tb.Helper()
	s := StateCodec[string, int]{Inputs: codec.Default[string]()}
	if results {
		s.Results = codec.Default[int]()
	}
	return s
}

func testItems() []core.Item[string, int] {
	return []core.Item[string, int]{
		{In: "a"},
		{Kind: core.Control, Rest: queue.Watermark{Timestamp: time.Unix(5, 7).UTC()}},
		{In: "", Attempts: math.MaxInt32, First: 9_000_000_009, Spent: math.MaxInt64},
		{In: "b", Attempts: 1, First: 1, Wait: math.MaxInt64, Retry: core.ByResult | core.Demanded},
		{In: "b", Attempts: 1, First: 1, Wait: 1},
		completed("c", 1, 1, -2, 3),
	}
}

// completed returns an item with results.
func completed(in string, attempts int32, results ...int) core.Item[string, int] {
	it := core.Item[string, int]{In: in, Attempts: attempts}
	it.SetResults(results)
	return it
}

// testSnapshots returns snapshots of an operator without an observer, and with an
// observer that has a state.
func testSnapshots() []Snapshot[string, int] {
	return []Snapshot[string, int]{
		{Taken: -7, Items: testItems()},
		{Taken: 1, Items: testItems(), Final: true},
		{Items: testItems(), Observer: []byte{}, Numbers: []int64{1, 0, -1, 2, math.MaxInt64, math.MinInt64}},
		{Items: testItems(), Observer: []byte("state"), Numbers: []int64{1, 0, 0, 2, 3, 4}, Final: true},
		{Taken: 1, Items: testItems(), Spent: 0.1},
		{Items: testItems(), Observer: []byte("state"), Numbers: []int64{1, 0, 0, 2, 3, 4}, Spent: 1e300},
	}
}

func TestStateRoundTrip(t *testing.T) {
	s := testCodec(t, true)
	for _, want := range testSnapshots() {
		state, err := s.Encode(want)
		require.NoError(t, err)
		b := state.Bytes()
		got, err := s.Decode(b)
		require.NoError(t, err)
		require.Equal(t, want, got)
		for n := range b {
			_, err := s.Decode(b[:n])
			require.Error(t, err, "cut off at %d", n)
		}
		_, err = s.Decode(append(b, 0))
		require.ErrorContains(t, err, "1 bytes too many")
		for _, version := range []byte{0, stateVersion + 1} {
			_, err = s.Decode(append([]byte{version}, b[1:]...))
			require.ErrorContains(t, err, fmt.Sprintf("version %d", version))
		}
	}
}

// Without an observer, the state does not include the observer's part.
func TestStateWithoutAnObserverIsNotLarger(t *testing.T) {
	s := testCodec(t, true)
	sizes := make([]int64, 0, 4)
	for _, snapshot := range testSnapshots() {
		snapshot.Taken = 0
		state, err := s.Encode(snapshot)
		require.NoError(t, err)
		sizes = append(sizes, state.Size())
	}
	require.Equal(t, sizes[0], sizes[1])
	require.Equal(t, sizes[0]+int64(1+len("state")+len(testItems())-1), sizes[3], "a byte for each small number, and none for the watermark")
}

// A watermark is saved in any time zone, although MarshalBinary of package time cannot
// encode some zones.
func TestStateHasWatermarksOfAllZones(t *testing.T) {
	s := testCodec(t, false)
	for _, offset := range []int{0, 3600, -75, -61, -119, 1, -1, 19 * 3600} {
		for _, at := range []time.Time{{}, time.Unix(1_700_000_000, 123_456_789)} {
			want := queue.Watermark{Timestamp: at.In(time.FixedZone("zone", offset))}
			state, err := s.Encode(Snapshot[string, int]{Items: []core.Item[string, int]{{Kind: core.Control, Rest: want}}})
			require.NoError(t, err, "%d", offset)
			got, err := s.Decode(state.Bytes())
			require.NoError(t, err, "%d", offset)
			require.Len(t, got.Items, 1)
			require.True(t, want.Timestamp.Equal(got.Items[0].Rest.(queue.Watermark).Timestamp), "%d", offset)
		}
	}
}

// Bytes that the encoder cannot have written are refused, whatever they might mean.
func TestStateIsExact(t *testing.T) {
	s := testCodec(t, true)
	encode := func(items ...core.Item[string, int]) []byte {
		state, err := s.Encode(Snapshot[string, int]{Items: items})
		require.NoError(t, err)
		return state.Bytes()
	}
	none := encode()
	results := bytes.LastIndex(none, append([]byte{1}, codec.SchemaOf(s.Results)...))
	mark := bytes.Clone(none)
	mark[results] = 2
	marks := bytes.Clone(none)
	marks[len(marks)-2] = unknownMarks
	for want, b := range map[string][]byte{
		"unknown mark 2":                              mark,
		"unknown marks 8":                             marks,
		"a number is malformed":                       append(none[:len(none)-1:len(none)-1], 0x80, 0),
		"negative time spent":                         encode(core.Item[string, int]{Spent: -1}),
		"negative wait":                               encode(core.Item[string, int]{Wait: -1}),
		"unknown kind of retry: 4":                    encode(core.Item[string, int]{Wait: 1, Retry: 4}),
		"result of input 1: the record has no result": encode(completed("", 0)),
		"unknown kind of element":                     encode(core.Item[string, int]{Kind: core.Completed + 1}),
	} {
		_, err := s.Decode(b)
		require.ErrorContains(t, err, want)
	}
}

func FuzzState(f *testing.F) {
	s := testCodec(f, true)
	for _, snapshot := range testSnapshots() {
		state, err := s.Encode(snapshot)
		require.NoError(f, err)
		f.Add(state.Bytes())
	}
	none, err := s.Encode(Snapshot[string, int]{})
	require.NoError(f, err)
	schemas := none.Bytes()[:none.Size()-3] // without time, marks and count
	f.Add(append(bytes.Clone(none.Bytes()[:none.Size()-1]), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		read, err := s.Decode(b)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20+2000*len(b)))
		if err != nil {
			return
		}
		again, err := s.Encode(read)
		if err != nil {
			return // a time zone that cannot be encoded
		}
		items := read.Items
		if bytes.HasPrefix(b, schemas) && !slices.ContainsFunc(items, func(it core.Item[string, int]) bool { return it.Kind == core.Control }) {
			require.Equal(t, b, again.Bytes(), "what is read is written as the same bytes")
		}
		twice, err := s.Decode(again.Bytes())
		require.NoError(t, err)
		require.Equal(t, read.Taken, twice.Taken)
		require.Equal(t, read.Final, twice.Final)
		require.Equal(t, read.Observer, twice.Observer)
		require.Equal(t, read.Numbers, twice.Numbers)
		back := twice.Items
		require.Len(t, back, len(items))
		for i, it := range items {
			require.Equal(t, it.In, back[i].In)
			require.Equal(t, it.Attempts, back[i].Attempts)
			require.Equal(t, it.Spent, back[i].Spent)
			require.Equal(t, it.Wait, back[i].Wait)
			require.Equal(t, it.Retry, back[i].Retry)
			require.Equal(t, it.First, back[i].First)
			if it.Kind == core.Completed {
				require.Equal(t, it.Results(), back[i].Results())
			}
		}
	})
}
