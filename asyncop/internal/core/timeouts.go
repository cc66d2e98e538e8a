package core

import "time"

// ownTimeouts asks the user for the timeout of each element.
type ownTimeouts[IN, OUT any] struct{ core *Machine[IN, OUT] }

// ask returns the timeout of an element, or an error after a panic. It may be negative:
// see User.TimeoutFor.
func (o *ownTimeouts[IN, OUT]) ask(in IN) (timeout time.Duration, err error) {
	o.core.ranCode = true
	returned := false
	defer func() {
		if !returned {
			err = o.core.noteBroken("the function of WithTimeoutFor", recover())
		}
	}()
	timeout = o.core.User.TimeoutFor(in)
	returned = true
	if timeout == 0 {
		return o.core.Timeout, nil
	}
	return timeout, nil
}

// apply sets the own timeout of s, the newest element, and reports whether s continues. s
// fails if user code panics.
func (o *ownTimeouts[IN, OUT]) apply(s *Slot[IN, OUT]) (continues bool) {
	g := o.core
	own, err := o.ask(s.in)
	if err != nil {
		g.failElement(s, err)
		return false
	}
	if own != g.Timeout {
		g.ownTimeout(s, own)
	}
	return true
}

// isHurried reports whether less than half of the element's time is left at an instant.
func (g *Machine[IN, OUT]) isHurried(s *Slot[IN, OUT], at time.Duration) bool {
	if s.due == Never {
		return false
	}
	timeout := s.due - s.accepted
	if g.FromAttempt {
		timeout = g.ownDeadlines.get(s.index).total
	}
	return s.due-at < timeout/2
}

// startTimeout begins the time of s with the attempt that begins now (FromAttempt). That
// is the first one, or the first one after waitOut.
func (g *Machine[IN, OUT]) startTimeout(s *Slot[IN, OUT]) {
	total := g.Timeout
	if own := g.ownDeadlines.get(s.index); own != nil {
		total = own.total
	}
	if total > 0 {
		g.setDeadline(s, later(g.now, total), total)
	}
}

// stopTimeout removes the deadline of s. Its time begins anew with its next attempt.
func (g *Machine[IN, OUT]) stopTimeout(s *Slot[IN, OUT]) {
	if s.hasOwnDeadline {
		g.outOfOrder.Cancel(&g.ownDeadlines.get(s.index).timer)
		s.due, s.hasOwnDeadline = Never, false
	}
}

// ownTimeout gives s, the newest element, its own timeout. It begins with the acceptance
// or, with FromAttempt, with the first attempt. A negative timeout has passed at once.
func (g *Machine[IN, OUT]) ownTimeout(s *Slot[IN, OUT], total time.Duration) {
	if g.FromAttempt && total >= 0 {
		*g.ownDeadlines.ref(s.index) = &ownDeadline[IN, OUT]{total: total}
		return
	}
	g.setDeadline(s, later(s.accepted, total), total)
}
