package console

import (
	"context"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/wait"
)

// mostAhead is how far ahead the rests of first answers may reach: people see a queue's
// newest messages and its keys soon, unless they have just asked for many.
const mostAhead = time.Minute

// pacer lets reads of whole queues take at most a tenth of the wall time: each read has a
// rest nine times as long. It is safe for concurrent use.
type pacer struct {
	clock clock.Clock
	turn  chan struct{} // capacity 1: full while a read runs
	first chan struct{} // likewise of first answers
	keys  chan struct{} // likewise of counts by key

	mu         sync.Mutex
	restUntil  time.Time // earliest start of the next read
	firstUntil time.Time // end of the rests of first answers alone
	keysUntil  time.Time // likewise of counts by key
	bothUntil  time.Time // end of the rests of both
}

func newPacer(cl clock.Clock) *pacer {
	return &pacer{clock: cl, turn: make(chan struct{}, 1), first: make(chan struct{}, 1), keys: make(chan struct{}, 1)}
}

// reserve waits until a read may begin: one at a time, after all earlier rests. Call
// release at the end of the read.
func (p *pacer) reserve(ctx context.Context) (release func(), err error) {
	return p.await(ctx, p.turn, p.rest)
}

// reserveFirst is reserve for the first answer to a person: it waits neither for a long
// read nor for its rest, but delays later reads.
func (p *pacer) reserveFirst(ctx context.Context) (release func(), err error) {
	return p.await(ctx, p.first, p.restOfFirst)
}

// reserveKeys is reserve for a count by key, which people wait for: it waits neither for
// the counts of queues and groups nor for their rests, but delays them. It waits for the
// rests of earlier counts by key, and for the rests of first answers if they reach further
// than mostAhead.
func (p *pacer) reserveKeys(ctx context.Context) (release func(), err error) {
	return p.await(ctx, p.keys, p.restOfKeys)
}

func (p *pacer) await(ctx context.Context, turn chan struct{}, rest func() time.Duration) (release func(), err error) {
	for {
		pause := rest()
		if pause > 0 {
			err := wait.For(ctx, p.clock, pause)
			if err != nil {
				return nil, err
			}
		}
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if rest() <= 0 {
			begun := p.clock.Now()
			return func() {
				p.charge(p.clock.Since(begun), turn)
				<-turn
			}, nil
		}
		<-turn // another read was made meanwhile
	}
}

func (p *pacer) rest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock.Until(p.restUntil)
}

func (p *pacer) restOfFirst() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock.Until(p.firstUntil.Add(-mostAhead))
}

func (p *pacer) restOfKeys() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock.Until(later(p.keysUntil, p.bothUntil.Add(-mostAhead)))
}

func (p *pacer) charge(took time.Duration, turn chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.restUntil = later(p.restUntil, now).Add((share - 1) * took)
	if turn == p.turn {
		return
	}
	p.restUntil = p.restUntil.Add(took) // others may have read meanwhile
	p.bothUntil = later(p.bothUntil, now).Add(share * took)
	if turn == p.first {
		p.firstUntil = later(p.firstUntil, now).Add((share - 1) * took)
	} else {
		p.keysUntil = later(p.keysUntil, now).Add((share - 1) * took)
	}
}

// chargeRead adds the rest after a short read without a turn.
func (p *pacer) chargeRead(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restUntil = later(p.restUntil, p.clock.Now()).Add(share * took)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
