package asyncop

import (
	"bytes"
	"math"
	"runtime"
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
		{kind: completedItem, in: "d", rest: &attempt[string, int]{}},
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

func FuzzState(f *testing.F) {
	s := testStateCodec(f, true)
	state, err := s.encode(testItems())
	require.NoError(f, err)
	b := state.Bytes()
	f.Add(b)
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
