package asyncop

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/weirflow/weir/asyncop/internal/core"
)

// While attempts fail, a line says so once in failingPeriod, if they are at least one in
// failingShare. One failure alone has none.
const (
	failingPeriod = 10 * time.Second
	failingShare  = 10
)

// failingLine is the line that says that attempts fail: a service that is unavailable,
// for instance. Owned by the loop.
type failingLine struct {
	isFailing     bool          // attempts have failed since the counts below
	failingSince  time.Duration // as the loop saw it
	begun, failed int64         // attempts, at the last line or when none had failed since
}

// failingDue returns when the line is due, or core.Never.
func (s *frontend[IN, OUT]) failingDue() time.Duration {
	f, now := &s.failingLine, s.driver.Core().State()
	begun, failed := now.Stats.Attempts, now.Failed
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

// logFailing writes the line if it is due, and enough attempts have failed.
func (s *frontend[IN, OUT]) logFailing() {
	f, now := &s.failingLine, s.driver.Core().State()
	if now.Now < s.failingDue() {
		return
	}
	begun, failed := now.Stats.Attempts, now.Failed
	n := failed - f.failed
	of := max(n, begun-f.begun) // calls that take long may have begun before
	took := (now.Now - f.failingSince).Round(time.Second)
	*f = failingLine{begun: begun, failed: failed}
	if n*failingShare >= of {
		s.logAttrs(s.ctx, slog.LevelWarn, fmt.Sprintf("asyncop: %d of %d attempts failed in the last %v", n, of, took),
			slog.Any("last", now.Stats.LastError))
	}
}
