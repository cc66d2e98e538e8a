package bench

import (
	"errors"
	"time"
)

// Item is the element of all pipelines. Flows carry *Item, which fits into an interface
// without an allocation.
type Item struct {
	Seq   int
	Calls int32 // calls of the function; owned by the goroutine of the call

	due  int64 // time of its next call, in ns since epoch
	late int64
}

var errUnavailable = errors.New("bench: not ready yet")

// unavailableError is errUnavailable with its element, without an allocation: it is one
// pointer.
type unavailableError struct{ it *Item }

func (e unavailableError) Error() string { return errUnavailable.Error() }

// FailsFirst reports whether an element's first attempt fails: exactly one in ten, at
// irregular positions in each block of ten.
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

var epoch = time.Now()

func now() int64 { return int64(time.Since(epoch)) }
