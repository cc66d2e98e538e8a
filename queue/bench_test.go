package queue

import (
	"fmt"
	"testing"
)

// One element put, completed out of order and popped, in a queue that is full: the cost
// must not grow with the capacity.
//
//	go test ./queue -run '^$' -bench Steady -count 10 | benchstat -col /mode -
func BenchmarkSteady(b *testing.B) {
	forEachMode(b, func(b *testing.B, newQueue func(int) Queue[int], capacity int) {
		w := newWindow(newQueue(capacity))
		b.ReportAllocs()
		for b.Loop() {
			w.step()
		}
	})
}

// The cost per element of filling the queue, completing in reverse order and popping,
// with allocations beyond the entries that are kept.
func BenchmarkBurst(b *testing.B) {
	forEachMode(b, func(b *testing.B, newQueue func(int) Queue[int], capacity int) {
		q := newQueue(capacity)
		entries := make([]*Entry[int], capacity)
		b.ReportAllocs()
		for b.Loop() {
			for i := range entries {
				entries[i] = q.Put(i)
			}
			for i := range entries {
				q.Complete(entries[capacity-1-i])
			}
			for range entries {
				q.Pop()
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*capacity), "ns/element")
	})
}

func forEachMode(b *testing.B, bench func(b *testing.B, newQueue func(int) Queue[int], capacity int)) {
	b.Helper()
	for _, mode := range []struct {
		name     string
		newQueue func(int) Queue[int]
	}{{"ordered", NewOrdered[int]}, {"unordered", NewUnordered[int]}} {
		for _, capacity := range []int{1000, 10_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("mode=%s/capacity=%d", mode.name, capacity), func(b *testing.B) {
				if testing.Short() && capacity > 10_000 {
					b.Skip("short")
				}
				bench(b, mode.newQueue, capacity)
			})
		}
	}
}
