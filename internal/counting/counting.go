// Package counting is how operators report to metrics: numbers, many at a time. An
// observer that only counts needs neither the elements nor contexts, and is called once
// in a step of the loop instead of four times for each element.
package counting

import (
	"time"

	"github.com/weirflow/weir/predicates"
)

// Counter counts what has happened. It is called like an observer: one call at a time, on
// the operator's loop.
type Counter interface {
	// Count gets what has happened since it was called last, each in order. Both slices
	// are used again.
	Count(attempts []AttemptEnd, elements []Element)
}

// Counted makes a type an observer that only counts. Such a type embeds it under an
// unexported name, so that operators find its counter, and users do not see it.
type Counted struct {
	observer any
	counter  Counter
}

// CountedBy returns the Counted of an observer. Operators call the counter in place of
// its methods.
func CountedBy(observer any, c Counter) Counted { return Counted{observer, c} }

// counterOf returns nil unless observer is the type that embeds c: a type around it may
// have methods of its own.
func (c *Counted) counterOf(observer any) Counter {
	if observer != c.observer {
		return nil
	}
	return c.counter
}

// source is a type that embeds Counted.
type source interface{ counterOf(observer any) Counter }

// Of returns the counter of an observer, or nil if it does not only count.
func Of(observer any) Counter {
	if s, ok := observer.(source); ok {
		return s.counterOf(observer)
	}
	return nil
}

// AttemptEnd is the end of an attempt: see observe.Outcome.
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

// Element is how an element has ended: see observe.Ending.
type Element struct {
	How      uint8 // an observe.EndKind
	InDoubt  bool
	Accepted bool // it has had a slot: only then it has durations
	Queued   time.Duration
	Total    time.Duration
}
