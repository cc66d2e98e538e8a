package fleet

import (
	"cmp"
	"time"
)

// State is the service's state. All processes of a fleet obey it.
type State string

// A single process probes a service that is down, after its pause.
const (
	Up      State = "up"      // calls start
	Down    State = "down"    // only probes start, after the pause
	Ramping State = "ramping" // the load grows back
	Held    State = "held"    // no call starts until a person resumes
)

// Health is the service's state as a process knows it. Its times are on the process's
// monotonic clock. The zero Health is Up.
type Health struct {
	State   State
	Why     string        // the reason for a state other than Up
	Until   time.Duration // end of Down's pause or of the ramp
	Over    time.Duration // length of the ramp
	Target  float64       // calls that the fleet starts in a second at the end of the ramp
	Outage  time.Duration // start of the outage
	Trouble time.Duration // start of the first of several successive outages
}

// Pause is a time in which no call starts, as the service has asked.
type Pause struct {
	Until time.Duration // on the process's monotonic clock
	Why   string
}

const (
	// ProbeTime is how long a probe keeps others away. Then it may have been lost.
	ProbeTime = 10 * time.Second
	// probeAgain is how long a process that has passed on the right to probe leaves it to
	// others.
	probeAgain = time.Second
	// maxTarget bounds a ramp's target, so that products with times do not overflow.
	maxTarget = 1e9
)

// mark identifies a change of a part of the table. A process that knows a higher mark
// than the table has, because the engine has lost writes, records its change again.
type mark struct {
	number int64
	by     string
}

func (a mark) compare(b mark) int {
	return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.by, b.by))
}

// part is a part of the table as this process knows it: the health, or a pause.
type part struct {
	Health                   // perhaps in a state of a later version
	mark   mark              // of the last change; zero before the first
	later  map[string]string // unknown JSON members
}

// read takes in a record that was read before now, and reports whether it is newer.
func (p *part) read(now time.Duration, r *Record) (isNewer bool) {
	if r == nil {
		return false
	}
	read := part{r.health(now), mark{r.Number, r.By}, r.later}
	order := read.mark.compare(p.mark)
	switch {
	case order > 0:
		*p = read
	case order == 0:
		// Each process measures the time since it has read the change, so its end is
		// never early. The earliest end is the best.
		p.Until = min(p.Until, read.Until)
	} // otherwise the engine has lost a change
	return order > 0
}

// health returns a record's health that was read before now.
func (r *Record) health(now time.Duration) Health {
	return Health{
		State: r.State, Why: r.Why, Until: now + bounded(r.Left), Over: bounded(r.Over), Target: min(max(0, r.Target), maxTarget),
		Outage: now - bounded(r.Outage), Trouble: now - bounded(r.Trouble),
	}
}

// healthRecord returns the record of the health to write after now, or nil if it never
// changed.
func (p part) healthRecord(now time.Duration) *Record {
	r := &Record{Number: p.mark.number, By: p.mark.by, State: Up, later: p.later}
	switch {
	case p.mark == mark{}:
		return nil
	case p.at(now).State != Up:
		r.State, r.Why = p.State, p.Why
		r.Left = max(0, p.Until-now)
		r.Over, r.Target = p.Over, p.Target
		r.Outage = max(0, now-p.Outage)
		r.Trouble = max(0, now-p.Trouble)
	}
	return r
}

// pauseRecord returns the record of a pause to write after now, or nil before the first.
func (p part) pauseRecord(now time.Duration) *Record {
	if p.mark == (mark{}) {
		return nil
	}
	return &Record{Number: p.mark.number, By: p.mark.by, Left: max(0, p.Until-now), Why: p.Why, later: p.later}
}

// proposal is this process's change of the health that is not recorded yet.
type proposal struct {
	health  Health
	isOrder bool    // a person's
	isBlind bool    // an order to resume without a known hold or outage
	basis   mark    // of the replaced health
	at      Instant // time of the change
}

// isFresh reports whether an order is recent. Then the person knew about as much as the
// table has.
func (p *proposal) isFresh(now Instant) bool {
	return now.Mono-p.at.Mono < Lease && now.Wall-p.at.Wall < Lease
}

// service is a process's knowledge about the service.
type service struct {
	health  part
	adopted mark // of the last adopted health
	isStale bool // the caller has to adopt health even with this mark
	found   mark // of the health in the first table read
	hasRead bool // a table was read
	lapsed  bool // the caller does not know yet that an order has lapsed

	proposed *proposal // or nil
	written  *proposal // in the table of the last step, or nil
	wrote    mark      // of the health in that table
	numbered int64     // the highest number that this process has given

	pause    part
	ownPause Pause // zero if it is recorded

	hasMet bool    // another process has written since this one first read the table
	pace   float64 // calls a second of the other processes
}

