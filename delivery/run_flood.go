package delivery

import (
	"log/slog"
	"time"
)

// The waits of the flood guard.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// flood finds out that most of the last messages have failed (law D5). It judges blocks of messages in the order in which they were
// received: those that fail may end much sooner than the others. Guarded by tally.mu.
type flood struct {
	share  float64
	window int
	last   *block // of the last message that was received; nil: none yet, or the flood is over

	stopped bool
	floods  int           // that are over
	pause   time.Duration // the last one; 0: none since a block had no flood
	err     error         // of the last message that has failed
}

// block is a number of messages that were received one after the other.
type block struct {
	floods                  int // that were before it
	received, ended, failed int
}

func newFlood(share float64, window int) flood { return flood{share: share, window: window} }

// receive notes a message, and returns its block; nil for a probe.
func (f *flood) receive() *block {
	if f.stopped {
		return nil
	}
	if f.last == nil || f.last.received == f.window {
		f.last = &block{floods: f.floods}
	}
	f.last.received++
	return f.last
}

// note notes the end of a message, and reports whether it makes the worker stop.
func (f *flood) note(b *block, failed bool, err error) bool {
	if failed && err != nil {
		f.err = err
	}
	if b == nil || f.stopped || b.floods < f.floods {
		return false // it is the probe, or what was in the operator when the worker stopped
	}
	b.ended++
	if failed {
		b.failed++
	}
	f.stopped = float64(b.failed) > f.share*float64(f.window)
	if !f.stopped && b.ended == f.window {
		f.pause = 0
	}
	return f.stopped
}

// next returns how long to wait before the next probe.
func (f *flood) next() time.Duration {
	f.pause = min(max(firstPause, 2*f.pause), lastPause)
	return f.pause
}

// resume lets the worker go on after a message that was done.
func (f *flood) resume() {
	f.stopped, f.last = false, nil
	f.floods++
}

// flooded reports whether the worker is to stop.
func (t *tally) flooded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.flood.stopped
}

// pause waits before the next probe. It returns false if the run is to end.
func (w *worker[IN, OUT]) pause() bool {
	w.mu.Lock()
	pause, last := w.flood.next(), w.flood.err
	w.mu.Unlock()
	w.logger.Warn("delivery: most of the last messages have failed: the worker waits, and tries one message then",
		slog.Int("last", w.window), slog.Any("error", last), slog.Duration("wait", pause))
	return w.sleep(w.receiving, pause)
}

// probed goes on after the verdict on the probe.
func (w *worker[IN, OUT]) probed(ended <-chan bool) {
	select {
	case failed := <-ended:
		if failed {
			return
		}
	case <-w.receiving.Done():
		return
	}
	w.mu.Lock()
	w.flood.resume()
	w.mu.Unlock()
	w.logger.Info("delivery: a message was done again: the worker goes on")
}
