package fleet

import (
	"maps"
	"time"
)

const (
	// Lease is how long a process may use its share after the start of its last step.
	Lease = 5 * time.Second
	// Period is the time between steps of a process that makes calls.
	Period = 600 * time.Millisecond
	// PendingPeriod is the time between steps of a process that waits for others to
	// notice its claim.
	PendingPeriod = 200 * time.Millisecond
	// IdlePeriod is the time between steps of a process without calls.
	IdlePeriod = 1050 * time.Millisecond
	// Settling is how long a process's steps must have succeeded before it uses claimed
	// permits.
	Settling = 1250 * time.Millisecond
	// Silent is how long a process must not have written before others may grow without
	// its notice.
	Silent = 2500 * time.Millisecond
	// steady is the longest time from the start of a step to the read of the next one,
	// for a process that vouches for others. It is shorter than Silent: a process that
	// others may take for silent must not vouch. It counts from the start, because the
	// step's answer may be late.
	steady = 2 * time.Second
	// MaxLongest bounds the longest call, so that sums of times do not overflow.
	MaxLongest = 365 * 24 * time.Hour
	// turn is how long a process keeps a permit at least if there are fewer permits than
	// processes, and how long it may have the right to probe unused.
	turn = 4 * time.Second
)

// Instant is a time by both of a process's clocks. A suspended machine stops only the
// monotonic clock.
type Instant struct{ Mono, Wall time.Duration }

// Local is the state of a process's backend.
type Local struct {
	Limit   int           // of the fleet
	Running int           // calls at the service, and permits whose call may begin at any time
	Need    int           // usable permits, including Running; 0 if idle
	Longest time.Duration // time of a call
	Started int64         // calls so far
	IsPaced bool          // an element waits for its part of a rate
	Waits   bool          // an element waits, and may probe
	Probing bool          // its probe is under way
	Pace    float64       // calls started in a second while the service is up
}

// Machine is a process's state in its fleet. It is not safe for concurrent use.
type Machine struct {
	id string

	plan
	next plan // after the step under way

	// The lease.
	renewed Instant // start of the last step that renewed it
	leased  bool    // there was such a step since the process started, left, or lost its lease
	leases  int     // ended leases

	// The latest series of successful steps without a long gap.
	settles bool          // there is one
	since   time.Duration // commit of the first
	joined  int64         // version that it has written

	version   int64 // highest version read or written
	committed int64 // beat of the last write known to have happened
	tried     int64 // beat of the last write
	seen      map[string]sighting
	stopped   time.Duration // no growth until then, because the engine has lost writes

	// The turn, while permits are fewer than processes.
	ticket   int64
	tookTurn time.Duration // when the turn began
	started  int64         // Local.Started then
	unused   time.Duration // since when the process could call, but has not; after a call the time of the last step

	service

	// The right to probe the service.
	probeSince  time.Duration // when it could first be used
	probePassed time.Duration // when it was last passed on

	began Instant // start of the step under way
}

// plan is the use of permits between two steps.
type plan struct {
	// share ≤ claim: the process uses share, and the others count claim.
	share     int
	claim     int
	claimedAt int64 // version that recorded the part of claim beyond share

	// The right to probe is claimed like a permit.
	probe    bool  // it is claimed
	probeAt  int64 // version that recorded the claim
	mayProbe bool  // the process has it
}

type sighting struct {
	beat int64
	at   time.Duration
}

// New returns a machine without a share. id is unique for each Machine, also after a
// restart of its process.
func New(id string) *Machine { return &Machine{id: id, seen: map[string]sighting{}} }

// Share returns how many permits calls may use at an instant: 0 after the lease.
func (m *Machine) Share(now Instant) int {
	if !m.IsLeased(now) {
		return 0
	}
	return m.share
}

// IsLeased reports whether the lease on the share, which may be 0, has not ended by
// either clock.
func (m *Machine) IsLeased(now Instant) bool {
	return m.leased && now.Mono-m.renewed.Mono < Lease && now.Wall-m.renewed.Wall < Lease
}

