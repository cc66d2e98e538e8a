package fleet

import (
	"maps"
	"time"
)

const (
	// Lease is how long a process may use its share after the start of its last step.
	Lease = 5 * time.Second
	// Period is the time between two steps of a process that makes calls. Two periods are
	// less than the two seconds within which permits move.
	Period = 850 * time.Millisecond
	// IdlePeriod is the time between two steps of a process that makes no calls.
	IdlePeriod = 1050 * time.Millisecond
	// Settling is how long the steps of a process must have succeeded before it grows. In
	// this time all other processes make a step.
	Settling = 1250 * time.Millisecond
)

// Instant is a time of a process, by its two clocks. A suspended machine stops the
// monotonic clock, but not the wall clock.
type Instant struct{ Mono, Wall time.Duration }

// Local is the state of the backend of a process.
type Local struct {
	Limit   int           // of the fleet
	Running int           // calls that have a permit
	Need    int           // permits that the process could use, including the permits of running calls; 0 if it is idle
	Longest time.Duration // that a call takes
}

// Machine is a process in its fleet. It is not safe for concurrent use.
type Machine struct {
	id string

	share   int     // permits with which calls may start until the lease ends
	covered int     // calls that may run until then: more than share while calls above it end
	renewed Instant // start of the step that renewed the lease last
	leased  bool    // there was such a step since the process started, left, or found its lease ended

	since   time.Duration // when the first of the steps that have all succeeded was committed
	settles bool          // since is valid

	version   int64 // the highest version that was read or written
	committed int64 // beat of the last write that is known to have happened
	tried     int64 // beat of the last write
	seen      map[string]sighting
	stopped   time.Duration // the process does not grow before, because the engine has lost writes

	// Of the step under way.
	began  Instant
	grown  int // the share after it
	covers int // the covered calls after it
}

// sighting is when the reader saw the entry of a member change.
type sighting struct {
	beat int64
	at   time.Duration
}

// New returns a machine without a share. id is unique for each Machine, also after a
// restart of its process.
func New(id string) *Machine { return &Machine{id: id, seen: map[string]sighting{}} }

// Share returns how many permits calls may use at an instant: 0 after the end of the
// lease.
func (m *Machine) Share(now Instant) int {
	if !m.IsLeased(now) {
		return 0
	}
	return m.share
}

// Covered returns how many calls may run at an instant. It exceeds the share while the
// process has more running calls than it should have. After the end of the lease it is 0,
// and then at most the share, because others may have the permits of earlier calls.
func (m *Machine) Covered(now Instant) int {
	if !m.IsLeased(now) {
		return 0
	}
	return m.covered
}

// IsLeased reports whether the lease on the share, which may be 0, has not ended by
// either clock.
func (m *Machine) IsLeased(now Instant) bool {
	return m.leased && now.Mono-m.renewed.Mono < Lease && now.Wall-m.renewed.Wall < Lease
}

// Begin begins a step. start is an instant before the table was read at the version, now
// an instant after that. Begin returns the table to write. A share that shrinks is
// reduced at once, a share that grows by Commit.
func (m *Machine) Begin(start, now Instant, version int64, read Table, l Local) Table {
	if !m.IsLeased(now) {
		m.drop()
	}
	m.began = start
	next := m.counted(now, read)
	m.findLoss(now, version, read, next.longest(l.Longest))
	m.tried = max(m.tried, m.committed) + 1
	mine := Member{Need: l.Need, Beat: m.tried, Longest: l.Longest, Stopped: now.Mono < m.stopped}
	next.Members[m.id] = mine
	m.grown = m.share
	target := next.target(m.id, l.Limit, version)
	switch { // law B5: a share grows by free permits only, and is never recorded below the running calls
	case target <= m.share:
		m.share, m.grown = target, target
	case m.mayGrow(now, next):
		m.grown = max(m.share, min(target, l.Limit-next.others(m.id)))
	}
	m.covers = max(m.grown, min(l.Running, m.covered))
	mine.Share = max(m.grown, l.Running)
	next.Members[m.id] = mine
	return next
}

// Commit ends a step whose table was written with a new version.
func (m *Machine) Commit(now Instant, version int64) {
	m.version = version
	m.committed = m.tried
	m.share, m.covered = m.grown, m.covers
	m.renewed, m.leased = m.began, true
	if !m.settles {
		m.since, m.settles = now.Mono, true
	}
}

// Fail notes that the engine did not answer a step. The table may have been written.
func (m *Machine) Fail() { m.settles = false }

// Leave gives up the share of a process without running calls, and returns the table to
// write.
func (m *Machine) Leave(read Table) Table {
	m.drop()
	next := Table{Members: maps.Clone(read.Members)}
	delete(next.Members, m.id)
	return next
}

// drop gives up the lease. The sightings of others may be older than writes that the
// engine has lost since, so they begin anew.
func (m *Machine) drop() {
	m.share, m.covered = 0, 0
	m.leased, m.settles = false, false
	clear(m.seen)
}

// counted returns a copy of the table with the members whose shares count.
func (m *Machine) counted(now Instant, read Table) Table {
	next := Table{Members: map[string]Member{}}
	for id, x := range read.Members {
		s, ok := m.seen[id]
		if !ok || s.beat != x.Beat {
			s = sighting{x.Beat, now.Mono}
			m.seen[id] = s
		}
		if id == m.id || now.Mono-s.at <= Lease+x.Longest {
			next.Members[id] = x
		}
	}
	maps.DeleteFunc(m.seen, func(id string, _ sighting) bool {
		_, ok := read.Members[id]
		return !ok
	})
	return next
}

// findLoss stops growth if the engine has lost writes that this process has seen or made.
func (m *Machine) findLoss(now Instant, version int64, read Table, longest time.Duration) {
	mine, ok := read.Members[m.id]
	isLost := version < m.version || ok && mine.Beat < m.committed || !ok && m.leased
	if isLost {
		m.stopped = now.Mono + Lease + longest
		m.settles = false
	}
	m.version = version
	if ok {
		m.committed = mine.Beat
	}
}

// mayGrow reports whether the share may grow if there are free permits.
func (m *Machine) mayGrow(now Instant, t Table) bool {
	if !m.settles || now.Mono-m.since < Settling {
		return false
	}
	for _, x := range t.Members {
		if x.Stopped {
			return false
		}
	}
	return true
}

// others returns the sum of the shares of the other members.
func (t Table) others(id string) int {
	sum := 0
	for other, x := range t.Members {
		if other != id {
			sum += x.Share
		}
	}
	return sum
}

// longest returns the longest call of all members, at least own.
func (t Table) longest(own time.Duration) time.Duration {
	for _, x := range t.Members {
		own = max(own, x.Longest)
	}
	return own
}
