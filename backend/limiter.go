package backend

import (
	"math"
	"time"
)

// adaptive finds out how many calls a service can answer at a time: see the package doc.
// It shrinks when more calls would only wait in the service's queue. It measures beside
// half as many calls every twelve seconds, or less often if calls are slow, so that a
// slower service is not mistaken for a queue. Guarded by Backend.mu.
type adaptive struct {
	least, most float64
	limit       float64
	base        float64 // mean time of a call beside half as many, in ns; 0 if unknown
	sampled     time.Duration

	phase phase
	since time.Duration // when the window began
	asked time.Duration // when base was measured last
	mean  float64       // of the last window
	n     float64       // timed calls of the window
	sum   float64       // of their times
	squared,
	answers, losses float64 // of all calls, also untimed
	inUse int // the most calls at a time
}

// phase is the purpose of a window.
type phase uint8

const (
	working   phase = iota
	draining        // half of the limit; the service's queue empties
	measuring       // half of the limit
)

const (
	sampleEach   = 200 * time.Microsecond
	shortWindow  = 100 * time.Millisecond
	longWindow   = time.Second
	baseEach     = 12 * time.Second
	fewSamples   = 20
	certain      = 0.1 // relative error of a mean that ends a window
	grows        = 1.2
	shrinks      = 1.4
	fewQueued    = 3    // calls that may wait in any case
	lostShare    = 0.05 // shrinks the limit
	step         = 1.1
	stepOnLosses = 0.8
)

func newAdaptive(least, most int) *adaptive {
	return &adaptive{least: float64(least), most: float64(most), limit: float64(least), sampled: -sampleEach}
}

// beginSample reports whether a call that begins at t is to be timed, and notes it.
func (a *adaptive) beginSample(t time.Duration) bool {
	if t-a.sampled < sampleEach {
		return false
	}
	a.sampled = t
	return true
}

// set changes the limit within its bounds, and returns it.
func (a *adaptive) set(n int) int {
	a.limit = min(a.most, max(a.least, float64(n)))
	return a.now()
}

// sample takes the time of a call that ended beside so many others, and returns the
// limit.
func (a *adaptive) sample(t, took time.Duration, inUse int) int {
	d := float64(took)
	a.n++
	a.sum += d
	a.squared += d * d
	a.inUse = max(a.inUse, inUse)
	a.end(t)
	return a.now()
}

func (a *adaptive) answered() { a.answers++ }

// lost takes a lost call, and returns the limit.
func (a *adaptive) lost(t time.Duration) int {
	a.losses++
	a.end(t)
	return a.now()
}

// now returns the limit of the phase.
func (a *adaptive) now() int {
	if a.phase == working {
		return int(a.limit)
	}
	return int(max(1, a.limit/2))
}

// end ends the window if it has enough evidence.
func (a *adaptive) end(t time.Duration) {
	length := t - a.since
	mean := a.mean
	if a.n > 0 {
		mean = a.sum / a.n
	}
	switch {
	case length < max(shortWindow, 2*time.Duration(mean)), a.n+a.losses < fewSamples:
		return
	case a.phase == draining, a.losses > a.answers:
	case length < longWindow && math.Sqrt(max(0, a.squared/a.n-mean*mean)/a.n) > certain*mean:
		return
	}
	a.mean = mean
	a.conclude(t, mean)
	a.since = t
	a.n = 0
	a.sum = 0
	a.squared = 0
	a.answers = 0
	a.losses = 0
	a.inUse = 0
}

// conclude changes the limit after a window with this mean.
func (a *adaptive) conclude(t time.Duration, mean float64) {
	switch {
	case a.losses > lostShare*(a.answers+a.losses) && a.phase == working:
		a.limit = max(a.least, a.limit*stepOnLosses)
	case a.phase == draining:
		a.phase = measuring
	case a.phase == measuring:
		if a.base == 0 {
			a.base = mean
		}
		a.base = (a.base + mean) / 2
		a.asked = t
		a.phase = working
	case float64(a.inUse) <= a.limit/2: // at most half of the limit was in use, so the window has measured base
		a.base, a.asked = mean, t
	case a.base == 0, t-a.asked >= max(baseEach, time.Duration(80*mean)):
		a.phase = draining
	default:
		queued := a.limit * (1 - a.base/mean)
		switch {
		case mean < grows*a.base || queued < fewQueued:
			if float64(a.inUse) > 0.8*a.limit {
				a.limit = min(a.most, max(a.limit*step, a.limit+1))
			}
		case mean > shrinks*a.base:
			a.limit = max(a.least, a.limit/step)
		}
	}
}
