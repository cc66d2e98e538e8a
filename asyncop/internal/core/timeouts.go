package core

import "time"

// ownTimeouts gives elements timeouts of their own.
type ownTimeouts[IN, OUT any] struct {
	core       *Machine[IN, OUT]
	timeoutFor func(in IN) time.Duration
}

// OwnTimeouts gives elements the timeouts that timeoutFor returns. 0 stands for
// Config.Timeout. An element with a negative timeout is late already.
func OwnTimeouts[IN, OUT any](g *Machine[IN, OUT], timeoutFor func(in IN) time.Duration) {
	g.isExact = true
	g.timeouts = &ownTimeouts[IN, OUT]{core: g, timeoutFor: timeoutFor}
}

// of returns the timeout of an element. If the user's function breaks, it returns the
// error.
func (o *ownTimeouts[IN, OUT]) of(in IN) (timeout time.Duration, err error) {
	o.core.ranCode = true
	returned := false
	defer func() {
		if !returned {
			err = o.core.broke("the function of WithTimeoutFor", recover())
		}
	}()
	timeout = o.timeoutFor(in)
	returned = true
	if timeout == 0 {
		return o.core.Timeout, nil
	}
	return timeout, nil
}

// limit gives s, the newest element, its own timeout, and reports whether s continues: it
// fails if the user's function breaks.
func (o *ownTimeouts[IN, OUT]) limit(s *Slot[IN, OUT]) (continues bool) {
	g := o.core
	own, err := o.of(s.in)
	if err != nil {
		g.failElement(s, err, false)
		return false
	}
	if own != g.Timeout {
		g.limit(s, later(s.accepted, own), own)
	}
	return true
}
