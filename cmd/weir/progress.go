package main

import (
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/weirflow/weir/delivery/deadletters"
)

// bar shows how far a merge has come, on a terminal only.
type bar struct{ bar *progressbar.ProgressBar }

func (a *app) startBar(total int) bar {
	if total <= 100 || !isTerminal(a.err) {
		return bar{} // it is over before it can be read, or is not read
	}
	return bar{progressbar.NewOptions(total,
		progressbar.OptionSetWriter(a.err), progressbar.OptionSetDescription("merge"), progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetWidth(20), progressbar.OptionClearOnFinish())}
}

func (b bar) merged(m deadletters.Merged) {
	if b.bar != nil {
		_ = b.bar.Set(m.Merged + m.Looping + m.OutcomeUnknown) // what is shown is not worth an error
	}
}

func (b bar) stop() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
}
