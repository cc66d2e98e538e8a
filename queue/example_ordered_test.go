package queue_test

import (
	"fmt"

	"github.com/weirflow/weir/queue"
)

// Results leave in input order, whatever the order in which they arrive.
func ExampleNewOrdered() {
	q := queue.NewOrdered[string](10)
	first, second, third := q.Put("first"), q.Put("second"), q.Put("third")

	leave := func() {
		for e := q.Head(); e != nil; e = q.Head() {
			fmt.Println("  leaves:", e.Value)
			q.Pop()
		}
	}
	for _, e := range []*queue.Entry[string]{second, first, third} {
		fmt.Println("completes:", e.Value)
		q.Complete(e)
		leave()
	}
	// Output:
	// completes: second
	// completes: first
	//   leaves: first
	//   leaves: second
	// completes: third
	//   leaves: third
}
