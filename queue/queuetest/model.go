package queuetest

import (
	"fmt"

	"github.com/weirflow/weir/queue"
)

// Kind is the order rule that a queue is expected to follow.
type Kind int

const (
	// Ordered is the rule of [queue.NewOrdered].
	Ordered Kind = iota
	// Unordered is the rule of [queue.NewUnordered].
	Unordered
)

func (k Kind) String() string {
	switch k {
	case Ordered:
		return "ordered"
	case Unordered:
		return "unordered"
	default:
		return fmt.Sprintf("Kind(%d)", int(k))
	}
}

// model is the queue as the laws state it, without regard to cost.
type model struct {
	kind        Kind
	items       []item // in input order
	completions int
}

type item struct {
	entry *queue.Entry[string]
	name  string
	wall  bool
	done  int // the how manieth completion it was; 0: pending
}

func (it item) complete() bool { return it.wall || it.done > 0 }

// head returns the index of the entry whose turn it is to leave, or -1. Law Q1.
func (m *model) head() int {
	next := -1
	for i, it := range m.items {
		if it.wall {
			if i == 0 {
				next = 0
			}
			break // nothing behind a wall leaves before it
		}
		if it.done > 0 && (next < 0 || it.done < m.items[next].done) {
			next = i
		}
		if m.kind == Ordered {
			break // nothing but the oldest
		}
	}
	return next
}

// which returns the indices of the pending entries, or of the others.
func (m *model) which(pending bool) []int {
	var found []int
	for i, it := range m.items {
		if pending != it.complete() {
			found = append(found, i)
		}
	}
	return found
}