// LeaseEnd returns the last lease's end by the monotonic clock.
func (m *Machine) LeaseEnd() time.Duration { return m.renewed.Mono + Lease }

// Leases returns how many leases have ended. A permit is valid only in its lease.
func (m *Machine) Leases() int { return m.leases }

// IsPending reports whether the process waits for others to notice a claim.
func (m *Machine) IsPending() bool { return m.hasClaim() || m.probe && !m.mayProbe }

func (m *Machine) hasClaim() bool { return m.claim > m.share }

// Begin begins a step. start is an instant before the table was read at the version, now
// an instant after that. Begin returns the table to write. It reduces a share at once;
// Commit makes it grow. The caller also adopts the health at once: see Adopt.
func (m *Machine) Begin(start, now Instant, version int64, read Table, l Local) Table {
	l.Longest = min(l.Longest, MaxLongest)
	if !m.IsLeased(now) {
		m.drop()
	}
	if now.Mono-m.renewed.Mono > steady || now.Wall-m.renewed.Wall > steady {
		m.startAnew()
		clear(m.seen) // they may be older than lost writes
	}
	m.began = start
	longest := read.longest(l.Longest)
	next := m.counted(now, read, longest)
	m.findLoss(now, version, read, longest)
	m.readService(now.Mono, read)
	health := m.writeService(now, &next)
	m.tried = max(m.tried, m.committed) + 1
	mine := Member{Need: l.Need, Beat: m.tried, Written: version + 1, Joined: version + 1, Longest: l.Longest, Pace: l.Pace}
	if m.settles {
		mine.Joined = m.joined
	}
	if now.Mono < m.stopped {
		mine.Stopped, mine.Longest = true, longest
	}
	mine.Ticket = m.passTurn(now, next, health, l)
	next.Members[m.id] = mine
	m.planShare(now, version, next, l)
	m.planProbe(now, version, next, health, l)
	mine.Share = max(m.next.claim, l.Running)
	mine.Probe = m.next.probe || l.Probing
	next.Members[m.id] = mine
	return next
}

// planShare sets the share and the claim after the step. t has the counted members.
//
// Law B5: only free permits are claimed, and a claim is used when all other members have
// written since it was recorded.
func (m *Machine) planShare(now Instant, version int64, t Table, l Local) {
	target := t.target(m.id, l.Limit)
	free := l.Limit - t.others(m.id)
	if target <= m.share {
		m.share, m.claim = target, target
		m.next = m.plan
		return
	}
	m.next = m.plan
	m.next.claim = m.share
	if t.isStopped() {
		return
	}
	if m.hasClaim() && m.isNoticed(now, t, m.claimedAt) {
		m.next.share = max(m.share, min(m.claim, target, free))
	}
	switch mayUse := max(m.next.share, min(target, free)); {
	case m.hasClaim() && m.next.share == m.share: // a larger claim would wait anew
		m.next.claim = max(m.share, min(m.claim, mayUse))
	default:
		m.next.claim = mayUse
		m.next.claimedAt = version + 1
	}
}

// isNoticed reports whether all other members have written since the version that
// recorded a claim. So they have seen it, and have recorded their own shares. A process
// that has just joined also waits for members whose every write the engine may have lost.
//
// A member may be dead. Then it is enough that a witness has written: a member without
// interruption since before the last write of the silent one. If the engine had lost a
// share of the silent member, the witness would have noticed, and stopped growth.
func (m *Machine) isNoticed(now Instant, t Table, claimedAt int64) bool {
	if !m.settles || now.Mono-m.since < Settling {
		return false
	}
	oldest := m.joined // of the witnesses
	for id, x := range t.Members {
		if id != m.id && x.Written > claimedAt {
			oldest = min(oldest, x.Joined)
		}
	}
	for id, x := range t.Members {
		hasWritten := id == m.id || x.Written > claimedAt
		isWitnessed := now.Mono-m.seen[id].at >= Silent && oldest < x.Written
		if !hasWritten && !isWitnessed {
			return false
		}
	}
	return true
}

