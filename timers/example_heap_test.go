package timers_test

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/timers"
)

// A heap has no clock: its owner defines the meaning of due times.
func ExampleHeap() {
	var heap timers.Heap[string]
	b := &timers.Timer[string]{Value: "b"}
	heap.Arm(&timers.Timer[string]{Value: "c"}, 3*time.Second)
	heap.Arm(b, 2*time.Second)
	heap.Arm(&timers.Timer[string]{Value: "a"}, time.Second)
	heap.Arm(&timers.Timer[string]{Value: "after c, since armed later"}, 3*time.Second)
	heap.Cancel(b)
	for due, ok := heap.Next(); ok; due, ok = heap.Next() {
		fmt.Println(due, heap.Pop().Value)
	}
	// Output:
	// 1s a
	// 3s c
	// 3s after c, since armed later
}
