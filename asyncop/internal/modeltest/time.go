package modeltest

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Advance moves the time on, from one due timer to the next.
func (m *Model) Advance(to time.Duration) {
	for m.Held == nil && !m.Ended {
		next := Never
		for _, e := range m.Queue {
			for _, at := range []time.Duration{m.deadline(e), e.at} {
				if at != Never && (next == Never || at < next) {
					next = at
				}
			}
		}
		if next == Never || next > to {
			break
		}
		m.Now = max(m.Now, next)
		m.Fire()
		m.Settle()
	}
	m.Now = to
}

// deadline returns the deadline of e, which covers all attempts (law A3).
func (m *Model) deadline(e *Element) time.Duration {
	if m.Timeout == 0 || e.phase < Fresh || e.phase > Ready {
		return Never
	}
	return e.accepted + m.Timeout + e.extra
}

func (m *Model) isDue(e *Element) bool {
	d := m.deadline(e)
	return d != Never && d <= m.Now || e.at != Never && e.at <= m.Now
}

// Fire fires the timers that are due now: deadlines before other timers (law A5), and
// equal ones in the order of arming (law T1).
func (m *Model) Fire() {
	for _, e := range m.Queue {
		if d := m.deadline(e); d != Never && d <= m.Now && !m.Ended {
			m.timeOut(e)
		}
	}
	due := slices.DeleteFunc(slices.Clone(m.Queue), func(e *Element) bool { return e.at == Never || e.at > m.Now })
	slices.SortFunc(due, func(a, b *Element) int { return cmp.Or(cmp.Compare(a.at, b.at), a.order-b.order) })
	for _, e := range due {
		if m.Ended {
			return
		}
		call := e.call
		e.at = Never
		switch e.phase {
		case Backoff:
			m.ready(e)
		case Failing:
			m.enter(e, Failing)
		case Running:
			m.stats.AttemptTimeouts++
			m.expire(call, true)
			m.outcome(e, Outcome{Err: "attempt timeout"})
		case Handling:
			m.expire(call, true)
			m.fail(e, e.timeoutError("limit"))
		default:
			panic("model: timer")
		}
	}
}

// timeOut times e out. The result of a timeout handler is final (law A3).
func (m *Model) timeOut(e *Element) {
	m.stats.Timeouts++
	e.at = Never
	switch e.phase {
	case Running:
		m.expire(e.call, true)
	case Backoff, Ready:
		m.stats.WaitingForRetry--
	default: // not called
	}
	if !m.Handler {
		m.fail(e, e.timeoutError(""))
		return
	}
	running := 0
	for _, c := range m.Calls {
		if c.Attempt == 0 && !c.Answered {
			running++
		}
	}
	m.enter(e, Handling)
	if running == 2*m.Capacity {
		m.fail(e, e.timeoutError("too many"))
		return
	}
	if m.HandlerLimit > 0 {
		e.at = m.Now + m.HandlerLimit
	}
	m.newCall(e, 0, e.at)
}

func (e *Element) timeoutError(handler string) string {
	return fmt.Sprintf("timeout after %d [%s] [%s]", e.attempts, e.lastErr, handler)
}

// ForgetUnmade removes the timeout handlers that were due at the cut and not called.
// Whether a worker still calls them is a race.
func (m *Model) ForgetUnmade(made func(key string) bool) {
	if !m.Ended {
		return
	}
	m.Calls = slices.DeleteFunc(m.Calls, func(c *Call) bool {
		cut := c.Attempt == 0 && c.At == m.EndedAt && c.Ended && !c.Expired && !made(c.Key())
		if cut && m.HeedsContext {
			m.stats.LateCompletions--
		}
		return cut
	})
}