// Propose notes this process's change of the health. Evidence of calls counts only if no
// other process has changed the health meanwhile, and if the lease has not ended: others
// may know better.
//
// A person's order counts if the health is held or down, and an order to hold in any
// case. If it could not be recorded for the time of a lease, it lapses if the health has
// changed meanwhile: see Lapsed.
func (m *Machine) Propose(now Instant, h Health, isOrder bool) {
	isBlind := m.proposed != nil && m.proposed.isBlind
	if !isOrder && (isBlind || !m.IsLeased(now)) {
		m.isStale = true
		return
	}
	m.proposed = &proposal{health: h, isOrder: isOrder, basis: m.health.mark, at: now}
}

// Resume notes a person's order to try the service from a caller that is up: the table
// may have a hold or an outage that it has not read.
func (m *Machine) Resume(now Instant) {
	if m.proposed == nil {
		m.proposed = &proposal{isOrder: true, isBlind: true, basis: m.health.mark, at: now}
	}
}

// HasOrder reports whether an order is not recorded yet.
func (m *Machine) HasOrder() bool { return m.proposed != nil && m.proposed.isOrder }

// Lapsed reports whether an order has lapsed since the last call.
func (m *Machine) Lapsed() bool {
	lapsed := m.lapsed
	m.lapsed = false
	return lapsed
}

// ProposePause notes a pause that the service demands.
func (m *Machine) ProposePause(p Pause) {
	if p.Until > m.ownPause.Until {
		m.ownPause = p
	}
}

// News is a reason to adopt a health, or NoNews.
type News int

// The kinds of news.
const (
	NoNews   News = iota // the caller has adopted it, or has proposed another
	NewState             // it has changed
	OldState             // adopted before, but the caller lost its lease or its proposal since
)

// Adopt returns the health to adopt, unless the second result is NoNews.
func (m *Machine) Adopt(now time.Duration) (Health, News) {
	hasProposed := m.proposed != nil && !m.proposed.isBlind
	isKnown := m.adopted == m.health.mark
	if hasProposed || isKnown && !m.isStale {
		return Health{}, NoNews
	}
	m.adopted = m.health.mark
	m.isStale = false
	if isKnown {
		return m.health.at(now), OldState
	}
	return m.health.at(now), NewState
}

// Pause returns the longest known pause.
func (m *Machine) Pause() Pause { return Pause{m.pause.Until, m.pause.Why} }

// OthersPace returns how many calls the other processes start in a second while the
// service is up.
func (m *Machine) OthersPace() float64 { return m.pace }

// MayProbe reports whether only this process may probe the service now.
func (m *Machine) MayProbe(now Instant) bool {
	return m.mayProbe && m.IsLeased(now)
}

// at returns the health at a time: up after a ramp. In a state of a later version no call
// starts until a probe has succeeded.
func (h Health) at(now time.Duration) Health {
	switch h.State {
	case Down, Held:
		return h
	case Ramping:
		if now < h.Until {
			return h
		}
	case Up, "":
	default:
		h.State = Down
		return h
	}
	return Health{State: Up}
}

func (m *Machine) isAllowed(now Instant, p *proposal) bool {
	isCurrent := p.basis == m.health.mark
	switch {
	case !isCurrent && !p.isOrder:
		return false
	case !isCurrent && !p.isFresh(now):
		m.lapsed = true
		return false
	case !p.isOrder || p.health.State == Held:
		return true
	}
	state := m.health.at(now.Mono).State
	return state == Held || state == Down
}

// readService takes in a table that was read before now.
func (m *Machine) readService(now time.Duration, t Table) {
	isNewer := m.health.read(now, t.Health)
	if isNewer && m.health.mark == m.wrote { // the last write's answer was lost
		m.noteWritten()
	}
	if !m.hasRead {
		m.hasRead = true
		m.found = m.health.mark
	}
	before := m.pause
	isNewer = m.pause.read(now, t.Pause)
	if isNewer && before.mark.by == m.id { // both processes have made the change; the longer pause counts
		m.ProposePause(Pause{before.Until, before.Why})
	}
	m.pace = 0
	for id, x := range t.Members {
		if id != m.id {
			m.pace += min(max(0, x.Pace), maxTarget)
		}
	}
}

