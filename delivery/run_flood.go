package delivery

import (
	"log/slog"
	"time"

	"github.com/weirflow/weir/message"
)

// The waits of the flood guard. A message that has failed says that the service may be
// down; only another message says that it is up.
const (
	firstPause = time.Second
	lastPause  = 5 * time.Second
	perProbe   = 10 // of a window are one probe
)

// evidence tells whether the called service is up, as far as the end of a message shows.
type evidence uint8

const (
	noEvidence evidence = iota // released, or it has failed before: one that comes from a layer
	answered                   // done, or refused for good
	unanswered                 // failed
)

// evidenceOf returns the evidence of the end of a message.
func evidenceOf(v message.Settlement, again bool) evidence {
	switch {
	case v.Kind == message.Done, v.Kind == message.Rejected, v.Refused:
		return answered
	case again, v.Kind == message.Released:
		return noEvidence
	}
	return unanswered
}

// flood finds out that most of the last new messages have failed (law D5). It judges
// blocks of them in the order in which they were received: those that fail may end much
// sooner than the others. Guarded by tally.mu.
type flood struct {
	share  float64
	window int
	last   *block // of the last message that was received; nil: none yet, or the flood is over

	stopped bool
	floods  int           // that are over
	pause   time.Duration // the last one; 0: none since a block had no flood
	err     error         // of the last new message that has failed
}

// block is a number of messages that were received one after the other.
type block struct {
	floods                  int // that were before it
	received, ended, failed int
}

func newFlood(share float64, window int) flood { return flood{share: share, window: window} }

// receive notes a message, and returns its block; nil for a probe, and for a message that
// has failed before.
func (f *flood) receive(again bool) *block {
	if f.stopped || again {
		return nil
	}
	if f.last == nil || f.last.received == f.window {
		f.last = &block{floods: f.floods}
	}
	f.last.received++
	return f.last
}

// note notes the end of a message, and reports whether it makes the worker stop.
func (f *flood) note(b *block, e evidence, err error) bool {
	if e == unanswered && err != nil {
		f.err = err
	}
	if b == nil || e == noEvidence || f.stopped || b.floods < f.floods {
		return false // also what was in the operator when the worker stopped
	}
	b.ended++
	if e == unanswered {
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

// probe returns how many messages are tried at once while the worker is stopped.
func (f *flood) probe() int { return max(1, f.window/perProbe) }

// resume lets the worker go on after a probe that was answered.
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
	w.logger.Warn("delivery: most of the last messages have failed: the worker pauses, and then tries some",
		slog.Int("last", w.floodWindow), slog.Any("error", last), slog.Duration("wait", pause), slog.Int("some", w.flood.probe()))
	return w.sleep(w.receiving, pause)
}

// probed goes on if the service has answered enough of the n messages of a probe.
func (w *worker[IN, OUT]) probed(ended <-chan evidence, n int) {
	up, failed := 0, 0
	for range n {
		select {
		case o := <-ended:
			switch o {
			case answered:
				up++
			case unanswered:
				failed++
			case noEvidence:
			}
		case <-w.receiving.Done():
			return
		}
	}
	if up == 0 || float64(failed) > w.floodShare*float64(up+failed) {
		return
	}
	w.mu.Lock()
	w.flood.resume()
	w.mu.Unlock()
	w.logger.Info("delivery: messages are answered again: the worker resumes", slog.Int("answered", up), slog.Int("failed", failed))
}
