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

// pausing is whether people have paused a queue whose messages a worker takes
// (jobs.PauseQueue). The worker's input waits on it. Safe for concurrent use.
type pausing struct {
	run       context.Context // ends when Run stops receiving
	firstRead chan struct{}   // closed when the orders of all engines were first read, or could not be read

	mu      sync.Mutex     // guards the fields below
	engines []engineOrders // in the order of the worker's engines
	open    context.Context
	pause   context.CancelCauseFunc // ends open, which also ends with run
	resumed chan struct{}           // closed at the end of the pause
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

// read takes people's orders for these queues of an engine. It returns the orders that
// paused the worker before and pause it now, or nil. After an error the last orders hold.
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

// await waits until the worker is not paused, and returns the context of the next
// Receive, which ends with the run or at the next pause. It calls atPause before it waits
// for the end of a pause.
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

// awaitResume is await. During the pause other workers can take the messages that the
// source has taken and not returned yet.
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
