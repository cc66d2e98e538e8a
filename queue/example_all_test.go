package queue_test

import (
	"fmt"

	"github.com/weirflow/weir/queue"
)

// A checkpoint walks the elements in flight in input order, in both modes, whether they
// are complete or not.
func ExampleQueue_all() {
	q := queue.NewUnordered[string](10)
	q.Put("a")
	b := q.Put("b")
	q.Put("c")
	q.Complete(b)
	for e := range q.All() {
		fmt.Println(e.Value, e.Completed())
	}
	// Output:
	// a false
	// b true
	// c false
}
