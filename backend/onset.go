package backend

import "time"

// onset judges calls that start after a loss, up to the number of the window. Answers to
// calls from before an outage arrive for as long as a call takes, and would hide the
// outage in the window. Calls that still run count as answered. The zero onset is off.
// Guarded by Backend.mu.
type onset struct {
	isOn    bool
	since   time.Duration // when the loss was noticed
	started int           // calls since then
	lost    int           // of these calls
}

// start counts a starting call. most is the number of the window.
func (o *onset) start(most int) {
	o.started++
	o.isOn = o.isOn && o.started <= most
}

// lose counts a lost call that began at begun.
func (o *onset) lose(t, begun time.Duration) {
	switch {
	case !o.isOn:
		*o = onset{isOn: true, since: t}
	case begun >= o.since:
		o.lost++
	}
}
