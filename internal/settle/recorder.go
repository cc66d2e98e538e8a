// Package settle writes the settlements of messages to a queue. It has the parts that all sources
// with leases share: the recorder, which extends leases and writes settlements, and the history and
// the cause of rejected messages.
package settle

import (
	"context"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

const (
	firstRetry = 10 * time.Millisecond // after a settlement could not be recorded
	lastRetry  = time.Second
)

// Hooks are what a source does for its recorder, on the goroutine of that. Their contexts end only if Close has waited in vain.
type Hooks struct {
	// Extend extends the leases of what is in flight, and of what is not recorded yet. Nil: there are none.
	Extend func(ctx context.Context)
	// Record writes some of the settlements, in a time that is short beside a lease. next is the
	// time until its next call: 0 if settlements are left that can be written now, Idle if Kick
	// starts the next call. After an error the settlements that were not written are still there.
	Record func(ctx context.Context) (next time.Duration, err error)
	// Failed is called with each error of Record, which is tried again.
	Failed func(err error)
}

// Idle is returned by [Hooks].Record if no settlement waits.
const Idle time.Duration = -1

// Recorder writes the settlements of a source, and extends its leases, until it is closed.
type Recorder struct {
	// Open ends with Close.
	Open context.Context
	// Calls is the context for what the source asks of its queue. Close does not end it at once: a call that is broken off may
	// have taken effect, and what was taken or settled by it would not be known here.
	Calls context.Context

	hooks Hooks
	shut  func()        // ends Open
	abort func()        // ends Calls
	kick  chan struct{} // room for one: there are settlements
	ended chan struct{} // closed when the recorder has ended

	mu      sync.Mutex
	failure error // of the last Record, not returned yet
}

// Start starts a recorder, for leases that last so long. closed is the cause of contexts that Close ends.
func Start(c clock.Clock, lease time.Duration, closed error, h Hooks) *Recorder {
	r := &Recorder{hooks: h, kick: make(chan struct{}, 1), ended: make(chan struct{})}
	open, shut := context.WithCancelCause(context.Background())
	calls, abort := context.WithCancelCause(context.Background())
	r.Open, r.shut = open, func() { shut(closed) }
	r.Calls, r.abort = calls, func() { abort(closed) }
	// Made here: a test may move its clock before the goroutine runs.
	extend := &clock.Ticker{}
	if h.Extend != nil {
		extend = c.Ticker(lease / 3)
	}
	retry := c.Timer(time.Hour)
	retry.Stop()
	go r.run(extend, retry) // ends with Close, which waits for it
	return r
}

func (r *Recorder) run(extend *clock.Ticker, retry *clock.Timer) {
	defer close(r.ended)
	if r.hooks.Extend != nil {
		defer extend.Stop()
	}
	defer retry.Stop()
	wait := firstRetry
	for {
		select {
		case <-extend.C: // first: there may always be settlements
			r.hooks.Extend(r.Calls)
		default:
		}
		select {
		case <-r.Open.Done():
			return
		case <-r.kick:
		case <-retry.C:
		case <-extend.C:
			r.hooks.Extend(r.Calls)
		}
		next, err := r.hooks.Record(r.Calls)
		if err != nil && r.Calls.Err() != nil {
			continue
		}
		r.mu.Lock()
		r.failure = err
		r.mu.Unlock()
		if err == nil {
			wait = firstRetry
			switch {
			case next == 0:
				r.Kick()
			case next > 0:
				retry.Reset(next)
			}
			continue
		}
		r.hooks.Failed(err)
		retry.Reset(wait)
		wait = min(2*wait, lastRetry)
	}
}

// Kick says that there are settlements.
func (r *Recorder) Kick() { Wake(r.kick) }

// Failure returns why settlements could not be recorded, until they are; each error once.
func (r *Recorder) Failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.failure
	r.failure = nil
	return err
}

// Close ends the recorder, after what it is doing, and calls rest, which records and gives back what is left. When ctx ends,
// both are broken off. Close may be called again.
func (r *Recorder) Close(ctx context.Context, rest func(ctx context.Context) error) error {
	r.shut()
	stop := context.AfterFunc(ctx, r.abort)
	defer stop()
	select {
	case <-r.ended:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return rest(ctx)
}

// Wake sends to a channel with room for one.
func Wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
