package backend

import (
	"fmt"
	"math"
	"time"
)

// bucket is a bucket of tokens that time fills. The zero bucket covers everything. Its
// owner guards it.
type bucket struct {
	perNano float64 // tokens that come in a nanosecond
	burst   float64
	level   float64 // below 0 after an attempt that cost more than the burst
	at      time.Duration
}

// spare is the part of a rate that a pause saves up.
const spare = 1.0 / 20

func newBucket(function string, n float64, per time.Duration) bucket {
	if !(n > 0 && n <= math.MaxFloat64) || per <= 0 {
		panic(fmt.Sprintf("backend: %s: not positive, or not finite: %v in %v", function, n, per))
	}
	burst := max(1, n*spare)
	return bucket{perNano: n / float64(per), burst: burst, level: burst}
}

func (k *bucket) isSet() bool { return k.burst > 0 }

// fill adds the tokens up to t.
func (k *bucket) fill(t time.Duration) {
	if t > k.at {
		k.level = min(k.burst, k.level+k.perNano*float64(t-k.at))
		k.at = t
	}
}

// scale makes the bucket a part of whole, with room for one token at least, so that a
// small part allows calls, too. Tokens stay, as far as they fit, because they came at the
// earlier rate. It starts empty if isNew.
func (k *bucket) scale(whole bucket, part float64, isNew bool) {
	if !whole.isSet() {
		return
	}
	k.perNano, k.burst = whole.perNano*part, max(1, whole.burst*part)
	k.level = min(k.level, k.burst)
	if isNew {
		k.level = min(k.level, 0)
	}
}

// empty removes the tokens at t.
func (k *bucket) empty(t time.Duration) {
	k.level = min(k.level, 0)
	k.at = max(k.at, t)
}

// wait returns the time until an attempt of this cost may start, or 0. The bucket must be
// filled.
func (k *bucket) wait(cost float64) time.Duration {
	missing := min(cost, k.burst) - k.level
	if missing <= rounding || !k.isSet() {
		return 0
	}
	d := math.Ceil(missing/k.perNano - rounding)
	if d >= float64(longestWait) {
		return longestWait
	}
	return max(1, time.Duration(d))
}

const (
	rounding    = 1e-3 // of a token, or of a nanosecond: smaller differences are ignored
	longestWait = time.Hour
)

// takes returns how long a full rate takes for a cost.
func (k *bucket) takes(cost float64) time.Duration {
	if !k.isSet() {
		return 0
	}
	return time.Duration(min(cost/k.perNano, float64(longestWait)))
}

// take takes the tokens of an attempt; give is its reverse. A debt is paid within
// longestWait.
func (k *bucket) take(cost float64) {
	if k.isSet() {
		k.level = max(k.level-cost, -k.perNano*float64(longestWait))
	}
}

// settle replaces a call's estimated cost by its real cost. The refund of a throttled
// call only pays debts, because the service has asked for fewer calls.
func (k *bucket) settle(estimate, cost float64, throttled bool) {
	switch {
	case cost > estimate:
		k.take(cost - estimate)
	case throttled && k.isSet():
		k.level = max(k.level, min(0, k.level+estimate-cost))
	default:
		k.give(estimate - cost)
	}
}

func (k *bucket) give(cost float64) {
	if k.isSet() {
		k.level = min(k.burst, k.level+cost)
	}
}
