package backend

import "time"

// tuner finds the rate that a service accepts (AdaptiveRate). A refusal lowers the rate.
// Without refusals it grows: fast far below the last refused rate, slowly near it. The
// zero tuner leaves a rate as it is. Guarded by Backend.mu.
type tuner struct {
	least, most float64       // tokens in a nanosecond
	refused     float64       // rate at the last refusal, or 0
	lowered     time.Duration // when the rate was lowered last
	grown       time.Duration // until when the rate has grown
}

const (
	lowerBy     = 0.95 // factor of a refusal
	lowerEach   = time.Second
	growEach    = 100 * time.Millisecond
	growsFar    = 0.1 // share that the rate grows in a second
	growsNear   = 1 / 400.0
	nearRefused = 0.93 // share of the refused rate from which the rate grows slowly
)

func (u *tuner) isOn() bool { return u.most > 0 }

// lower lowers the rate of k after a refusal at t of a call that began at begun, unless
// that was before the rate was last lowered.
func (u *tuner) lower(k *bucket, t, begun time.Duration) {
	if !u.isOn() || u.refused > 0 && (begun < u.lowered || t < u.lowered+lowerEach) {
		return
	}
	u.refused = k.perNano
	k.perNano = max(u.least, k.perNano*lowerBy)
	u.lowered = t
	u.grown = t
}

func (u *tuner) grow(k *bucket, t time.Duration) {
	passed := t - u.grown
	if !u.isOn() || passed < growEach {
		return
	}
	u.grown = t
	share := growsFar
	if u.refused > 0 && k.perNano >= nearRefused*u.refused {
		share = growsNear
	}
	k.perNano = min(u.most, k.perNano*(1+share*min(1, passed.Seconds())))
}
