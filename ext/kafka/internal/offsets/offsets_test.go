package offsets

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGapsDoNotBlock(t *testing.T) {
	p := New(10, nil)
	assert.True(t, p.Arrive(12)) // 10 and 11 never come
	assert.EqualValues(t, 12, p.Low())
	assert.True(t, p.Arrive(13))
	assert.True(t, p.Arrive(20))
	p.Settle(20)
	p.Settle(13)
	assert.EqualValues(t, 12, p.Low())
	p.Settle(12)
	assert.EqualValues(t, 21, p.Low())
	assert.Empty(t, p.Encode(nil, 4096))
}

func TestOffsets_SettledAbove(t *testing.T) {
	p := New(0, nil)
	for o := range int64(10) {
		require.True(t, p.Arrive(o))
	}
	for _, o := range []int64{1, 2, 5, 9} {
		p.Settle(o)
		p.Settle(o) // law D2
	}
	done, delays, err := Decode(p.Low(), p.Encode(nil, 4096))
	require.NoError(t, err)
	assert.Empty(t, delays)
	q := New(p.Low(), done)
	var open []int64
	for o := range int64(12) {
		if q.Arrive(o) {
			open = append(open, o)
		}
	}
	assert.Equal(t, []int64{0, 3, 4, 6, 7, 8, 10, 11}, open)
	assert.Equal(t, len(open), q.Open())
}

// TestRandom compares with a map.
func TestRandom(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		low := random.Int64N(1000)
		p := New(low, nil)
		settled, open := map[int64]bool{}, []int64{}
		next := low
		for range 300 {
			if random.IntN(2) == 0 {
				gap := random.Int64N(4) * random.Int64N(2)
				for range gap {
					settled[next] = true
					next++
				}
				arrived := p.Arrive(next)
				require.Equal(t, !settled[next], arrived)
				if arrived {
					open = append(open, next)
				}
				next++
			} else if len(open) > 0 {
				i := random.IntN(len(open))
				p.Settle(open[i])
				if random.IntN(3) == 0 {
					p.Unsettle(open[i])
					continue
				}
				settled[open[i]] = true
				open = append(open[:i], open[i+1:]...)
			}
			if random.IntN(20) == 0 { // a restart, at the offset behind the gap
				done, _, err := Decode(p.Low(), p.Encode(nil, 4096))
				if p.Encode(nil, 4096) != "" {
					require.NoError(t, err)
				}
				p, open, next = New(p.Low(), done), nil, p.Low()
			}
			want := low
			for settled[want] {
				want++
			}
			require.Equal(t, max(want, p.Low()), p.Low())
			for o := low; o < p.Low(); o++ {
				require.True(t, settled[o], o)
			}
			require.Len(t, open, p.Open())
		}
	}
}

// TestPushesBackBeforeItIsFull takes records until it is full, and settles in the order
// that makes most spans.
func TestPushesBackBeforeItIsFull(t *testing.T) {
	for seed := range uint64(60) {
		limit := 4096 >> (seed / 15)
		random := rand.New(rand.NewPCG(seed, 2))
		p := New(math.MaxInt64/2, nil)
		var open []int64
		next := p.Low()
		for range 1500 {
			if !p.Full(limit, 1) {
				next += random.Int64N(1 << (seed % 15))
				p.Arrive(next)
				open = append(open, next)
				next++
			}
			if len(open) > 3 && random.IntN(3) > 0 { // the first one blocks
				i := 1 + random.IntN(len(open)-1)
				p.Settle(open[i])
				open = append(open[:i], open[i+1:]...)
			}
		}
		for i := 1; i < len(open); i += 2 {
			p.Settle(open[i])
		}
		text := p.Encode(nil, limit)
		require.LessOrEqual(t, len(text), limit)
		done, _, err := Decode(p.Low(), text)
		require.NoError(t, err)
		require.Equal(t, p.done, done, "nothing was left out")
		require.Greater(t, p.Open(), 20, "it is of some use")
	}
}

// TestDisorderCostsABitForEachOffset checks that messages in flight fit, even far behind
// an unsettled one.
func TestDisorderCostsABitForEachOffset(t *testing.T) {
	for _, settled := range []int64{0, 1_000_000_000} {
		p := New(7, nil)
		p.Arrive(7)
		p.Arrive(8 + settled)
		n := int64(0)
		for !p.Full(4096, 200) {
			n++
			p.Arrive(8 + settled + n)
		}
		assert.InDelta(t, 15_500, n, 200)
		for o := range n / 2 {
			p.Settle(8 + settled + 2*o)
		}
		done, _, err := Decode(p.Low(), p.Encode(nil, 4096))
		require.NoError(t, err)
		assert.Equal(t, p.done, done)
	}
}

// TestSpansAtTheLastOffset has spans end where there are no more offsets.
func TestSpansAtTheLastOffset(t *testing.T) {
	for low := int64(math.MaxInt64 - 100); low < math.MaxInt64-2; low++ {
		for from := low + 1; from < math.MaxInt64; from++ {
			done := []Span{{from, math.MaxInt64}}
			got, _, err := Decode(low, New(low, done).Encode(nil, 4096))
			require.NoError(t, err)
			require.Equal(t, done, got)
		}
	}
}

