package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/weirflow/weir/internal/guard"
)

// save stores the reported states. It repeats a failed final checkpoint until the
// timeout, since no later checkpoint follows.
func (c *Coordinator) save(ctx context.Context, r *run) error {
	s := &Snapshot{ID: r.barrier.ID, Kind: Kind(r.barrier.Kind), Time: c.clock.Now(), States: r.states}
	c.setActivity("storing checkpoint %d", s.ID)
	step := c.once
	if r.barrier.Kind.Final() {
		step = c.retry
	}
	select {
	case c.storing <- struct{}{}:
	default:
		return errStoreHangs
	}
	err := step(ctx, "stored", func(ctx context.Context) error { return c.store.Save(ctx, s) })
	release(c.storing, err)
	if err != nil {
		if _, taken := errors.AsType[*NumberError](err); taken {
			err = fmt.Errorf("%w: another run has stored checkpoints: %w", ErrFenced, err) // numbers of this run only grow
		}
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.complete = s.ID
	now := c.clock.Now()
	c.stats.Completed++
	c.stats.FailedInRow = 0
	c.stats.LastID = s.ID
	c.stats.LastTime = now
	c.stats.LastDuration = now.Sub(c.stats.Since)
	c.stats.LastSize = s.Size()
	return nil
}

// failed counts an aborted checkpoint and returns the number of failures in a row. It
// ends the run after too many failures, or if another run has the store. The end of the
// run or of ctx is not a failure.
func (c *Coordinator) failed(ctx context.Context, err error) (row int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fenced := errors.Is(err, ErrFenced)
	if c.isEnded || ctx.Err() != nil && !fenced {
		return c.stats.FailedInRow
	}
	c.stats.Failed++
	c.stats.FailedInRow++
	c.stats.LastError = err
	switch {
	case fenced: // before any more output is published (law P1)
		c.end(err)
	case c.tolerate >= 0 && c.stats.FailedInRow > c.tolerate:
		c.end(fmt.Errorf("checkpoint: %d in a row have failed, %d are tolerated: %w", c.stats.FailedInRow, c.tolerate, err))
	}
	return c.stats.FailedInRow
}

func (c *Coordinator) clearUnderWay() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.UnderWay, c.stats.Since = 0, time.Time{}
}

// once calls step with a context that ends after the timeout, or when Close has waited
// for closePatience.
func (c *Coordinator) once(ctx context.Context, done string, step func(ctx context.Context) error) error {
	ctx, cancel := c.bounded(ctx, done)
	defer cancel()
	return c.try(ctx, step)
}

var errStoreHangs = errors.New("checkpoint: an earlier call of the store has not returned")

// hangError is the error of a step that did not return after the end of its context.
type hangError struct {
	cause    error
	returned <-chan struct{} // closed when the step has returned
}

func (e *hangError) Error() string {
	return fmt.Sprintf("%v, and the call has not returned %v after the end of its context", e.cause, closePatience)
}

func (e *hangError) Unwrap() error { return e.cause }

// release releases the lock of a step that ended with err: at once, or when a step that
// was given up returns.
func release(lock <-chan struct{}, err error) {
	if hangs, ok := errors.AsType[*hangError](err); ok {
		go func() {
			<-hangs.returned
			<-lock
		}()
		return
	}
	<-lock
}

// try calls step. An error after the end of ctx includes the cause. A step that does not
// return within closePatience of that is given up with a *hangError.
func (c *Coordinator) try(ctx context.Context, step func(ctx context.Context) error) (err error) {
	returned := make(chan struct{})
	var result error
	go func() {
		defer close(returned)
		result = protect(func() error { return step(ctx) })
	}()
	select {
	case <-returned:
		err = result
	case <-ctx.Done():
		timer := c.clock.Timer(closePatience)
		defer timer.Stop()
		select {
		case <-returned:
			err = result
		case <-timer.C:
			return &hangError{context.Cause(ctx), returned}
		}
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// The back-off doubles from the first to the longest.
const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
)

// retry is once, repeated until success, the timeout, a permanent error, or the end of
// the run, when a restart does the rest.
func (c *Coordinator) retry(ctx context.Context, done string, step func(ctx context.Context) error) error {
	ctx, cancel := c.bounded(ctx, done)
	defer cancel()
	for backoff := firstBackoff; ; backoff = min(2*backoff, maxBackoff) {
		err := c.try(ctx, step)
		if err == nil || ctx.Err() != nil || permanent(err) {
			return err
		}
		timer := c.clock.Timer(backoff)
		c.logger.Warn("checkpoint: not "+done+", to be tried again", slog.Duration("after", backoff), slog.Any("error", err))
		select {
		case <-timer.C:
			continue
		case <-ctx.Done():
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-c.life.Done():
		}
		timer.Stop()
		return err
	}
}

func permanent(err error) bool {
	_, taken := errors.AsType[*NumberError](err)
	_, panicked := errors.AsType[*guard.PanicError](err)
	_, hangs := errors.AsType[*hangError](err)
	return taken || panicked || hangs || errors.Is(err, ErrFenced) || errors.Is(err, ErrClosed) || errors.Is(err, errInvalidSnapshot)
}

// bounded returns a context of parent that also ends after the timeout, and with c.work.
// done completes the error text "not done after …".
func (c *Coordinator) bounded(parent context.Context, done string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	timer := c.clock.AfterFunc(c.timeout, func() { cancel(fmt.Errorf("not %s after %v", done, c.timeout)) })
	stop := context.AfterFunc(c.work, func() { cancel(context.Cause(c.work)) })
	return ctx, func() {
		timer.Stop()
		stop()
		cancel(nil)
	}
}
