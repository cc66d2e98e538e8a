package core

import (
	"math"
	"time"

	"github.com/weirflow/weir/internal/decision"
)

// retryLog logs attempts with a reason to retry.
type retryLog[IN, OUT any] struct {
	core   *Machine[IN, OUT]
	isOn   func() bool
	log    func(r Report[IN], d decision.Decision, again bool)
	logs   bool          // the last result of isOn
	recent time.Duration // until then logs is valid
}

// LogRetries calls log for attempts with a reason to retry, while isOn returns true. It
// calls isOn at most every 100 ms, and makes no reports while it returns false.
func LogRetries[IN, OUT any](g *Machine[IN, OUT], isOn func() bool, log func(r Report[IN], d decision.Decision, again bool)) {
	g.retryLog = &retryLog[IN, OUT]{core: g, isOn: isOn, log: log, recent: math.MinInt64}
}

func (l *retryLog[IN, OUT]) write(s *Slot[IN, OUT], d decision.Decision, again bool) {
	if l.core.now >= l.recent {
		l.logs, l.recent = l.isOn(), later(l.core.now, 100*time.Millisecond)
	}
	if l.logs {
		l.log(l.core.report(s), d, again)
	}
}
