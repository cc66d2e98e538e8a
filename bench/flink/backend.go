package flink

import (
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/bench/internal/sleep"
)

// backend simulates a remote system with callbacks, like Backend.java. It answers every
// call after the same delay, from one goroutine, so a list of calls is in order.
type backend struct {
	delay  time.Duration
	answer func(c pending)
	wake   chan struct{} // capacity 1; signals a call in an empty list

	mu     sync.Mutex
	calls  []pending // guarded by mu
	closed bool      // guarded by mu
}

type pending struct {
	due    time.Time
	seq    int64
	fails  bool
	result asyncop.ResultFuture[int64]
}

func newBackend(delay time.Duration, answer func(c pending)) *backend {
	b := &backend{delay: delay, answer: answer, wake: make(chan struct{}, 1)}
	go b.run()
	return b
}

func (b *backend) call(c pending) {
	b.mu.Lock()
	first := len(b.calls) == 0
	c.due = time.Now().Add(b.delay)
	b.calls = append(b.calls, c)
	b.mu.Unlock()
	if first {
		b.wakeUp()
	}
}

func (b *backend) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wakeUp()
}

func (b *backend) wakeUp() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *backend) run() {
	s := sleep.New()
	defer s.Close()
	var batch []pending
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
		instant := time.Now()
		for i := range batch {
			c := &batch[i]
			for c.due.After(instant) {
				s.Sleep(c.due.Sub(instant))
				instant = time.Now()
			}
			b.answer(*c)
			*c = pending{}
		}
	}
}
