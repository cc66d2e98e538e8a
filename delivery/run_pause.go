package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/weirflow/weir/delivery/jobs"
)

// errPaused is the cause of the end of a Receive when people pause its queue.
var errPaused = errors.New("delivery: people have paused the queue")

// pausing is whether people have paused the queue of a worker (jobs.PauseQueue). The
// input of the worker waits on it. It is safe for concurrent use.
type pausing struct {
	run       context.Context // ends when Run stops receiving
	firstRead chan struct{}   // closed when the orders were read, or could not be read, for the first time

	mu      sync.Mutex       // guards what follows
	order   *jobs.QueueOrder // that pauses the queue, or nil
	isRead  bool             // firstRead is closed
	open    context.Context  // ends with run, and at a pause
	pause   context.CancelCauseFunc
	resumed chan struct{} // closed at the end of the pause
}

func newPausing(run context.Context) *pausing {
	p := &pausing{run: run, firstRead: make(chan struct{})}
	p.open, p.pause = context.WithCancelCause(run)
	return p
}

// read takes the orders of people, and reports whether the queue was paused or resumed by
// them. With an error the last orders hold.
func (p *pausing) read(queue string, paused []jobs.QueueOrder, err error) (isChange bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isRead {
		p.isRead = true
		defer close(p.firstRead)
	}
	if err != nil {
		return false
	}
	was := p.order
	p.order = nil
	for i := range paused {
		if paused[i].Queue == queue {
			p.order = &paused[i]
		}
	}
	switch {
	case was == nil && p.order != nil:
		p.resumed = make(chan struct{})
		p.pause(errPaused)
		return true
	case was != nil && p.order == nil:
		p.open, p.pause = context.WithCancelCause(p.run)
		close(p.resumed)
		return true
	}
	return false
}

// paused returns the order that pauses the queue, or nil.
func (p *pausing) paused() *jobs.QueueOrder {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.order
}

// err returns the reason for the pause, or nil if the queue is not paused.
func (p *pausing) err() error {
	o := p.paused()
	if o == nil {
		return nil
	}
	return fmt.Errorf("delivery: %s has paused queue %q: %s", o.By, o.Queue, o.Why)
}

// await waits until the queue is not paused, and returns the context of the next Receive:
// it ends with the run, and at the next pause. It calls atPause before it waits for the
// end of a pause.
func (p *pausing) await(atPause func()) context.Context {
	select {
	case <-p.firstRead: // a worker that starts in a pause receives no message
	case <-p.run.Done():
		return p.run
	}
	for {
		p.mu.Lock()
		isPaused := p.order != nil
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

// paused reports whether people have paused the queue of the worker.
func (w *worker[IN, OUT]) paused() bool { return w.pausing.paused() != nil }

// awaitResume waits while people have paused the queue of the worker, and returns the
// context of the next Receive. During the pause other workers can take the messages that
// the source has taken and not returned yet.
func (w *worker[IN, OUT]) awaitResume() context.Context {
	if w.pausing == nil { // its queue is not on an engine that keeps orders
		return w.receiving
	}
	return w.pausing.await(func() {
		if w.buffer != nil {
			w.buffer.ReleaseBuffered()
		}
	})
}

// takePauses passes the orders of people to the input of the worker, and logs them.
func (w *worker[IN, OUT]) takePauses(queue string, paused []jobs.QueueOrder, err error) {
	if !w.pausing.read(queue, paused, err) {
		return
	}
	o := w.pausing.paused()
	if o == nil {
		w.logger.Info("delivery: the queue was resumed: the worker receives again", slog.String("queue", queue))
		return
	}
	w.logger.Warn("delivery: people have paused the queue: the worker receives no messages until it is resumed",
		slog.String("queue", queue), slog.String("by", o.By), slog.String("why", o.Why))
}