func TestDelays(t *testing.T) {
	p := New(0, nil)
	var delays []Delay
	for o := range int64(900) {
		p.Arrive(o)
		if o%2 == 0 {
			delays = append(delays, Delay{Span{o, o + 1}, 1_800_000_000_000 + o*977})
		}
	}
	for _, limit := range []int{4096, 1000, 200, 100} {
		text := p.Encode(delays, limit)
		require.LessOrEqual(t, len(text), limit)
		_, got, err := Decode(0, text)
		require.NoError(t, err)
		for _, d := range delays { // law D3
			due, ok := DueOf(got, d.From)
			require.True(t, ok, d)
			require.GreaterOrEqual(t, due, d.Due)
		}
		if limit == 4096 {
			_, ok := DueOf(got, 1)
			require.False(t, ok, "what has no delay gets none while there is room")
		}
	}
}

// TestDelaysAreRoundedUp has neighbours wait for about as long: they are exact while
// there is room, and then become one (law D3).
func TestDelaysAreRoundedUp(t *testing.T) {
	p := New(0, nil)
	var delays []Delay
	for o := range int64(900) {
		p.Arrive(o)
		delays = append(delays, Delay{Span{o, o + 1}, 1_800_000_000_000 + 7*o})
	}
	for limit, late := range map[int]int64{4096: 0, 1000: 100, 200: 1000, 120: 10_000} {
		_, got, err := Decode(0, p.Encode(delays, limit))
		require.NoError(t, err)
		for _, d := range delays {
			due, ok := DueOf(got, d.From)
			require.True(t, ok)
			require.GreaterOrEqual(t, due, d.Due)
			require.LessOrEqual(t, due, d.Due+late)
		}
	}
}

func TestOffsets_TooLittleRoom(t *testing.T) {
	p := New(0, nil)
	for o := range int64(1000) {
		p.Arrive(o)
		if o%2 == 1 {
			p.Settle(o)
		}
	}
	text := p.Encode(nil, 200)
	require.LessOrEqual(t, len(text), 200)
	done, _, err := Decode(0, text)
	require.NoError(t, err)
	require.NotEmpty(t, done)
	require.Equal(t, p.done[:len(done)], done)
}

func TestDecodeRefuses(t *testing.T) {
	for _, text := range []string{"", "consumer-1-abc", "w1.AAA"} {
		_, _, err := Decode(0, text)
		assert.ErrorIs(t, err, ErrNotOurs)
	}
	for _, text := range []string{"w2.", "w2.!", "w2.AQ", "w2.AQEA", "w2.AYAB", "w2." + strings.Repeat("_", 4000)} {
		_, _, err := Decode(0, text)
		assert.Error(t, err)
		assert.NotErrorIs(t, err, ErrNotOurs)
	}
	p := New(0, nil)
	p.Arrive(5)
	p.Arrive(6)
	p.Settle(6)
	_, _, err := Decode(math.MaxInt64-1, p.Encode(nil, 4096))
	assert.Error(t, err, "beyond the last offset")
}

func FuzzDecode(f *testing.F) {
	p := New(7, nil)
	for o := int64(7); o < 40; o++ {
		p.Arrive(o)
		if o%3 == 0 {
			p.Settle(o)
		}
	}
	f.Add(int64(7), p.Encode([]Delay{{Span{8, 9}, 1_800_000_000_000}}, 4096))
	f.Add(int64(0), "w2.AAA")
	f.Add(int64(math.MaxInt64-3), "w2.AQYA")
	f.Fuzz(func(t *testing.T, low int64, text string) {
		done, delays, err := Decode(low, text)
		if err != nil {
			return
		}
		at := low
		for _, s := range done {
			if s.From <= at || s.To <= s.From {
				t.Fatalf("spans %v above %d", done, low)
			}
			at = s.To
		}
		p := New(low, done)
		again, delaysAgain, err := Decode(low, p.Encode(delays, len(text)+200))
		if len(done)+len(delays) > 0 && (err != nil || len(again) != len(done)) {
			t.Fatalf("%v, %v became %v, %v: %v", done, delays, again, delaysAgain, err)
		}
		for _, d := range delays {
			due, ok := DueOf(delaysAgain, d.From)
			if !ok || due < d.Due {
				t.Fatalf("%v became %v", delays, delaysAgain)
			}
		}
	})
}

// As long as there is room, metadata loses no span.
func TestRoom(t *testing.T) {
	refused := 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		limit, n, low := 100+r.IntN(100), 1+r.Int64N(300), r.Int64N(1<<uint(1+r.IntN(40)))
		p := New(low, nil)
		for i := range n {
			p.Arrive(low + i)
		}
		settled := map[int64]bool{}
		for range n {
			i := low + r.Int64N(n)
			if !p.Room(limit, i) {
				refused++
				continue
			}
			p.Settle(i)
			settled[i] = true
			metadata := p.Encode(nil, limit)
			require.LessOrEqual(t, len(metadata), limit)
			done, _, err := Decode(p.Low(), metadata)
			if metadata != "" {
				require.NoError(t, err)
			}
			q := New(p.Low(), done)
			for i := range settled {
				require.True(t, q.Settled(i), "seed %d: offset %d is forgotten", seed, i)
			}
		}
	}
	assert.Positive(t, refused)
}
