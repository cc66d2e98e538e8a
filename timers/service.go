package timers

import (
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
)

// Service is a [Heap] of timers on a clock. Its owner, an event loop, pops what is due and lets itself be woken for
// what comes next.
//
// A Service is owned by one goroutine.
type Service[V any] struct {
	Heap[V]

	clock clock.Clock
	start time.Time
	wake  func()

	// One wake-up serves all timers. It is an AfterFunc because a clock.Mock deadlocks when it fires into a timer
	// channel that was not drained, and may fire a timer whose Stop returned true; a stray wake is harmless.
	alarm   *clock.Timer
	alarmAt time.Duration // when the alarm rings; meaningful while ringing
	ringing bool          // an alarm is set and was not yet seen to have passed

	// Set by the alarm, from any goroutine. A clock.Mock may ring, and so end, an alarm that was set anew after its time
	// had come: then it is not pending, whatever alarmAt says.
	rang atomic.Bool
}

// settled bounds how far the clock may move while the alarm is set before it is set again: a mock clock can be moved
// between reading it and setting the alarm, which would then ring that much late.
const settled = 100 * time.Microsecond

// NewService returns a service on c without timers. wake is called, from any goroutine, when a timer may be due; it must
// not block. It is called now and then without need.
func NewService[V any](c clock.Clock, wake func()) *Service[V] {
	return &Service[V]{clock: c, start: c.Now(), wake: wake}
}

// Now returns the present instant: monotonic time since the service was made.
func (s *Service[V]) Now() time.Duration { return s.clock.Since(s.start) }

// Time returns the clock time of an instant.
func (s *Service[V]) Time(at time.Duration) time.Time { return s.start.Add(at) }

// PopDue removes and returns a timer that is due at now, the earliest first, or returns nil.
func (s *Service[V]) PopDue(now time.Duration) *Timer[V] {
	if due, ok := s.Next(); !ok || due > now {
		return nil // law T1: never early
	}
	return s.Pop()
}

// Schedule sees to it that wake is called when the earliest timer is due, and reports whether its owner may sleep:
// false means that a timer is due already.
func (s *Service[V]) Schedule() bool {
	due, ok := s.Next()
	return !ok || s.ScheduleAt(due)
}

// ScheduleAt sees to it that wake is called at due or earlier, and returns false if due has already come. It is for
// owners that keep further deadlines of their own: they pass the earliest of all.
func (s *Service[V]) ScheduleAt(due time.Duration) bool {
	if s.rang.Load() {
		s.rang.Store(false)
		s.ringing = false
	}
	now := s.Now()
	for due > now {
		if s.ringing && now < s.alarmAt && s.alarmAt <= due {
			return true // an early wake is cheaper than moving the alarm for every element
		}
		s.ringing, s.alarmAt = true, due
		if s.alarm == nil {
			s.alarm = s.clock.AfterFunc(due-now, s.ring)
		} else {
			s.alarm.Reset(due - now)
		}
		before := now
		now = s.Now()
		if due > now && now-before < settled {
			return true
		}
		s.ringing = false
	}
	return false
}

func (s *Service[V]) ring() {
	s.rang.Store(true)
	s.wake()
}

// Stop ends the wake-ups. Afterwards wake is called at most once more, by an alarm that was already ringing.
func (s *Service[V]) Stop() {
	if s.alarm != nil {
		s.alarm.Stop()
	}
	s.ringing = false
}
