package core

import (
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/predicates"
)

// findSnooze reports whether err, the error of the call of s, snoozes the message of s,
// and for how long. Methods of errors and elements run off the loop (law A6): after
// runtime.Goexit on the loop, Abandon would end the attempt of s a second time.
//
// If an attempt is in doubt, the message is snoozed only if the call may happen twice,
// because the redelivery forgets the doubt.
func (g *Machine[IN, OUT]) findSnooze(s *Slot[IN, OUT], err error) (delay time.Duration, isSnoozed bool) {
	if !g.messages.isPending(s) {
		return 0, false
	}
	g.ranCode = true
	broken := call.OffLoop(func() error {
		delay, isSnoozed = predicates.SnoozeOf(err)
		if isSnoozed && s.doubt != noDoubt {
			isSnoozed = g.Policy.IsIdempotent(s.in)
		}
		return nil
	})
	if broken != nil {
		return 0, false
	}
	return delay, isSnoozed
}

// endSnoozed ends s, whose attempt has ended and has snoozed its message. The message is
// released for redelivery after delay. The attempt has not failed, and is not evidence
// about the service.
func (g *Machine[IN, OUT]) endSnoozed(s *Slot[IN, OUT], err error, delay time.Duration) {
	g.refresh()
	if g.backend != nil {
		g.backend.reportIgnored(s, &s.attempt.Token)
	}
	g.attemptEnd = attemptEnd{isUnreported: true, took: g.now - s.lastBegan, isTimed: true}
	s.attempt = nil
	g.reportEnd(s)
	g.messages.releaseAfter(s, err, delay)
	g.endReleased(s, err)
}
