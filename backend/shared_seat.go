package backend

import (
	"context"
	"time"

	"github.com/weirflow/weir/internal/gate"
)

// sharedSeat is a seat at a backend with a shared limit. It checks the share's lease
// before calls, and reports how many permits its operator needs.
type sharedSeat struct {
	*seat
	fleet   *fleetShare
	longest time.Duration // that a call of the operator takes
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
	p.fleet.noteShortage()
	return wait
}

// Release implements gate.Seat. Running calls keep the permit until they end.
func (p *sharedSeat) Release(stamp gate.Stamp) {
	b := p.seat.backend
	b.mu.Lock()
	released := p.fleet.permits.find(stamp)
	released.isReleased = true
	released.endLending()
	p.fleet.freeIfOver(released)
	b.unlock()
}

// Leave implements gate.Seat. The last seat gives up the share before it returns, since
// the program may end then. It waits for leaveTimeout at most.
func (p *sharedSeat) Leave() {
	p.seat.Leave()
	p.fleet.leave()
}

// WhyWaiting implements gate.Seat.
func (p *sharedSeat) WhyWaiting(now time.Time, l *gate.Late) (err error, wait time.Duration) { //nolint:staticcheck // the error is the answer
	b := p.seat.backend
	b.mu.Lock()
	hasShare := b.limit > 0 || p.fleet.limit == 0 || b.state != Up
	if !hasShare {
		err = p.fleet.whyNoShare()
	}
	b.mu.Unlock()
	if hasShare {
		return p.seat.WhyWaiting(now, l)
	}
	return err, firstPause
}

// BeginCall implements gate.Leased.
func (p *sharedSeat) BeginCall(ctx context.Context, stamp gate.Stamp) (gate.Stamp, error) {
	var call *permit
	err := p.fleet.await(ctx, stamp, func(x *permit) bool {
		call = p.fleet.begin(x, p.longest)
		return call != nil
	})
	if err != nil {
		return 0, err
	}
	return call.stamp, nil
}

// EndCall implements gate.Leased.
func (p *sharedSeat) EndCall(call gate.Stamp) {
	b := p.seat.backend
	b.mu.Lock()
	ended := p.fleet.permits.find(call)
	p.fleet.permits.end(ended)
	for over := ended; over != nil; over = over.lender() {
		p.fleet.freeIfOver(over)
	}
	b.unlock()
}

// MayCall implements gate.Leased.
func (p *sharedSeat) MayCall(stamp gate.Stamp) bool {
	b := p.seat.backend
	b.mu.Lock()
	defer b.unlock()
	return p.fleet.beginFunc(p.fleet.permits.find(stamp), p.longest)
}

// Await implements gate.Leased.
func (p *sharedSeat) Await(ctx context.Context, stamp gate.Stamp) error {
	return p.fleet.await(ctx, stamp, func(x *permit) bool { return p.fleet.beginFunc(x, p.longest) })
}
