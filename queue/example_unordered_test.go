package queue_test

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/queue"
)

// Results leave as they arrive, but do not overtake a watermark.
func ExampleNewUnordered() {
	q := queue.NewUnordered[any](10)
	one, two := q.Put("one"), q.Put("two")
	q.PutControl(queue.Watermark{Timestamp: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)})
	three := q.Put("three")

	for _, e := range []*queue.Entry[any]{three, two, one} {
		fmt.Println("completes:", e.Value)
		q.Complete(e)
		for head := q.Head(); head != nil; head = q.Head() {
			if w, ok := head.Value.(queue.Watermark); ok {
				fmt.Println("  nothing earlier follows:", w.Timestamp.Format(time.TimeOnly))
			} else {
				fmt.Println("  leaves:", head.Value)
			}
			q.Pop()
		}
	}
	// Output:
	// completes: three
	// completes: two
	//   leaves: two
	// completes: one
	//   leaves: one
	//   nothing earlier follows: 12:00:00
	//   leaves: three
}
