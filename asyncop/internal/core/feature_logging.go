package core

import (
	"math"
	"time"

	"github.com/weirflow/weir/internal/decision"
)

// LogRetries adds a feature: write gets the outcomes that had a reason for another attempt. logs says whether anything is written: it
// is asked again every 100 ms, so that a report need not be put together for every retry.
func LogRetries[IN, OUT any](g *Machine[IN, OUT], logs func() bool, write func(r Report[IN], d decision.Decision, again bool)) {
	isOn, until := false, time.Duration(math.MinInt64)
	g.decided = append(g.decided, func(s *Slot[IN, OUT], d decision.Decision, again bool) {
		if g.now >= until {
			isOn, until = logs(), later(g.now, 100*time.Millisecond)
		}
		if isOn {
			write(g.report(s), d, again)
		}
	})
}
