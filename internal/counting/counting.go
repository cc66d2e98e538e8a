// Package counting reports attempts and elements of operators to metrics in batches. An
// observer that only counts does not need elements or contexts, so it is called once per
// step of the loop instead of four times per element.
package counting

import (
	"time"

	"github.com/weirflow/weir/predicates"
)

// Counter counts attempts and elements. It is called like an observer: one call at a
// time, on the operator's loop.
type Counter interface {
	// Count counts the attempts and elements that have ended since the last call, each in
	// order. The caller reuses both slices.
	Count(attempts []AttemptEnd, elements []Element)
}

// Counted has the counter of the observer that embeds it. Such an observer only counts.
// It embeds Counted under an unexported name: operators find the counter, but users do
// not see it.
type Counted struct {
	observer any
	counter  Counter
}

// CountedBy returns the Counted of an observer. Operators call the counter in place of
// its methods.
func CountedBy(observer any, c Counter) Counted { return Counted{observer, c} }

// counterOf returns nil unless observer itself embeds c: a type that wraps it may have
// observer methods of its own.
func (c *Counted) counterOf(observer any) Counter {
	if observer != c.observer {
		return nil
	}
	return c.counter
}

// source is a type that embeds Counted.
type source interface{ counterOf(observer any) Counter }

// Of returns the counter of an observer that only counts, otherwise nil.
func Of(observer any) Counter {
	if s, ok := observer.(source); ok {
		return s.counterOf(observer)
	}
	return nil
}

// AttemptEnd describes the end of an attempt: see observe.Outcome.
type AttemptEnd struct {
	End      End
	Retry    bool
	Reason   predicates.Reason
	Duration time.Duration
	Delay    time.Duration
}

// End is how an attempt ended.
type End uint8

// The ends of attempts.
const (
	Result End = iota
	Empty
	Error
)

var ends = [...]string{"result", "empty", "error"}

// Ends is the number of values of [End].
const Ends = End(len(ends))

func (e End) String() string { return ends[e] }

// EndOf returns how an attempt with these results and this error ended.
func EndOf(results int, err error) End {
	switch {
	case err != nil:
		return Error
	case results == 0:
		return Empty
	}
	return Result
}

// Element describes the end of an element: see observe.Ending.
type Element struct {
	How      uint8 // an observe.EndKind
	InDoubt  bool
	Accepted bool // the element has had a slot; if not, the durations are 0
	Queued   time.Duration
	Total    time.Duration
}
