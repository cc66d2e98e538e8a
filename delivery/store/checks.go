package store

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// The checks are for authors of stores: each returns the error for arguments that its method must refuse.

// CheckPut checks the arguments of [Store.Put].
func CheckPut(queue string, ms ...Message) error {
	if err := checkQueue(queue); err != nil {
		return err
	}
	for i := range ms {
		if err := ms[i].Validate(); err != nil {
			return err
		}
	}
	return nil
}

// CheckTake checks the arguments of [Store.Take].
func CheckTake(queue string, limit int, lease time.Duration) error {
	switch {
	case limit < 1:
		return fmt.Errorf("store: queue %q: at most %d messages: must be at least 1", queue, limit)
	case lease <= 0:
		return fmt.Errorf("store: queue %q: a lease of %v: must be positive", queue, lease)
	default:
		return checkQueue(queue)
	}
}

// CheckExtend checks the arguments of [Store.Extend].
func CheckExtend(d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("store: a lease of %v: must be positive", d)
	}
	return nil
}

// CheckRelease checks the arguments of [Store.Release].
func CheckRelease(delay time.Duration) error {
	if delay < 0 {
		return fmt.Errorf("store: the delay %v is negative", delay)
	}
	return nil
}

// CheckPage checks the arguments of [Inspector.List].
func CheckPage(queue string, p Page) error {
	if p.Max < 1 || p.After < 0 || p.Until < 0 {
		return fmt.Errorf("store: queue %q: page %+v: Max must be at least 1, positions not negative", queue, p)
	}
	return checkQueue(queue)
}

// CheckMove checks the arguments of [Inspector.Move].
func CheckMove(moves ...Move) error {
	for i := range moves {
		if err := CheckPut(moves[i].Queue, moves[i].Message); err != nil {
			return err
		}
	}
	return nil
}

func checkQueue(queue string) error {
	switch {
	case queue == "":
		return errors.New("store: a queue without a name")
	case !utf8.ValidString(queue) || strings.ContainsRune(queue, 0):
		return fmt.Errorf("store: queue %q: the name must be UTF-8 without NUL", queue)
	default:
		return nil
	}
}

// Lost returns the error for leases that are lost, or nil if there are none.
func Lost(leases []Lease) error {
	if len(leases) == 0 {
		return nil
	}
	return &LeaseError{Lost: leases}
}

// Add counts n messages with the same cause and reasons. They arrived at oldest or later, and one can be taken at next.
func (c *Counts) Add(cause Cause, reasons []string, n int, oldest, next time.Time, last Position) {
	if c.Messages == 0 || oldest.Before(c.Oldest) {
		c.Oldest = oldest
	}
	if c.Messages == 0 || next.Before(c.Next) {
		c.Next = next
	}
	c.Messages += n
	c.Last = max(c.Last, last)
	if cause != "" {
		if c.Causes == nil {
			c.Causes = map[Cause]int{}
		}
		c.Causes[cause] += n
	}
	if len(reasons) > 0 && c.Reasons == nil {
		c.Reasons = map[string]int{}
	}
	seen := map[string]bool{}
	for _, r := range reasons {
		if !seen[r] {
			c.Reasons[r] += n
		}
		seen[r] = true
	}
}

// SetAge sets the age by the time of the store.
func (c *Counts) SetAge(now time.Time) {
	if c.Messages > 0 {
		c.Age = max(0, now.Sub(c.Oldest))
	}
}
