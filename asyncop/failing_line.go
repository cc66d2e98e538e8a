package asyncop

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/weirflow/weir/asyncop/internal/core"
)

// The line about failing attempts is written once per failingPeriod, if at least two
// attempts failed, and at least 1/failingShare of all attempts.
const (
	failingPeriod = 10 * time.Second
	failingShare  = 10
)

// failingLine is the state of the line about failing attempts. It is owned by the loop.
type failingLine struct {
	isFailing     bool          // since the counts below
	failingSince  time.Duration // when the loop noticed
	begun, failed int64         // attempts, at the last line, or when all had last succeeded
}

func (s *frontend[IN, OUT]) failingDue() time.Duration {
	f, now := &s.failingLine, s.driver.Core().State()
	begun, failed := now.Stats.Attempts, now.FailedAttempts
	switch {
	case failed == f.failed:
		f.begun = begun
	case !f.isFailing:
		f.isFailing, f.failingSince = true, now.Now
	}
	if failed <= f.failed+1 {
		return core.Never
	}
	return f.failingSince + failingPeriod
}

// logFailing writes the line if it is due and enough attempts have failed.
func (s *frontend[IN, OUT]) logFailing() {
	f, now := &s.failingLine, s.driver.Core().State()
	if now.Now < s.failingDue() {
		return
	}
	begun, failed := now.Stats.Attempts, now.FailedAttempts
	n := failed - f.failed
	of := max(n, begun-f.begun) // long calls may have begun before
	took := (now.Now - f.failingSince).Round(time.Second)
	*f = failingLine{begun: begun, failed: failed}
	if n*failingShare >= of {
		s.Log(s.ctx, slog.LevelWarn, fmt.Sprintf("asyncop: %d of %d attempts failed in the last %v", n, of, took),
			slog.Any("last", now.Stats.LastError))
	}
}