// writeService writes health and pause into the next table, and returns the health that
// is recorded there.
func (m *Machine) writeService(at Instant, next *Table) Health {
	now := at.Mono
	m.forgetHold(next.Members)
	h := m.health
	m.written = nil
	switch {
	case m.proposed == nil:
	case m.isAllowed(at, m.proposed):
		if m.proposed.isBlind {
			m.proposed.health = m.health.resumed(now)
		}
		m.written = m.proposed
		h = part{Health: m.proposed.health, mark: m.nextMark()}
	default:
		m.isStale = m.isStale || !m.proposed.isBlind
		m.proposed = nil
	}
	m.wrote = h.mark
	if m.ownPause.Until > max(now, m.pause.Until) {
		own := Health{Until: m.ownPause.Until, Why: m.ownPause.Why}
		m.pause = part{Health: own, mark: mark{m.pause.mark.number + 1, m.id}}
	}
	m.ownPause = Pause{}
	next.Health = h.healthRecord(now)
	next.Pause = m.pause.pauseRecord(now)
	return h.at(now)
}

// resumed returns a hold or an outage after an order to try the service.
func (h Health) resumed(now time.Duration) Health {
	h.State = Down
	h.Until = now
	h.Outage = now
	return h
}

// forgetHold ends a hold of processes that have all ended or were killed: this process
// has joined later, and has been alone ever since.
func (m *Machine) forgetHold(members map[string]Member) {
	if m.health.State != Held || m.hasMet || m.health.mark != m.found || len(members) > 1 {
		return
	}
	_, isMember := members[m.id]
	if len(members) == 1 && !isMember {
		return
	}
	m.health = part{Health: Health{State: Up}, mark: m.nextMark()}
}

// nextMark returns the mark of a change, with a number that this process has never used:
// the change that had it may be lost, but others may know it.
func (m *Machine) nextMark() mark {
	m.numbered = max(m.numbered, m.health.mark.number) + 1
	return mark{m.numbered, m.id}
}

func (m *Machine) noteWritten() {
	if m.written == nil {
		return
	}
	m.health = part{Health: m.written.health, mark: m.wrote}
	if !m.written.isBlind {
		m.adopted = m.wrote
	}
	switch {
	case m.proposed == m.written:
		m.proposed = nil
	case m.proposed != nil: // made after the step had begun
		m.proposed.basis = m.wrote
	}
	m.written = nil
}

// planProbe sets who probes after the step. The right is claimed like a single permit: it
// is used when others have written since, and so have seen the claim. So at most one
// process has the right, whichever writes the engine loses.
func (m *Machine) planProbe(now Instant, version int64, t Table, h Health, l Local) {
	isShared := t.othersNeed(m.id)            // others could probe, too
	hasPermit := m.share > 0 || l.Running > 0 // a running call can lend its permit
	mayClaim := h.State == Down && l.Waits && hasPermit
	isTaken := m.isProbeTaken(now, t)
	switch {
	case l.Probing: // until its probe has ended
	case m.probe && !mayClaim:
		m.passProbe(now)
	case m.probe && isShared && m.written != nil: // its probe was lost
		m.passProbe(now)
	case m.probe && isShared && now.Mono-m.probeSince >= turn: // it does not probe
		m.passProbe(now)
		m.unused = now.Mono - turn // another process may need the permit to probe
	}
	if m.probe && !m.mayProbe && isTaken { // the engine has lost the other process's claim, which was recorded again
		m.probe = false
	}
	m.next.probe, m.next.mayProbe = m.probe, m.mayProbe
	rests := isShared && now.Mono < m.probePassed+probeAgain
	switch {
	case m.probe:
		m.next.mayProbe = m.mayProbe || m.isNoticed(now, t, m.probeAt)
	case l.Probing || !mayClaim || rests || isTaken || t.isStopped():
	default:
		m.next.probe = true
		m.next.probeAt = version + 1
		m.probeSince = max(now.Mono, h.Until)
	}
}

// passProbe passes the right to probe on to other processes.
func (m *Machine) passProbe(now Instant) {
	m.probe, m.mayProbe = false, false
	m.probePassed = now.Mono
}

// isProbeTaken reports whether another process has claimed the right to probe. The claim
// of a process that no longer writes counts until its lease and a probe have ended, or
// until its entry no longer counts if that is earlier.
func (m *Machine) isProbeTaken(now Instant, t Table) bool {
	for id, x := range t.Members {
		if id != m.id && x.Probe && now.Mono-m.seen[id].at <= Lease+ProbeTime {
			return true
		}
	}
	return false
}

func (t Table) othersNeed(id string) bool {
	for other, x := range t.Members {
		if other != id && x.Need > 0 {
			return true
		}
	}
	return false
}

// bounded returns a recorded time, perhaps of another version.
func bounded(d time.Duration) time.Duration { return min(max(0, d), MaxLongest) }
