package asyncop

import (
	"bytes"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
)

func testStateCodec(tb testing.TB, results bool) stateCodec[string, int] {
	tb.Helper()
	inputs, err := checkpoint.DefaultCodec[string]()
	require.NoError(tb, err)
	s := stateCodec[string, int]{inputs: inputs}
	if results {
		s.results, err = checkpoint.DefaultCodec[int]()
		require.NoError(tb, err)
	}
	return s
}

func testItems() []item[string, int] {
	return []item[string, int]{
		{in: "a"},
		{kind: controlItem, rest: Watermark{Timestamp: time.Unix(5, 7).UTC()}},
		{in: "", attempts: math.MaxInt32, first: 9_000_000_009, spent: math.MaxInt64},
		{kind: completedItem, in: "c", attempts: 1, rest: &attempt[string, int]{results: []int{1, -2, 3}}},
	}
}

func TestStateRoundTrip(t *testing.T) {
	s := testStateCodec(t, true)
	state, err := s.encode(testItems())
	require.NoError(t, err)
	b := state.Bytes()
	items, err := s.decode(b)
	require.NoError(t, err)
	require.Equal(t, testItems(), items)
	for n := range b {
		_, err := s.decode(b[:n])
		require.Error(t, err, "cut off at %d", n)
	}
	_, err = s.decode(append(b, 0))
	require.ErrorContains(t, err, "1 bytes too many")
	_, err = s.decode(append([]byte{2}, b[1:]...))
	require.ErrorContains(t, err, "version 2")
}

// A watermark has its place in a checkpoint in whatever zone it is: MarshalBinary of package time has no bytes for some.
func TestStateHasWatermarksOfAllZones(t *testing.T) {
	s := testStateCodec(t, false)
	for _, offset := range []int{0, 3600, -75, -61, -119, 1, -1, 19 * 3600} {
		want := Watermark{Timestamp: time.Time{}.In(time.FixedZone("zone", offset))}
		state, err := s.encode([]item[string, int]{{kind: controlItem, rest: want}})
		require.NoError(t, err, "%d", offset)
		items, err := s.decode(state.Bytes())
		require.NoError(t, err, "%d", offset)
		require.Len(t, items, 1)
		require.True(t, want.Timestamp.Equal(items[0].rest.(Watermark).Timestamp), "%d", offset)
	}
}

// What the encoder cannot have written is refused, whatever it might mean.
func TestStateIsExact(t *testing.T) {
	s := testStateCodec(t, true)
	encode := func(items ...item[string, int]) []byte {
		state, err := s.encode(items)
		require.NoError(t, err)
		return state.Bytes()
	}
	none := encode()
	results := bytes.LastIndex(none, append([]byte{1}, checkpoint.SchemaOf(s.results)...))
	mark := bytes.Clone(none)
	mark[results] = 2
	for want, b := range map[string][]byte{
		"unknown mark 2":                   mark,
		"longer than it need be":           append(none[:len(none)-1:len(none)-1], 0x80, 0),
		"negative time spent":              encode(item[string, int]{spent: -1}),
		"result of input 1: there is none": encode(item[string, int]{kind: completedItem, rest: &attempt[string, int]{}}),
		"unknown kind of element":          encode(item[string, int]{kind: completedItem + 1}),
	} {
		_, err := s.decode(b)
		require.ErrorContains(t, err, want)
	}
}

func FuzzState(f *testing.F) {
	s := testStateCodec(f, true)
	state, err := s.encode(testItems())
	require.NoError(f, err)
	b := state.Bytes()
	f.Add(b)
	none, err := s.encode(nil)
	require.NoError(f, err)
	schemas := none.Bytes()[:none.Size()-1]
	head := b[:bytes.IndexByte(b, byte(len(testItems())))] // up to the count, or less
	f.Add(append(bytes.Clone(head), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		items, err := s.decode(b)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20+2000*len(b)))
		if err != nil {
			return
		}
		again, err := s.encode(items)
		if err != nil {
			return // a time zone that cannot be written
		}
		if bytes.HasPrefix(b, schemas) && !slices.ContainsFunc(items, func(it item[string, int]) bool { return it.kind == controlItem }) {
			require.Equal(t, b, again.Bytes(), "what is read is written as the same bytes")
		}
		back, err := s.decode(again.Bytes())
		require.NoError(t, err)
		require.Len(t, back, len(items))
		for i, it := range items {
			require.Equal(t, it.in, back[i].in)
			require.Equal(t, it.attempts, back[i].attempts)
			require.Equal(t, it.spent, back[i].spent)
			require.Equal(t, it.first, back[i].first)
			if it.kind == completedItem {
				require.Equal(t, it.results(), back[i].results())
			}
		}
	})
}
