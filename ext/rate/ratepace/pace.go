package ratepace

import (
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/weirflow/weir/asyncop"
)

// askAgain is the longest time until the limiter is asked again: its limit may have been raised meanwhile.
const askAgain = time.Second

// New returns the pace of a limiter: each attempt takes a token. Several operators may share the limiter, and its limit and
// burst may change at any time; a higher one counts a second later at the latest. With a limit or a burst of 0 no attempt
// starts. It panics if limiter is nil. The pace is safe for concurrent use.
func New(limiter *rate.Limiter) asyncop.Pacer {
	if limiter == nil {
		panic("ratepace: New: nil limiter")
	}
	return pace{limiter}
}

type pace struct{ limiter *rate.Limiter }

// Take implements asyncop.Pacer.
func (p pace) Take(now time.Time) (wait time.Duration) {
	if p.limiter.AllowN(now, 1) {
		return 0
	}
	missing := 1 - p.limiter.TokensAt(now)
	seconds := math.Ceil(missing/float64(p.limiter.Limit())*1e9) / 1e9
	if !(seconds < askAgain.Seconds()) { // in this form NaN, of a limit of 0, counts too
		return askAgain
	}
	return max(1, time.Duration(math.Ceil(seconds*1e9)))
}
