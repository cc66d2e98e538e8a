package call

import "sync/atomic"

// Sleeper lets a goroutine sleep until others have something for it. It is woken only if it sleeps, or is about to.
type Sleeper struct {
	Parked atomic.Bool   // the goroutine sleeps, or looks a last time whether it must
	C      chan struct{} // buffer of one: one wake-up is enough
}

// NewSleeper returns a Sleeper.
func NewSleeper() Sleeper { return Sleeper{C: make(chan struct{}, 1)} }

// Sleep returns when the sleeper is woken, or at once unless idle reports that there is nothing to do. It calls idle when
// others wake the sleeper already. It may return for nothing.
func (s *Sleeper) Sleep(idle func() bool) {
	s.Parked.Store(true)
	if idle() {
		<-s.C
	}
	s.Parked.Store(false)
}

// IsParked reports whether the goroutine sleeps, or looks a last time whether it must. Called from any goroutine.
func (s *Sleeper) IsParked() bool { return s.Parked.Load() }

// WakeUp wakes the sleeper. Called from any goroutine.
func (s *Sleeper) WakeUp() {
	if s.Parked.Load() {
		select {
		case s.C <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}
