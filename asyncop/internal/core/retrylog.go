package core

import (
	"time"

	"github.com/weirflow/weir/internal/decision"
)

// retryLog logs attempts with a reason to retry, if the logger writes debug lines. It
// asks the logger at most every 100 ms, because that runs user code.
type retryLog[IN, OUT any] struct {
	core       *Machine[IN, OUT]
	logs       bool          // the last answer of User.LogsDebug
	validUntil time.Duration // when to ask again
}

func (l *retryLog[IN, OUT]) write(s *Slot[IN, OUT], d *decision.Decision, isRetried bool) {
	g := l.core
	if g.now >= l.validUntil {
		l.logs, l.validUntil = g.User.LogsDebug(), later(g.now, 100*time.Millisecond)
	}
	if l.logs {
		g.User.LogDecision(g.report(s), *d, isRetried)
	}
}
