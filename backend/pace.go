package backend

import (
	"math"
	"time"
)

// pace measures how many calls start in a second while the backend is up, for the ramp
// after an outage. Calls may start slowly before an outage is noticed, because earlier
// calls hang: so an earlier, higher rate fades over a minute. Guarded by Backend.mu.
type pace struct {
	begun   time.Duration // of the present window
	count   float64       // calls of the window
	known   time.Duration // time that average covers
	average float64       // calls a second
	highest float64       // the highest average, fading
}

const (
	paceWindow = time.Second
	paceOver   = 5 * time.Second
	paceFades  = time.Minute
)

// note counts a call that starts at t.
func (p *pace) note(t time.Duration) {
	if t-p.begun >= paceWindow {
		p.endWindow(t)
	}
	p.count++
}

func (p *pace) endWindow(t time.Duration) {
	length := t - p.begun
	p.known = min(p.known+length, paceOver)
	weight := min(1, length.Seconds()/p.known.Seconds())
	p.average += weight * (p.count/length.Seconds() - p.average)
	p.highest = max(p.average, p.highest*math.Exp(-length.Seconds()/paceFades.Seconds()))
	p.begun, p.count = t, 0
}

func (p *pace) perSecond(t time.Duration) float64 {
	return max(p.highest, p.count/max(paceWindow, t-p.begun).Seconds())
}

// restart begins a new window at t, and does not count the time before.
func (p *pace) restart(t time.Duration) { p.begun, p.count = t, 0 }
