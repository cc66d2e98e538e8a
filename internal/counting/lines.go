package counting

import (
	"slices"
	"time"
)

// Lines limits log lines about similar failures: the first failure of a group has a line,
// and the others share a line with their number, once per period. It is the only way in
// which weir limits log lines. It is not safe for concurrent use.
type Lines[K comparable] struct {
	period time.Duration
	most   int
	groups []*lineGroup[K]
}

// lineGroup is a group of similar failures.
type lineGroup[K comparable] struct {
	key   K
	until time.Duration // end of the period
	last  time.Duration // time of the last failure
	more  int           // failures since the last line
	rest  func(more int)
}

// NewLines returns Lines for about the given number of groups at a time: Begin does not
// refuse a group, so the caller asks [Lines.HasRoom] first, and uses a shared key
// otherwise.
func NewLines[K comparable](period time.Duration, most int) *Lines[K] {
	return &Lines[K]{period: period, most: most}
}

// HasRoom reports whether a failure with this key has a group or may begin one.
func (l *Lines[K]) HasRoom(key K, now time.Duration) bool {
	if l.index(key) >= 0 || len(l.groups) < l.most {
		return true
	}
	l.groups = slices.DeleteFunc(l.groups, func(g *lineGroup[K]) bool {
		return g.more == 0 && (now >= g.until || now-g.last >= l.period)
	})
	return len(l.groups) < l.most
}

func (l *Lines[K]) index(key K) int {
	return slices.IndexFunc(l.groups, func(g *lineGroup[K]) bool { return g.key == key })
}

// Begin reports whether the caller writes a line about a failure now. Otherwise the
// failure is counted, and rest may be called to write the next line of the group, about
// more failures. It also writes a line that is due. now is the time since any fixed time.
func (l *Lines[K]) Begin(key K, now time.Duration, rest func(more int)) bool {
	i := l.index(key)
	if i < 0 {
		l.groups = append(l.groups, &lineGroup[K]{key: key, until: now + l.period, last: now})
		return true
	}
	g := l.groups[i]
	g.last = now
	if now >= g.until && g.more == 0 {
		g.until = now + l.period
		return true
	}
	if now >= g.until {
		g.flush(now, l.period)
	}
	g.more++
	g.rest = rest
	return false
}

// flush writes the line about the failures since the last line, and begins a period.
func (g *lineGroup[K]) flush(now, period time.Duration) {
	more, rest := g.more, g.rest
	g.more = 0
	g.rest = nil
	g.until = now + period
	rest(more)
}

// Due returns when the next line is due. It returns false if there is none.
func (l *Lines[K]) Due() (at time.Duration, ok bool) {
	for _, g := range l.groups {
		if g.more > 0 && (!ok || g.until < at) {
			at, ok = g.until, true
		}
	}
	return at, ok
}

// Flush writes the lines that are due, or all lines about failures that were counted.
func (l *Lines[K]) Flush(now time.Duration, all bool) {
	for _, g := range l.groups {
		if g.more > 0 && (all || now >= g.until) {
			g.flush(now, l.period)
		}
	}
}
