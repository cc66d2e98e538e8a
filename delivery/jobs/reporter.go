package jobs

import (
	"context"
	"slices"
	"sync"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

const (
	// mostTogether is how many workers report in one transaction. JetStream takes 1,000
	// messages in a transaction.
	mostTogether = 100
	// togetherFor limits the time of this transaction, so that its workers can report
	// alone before the next one.
	togetherFor = beatEach / 2
)

// reporter reports workers of this process that share an engine, every 20 s in one
// transaction. So idle workers cost the engine little more than a single one. If the
// transaction fails, or takes 10 s, each of these workers reports alone. So a refused
// report does not delay the others. Safe for concurrent use.
type reporter struct {
	engine  store.Keeper
	clock   clock.Clock
	stop    context.CancelFunc // ends run
	stopped chan struct{}      // closed by run at its end

	members []*beats // guarded by reporters.mu
}

// reporters has the running reporters. No other lock is taken while mu is held.
var reporters struct {
	mu  sync.Mutex // guards all, and the members of each
	all []*reporter
}

// joinReporter adds a worker to a reporter of its engine and clock, which it may start.
func joinReporter(b *beats) *reporter {
	reporters.mu.Lock()
	defer reporters.mu.Unlock()
	at := slices.IndexFunc(reporters.all, func(r *reporter) bool {
		return len(r.members) < mostTogether && storearg.IsSame(r.engine, b.engine) && isSameClock(r.clock, b.Clock)
	})
	if at < 0 {
		at = len(reporters.all)
		ctx, stop := context.WithCancel(context.Background())
		r := &reporter{engine: b.engine, clock: b.Clock, stop: stop, stopped: make(chan struct{})}
		reporters.all = append(reporters.all, r)
		go r.run(ctx, b.Clock.Ticker(beatEach)) // ends when the last worker leaves, which waits for it
	}
	r := reporters.all[at]
	r.members = append(r.members, b)
	return r
}

// leave removes a worker. The last worker ends the reporter.
func (r *reporter) leave(b *beats) {
	reporters.mu.Lock()
	r.members = slices.DeleteFunc(r.members, func(other *beats) bool { return other == b })
	isLast := len(r.members) == 0
	if isLast {
		reporters.all = slices.DeleteFunc(reporters.all, func(other *reporter) bool { return other == r })
	}
	reporters.mu.Unlock()
	if isLast {
		r.stop()
		<-r.stopped
	}
}

func (r *reporter) run(ctx context.Context, ticker *clock.Ticker) {
	defer close(r.stopped)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.report(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// report reports the workers, except the workers that report alone now.
func (r *reporter) report(ctx context.Context) {
	claimed := r.claim()
	haveReported := false
	var open []Job
	if len(claimed) > 1 {
		limited, cancel := context.WithTimeout(ctx, togetherFor)
		var err error
		open, err = beatAll(limited, claimed)
		cancel()
		haveReported = err == nil
	}
	for _, b := range claimed {
		<-b.reporting
		if !haveReported {
			signal(b.alone)
			continue
		}
		select {
		case b.reported <- open:
		default: // the worker has not looked at the jobs of the last report yet
		}
	}
}

// claim returns the workers that do not report alone, and begins their reports.
func (r *reporter) claim() (claimed []*beats) {
	reporters.mu.Lock()
	defer reporters.mu.Unlock()
	for _, b := range r.members {
		select {
		case b.reporting <- struct{}{}:
			claimed = append(claimed, b)
		default:
		}
	}
	return claimed
}
