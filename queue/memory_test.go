package queue

import (
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPopLetsGoOfTheValue(t *testing.T) {
	for name, q := range map[string]Queue[*[64]byte]{"ordered": NewOrdered[*[64]byte](4), "unordered": NewUnordered[*[64]byte](4)} {
		t.Run(name, func(t *testing.T) {
			var values []weak.Pointer[[64]byte]
			put := func(put func(*[64]byte) *Entry[*[64]byte]) *Entry[*[64]byte] {
				v := new([64]byte)
				values = append(values, weak.Make(v))
				return put(v)
			}
			q.Complete(put(q.Put))
			put(q.PutControl)
			q.Pop()
			q.Pop()
			runtime.GC()
			for i, v := range values {
				assert.Nil(t, v.Value(), "value %d is still referred to", i)
			}
			runtime.KeepAlive(q)
		})
	}
}

// A burst must not pin memory: the numbers of popped entries and the capacity of rings
// that are kept are limited.
func TestMemoryOfABurstIsGivenBack(t *testing.T) {
	const burst = 20 * maxFree
	fill := func(q Queue[int]) {
		for range burst {
			q.Complete(q.Put(0))
		}
		for q.Head() != nil {
			q.Pop()
		}
	}
	t.Run("ordered", func(t *testing.T) {
		q := NewOrdered[int](burst)
		fill(q)
		l := &q.(*ordered[int]).list
		assert.Equal(t, maxFree, l.numFree)
		assert.Equal(t, maxFree, chained(l))
	})
	t.Run("unordered", func(t *testing.T) {
		before := liveHeap()
		q := NewUnordered[int](burst)
		fill(q)
		assert.Equal(t, maxFree, chained(&q.(*unordered[int]).list))
		assert.Less(t, liveHeap()-before, int64(200*maxFree))
		runtime.KeepAlive(q)
	})
	t.Run("walls", func(t *testing.T) {
		before := liveHeap()
		q := NewUnordered[int](burst)
		for range burst {
			q.PutControl(0)
		}
		for q.Head() != nil {
			q.Pop()
		}
		assert.Less(t, liveHeap()-before, int64(200*maxFree))
		runtime.KeepAlive(q)
	})
}

func chained[V any](l *list[V]) (n int) {
	for e := l.free; e != nil; e = e.next {
		n++
	}
	return n
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // sweeps after the first collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Section 5: the steady state does not allocate, for any content of the queue.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	const capacity, block = 4096, 8
	for name, newQueue := range map[string]func(int) Queue[int]{"ordered": NewOrdered[int], "unordered": NewUnordered[int]} {
		t.Run(name, func(t *testing.T) {
			w := newWindow(newQueue(capacity))
			allocs := testing.AllocsPerRun(1000, func() {
				for range block {
					w.step()
				}
			})
			assert.Zero(t, allocs)

			q := newQueue(16) // with walls
			allocs = testing.AllocsPerRun(1000, func() {
				a, b := q.Put(1), q.Put(2)
				q.PutControl(3)
				c := q.Put(4)
				q.Complete(c)
				q.Complete(b)
				q.Complete(a)
				for q.Head() != nil {
					q.Pop()
				}
			})
			assert.Zero(t, allocs)
			require.Zero(t, q.Len())
		})
	}
}

// window keeps a queue full and completes out of order, in blocks of eight: last first.
type window struct {
	q         Queue[int]
	ring      []*Entry[int]
	put, done int
}

func newWindow(q Queue[int]) *window {
	w := &window{q: q, ring: make([]*Entry[int], q.Cap())}
	w.fill()
	for range q.Cap() { // until every entry was used
		w.step()
	}
	return w
}

func (w *window) fill() {
	for ; w.q.Len() < w.q.Cap(); w.put++ {
		w.ring[w.put%len(w.ring)] = w.q.Put(w.put)
	}
}

// step completes an element, pops the entries that may leave, and fills the queue. On
// average it completes, pops and puts one element.
func (w *window) step() {
	w.q.Complete(w.ring[(w.done^7)%len(w.ring)])
	w.done++
	for w.q.Head() != nil {
		w.q.Pop()
	}
	if w.done%8 == 0 {
		w.fill()
	}
}