// Commit ends a step whose table was written with a new version.
func (m *Machine) Commit(now Instant, version int64) {
	m.version = version
	m.committed = m.tried
	m.plan = m.next
	m.renewed, m.leased = m.began, true
	m.noteWritten()
	if !m.settles {
		m.settles = true
		m.since, m.joined = now.Mono, version
	}
}

// Fail notes that the engine did not answer a step. The table may have been written, so
// it is unknown which writes the others have seen. The process claims again.
func (m *Machine) Fail() { m.startAnew() }

// startAnew forgets the steps so far, and claims that wait for notice.
func (m *Machine) startAnew() {
	m.settles = false
	m.claim = m.share
	m.probe = m.mayProbe
}

// Leave gives up the share of a process without calls, and returns the table to write.
func (m *Machine) Leave(read Table) Table {
	m.drop()
	read.Members = maps.Clone(read.Members)
	delete(read.Members, m.id)
	return read
}

func (m *Machine) drop() {
	if m.leased {
		m.leases++
	}
	m.share, m.leased = 0, false
	m.mayProbe = false
	m.startAnew()
	m.isStale = true
	if m.proposed != nil && !m.proposed.isOrder {
		m.proposed = nil
	}
}

// counted returns a copy of the table with the members whose shares count. A dead member
// counts for the longest call of all members: it may have noticed the claim of a process
// with longer calls, whose entry the engine has lost.
func (m *Machine) counted(now Instant, read Table, longest time.Duration) Table {
	next := Table{Members: make(map[string]Member, len(read.Members)+1), later: read.later}
	for id, x := range read.Members {
		s, ok := m.seen[id]
		if !ok || s.beat != x.Beat {
			s = sighting{x.Beat, now.Mono}
			m.seen[id] = s
			m.hasMet = m.hasMet || ok && id != m.id
		}
		if id == m.id || now.Mono-s.at <= Lease+longest {
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
		m.startAnew()
	}
	m.version = version
	if ok {
		m.committed = mine.Beat
	}
}

// passTurn returns the process's ticket. Low tickets come first if there are fewer
// permits than members. A process goes to the end when its turn is over.
//
// A turn ends after a call. Until then the process may wait for its part of a rate, or
// for the right to probe. If it does not wait, and still makes no call during a turn, its
// operators are busy otherwise, and the turn ends as well.
func (m *Machine) passTurn(now Instant, t Table, h Health, l Local) int64 {
	hasCalled := l.Running > 0 || l.Started > m.started
	isLong := hasCalled && now.Mono-m.tookTurn >= turn
	isUnused := now.Mono-m.unused >= turn
	isOver := m.share > 0 && (isLong || isUnused)
	if isOver || m.ticket == 0 {
		m.ticket++
		for _, x := range t.Members {
			m.ticket = max(m.ticket, x.Ticket+1)
		}
	}
	begins := isOver || m.share == 0
	if begins {
		m.tookTurn, m.started = now.Mono, l.Started
	}
	if begins || hasCalled || mustWait(h, l) {
		m.unused = now.Mono
	}
	return m.ticket
}

// mustWait reports whether the elements of a process wait for something other than a
// permit. If the process has the right to probe and does not use it, planProbe ends the
// wait.
func mustWait(h Health, l Local) bool {
	isStopped := h.State == Held || h.State == Down
	return l.IsPaced || isStopped && l.Waits
}

func (t Table) isStopped() bool {
	for _, x := range t.Members {
		if x.Stopped {
			return true
		}
	}
	return false
}

func (t Table) others(id string) int {
	sum := 0
	for other, x := range t.Members {
		if other != id {
			sum += x.Share
		}
	}
	return sum
}

func (t Table) longest(own time.Duration) time.Duration {
	for _, x := range t.Members {
		own = max(own, min(x.Longest, MaxLongest))
	}
	return own
}
