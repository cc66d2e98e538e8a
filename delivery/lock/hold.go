package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/guard"
)

// releaseWait limits the release of a lock, which otherwise ends with its lease.
const releaseWait = 5 * time.Second

// Option changes how [Hold] works.
type Option func(*options)

type options struct {
	clock clock.Clock
	once  bool
}

// WithClock sets the clock of [Hold], for tests. The default is the real clock. It panics
// if c is nil.
func WithClock(c clock.Clock) Option {
	guard.RefuseNil("lock: WithClock", "clock", c)
	return func(o *options) { o.clock = c }
}

// WithoutWait makes [Hold] try once. If the lock is held, the error is a [*Holding] with
// the owner's name.
func WithoutWait() Option { return func(o *options) { o.once = true } }

// Hold waits for a lock, runs f while it holds it, and releases it. While it waits, it
// tries about three times within a lease. It renews the lease every third of its length.
//
// The context of f ends with the cause [ErrLost] when the lock is lost, or could not be
// extended before the end of its lease. f should return soon then: another owner may have
// the lock. Its writes must be guarded by the fencing number all the same.
//
// After f, Hold waits for the release of the lock for up to 5 s, or for the length of the
// lease if that is shorter. If the process is killed, the lock stays until the end of the
// lease; [HoldFile] has a lock that ends with its process.
//
// Hold returns the error of f, or the reason why it could not get the lock: the cause of
// ctx, or an error of l that does not match [ErrHeld]. It panics if lease is not above 0.
func Hold(ctx context.Context, l Locks, name, owner string, lease time.Duration, f func(ctx context.Context, g Grant) error, opts ...Option) error {
	if lease <= 0 {
		panic(fmt.Sprintf("lock: Hold: the lease must be above 0, got %v", lease))
	}
	set := options{clock: clock.New()}
	for _, opt := range opts {
		opt(&set)
	}
	c := set.clock
	asked := c.Now()
	g, err := l.Acquire(ctx, name, owner, lease)
	for guard.Is(err, ErrHeld) && !set.once {
		timer := c.Timer(lease/3 + 1)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		asked = c.Now()
		g, err = l.Acquire(ctx, name, owner, lease)
	}
	if err != nil {
		return err
	}
	holding, lose := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	// Made before f begins: a test may move its clock in f.
	end, again := c.Timer(asked.Add(lease).Sub(c.Now())), c.Ticker(max(1, lease/3))
	go func() { // ends with holding
		defer close(ended)
		defer end.Stop()
		defer again.Stop()
		lose(keep(holding, c, l, g, lease, asked.Add(lease), end, again))
	}()
	defer func() {
		lose(nil)
		<-ended
	}()
	err = f(holding, g)
	lose(nil)
	<-ended
	// ctx may have ended, and the next owner should not have to wait.
	releasing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	limit := c.AfterFunc(min(lease, releaseWait), cancel)
	released := l.Release(releasing, g)
	limit.Stop()
	cancel()
	if err == nil && released != nil && !guard.Is(released, ErrLost) {
		err = fmt.Errorf("lock: %q is held until its lease ends: %w", name, released)
	}
	return err
}

// keep extends a grant whenever again ticks, until ctx ends. It returns ErrLost if the
// grant is lost. end rings at until.
func keep(
	ctx context.Context, c clock.Clock, l Locks, g Grant, lease time.Duration, until time.Time, end *clock.Timer, again *clock.Ticker,
) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-end.C:
			return ErrLost
		case <-again.C:
		}
		asked := c.Now()
		extending, cancel := context.WithCancel(ctx)
		// A call that hangs must not keep the lease alive for f.
		limit := c.AfterFunc(max(0, until.Sub(asked)), cancel)
		err := l.Extend(extending, g, lease)
		limit.Stop()
		cancel()
		switch {
		case guard.Is(err, ErrLost):
			return ErrLost
		case err == nil:
			until = asked.Add(lease)
			end.Reset(max(0, until.Sub(c.Now())))
		}
	}
}
