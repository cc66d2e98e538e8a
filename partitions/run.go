package partitions

import (
	"context"
	"errors"
	"log/slog"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wait"
)

// run is a partition from its assignment to its end: one pipeline after the other.
type run struct {
	worker *worker
	name   string
	epoch  uint64

	ctx    context.Context         // of the pipelines: ends when the partition is lost, or was not suspended in time
	abort  context.CancelCauseFunc // of ctx
	wanted context.Context         // within ctx: ends when the partition is revoked
	revoke context.CancelFunc      // of wanted; called with worker.mu held

	coordinator *checkpoint.Coordinator // of the pipeline that runs, or nil; guarded by worker.mu
	failure     error                   // of the last pipeline that has failed; nil: none has; guarded by worker.mu

	opened bool // whether the store of the last pipeline was opened; owned by serve

	done chan struct{} // closed at the end
	err  error         // why it has ended by itself; read after done
}

// serve runs pipelines until one comes to its end, or the partition is not wanted here any more.
func (r *run) serve() {
	defer close(r.done)
	attrs := []any{slog.String("partition", r.name), slog.Uint64("epoch", r.epoch)}
	log := r.worker.Logger
	for backoff := firstBackoff; ; backoff = min(2*backoff, maxBackoff) {
		progress, ended, err := r.pipeline()
		switch {
		case r.ctx.Err() != nil:
			r.err = context.Cause(r.ctx)
			return
		case ended:
			if err != nil { // a restart would only close it again
				log.Error("the store of a partition whose pipeline has ended could not be closed", append(attrs, slog.Any("error", err))...)
			}
			r.err = err
			return
		// With an epoch the store decides, when it is opened again: an output may be fenced by one that had the partition before.
		case guard.Is(err, checkpoint.ErrFenced) && (!r.opened || r.epoch == 0):
			log.Error("partition ended: something else has its store or output", append(attrs, slog.Any("error", err))...)
			r.err = err
			return
		case r.wanted.Err() != nil:
			r.err = err
			return
		}
		if progress {
			backoff = firstBackoff
		}
		r.failed(err)
		log.Error("pipeline of a partition failed and will be restarted", append(attrs, slog.Any("error", err), slog.Duration("after", backoff))...)
		if wait.For(r.wanted, r.worker.Clock, backoff) != nil {
			return // it is at its last checkpoint
		}
	}
}

// pipeline runs one pipeline. It reports whether that has completed a checkpoint, and whether the partition is done with here.
func (r *run) pipeline() (progress, ended bool, err error) {
	var c *checkpoint.Coordinator
	r.opened = false
	err = guard.Call(func() error {
		store, err := r.worker.Stores.Open(r.wanted, r.name, r.epoch)
		if err != nil {
			return err
		}
		r.opened = true
		if c, err = checkpoint.NewCoordinator(store, r.worker.Checkpoints...); err != nil {
			return errors.Join(err, store.Close())
		}
		return nil
	}, newPanicError)
	if err != nil && r.wanted.Err() != nil && !guard.Is(err, checkpoint.ErrFenced) {
		return false, true, nil // nothing has begun
	}
	if err != nil {
		return false, false, err
	}
	if r.begin(c) {
		stop := context.AfterFunc(r.ctx, func() { _ = c.Close() }) // ends Wait
		err = guard.Call(func() error {
			return r.worker.Pipeline(r.ctx, Partition{Name: r.name, Epoch: r.epoch, Coordinator: c})
		}, newPanicError)
		stop()
		if err == nil {
			err = result(c)
		}
		r.end()
	}
	return c.Stats().Completed > 0, err == nil, errors.Join(err, c.Close())
}

// begin makes c the coordinator that a revocation suspends; false if there was one.
func (r *run) begin(c *checkpoint.Coordinator) bool {
	r.worker.mu.Lock()
	defer r.worker.mu.Unlock()
	if r.wanted.Err() != nil {
		return false
	}
	r.coordinator = c
	return true
}

func (r *run) failed(err error) {
	r.worker.mu.Lock()
	defer r.worker.mu.Unlock()
	r.failure = err
}

func (r *run) end() {
	r.worker.mu.Lock()
	defer r.worker.mu.Unlock()
	r.coordinator = nil
}

// result returns how the stream of a coordinator has ended.
func result(c *checkpoint.Coordinator) error {
	select {
	case <-c.Ended():
		return c.Err()
	default:
		return errEarly
	}
}

// suspend ends a run that was revoked while it had a coordinator, or none.
func (r *run) suspend(ctx context.Context, c *checkpoint.Coordinator) error {
	clk := r.worker.Clock
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := clk.AfterFunc(r.worker.SuspendTimeout, func() { cancel(errSlow) })
	defer limit.Stop()
	if c != nil {
		go func() { // ends before the pipeline, or soon after: an output that cannot publish holds it up for longer than ctx
			_ = c.Finish(ctx, checkpoint.Suspend) // what the pipeline returns says more
		}()
	}
	select {
	case <-r.done:
	case <-r.ctx.Done(): // it is lost
	case <-ctx.Done():
		r.abort(context.Cause(ctx))
	}
	patience := clk.Timer(abortPatience)
	defer patience.Stop()
	select {
	case <-r.done:
	case <-patience.C:
		return errStuck
	}
	r.worker.forget(r)
	if errors.Is(context.Cause(r.ctx), errLost) {
		return nil // that was reported
	}
	return r.err
}
