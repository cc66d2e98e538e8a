package console

import (
	"context"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/wait"
)

// mostAhead is how far the rests of first answers may reach into the future: a person
// sees the newest messages of a queue soon, unless people have just asked for many.
const mostAhead = time.Minute

// pacer lets reads of whole queues take at most a tenth of the wall time: after each read
// there is a rest that is nine times as long. It is safe for concurrent use.
type pacer struct {
	clock clock.Clock
	turn  chan struct{} // capacity 1: full while a read runs
	first chan struct{} // the same of first answers

	mu         sync.Mutex
	restUntil  time.Time // the next read begins then or later
	firstUntil time.Time // the end of the rests of the first answers alone
}

func newPacer(cl clock.Clock) *pacer {
	return &pacer{clock: cl, turn: make(chan struct{}, 1), first: make(chan struct{}, 1)}
}

// reserve waits until a read may begin: one at a time, after the rests of all reads
// before. The caller calls release at the end of the read.
func (p *pacer) reserve(ctx context.Context) (release func(), err error) {
	return p.await(ctx, p.turn, p.rest)
}

// reserveFirst is reserve for the first answer to a person: it waits neither for a long
// read nor for its rest. Its own rest delays later reads.
func (p *pacer) reserveFirst(ctx context.Context) (release func(), err error) {
	return p.await(ctx, p.first, p.restOfFirst)
}

// await waits for a turn and the end of a rest.
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
				p.charge(p.clock.Since(begun), turn == p.first)
				<-turn
			}, nil
		}
		<-turn // another read was made meanwhile
	}
}

// rest returns the time until the next read.
func (p *pacer) rest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock.Until(p.restUntil)
}

// restOfFirst returns the time until the next first answer.
func (p *pacer) restOfFirst() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock.Until(p.firstUntil.Add(-mostAhead))
}

// charge adds the rest after a read that took a time.
func (p *pacer) charge(took time.Duration, isFirst bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.restUntil = later(p.restUntil, now).Add((share - 1) * took)
	if isFirst { // others may have read at the same time
		p.restUntil = p.restUntil.Add(took)
		p.firstUntil = later(p.firstUntil, now).Add((share - 1) * took)
	}
}

// chargeRead adds the rest after a short read that did not wait for a turn.
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
