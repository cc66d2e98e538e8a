// Package settle writes the settlements of messages to a queue. It has the parts that
// sources share: the recorder, which extends leases and writes settlements, the history
// and the cause of rejected messages, and the optional interfaces between delivery.Run
// and its source (abilities.go).
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

// Hooks are functions of a source that its recorder calls, on the recorder's goroutine.
// Their contexts end only when the ctx of Close ends.
type Hooks struct {
	// Extend extends the leases of messages in flight, and of messages whose settlement
	// is not recorded yet. It is nil if the source does not have leases.
	Extend func(ctx context.Context)
	// Record writes some of the settlements, in a time that is short compared to a lease.
	// next is the time until its next call. It is 0 if settlements are left that can be
	// written now, and Idle if all are written: then Kick starts the next call. After an
	// error the source keeps the settlements that were not written, and Record is called
	// again.
	Record func(ctx context.Context) (next time.Duration, err error)
	// Failed is called with each error of Record.
	Failed func(err error)
}

// Idle is returned by [Hooks].Record if no settlement waits.
const Idle time.Duration = -1

// Recorder writes the settlements of a source, and extends its leases, until it is
// closed.
type Recorder struct {
	// Open ends when Close is called.
	Open context.Context
	// Calls is the context of the source's calls of its queue. Close does not end it at
	// once: an interrupted call may have taken effect, and its result would be lost.
	Calls context.Context

	hooks Hooks
	shut  func()        // ends Open
	abort func()        // ends Calls
	kick  chan struct{} // capacity 1: there are settlements; Kick sends, run receives
	ended chan struct{} // closed when run returns

	mu      sync.Mutex
	failure error // see Failure; guarded by mu
}

// Start starts a recorder. lease is the length of the leases. closed is the cause
// (context.Cause) of Open and Calls after Close has ended them.
func Start(c clock.Clock, lease time.Duration, closed error, h Hooks) *Recorder {
	r := &Recorder{hooks: h, kick: make(chan struct{}, 1), ended: make(chan struct{})}
	open, shut := context.WithCancelCause(context.Background())
	calls, abort := context.WithCancelCause(context.Background())
	r.Open, r.shut = open, func() { shut(closed) }
	r.Calls, r.abort = calls, func() { abort(closed) }
	// Make the ticker here, since a test may advance its clock before the goroutine runs.
	extend := &clock.Ticker{} // without leases: its channel is nil, and never fires
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
		case <-extend.C: // first, since kick may always be ready
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

// Kick makes the recorder call Record, because there are settlements.
func (r *Recorder) Kick() { Wake(r.kick) }

// Failure returns the error of the last Record, or nil if that succeeded, or if Failure
// has returned the error already.
func (r *Recorder) Failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.failure
	r.failure = nil
	return err
}

// Close ends the recorder after its present call, and then calls rest, which records the
// remaining settlements and releases messages. When ctx ends, both are interrupted. Close
// may be called again.
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

// Wake sends to a channel of capacity 1, unless it is full.
func Wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
