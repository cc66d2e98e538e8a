package core

import (
	"context"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/timers"
)

// EndedBy is who ended a run.
type EndedBy uint8

// The values of EndedBy.
const (
	ByDriver  EndedBy = iota // End, or runtime.Goexit in user code
	ByElement                // an element failed, and FailsRun is set
	ByCancel                 // a context of the host ended
)

// End makes the run end with err. The first error counts.
func (g *Machine[IN, OUT]) End(err error) { g.fail(err, ByDriver) }

func (g *Machine[IN, OUT]) fail(err error, by EndedBy) {
	if g.state.Failure == nil {
		g.state.Failure, g.state.EndedBy = err, by
	}
}

// EndIfCancelled ends the run if a context of the host has ended.
func (g *Machine[IN, OUT]) EndIfCancelled() {
	if g.state.Failure != nil || !g.Host.Cancelled() {
		return
	}
	cause := context.Cause(g.Host.Life)
	if cause == nil {
		cause = context.Cause(g.Host.User)
	}
	g.fail(cause, ByCancel)
}

// EndRetries ends retries, because the input has ended. By law A5 an element in back-off
// gets one more attempt, at once or after the wait that a server has demanded.
func (g *Machine[IN, OUT]) EndRetries() {
	g.retriesEnded = true
	for s := g.first(); s != nil; s = s.next() {
		if s.phase == backoff && s.retry&Demanded == 0 {
			g.retryNow(s)
		}
	}
}

// EndPurged ends the elements whose messages were purged, so no call starts for them. The
// context of a running call ends with cause message.ErrPurged. An element whose failure
// is being handled is left alone: its hand-over finds the purge. takePermit ends later
// elements.
func (g *Machine[IN, OUT]) EndPurged() {
	g.readClock()
	g.sawPurge = true
	for s := g.first(); s != nil; {
		next := s.next()
		if firstLive <= s.phase && s.phase <= lastLive && g.messages.isPurged(s) {
			g.endPurged(s)
		}
		s = next
	}
}

// endPurged releases the message of s, which has not failed.
func (g *Machine[IN, OUT]) endPurged(s *Slot[IN, OUT]) {
	if s.phase == running || s.phase == preparing {
		g.Timers.Cancel(&s.timer)
		t := &s.attempt.Token
		g.endAttempt(s, cutOff)
		if g.backend != nil {
			g.refresh()
			g.backend.reportIgnored(s, t)
		}
		g.attemptEnd = attemptEnd{isUnreported: true, err: message.ErrPurged, took: g.now - s.lastBegan, isTimed: true}
	} else {
		g.endWait(s)
	}
	s.attempt = nil
	g.reportEnd(s)
	g.messages.releaseAfter(s, message.ErrPurged, 0)
	g.endReleased(s, message.ErrPurged)
}

// Abandon ends the contexts of all attempts. It returns the elements that have not ended,
// in input order (law A1). The driver calls Ended for each.
func (g *Machine[IN, OUT]) Abandon() (cut []*Slot[IN, OUT]) {
	g.abandoned = true
	g.readClock()
	if g.backend != nil {
		g.backend.seat.Leave()
	}
	if g.sink != nil {
		g.sink.Cut()
	}
	if g.batches != nil {
		g.batches.send() // frees the permits of a batch that Goexit has interrupted
	}
	for s := g.first(); s != nil; s = s.next() {
		if g.abandon(s) {
			cut = append(cut, s)
		}
	}
	g.state.Stats.WaitingForRetry, g.state.Stats.WaitingForKey = 0, 0
	g.state.Stats.Deciding, g.state.Done = 0, 0
	return cut
}

// abandon ends the attempt of s, and reports whether s had not ended.
func (g *Machine[IN, OUT]) abandon(s *Slot[IN, OUT]) bool {
	switch s.phase {
	case controlElement, endedWithoutResults:
		return false
	case preparing, running:
		end := g.endAttempt(s, cutOff)
		if s.phase == running {
			s.doubt = max(s.doubt, doubtOf(end.Deduplicated))
		}
		g.attemptEnd = attemptEnd{isUnreported: true, err: context.Canceled, took: g.now - s.lastBegan, isTimed: true}
	case deciding:
		q := g.takeQuestion(s)
		q.Cut()
	case handling:
		g.handlerCalls.take(s.index).Cut()
	case done:
		if len(s.attempt.Results) == 0 {
			g.Ended(s, observe.Empty)
			return false
		}
		if s.attempts > 0 {
			s.doubt = notDeduplicated // its results are lost
		}
	default: // no attempt
	}
	g.reportEnd(s)
	return true
}

// Forget drops all elements, because user code may keep futures and contexts that refer
// to the core. It is the last call.
func (g *Machine[IN, OUT]) Forget() {
	empty := timers.Heap[*Slot[IN, OUT]]{}
	g.slots.forget()
	g.Queue, g.Timers.Heap = nil, empty
	g.ready, g.outOfOrder = empty, empty
	g.fresh, g.live = nil, nil
	g.oldest = nil
	g.state.FailedIn, g.unread = nil, nil
	g.attemptEnd, g.view = attemptEnd{}, predicates.Attempt[OUT]{}
	g.messages.forget()
	if g.observing != nil {
		g.observing.forget()
	}
	if g.keys != nil {
		g.keys.forget()
	}
	if g.lookups != nil {
		g.lookups.forget()
	}
	if g.sink != nil {
		g.sink.forget()
	}
	g.forming = nil
	g.Host.Mail.Close()
}
