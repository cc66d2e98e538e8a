package partitions

import (
	"context"
	"errors"
	"log/slog"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wait"
)

// run runs the pipelines of a partition, one after the other.
type run struct {
	worker *worker
	name   string
	epoch  uint64

	ctx    context.Context         // of the pipelines; ends when the partition is lost or was not suspended in time
	abort  context.CancelCauseFunc // cancels ctx
	wanted context.Context         // child of ctx; ends when the partition is revoked
	revoke context.CancelFunc      // cancels wanted; called with worker.mu held

	coordinator *checkpoint.Coordinator // of the running pipeline, or nil; guarded by worker.mu
	failure     error                   // of the last failed pipeline, or nil; guarded by worker.mu

	opened bool // the store of the last pipeline was opened; owned by serve

	done chan struct{} // closed when serve returns
	err  error         // why serve has ended; read after done
}

// serve runs pipelines until one reaches its end, or the partition is revoked or lost.
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
			if err != nil { // a restart would only close the store again
				log.Error("the store of a partition whose pipeline has ended could not be closed", append(attrs, slog.Any("error", err))...)
			}
			r.err = err
			return
		// With an epoch, the next Open of the store decides: an earlier owner may have
		// fenced the output.
		case guard.Is(err, checkpoint.ErrFenced) && (!r.opened || r.epoch == 0):
			log.Error("partition ended: another run has its store or output", append(attrs, slog.Any("error", err))...)
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
			return // revoked: the next owner resumes from the last checkpoint
		}
	}
}

// pipeline runs one pipeline. progress means a completed checkpoint, ended that it must
// not be restarted.
func (r *run) pipeline() (progress, ended bool, err error) {
	var c *checkpoint.Coordinator
	r.opened = false
	err = guard.Call(func() error {
		store, err := r.worker.Stores.Open(r.wanted, r.name, r.epoch)
		if err != nil {
			return err
		}
		r.opened = true
		c, err = checkpoint.NewCoordinator(store, r.worker.Checkpoints...)
		if err != nil {
			return errors.Join(err, store.Close())
		}
		return nil
	}, newPanicError)
	if err != nil && r.wanted.Err() != nil && !guard.Is(err, checkpoint.ErrFenced) {
		return false, true, nil // revoked before the pipeline began
	}
	if err != nil {
		return false, false, err
	}
	if r.begin(c) {
		stop := context.AfterFunc(r.ctx, func() { _ = c.Close() }) // makes Wait return
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

// begin makes c the coordinator that a revocation suspends, unless the partition was
// revoked already.
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

func result(c *checkpoint.Coordinator) error {
	select {
	case <-c.Ended():
		return c.Err()
	default:
		return errEarly
	}
}

// suspend suspends a revoked run and waits for its end. c may be nil.
func (r *run) suspend(ctx context.Context, c *checkpoint.Coordinator) error {
	clk := r.worker.Clock
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := clk.AfterFunc(r.worker.SuspendTimeout, func() { cancel(errSlow) })
	defer limit.Stop()
	if c != nil {
		go func() { // Finish may block for longer than ctx, but ends soon after the pipeline
			_ = c.Finish(ctx, checkpoint.Suspend) // the pipeline returns a more detailed error
		}()
	}
	select {
	case <-r.done:
	case <-r.ctx.Done(): // the partition is lost
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
		return nil // Lost has logged it
	}
	return r.err
}
