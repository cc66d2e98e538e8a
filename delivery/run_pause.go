package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/weirflow/weir/delivery/jobs"
)

var errPaused = errors.New("delivery: people have paused the queue")

// pausing has the orders of people to pause the queues whose messages a worker takes
// (jobs.PauseQueue). The worker's input waits for the end of a pause. Safe for concurrent
// use.
type pausing struct {
	run       context.Context // ends when Run stops receiving
	firstRead chan struct{}   // closed after the first read of the orders of all engines, even if a read failed

	mu      sync.Mutex              // guards the fields below
	engines []engineOrders          // in the order of the worker's engines
	open    context.Context         // of Receive: ends with run, or when a pause begins
	pause   context.CancelCauseFunc // ends open
	resumed chan struct{}           // closed at the end of the present or last pause; nil before the first pause
}

// engineOrders are people's orders on an engine, as of the last read.
type engineOrders struct {
	isAwaited bool             // not read yet, and the worker takes messages from the engine
	order     *jobs.QueueOrder // that pauses the worker, or nil
}

// newPausing returns a pausing, or nil if the worker takes no messages from these
// engines.
func newPausing(run context.Context, engines []jobsEngine) *pausing {
	p := &pausing{run: run, firstRead: make(chan struct{}), engines: make([]engineOrders, len(engines))}
	for i, h := range engines {
		p.engines[i].isAwaited = len(h.sourceQueues) > 0
	}
	if !p.isAwaiting() {
		return nil
	}
	p.open, p.pause = context.WithCancelCause(run)
	return p
}

// isAwaiting reports whether an engine's orders were not read yet. Called with mu held.
func (p *pausing) isAwaiting() bool {
	return slices.ContainsFunc(p.engines, func(e engineOrders) bool { return e.isAwaited })
}

// present returns the order that pauses the worker, or nil. Called with mu held.
func (p *pausing) present() *jobs.QueueOrder {
	for _, e := range p.engines {
		if e.order != nil {
			return e.order
		}
	}
	return nil
}

// read takes people's orders for these queues of an engine. After an error the last
// orders hold. before is the order that paused the worker until now, or nil, and now is
// the order that pauses it from now on, or nil.
func (p *pausing) read(engine int, queues []string, paused []jobs.QueueOrder, err error) (before, now *jobs.QueueOrder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &p.engines[engine]
	if e.isAwaited {
		e.isAwaited = false
		if !p.isAwaiting() {
			defer close(p.firstRead)
		}
	}
	before = p.present()
	if err != nil {
		return before, before
	}
	e.order = nil
	for i := range paused {
		if slices.Contains(queues, paused[i].Queue) {
			e.order = &paused[i]
		}
	}
	now = p.present()
	switch {
	case before == nil && now != nil:
		p.resumed = make(chan struct{})
		p.pause(errPaused)
	case before != nil && now == nil:
		p.open, p.pause = context.WithCancelCause(p.run)
		close(p.resumed)
	}
	return before, now
}

func (p *pausing) paused() *jobs.QueueOrder {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.present()
}

// err returns the reason for the pause, or nil if the worker is not paused.
func (p *pausing) err() error {
	o := p.paused()
	if o == nil {
		return nil
	}
	return fmt.Errorf("delivery: %s has paused queue %q: %s", o.By, o.Queue, o.Why)
}

// await waits until the worker is not paused. It calls atPause before it waits for the
// end of a pause. It returns the context of the next Receive, which ends with the run or
// at the next pause.
func (p *pausing) await(atPause func()) context.Context {
	select {
	case <-p.firstRead: // a worker that starts in a pause receives no message
	case <-p.run.Done():
		return p.run
	}
	for {
		p.mu.Lock()
		isPaused := p.present() != nil
		open, resumed := p.open, p.resumed
		p.mu.Unlock()
		if !isPaused {
			return open
		}
		atPause()
		select {
		case <-resumed:
		case <-p.run.Done():
			return p.run
		}
	}
}

func (w *worker[IN, OUT]) paused() bool { return w.pausing.paused() != nil }

// awaitResume waits until the worker is not paused, and returns the context of the next
// Receive. At a pause it releases the messages that the source has taken and not returned
// yet, so that other workers can take them.
func (w *worker[IN, OUT]) awaitResume() context.Context {
	if w.pausing == nil { // its queues are not on an engine that keeps orders
		return w.receiving
	}
	return w.pausing.await(func() {
		if w.buffer != nil {
			w.buffer.ReleaseBuffered()
		}
	})
}

func (w *worker[IN, OUT]) takePauses(engine int, queues []string, paused []jobs.QueueOrder, err error) {
	before, now := w.pausing.read(engine, queues, paused, err)
	switch {
	case before != nil && now == nil:
		w.logger.Info("delivery: the queue was resumed: the worker receives again", slog.String("queue", before.Queue))
	case before == nil && now != nil:
		w.logger.Warn("delivery: people have paused the queue: the worker receives no messages until it is resumed",
			slog.String("queue", now.Queue), slog.String("by", now.By), slog.String("why", now.Why))
	}
}
