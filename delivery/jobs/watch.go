package jobs

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wait"
)

const (
	readEach = time.Second // people's orders, if changes are not announced
	// The wait after an error that is permanent for the engine, such as a missing table
	// or right, which people may mend while the worker runs.
	readAfterRefusal = 20 * time.Second
)

// watcher passes people's orders to a worker.
type watcher struct {
	// Read-only; a poller reads them as well.
	jobs   *Jobs
	steer  func(BackendOrder) // nil if the worker has no backend
	report chan<- struct{}    // capacity 1; to Work, when the paused queues have changed

	// Owned by the goroutine of watch.
	cancellations cancellations // used if Config.Cancelled is set
	paused        []QueueOrder  // as of the last pass
}

// watch passes orders on until ctx ends: once at the start, then after each notice of the
// engine, or within a second of a change if the engine cannot announce changes (poller).
// While the engine fails to announce changes, it reads once a second, and the cancelled
// keys only while the worker is busy. After an error it reads again a second later, and
// after a permanent error in a worker without a backend after 20 s.
func (w *watcher) watch(ctx context.Context) {
	changed := make(chan struct{}, 1)  // orders and cancelled keys
	readNext := make(chan struct{}, 1) // only orders
	wake := func() { signal(changed) }
	if w.jobs.QueuesPaused != nil || w.jobs.KeysHeld != nil {
		wake() // a worker waits for the first read, and Watch may take long
	}
	read := func(cancelledChanged bool) {
		if cancelledChanged || w.looksForCancelled() {
			wake()
		} else {
			signal(readNext)
		}
	}
	watched := make(chan struct{})
	go func() { // ends with ctx
		defer close(watched)
		for ctx.Err() == nil {
			err := w.jobs.engine.Watch(ctx, wake)
			if errors.Is(err, errors.ErrUnsupported) {
				w.poll(ctx, read)
				return
			}
			read(false) // and Watch is tried again
			_ = wait.For(ctx, w.jobs.Clock, readEach)
		}
	}()
	defer func() { <-watched }()
	failures := counting.NewFailureLog(w.jobs.Logger, w.jobs.Clock, "jobs: this worker cannot read the orders for its backends, queues and keys, or which keys were cancelled")
	defer failures.Flush()
	for {
		var err error
		select {
		case <-changed:
			err = w.notify(ctx)
		case <-readNext:
			err = w.passOrders(ctx)
		case <-ctx.Done():
			return
		}
		if err != nil && ctx.Err() == nil {
			failures.Add(err)
		}
		failures.FlushDue()
		if err == nil {
			continue
		}
		again := readEach
		if w.steer == nil && guard.IsPermanent(err) {
			again = readAfterRefusal
		}
		err = wait.For(ctx, w.jobs.Clock, again)
		if err != nil {
			return // ctx has ended
		}
		wake() // the engine announces a change only once
	}
}

// looksForCancelled reports whether cancelled keys matter now.
func (w *watcher) looksForCancelled() bool {
	return w.jobs.Cancelled != nil && (w.jobs.Busy == nil || w.jobs.Busy())
}

// signal makes a receiver of a channel with capacity 1 receive once.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (w *watcher) notify(ctx context.Context) error {
	err := w.passOrders(ctx)
	if w.jobs.Cancelled != nil {
		err = errors.Join(err, w.cancellations.notify(ctx))
	}
	return err
}

// passOrders reads the held keys, the paused queues and the orders for backends, and
// passes them on. The held keys are first, since a worker receives messages after
// QueuesPaused.
func (w *watcher) passOrders(ctx context.Context) error {
	var held, paused, steered error
	if w.jobs.KeysHeld != nil {
		held = w.passHeld(ctx)
	}
	if w.jobs.QueuesPaused != nil {
		paused = w.passPaused(ctx)
	}
	if w.steer != nil {
		steered = w.passToBackends(ctx)
	}
	return errors.Join(held, paused, steered)
}

func (w *watcher) passHeld(ctx context.Context) error {
	list, err := heldKeys(ctx, w.jobs.engine)
	w.jobs.KeysHeld(list, err)
	return err
}

func (w *watcher) passPaused(ctx context.Context) error {
	list, err := pauses(ctx, w.jobs.engine)
	w.jobs.QueuesPaused(list, err)
	if err != nil || slices.Equal(list, w.paused) {
		return err
	}
	w.paused = list
	signal(w.report)
	return nil
}

func (w *watcher) passToBackends(ctx context.Context) error {
	list, err := orders(ctx, w.jobs.engine)
	for _, o := range list {
		if !o.At.IsZero() {
			w.steer(o)
		}
	}
	return err
}
