package memory

import (
	"context"
	"slices"
	"time"
)

const (
	lookAgain = 100 * time.Millisecond // while a due message was not taken
	longSleep = time.Hour              // longest pause between two looks at a queue
)

type waker struct {
	asleepUntil time.Time     // guarded by mu of the queues
	earlier     chan struct{} // capacity 1: a message is due before asleepUntil
}

// note makes the wakers of a queue expect a message at a time. Called with mu held.
func (m *memoryQueues) note(queue string, at time.Time) {
	for _, w := range m.wakers[queue] {
		if at.Before(w.asleepUntil) {
			w.lookNow()
		}
	}
}

func (w *waker) lookNow() {
	select {
	case w.earlier <- struct{}{}:
	default: // it looks anyway
	}
}

// Wake implements [store.Waker]. It misses events only if the engine has its own clock
// ([WithClock]), which may jump while its timers do not: then consumers poll as well.
func (m *Engine) Wake(ctx context.Context, queue string, wake func(misses bool)) error {
	w := &waker{earlier: make(chan struct{}, 1)}
	err := m.do(ctx, func() error { m.wakers[queue] = append(m.wakers[queue], w); return nil })
	if err != nil {
		return err
	}
	defer m.removeWaker(queue, w)
	wake(m.mayJump)
	for {
		isDue, now, sleep, err := m.look(ctx, queue, w)
		if err != nil {
			return err
		}
		if isDue {
			wake(m.mayJump)
		}
		err = m.sleep(ctx, w, now, sleep)
		if err != nil {
			return err
		}
	}
}

// look reports whether a message can be taken now, and how long its waker may sleep
// otherwise.
func (m *Engine) look(ctx context.Context, queue string, w *waker) (isDue bool, now time.Time, sleep time.Duration, err error) {
	err = m.do(ctx, func() error {
		now, sleep = m.clock.Now(), longSleep
		q := m.queues[queue]
		if q != nil {
			isDue = q.ready.due(now)
			sleep = min(sleep, q.ready.list[0].at.Sub(now))
		}
		if isDue {
			sleep = lookAgain
		}
		w.asleepUntil = now.Add(sleep)
		return nil
	})
	return isDue, now, sleep, err
}

// sleep waits until d has passed since from, or a message is due earlier.
func (m *Engine) sleep(ctx context.Context, w *waker, from time.Time, d time.Duration) error {
	timer := m.machine.Timer(d)
	defer timer.Stop()
	if m.clock.Now().Sub(from) >= min(d, time.Millisecond) {
		return nil // a test has moved the clock, or the machine is slow
	}
	select {
	case <-timer.C:
	case <-w.earlier:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

func (m *Engine) removeWaker(queue string, w *waker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wakers[queue] = slices.DeleteFunc(m.wakers[queue], func(other *waker) bool { return other == w })
	if len(m.wakers[queue]) == 0 {
		delete(m.wakers, queue)
	}
}
