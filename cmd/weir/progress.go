package main

import (
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/weirflow/weir/delivery/jobs"
)

// bar shows how far a job has come, on a terminal only.
type bar struct{ bar *progressbar.ProgressBar }

func (a *app) startBar(what string, total int) bar {
	if total <= 100 || !isTerminal(a.err) {
		return bar{} // it is over before it can be read, or is not read
	}
	return bar{progressbar.NewOptions(total,
		progressbar.OptionSetWriter(a.err), progressbar.OptionSetDescription(what), progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetWidth(20), progressbar.OptionClearOnFinish())}
}

func (b bar) show(p jobs.Progress) {
	if b.bar != nil {
		_ = b.bar.Set(p.Done + p.Looping + p.InDoubt + p.Skipped) // what is shown is not worth an error
	}
}

func (b bar) stop() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
}
