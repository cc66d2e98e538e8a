package timers

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// heapModel is a simple, slow heap that implements law T1.
type heapModel struct{ armed []armed } // in arming order

type armed struct {
	timer *Timer[int]
	due   time.Duration
}

func (m *heapModel) first() int {
	least := -1
	for i, a := range m.armed {
		if least < 0 || a.due < m.armed[least].due { // equal due times stay in arming order
			least = i
		}
	}
	return least
}

func (m *heapModel) index(t *Timer[int]) int {
	return slices.IndexFunc(m.armed, func(a armed) bool { return a.timer == t })
}

// replayHeap runs operations decoded from bytes on a heap and the model. The upper two
// bits of a byte are the operation, the lower bits its timer and due time.
func replayHeap(t require.TestingT, ops []byte) {
	var (
		h    Heap[int]
		m    heapModel
		pool [40]Timer[int]
	)
	for i := range pool {
		pool[i].Value = i
	}
	pop := func() {
		want := m.first()
		got := h.Pop()
		if want < 0 {
			require.Nil(t, got)
			return
		}
		require.Same(t, m.armed[want].timer, got)
		m.armed = slices.Delete(m.armed, want, want+1)
	}
	for n, b := range ops {
		arg := int(b & 63)
		timer := &pool[(arg+n)%len(pool)]
		switch b >> 6 {
		case 0, 1:
			due := time.Duration(arg*arg%23 - 3) // many are equal, some negative
			if timer.Armed() {
				require.Panics(t, func() { h.Arm(timer, due) })
				break
			}
			h.Arm(timer, due)
			m.armed = append(m.armed, armed{timer, due})
		case 2:
			i := m.index(timer)
			require.Equal(t, i >= 0, h.Cancel(timer), "whether the timer was armed")
			if i >= 0 {
				m.armed = slices.Delete(m.armed, i, i+1)
			}
		case 3:
			for range arg % 4 {
				pop()
			}
		}
		checkHeap(t, &h, &m, pool[:])
	}
	for h.Len() > 0 || len(m.armed) > 0 {
		pop()
		checkHeap(t, &h, &m, pool[:])
	}
}

// checkHeap compares the heap with the model, and checks the positions of its timers.
func checkHeap(t require.TestingT, h *Heap[int], m *heapModel, pool []Timer[int]) {
	require.Equal(t, len(m.armed), h.Len())
	due, ok := h.Next()
	if i := m.first(); i < 0 {
		require.False(t, ok)
		require.Nil(t, h.Peek())
	} else {
		require.True(t, ok)
		require.Equal(t, m.armed[i].due, due)
		require.Same(t, m.armed[i].timer, h.Peek())
	}
	for i := range pool { // plain comparisons, since this runs often
		if armed := m.index(&pool[i]) >= 0; armed != pool[i].Armed() || pool[i].Value != i {
			require.FailNow(t, "the state of a timer", "timer %d: armed is %t, value %d", i, pool[i].Armed(), pool[i].Value)
		}
	}
	for i := range h.items {
		it := &h.items[i]
		if it.timer.position != int32(i+1) {
			require.FailNow(t, "a timer has the wrong index", "%d, not %d", it.timer.position, i+1)
		}
		if i > 0 && it.before(&h.items[(i-1)/arity]) {
			require.FailNow(t, "an item is before its parent", "at %d", i)
		}
	}
	for _, it := range h.items[len(h.items):cap(h.items)] {
		if it != (item[int]{}) {
			require.FailNow(t, "an unused entry refers to a timer")
		}
	}
}

// Law T1: earliest first, equal due times in arming order.
func TestHeapPeek_AgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { replayHeap(t, rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "ops")) })

	r := rand.NewPCG(1, 2) // longer schedules than rapid usually draws
	for range 50 {
		ops := make([]byte, 300)
		for i := range ops {
			ops[i] = byte(r.Uint64())
		}
		replayHeap(t, ops)
	}
}

// Law T1.
func FuzzHeap(f *testing.F) {
	const arm, cancel, pop = 0 << 6, 2 << 6, 3 << 6
	f.Add([]byte{arm | 5, arm | 4, arm | 3, pop | 1, arm | 3, pop | 3})
	f.Add([]byte{arm | 3, arm | 15, arm | 27, arm | 39, pop | 2, cancel | 14, pop | 3}) // equal due times
	f.Add([]byte{arm | 1, cancel, cancel, arm | 9, cancel | 61, pop | 3})
	f.Add([]byte("a cancelled timer's place is taken by the last one, which may have to go up\x80\x81\x82\x83\x84\x85\xc3"))
	f.Fuzz(func(t *testing.T, ops []byte) { replayHeap(t, ops) })
}

// Law T1: equal due times in arming order, for many timers and with cancelled timers in
// between.
func TestEqualDueTimesFireInArmingOrder(t *testing.T) {
	const n = 5000
	var h Heap[int]
	timers := make([]Timer[int], n)
	for i := range timers {
		timers[i].Value = i
		h.Arm(&timers[i], time.Second)
	}
	for i := 0; i < n; i += 3 {
		require.True(t, h.Cancel(&timers[i]))
	}
	for i := 0; i < n; i += 6 { // arm some again, which are then last
		h.Arm(&timers[i], time.Second)
	}
	var want, got []int
	for i := range n {
		if i%3 != 0 {
			want = append(want, i)
		}
	}
	for i := 0; i < n; i += 6 {
		want = append(want, i)
	}
	for timer := h.Pop(); timer != nil; timer = h.Pop() {
		got = append(got, timer.Value)
	}
	assert.Equal(t, want, got)
}

