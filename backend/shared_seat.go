package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/internal/gate"
)

// sharedSeat is a seat at a backend whose limit is shared with other processes. It checks
// the lease of the process's share before calls, and reports how many permits its operator
// needs.
type sharedSeat struct {
	*seat
	fleet *fleetShare
}

var (
	_ gate.Seat   = (*sharedSeat)(nil)
	_ gate.Leased = (*sharedSeat)(nil)
)

// Start implements gate.Seat.
func (p *sharedSeat) Start(now time.Time, a *gate.Request) gate.Answer {
	p.fleet.willStart()
	return p.seat.Start(now, a)
}

// Wait implements gate.Seat.
func (p *sharedSeat) Wait(now time.Time, wants int) time.Duration {
	wait := p.seat.Wait(now, wants)
	p.fleet.isShort()
	return wait
}

// Release implements gate.Seat.
func (p *sharedSeat) Release(stamp gate.Stamp) {
	p.seat.Release(stamp)
	p.fleet.released()
}

// Leave implements gate.Seat.
func (p *sharedSeat) Leave() {
	p.seat.Leave()
	p.fleet.leave()
}

var errNoShare = errors.New("the process has no share of the limit that it shares with others")

// WhyWaiting implements gate.Seat.
func (p *sharedSeat) WhyWaiting(now time.Time, l *gate.Late) (err error, wait time.Duration) { //nolint:staticcheck // the error is the answer
	b := p.seat.backend
	b.mu.Lock()
	hasShare := b.limit > 0 || p.fleet.limit == 0 || b.state != Up
	why := p.fleet.why
	b.mu.Unlock()
	switch {
	case hasShare:
		return p.seat.WhyWaiting(now, l)
	case why != nil:
		return fmt.Errorf("backend %s: %w: its engine does not answer: %w", b.name, errNoShare, why), firstPause
	}
	return fmt.Errorf("backend %s: %w", b.name, errNoShare), firstPause
}

// AwaitLease implements gate.Leased. A call that must wait is parked: it does not count
// as running. Calls on lent permits are not counted either.
func (p *sharedSeat) AwaitLease(ctx context.Context) {
	f := p.fleet
	b := p.seat.backend
	isLent := p.seat.lent > 0
	b.mu.Lock()
	if f.covers(isLent) {
		b.mu.Unlock()
		return
	}
	if !isLent {
		f.parked++
	}
	for {
		changed := f.changed
		b.mu.Unlock()
		f.wake()
		hasEnded := false
		select {
		case <-changed:
		case <-ctx.Done():
			hasEnded = true
		}
		b.mu.Lock()
		if hasEnded || f.unparks(isLent) {
			break
		}
	}
	if !isLent {
		f.parked--
	}
	b.mu.Unlock()
}
