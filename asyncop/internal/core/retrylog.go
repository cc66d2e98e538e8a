package core

import (
	"math"
	"time"

	"github.com/weirflow/weir/internal/decision"
)

// retryLog logs attempts for which there was a reason to retry.
type retryLog[IN, OUT any] struct {
	core   *Machine[IN, OUT]
	isOn   func() bool
	log    func(r Report[IN], d decision.Decision, again bool)
	logs   bool          // isOn, as of the last time it was asked
	recent time.Duration // until then logs is recent
}

// LogRetries calls log for attempts for which there was a reason to retry, while isOn
// returns true. isOn is asked again after 100 ms, so that no report is made for a line
// that is not written.
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
