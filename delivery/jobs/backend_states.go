package jobs

import (
	"slices"
	"time"
)

// severity orders the states of a backend for [Backend.Strip].
var severity = []string{"", "up", "ramping", "held", "down"}

// Strip returns the worst state of the backend in each of n equal spans between from and
// to, the oldest first: down (or probing), held, ramping or up, or "" if unknown. n is at
// least 1, and to is after from.
func (b *Backend) Strip(from, to time.Time, n int) []string {
	strip := make([]string, n)
	width := to.Sub(from) / time.Duration(n)
	for i, s := range b.States {
		state := s.State
		if state == "probing" {
			state = "down"
		}
		end := to
		if i+1 < len(b.States) {
			end = b.States[i+1].Since
		}
		for k := range strip {
			begin := from.Add(time.Duration(k) * width)
			isIn := s.Since.Before(begin.Add(width)) && end.After(begin)
			if isIn && slices.Index(severity, state) > slices.Index(severity, strip[k]) {
				strip[k] = state
			}
		}
	}
	return strip
}
