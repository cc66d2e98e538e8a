package fifo

import (
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// replay runs operations decoded from bytes on a queue and a slice: even numbers push
// that many, odd ones pop.
func replay(t require.TestingT, ops []byte) {
	var q Queue[int]
	var model []int
	next := 0
	for _, b := range ops {
		for range b / 2 {
			if b%2 == 0 {
				q.Push(next)
				model = append(model, next)
				next++
			} else if len(model) > 0 {
				require.Equal(t, model[0], q.Pop())
				model = model[1:]
			}
		}
		require.Equal(t, len(model), q.Len())
		if len(model) > 0 {
			require.Equal(t, model[0], q.Peek())
		} else {
			require.Panics(t, func() { q.Peek() })
			require.Panics(t, func() { q.Pop() })
			require.Zero(t, q.Len())
		}
		used := 0
		for _, v := range q.buf {
			if v != 0 {
				used++
			}
		}
		require.LessOrEqual(t, used, q.Len(), "free entries are zero")
	}
	for _, want := range model {
		require.Equal(t, want, q.Pop())
	}
}

func TestQueue_AgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { replay(t, rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "ops")) })
}

func FuzzQueue(f *testing.F) {
	f.Add([]byte{32, 33, 32, 33})            // exactly the first ring
	f.Add([]byte{20, 11, 20, 11, 20, 11})    // wraps around
	f.Add([]byte{30, 17, 40, 60, 255, 2, 3}) // grows while it is wrapped
	f.Add([]byte{254, 254, 254, 254, 254, 254, 254, 254, 254, 254, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2})
	f.Fuzz(func(t *testing.T, ops []byte) { replay(t, ops[:min(len(ops), 100)]) })
}

// Growth at every position of the head.
func TestQueue_GrowsAtEveryOffset(t *testing.T) {
	for offset := range 40 {
		var q Queue[int]
		for i := range offset {
			q.Push(i)
			require.Equal(t, i, q.Pop())
		}
		for i := range 100 {
			q.Push(i)
		}
		for i := range 100 {
			require.Equal(t, i, q.Pop(), "offset %d", offset)
		}
	}
}

func TestMemoryOfABurstIsGivenBack(t *testing.T) {
	var q Queue[int]
	for i := range 100 * keepCap {
		q.Push(i)
	}
	for q.Len() > 0 {
		q.Pop()
	}
	assert.LessOrEqual(t, len(q.buf), keepCap)

	q.Push(1)
	q.Pop()
	kept := len(q.buf)
	assert.NotZero(t, kept, "a small ring stays")
	for i := range kept {
		q.Push(i)
	}
	assert.Len(t, q.buf, kept)
}

func TestPopLetsGoOfTheValue(t *testing.T) {
	var q Queue[*[64]byte]
	var refs []weak.Pointer[[64]byte]
	for range 3 {
		v := new([64]byte)
		refs = append(refs, weak.Make(v))
		q.Push(v)
	}
	q.Pop()
	runtime.GC()
	assert.Nil(t, refs[0].Value())
	assert.NotNil(t, refs[1].Value())
	runtime.KeepAlive(&q)
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	var q Queue[int]
	for i := range 5000 {
		q.Push(i)
	}
	assert.Zero(t, testing.AllocsPerRun(10_000, func() {
		q.Push(1)
		q.Pop()
	}))
	var small Queue[int] // empties every time
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		small.Push(1)
		small.Pop()
	}))
}

func BenchmarkPushPop(b *testing.B) {
	var q Queue[int]
	for i := range 1000 {
		q.Push(i)
	}
	b.ReportAllocs()
	for b.Loop() {
		q.Push(1)
		q.Pop()
	}
}