// The last item replaces a cancelled item. In this case it has to move up.
func TestCancelMovesTheLastItemUp(t *testing.T) {
	var h Heap[int]
	dues := []time.Duration{0, 100, 1, 2, 3, 101, 102, 103, 104, 4, 5} // 5..8 are below 1, 9 and 10 below 2
	timers := make([]Timer[int], len(dues))
	for i, due := range dues {
		h.Arm(&timers[i], due)
		require.Equal(t, int32(i+1), timers[i].position)
	}
	h.Cancel(&timers[5])
	assert.Equal(t, int32(2), timers[10].position, "5 goes above 100")
	last := time.Duration(math.MinInt64)
	for due, ok := h.Next(); ok; due, ok = h.Next() {
		assert.GreaterOrEqual(t, due, last)
		last = due
		h.Pop()
	}
}

func TestHeapNext_ExtremeDueTimes(t *testing.T) {
	var h Heap[int]
	dues := []time.Duration{math.MaxInt64, 0, math.MinInt64, -1, 1}
	for _, due := range dues {
		h.Arm(new(Timer[int]), due)
	}
	slices.Sort(dues)
	for _, want := range dues {
		due, ok := h.Next()
		require.True(t, ok)
		assert.Equal(t, want, due)
		h.Pop()
	}
}

func TestArmOfAnArmedTimerPanics(t *testing.T) {
	var h Heap[int]
	var timer Timer[int]
	assert.False(t, h.Cancel(&timer), "the zero value is not armed")
	h.Arm(&timer, 1)
	assert.PanicsWithValue(t, "timers: arm of a timer that is armed", func() { h.Arm(&timer, 2) })
	assert.Equal(t, 1, h.Len())
	assert.True(t, h.Cancel(&timer))
	assert.False(t, h.Cancel(&timer))
	assert.Zero(t, h.Len())
}

// An emptied heap releases the memory of a burst, and small heaps keep their capacity.
func TestHeapMemoryOfABurstIsGivenBack(t *testing.T) {
	for name, empty := range map[string]func(h *Heap[int], timers []Timer[int]){
		"pop": func(h *Heap[int], timers []Timer[int]) {
			for range timers {
				h.Pop()
			}
		},
		"cancel": func(h *Heap[int], timers []Timer[int]) {
			for i := range timers {
				h.Cancel(&timers[i])
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var h Heap[int]
			timers := make([]Timer[int], 50*keepItems)
			for i := range timers {
				h.Arm(&timers[i], time.Duration(i))
			}
			empty(&h, timers)
			assert.Zero(t, h.Len())
			assert.LessOrEqual(t, cap(h.items), keepItems)

			for i := range 100 {
				h.Arm(&timers[i], time.Duration(i))
			}
			kept := cap(h.items)
			empty(&h, timers[:100])
			assert.Equal(t, kept, cap(h.items))
		})
	}
}

func TestHeapLetsGoOfTimers(t *testing.T) {
	var h Heap[*int] // with a pointer: small values without pointers share memory on 32-bit systems
	arm := func(due time.Duration) weak.Pointer[Timer[*int]] {
		timer := new(Timer[*int])
		h.Arm(timer, due)
		return weak.Make(timer)
	}
	refs := []weak.Pointer[Timer[*int]]{arm(3), arm(1), arm(2)}
	h.Pop()
	h.Cancel(refs[2].Value())
	runtime.GC()
	assert.NotNil(t, refs[0].Value())
	assert.Nil(t, refs[1].Value(), "the popped one")
	assert.Nil(t, refs[2].Value(), "the cancelled one")
	runtime.KeepAlive(&h)
}

// Law T1: Arm and Cancel do not allocate once the heap has grown.
func TestArmAndCancelAllocateNothing(t *testing.T) {
	var h Heap[int]
	timers := make([]Timer[int], 10_001)
	for i := range timers {
		h.Arm(&timers[i], time.Duration(i*7919%10_007))
	}
	at := 0
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		h.Cancel(&timers[at])
		h.Arm(&timers[at], time.Duration(at))
		at = (at + 4999) % len(timers)
	}), "cancel and arm")
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		timer := h.Pop()
		h.Arm(timer, time.Duration(at))
		at++
	}), "pop and arm")

	var small Heap[int] // is emptied every time
	small.Arm(&Timer[int]{}, 0)
	small.Pop()
	var timer Timer[int]
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		small.Arm(&timer, 1)
		small.Cancel(&timer)
	}), "arm and cancel alone")
}

func TestCancelInAnotherHeapPanics(t *testing.T) {
	var a, b Heap[int]
	var one, two, other Timer[int]
	a.Arm(&one, 1)
	b.Arm(&other, 1)
	const want = "timers: cancel of a timer that is armed in another heap"
	require.PanicsWithValue(t, want, func() { a.Cancel(&other) })
	b.Arm(&two, 2)
	require.PanicsWithValue(t, want, func() { a.Cancel(&two) })
	require.True(t, one.Armed())
	require.True(t, a.Cancel(&one))
	require.False(t, a.Cancel(&one))
}
