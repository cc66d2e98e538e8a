package bench

import (
	"sync"
	"time"

	"github.com/weirflow/weir/bench/internal/sleep"
)

// backend simulates a remote system with callbacks. It answers every call after the same
// delay, from one goroutine, so a list of calls is in order.
type backend[R any] struct {
	delay  int64
	answer func(it *Item, reply R)
	wake   chan struct{} // capacity 1; signals a call in an empty list

	mu     sync.Mutex
	calls  []pendingCall[R] // guarded by mu
	closed bool             // guarded by mu
}

type pendingCall[R any] struct {
	due   int64
	it    *Item
	reply R
}

// newBackend starts a backend, which calls answer on its goroutine.
func newBackend[R any](delay time.Duration, answer func(it *Item, reply R)) *backend[R] {
	b := &backend[R]{delay: int64(delay), answer: answer, wake: make(chan struct{}, 1)}
	go b.run()
	return b
}

func (b *backend[R]) call(it *Item, reply R) {
	b.mu.Lock()
	first := len(b.calls) == 0
	b.calls = append(b.calls, pendingCall[R]{now() + b.delay, it, reply})
	b.mu.Unlock()
	if first {
		b.wakeUp()
	}
}

// close ends the backend. No call may be pending.
func (b *backend[R]) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wakeUp()
}

func (b *backend[R]) wakeUp() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *backend[R]) run() {
	s := sleep.New()
	defer s.Close()
	var batch []pendingCall[R]
	for {
		b.mu.Lock()
		batch, b.calls = b.calls, batch[:0]
		closed := b.closed
		b.mu.Unlock()
		if len(batch) == 0 {
			if closed {
				return
			}
			<-b.wake
			continue
		}
		instant := now()
		for i := range batch {
			c := &batch[i]
			for c.due > instant {
				s.Sleep(time.Duration(c.due - instant))
				instant = now()
			}
			b.answer(c.it, c.reply)
			*c = pendingCall[R]{}
		}
	}
}
