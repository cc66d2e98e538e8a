package call

import (
	"slices"
	"sync"
)

// Permits bound the calls of several operators. A call has one of them from its start until it is over and no function of it
// runs any more; the goroutine that brings that about gives the permit back, so no loop is needed for that.
//
// While operators are short of permits each may take its part only. A permit that comes back is set aside for the operator that
// has the fewest calls, of those that sleep, and that one is woken. Nothing is set aside for an operator that is awake, since
// it may be blocked in user code: it looks by itself.
type Permits struct {
	mu    sync.Mutex // a leaf
	limit int
	used  int      // taken, or set aside
	short []*Share // those that are short of permits; those that were not served for the longest time first
}

// NewPermits returns n permits.
func NewPermits(n int) *Permits { return &Permits{limit: n} }

// SetLimit changes the number of permits. Those that are taken beyond it are not given out again when they come back.
func (p *Permits) SetLimit(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = n
	p.handOut()
}

// Counts returns the number of permits, and how many are taken.
func (p *Permits) Counts() (limit, used int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limit, p.used
}

// handOut sets free permits aside for operators that sleep. Called with mu.
func (p *Permits) handOut() {
	for p.used < p.limit {
		var next *Share
		var at int
		for i, s := range p.short {
			if s.aside < s.wants && (next == nil || s.calls+s.aside < next.calls+next.aside) && s.sleeper.Parked.Load() {
				next, at = s, i
			}
		}
		if next == nil {
			return
		}
		p.short = append(slices.Delete(p.short, at, at+1), next) // of equals, the others go first
		p.used++
		next.aside++
		next.sleeper.WakeUp()
	}
}

// Share is the part of an operator in [Permits]. Release is called from any goroutine, the rest by the operator's loop.
type Share struct {
	permits *Permits
	sleeper *Sleeper // the loop's
	lent    int      // calls that run on the permit of the call around the operator

	// Guarded by permits.mu.
	calls   int
	aside   int  // permits that were set aside
	wants   int  // as many may be
	isShort bool // is in permits.short
}

// Join returns the part of an operator that has none yet. lent of its calls need no permit of their own.
func (p *Permits) Join(sleeper *Sleeper, lent int) *Share {
	return &Share{permits: p, sleeper: sleeper, lent: lent}
}

// Of reports whether s is a part of p.
func (s *Share) Of(p *Permits) bool { return s != nil && s.permits == p }

// Take takes a permit for a call. If it may not have one, the operator is short of permits until Settle.
func (s *Share) Take() bool {
	p := s.permits
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case s.calls < s.lent:
	case s.aside > 0:
		s.aside--
	case s.mayTake():
		p.used++
	default:
		if !s.isShort {
			s.isShort = true
			p.short = append(p.short, s)
		}
		return false
	}
	s.calls++
	return true
}

// mayTake reports whether there is a permit, and s has not its part already while others are short. Called with mu.
func (s *Share) mayTake() bool {
	p := s.permits
	others := len(p.short)
	if s.isShort {
		others--
	}
	return p.used < p.limit && (others == 0 || s.calls*(others+1) < p.limit)
}

// Release gives a permit back.
func (s *Share) Release() {
	p := s.permits
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.calls--; s.calls >= s.lent {
		p.used--
		p.handOut()
		return
	}
	if s.isShort { // it has a lent one again
		s.sleeper.WakeUp()
	}
}

// Wait reports that there is no permit for an operator that Take has refused one; it is then woken when there is. It has a use
// for so many. Its loop is about to sleep.
func (s *Share) Wait(wants int) bool {
	p := s.permits
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.isShort || s.calls < s.lent || s.mayTake() {
		return false
	}
	s.wants = wants
	p.handOut()
	return s.aside == 0
}

// Settle gives back what was set aside and not used. An operator that has all it needs is not short of permits any more.
func (s *Share) Settle(isShort bool) {
	p := s.permits
	p.mu.Lock()
	defer p.mu.Unlock()
	s.wants = 0 // it is awake
	if isShort {
		return
	}
	s.dropOut()
}

// Leave ends the wait for permits, for good. Calls that run have theirs until they are over.
func (s *Share) Leave() {
	p := s.permits
	p.mu.Lock()
	defer p.mu.Unlock()
	s.dropOut()
}

// dropOut is called with mu.
func (s *Share) dropOut() {
	p := s.permits
	if s.isShort {
		s.isShort = false
		p.short = slices.DeleteFunc(p.short, func(other *Share) bool { return other == s })
	}
	p.used -= s.aside
	s.aside = 0
	p.handOut()
}
