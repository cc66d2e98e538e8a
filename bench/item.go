package bench

import (
	"errors"
	"time"
)

// Item is the element of all pipelines. Flows carry *Item, which go into an interface
// without an allocation.
type Item struct {
	Seq   int
	Calls int32 // how often the function was called for it; owned by the goroutine that runs the call

	due  int64 // when it should be called next, ns since the epoch of the workload
	late int64 // how long after due it was
}

// errUnavailable is the failure of a first attempt.
var errUnavailable = errors.New("bench: not ready yet")

// unavailableError is the same, but names its element; made of one pointer, it costs no
// allocation.
type unavailableError struct{ it *Item }

func (e unavailableError) Error() string { return errUnavailable.Error() }

// FailsFirst reports whether the first attempt of an element fails: exactly one in ten,
// at an irregular place in each block of ten.
func FailsFirst(seq int) bool {
	block := uint32(seq / 10)
	return (block*2654435761>>16)%10 == uint32(seq%10)
}

func once(int) int32 { return 1 }

func twiceIfFailing(seq int) int32 {
	if FailsFirst(seq) {
		return 2
	}
	return 1
}

func newItems(n int) []Item {
	items := make([]Item, n)
	for i := range items {
		items[i].Seq = i
	}
	return items
}

// epoch is where the workloads' instants count from.
var epoch = time.Now()

func now() int64 { return int64(time.Since(epoch)) }
