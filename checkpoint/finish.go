package checkpoint

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/checkpoint/participant"
)

// Finish ends the stream with a final checkpoint of the given kind, [Drain] or [Suspend],
// and returns when it is complete ("stop with savepoint"). It panics for another kind.
//
// For a [Drain] the source stops reading and sends the marker of the end of the input.
// Checkpoints continue, and a Suspend may still end the stream, until the marker has
// reached all participants: then the final checkpoint is taken. All elements that were
// read are finished before it, including elements that operators have read past their
// capacity (asyncop.State.Overflow, 1,024 by default). So a Drain may take much longer
// than one element. When ctx ends first, the stream has failed, and a restart resumes
// from the last checkpoint. If the stream is being drained already, the end of ctx ends
// only the call.
//
// For a [Suspend] the source stops at the barrier. When ctx ends after that, the stream
// has failed; when ctx ends earlier, during another checkpoint, the stream continues.
//
// The error is nil if any final checkpoint of this kind has ended the stream, and
// [ErrEnded] after a final checkpoint of the other kind.
func (c *Coordinator) Finish(ctx context.Context, kind Kind) error {
	final := participant.Kind(kind)
	mustBeFinal("Finish", final)
	err := c.finish(ctx, final)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.finished == final && c.err == nil {
		return nil
	}
	return err
}

func (c *Coordinator) finish(ctx context.Context, kind participant.Kind) error {
	if kind == participant.Suspend {
		_, err := c.take(ctx, kind)
		return err
	}
	r, announced, err := c.endInput(ctx)
	if err != nil {
		return err
	}
	err = c.awaitDrained(ctx, r)
	switch {
	case err == nil && announced:
		_, err = c.take(ctx, participant.Drain)
	case err == nil: // the caller that announced the marker takes the final checkpoint
		select {
		case <-c.life.Done():
			err = c.endError()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil && announced {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.end(err)
	}
	return err
}

func mustBeFinal(method string, kind participant.Kind) {
	if !kind.Final() {
		panic(fmt.Sprintf("checkpoint: %s: not a final kind: %v", method, kind))
	}
}

// acquireBusy waits for Start and until no checkpoint is under way, and acquires busy, so
// that no checkpoint begins meanwhile. After an error it does not hold busy.
func (c *Coordinator) acquireBusy(ctx context.Context) error {
	select {
	case <-c.started:
	case <-c.life.Done():
	case <-ctx.Done():
	}
	if err := c.endReason(ctx); err != nil { // if several cases are ready, select takes any
		return err
	}
	select {
	case c.busy <- struct{}{}:
	case <-c.life.Done():
		return c.endError()
	case <-ctx.Done():
		return c.endReason(ctx)
	}
	if err := c.endReason(ctx); err != nil {
		<-c.busy
		return err
	}
	return nil
}

func (c *Coordinator) endReason(ctx context.Context) error {
	select {
	case <-c.life.Done():
		return c.endError()
	default:
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// endInput announces the marker of the end of the input, or returns the run of an earlier
// marker.
func (c *Coordinator) endInput(ctx context.Context) (r *run, announced bool, err error) {
	if err := c.acquireBusy(ctx); err != nil {
		return nil, false, err
	}
	defer func() { <-c.busy }()
	c.mu.Lock()
	r = c.drain
	c.mu.Unlock()
	if r != nil {
		return r, false, nil
	}
	r, err = c.begin(participant.EndOfInput)
	return r, err == nil, err
}

func (c *Coordinator) awaitDrained(ctx context.Context, r *run) error {
	remind := c.clock.Ticker(c.timeout)
	defer remind.Stop()
	reminder := c.newReminder()
	defer reminder.timer.Stop()
	for {
		var err error
		select {
		case <-r.settled:
			return nil
		case <-c.life.Done():
			return c.endError()
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-reminder.timer.C: // draining may take long, but not a participant's first report
			reminder.warn(r, false)
			continue
		case <-remind.C:
		}
		c.mu.Lock()
		waiting := maps.Clone(r.waiting)
		c.mu.Unlock()
		if err != nil {
			return fmt.Errorf("checkpoint: draining: %w: elements that were read are not finished: no report from %s", err, quoted(waiting))
		}
		c.logger.Warn("checkpoint: the stream is being drained", slog.String("not done", listed(waiting)))
	}
}

// reportPatience is the time until the first warning about missing reports. Each later
// warning doubles the total wait.
const reportPatience = 10 * time.Second

type reminder struct {
	c     *Coordinator
	timer *clock.Timer  // until the next warning
	wait  time.Duration // of timer
	total time.Duration // waited when the last warning was logged
}

func (c *Coordinator) newReminder() *reminder {
	return &reminder{c: c, timer: c.clock.Timer(reportPatience), wait: reportPatience}
}

// warn logs the participants that have not reported this checkpoint, and names the
// participants that have never reported. Unless all is set, it logs only if there are
// such participants.
func (r *reminder) warn(run *run, all bool) {
	r.total += r.wait
	r.wait = r.total // doubles the total
	r.timer.Reset(r.wait)
	r.c.mu.Lock()
	never := maps.Clone(run.waiting)
	maps.DeleteFunc(never, func(name string, _ struct{}) bool { _, has := r.c.reported[name]; return has })
	attrs := []any{
		slog.Uint64("checkpoint", run.barrier.ID), slog.String("no report from", listed(run.waiting)), slog.Duration("waited", r.total),
	}
	r.c.mu.Unlock()
	if len(never) == 0 && !all {
		return
	}
	if len(never) > 0 {
		attrs = append(attrs, slog.String("never reported, so perhaps not part of the pipeline", listed(never)))
	}
	r.c.logger.Warn("checkpoint: waiting for reports", attrs...)
}
