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
// blocks of them in the order in which they were received, since failures may end much
// sooner than the others. Messages with a key are judged by key: of each key, a block
// counts only some messages, and a single key is never a flood. Guarded by tally.mu.
type flood struct {
	share  float64
	window int
	last   *block // of the last message that was received; nil at the start and after a flood

	stopped bool
	floods  int           // that are over
	pause   time.Duration // the last one; 0 since the last block without a flood
	err     error         // of the last new message that has failed
}

// block is a number of messages that were received one after the other.
type block struct {
	floods   int // that were before it
	received int // messages, whether they count or not

	counted, ended, failed int // messages that count
	keys                   map[string]*keyInBlock
	withoutKey             int // of failed
}

// keyInBlock has the messages of a key that count in a block.
type keyInBlock struct{ counted, failed int }

// place is the part of a message in a block. The zero place belongs to no block.
type place struct {
	block   *block
	key     *keyInBlock // nil without a key
	isExtra bool        // the block has enough messages of the key, so this one does not count
}

// A key counts for a share of the window, so that a full block has ten keys or more. A
// queue may have fewer keys: then a block ends when it has received several windows.
const (
	keysInWindow   = 10
	windowsInBlock = 5
)

func newFlood(share float64, window int) flood { return flood{share: share, window: window} }

// receive notes a message, and returns its place. A probe, and a message that has failed
// before, have none.
func (f *flood) receive(key string, again bool) place {
	if f.stopped || again {
		return place{}
	}
	if f.last == nil || f.isFull(f.last) {
		f.last = &block{floods: f.floods}
	}
	b := f.last
	b.received++
	p := place{block: b}
	if key != "" {
		p.key = b.keys[key]
		if p.key == nil {
			p.key = &keyInBlock{}
			if b.keys == nil {
				b.keys = map[string]*keyInBlock{}
			}
			b.keys[key] = p.key
		}
		p.isExtra = p.key.counted >= max(1, f.window/keysInWindow)
	}
	if !p.isExtra {
		b.counted++
	}
	if p.key != nil && !p.isExtra {
		p.key.counted++
	}
	return p
}

// isFull reports whether a block has received all of its messages.
func (f *flood) isFull(b *block) bool {
	return b.counted == f.window || b.received >= windowsInBlock*f.window
}

// note notes the end of a message, and reports whether it makes the worker stop.
func (f *flood) note(p place, e evidence, err error) bool {
	if e == unanswered && err != nil {
		f.err = err
	}
	b := p.block
	if b == nil || f.stopped || b.floods < f.floods {
		return false // including messages in the operator when the worker stopped
	}
	if e != noEvidence && !p.isExtra {
		b.count(p, e)
	}
	f.stopped = f.isFlood(b)
	if !f.stopped && f.isFull(b) && b.ended == b.counted {
		f.pause = 0
	}
	return f.stopped
}

// count counts a message that has ended.
func (b *block) count(p place, e evidence) {
	b.ended++
	if e != unanswered {
		return
	}
	b.failed++
	if p.key == nil {
		b.withoutKey++
	} else {
		p.key.failed++
	}
}

// isFlood reports whether most messages that count have failed, of more than one key. The
// messages that a block still receives may all succeed.
func (f *flood) isFlood(b *block) bool {
	of := f.window
	if f.isFull(b) {
		of = b.counted
	}
	if float64(b.failed) <= f.share*float64(of) {
		return false
	}
	if b.withoutKey > 0 {
		return true
	}
	failing := 0
	for _, k := range b.keys {
		if float64(k.failed) > f.share*float64(k.counted) {
			failing++
		}
	}
	return failing > 1
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

// probeEnd is the end of a message of a probe.
type probeEnd struct {
	evidence evidence
	key      string
}

// probed resumes if the service has answered enough of the n messages of a probe, or if
// the probe has only messages of one key, which alone are never a flood.
func (w *worker[IN, OUT]) probed(ended <-chan probeEnd, n int) {
	up, failed := 0, 0
	keys := map[string]bool{}
	for range n {
		select {
		case end := <-ended:
			keys[end.key] = true
			switch end.evidence {
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
	isOneKey := len(keys) == 1 && !keys[""] && n > 1 && n == w.flood.probe() && failed == n
	isDown := up == 0 || float64(failed) > w.floodShare*float64(up+failed)
	if isDown && !isOneKey {
		return
	}
	w.mu.Lock()
	w.flood.resume()
	w.mu.Unlock()
	if isOneKey {
		w.logger.Info("delivery: all messages of a probe had one key: the worker resumes", slog.Int("failed", failed))
		return
	}
	w.logger.Info("delivery: messages are answered again: the worker resumes", slog.Int("answered", up), slog.Int("failed", failed))
}
