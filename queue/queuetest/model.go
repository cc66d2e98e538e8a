package queuetest

import (
	"fmt"

	"github.com/weirflow/weir/queue"
)

// Kind is the order rule of a queue.
type Kind int

const (
	// Ordered is for [queue.NewOrdered].
	Ordered Kind = iota
	// Unordered is for [queue.NewUnordered].
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

// model is a simple, slow queue that implements the laws.
type model struct {
	kind        Kind
	items       []item // in input order
	completions int
}

type item struct {
	entry *queue.Entry[string]
	name  string
	wall  bool
	done  int // number of its completion, from 1; 0 while pending
}

func (it item) complete() bool { return it.wall || it.done > 0 }

// head returns the index of the entry that may leave next, or -1. Law Q1.
func (m *model) head() int {
	next := -1
	for i, it := range m.items {
		if it.wall {
			if i == 0 {
				next = 0
			}
			break // later entries leave after the wall
		}
		if it.done > 0 && (next < 0 || it.done < m.items[next].done) {
			next = i
		}
		if m.kind == Ordered {
			break // only the oldest entry may leave
		}
	}
	return next
}

func (m *model) which(pending bool) []int {
	var found []int
	for i, it := range m.items {
		if pending != it.complete() {
			found = append(found, i)
		}
	}
	return found
}
