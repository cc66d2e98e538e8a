package delivery

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// How Run waits after a failure of the source or the sink.
const (
	firstWait  = 100 * time.Millisecond // it doubles
	lastWait   = 10 * time.Second
	sourceWait = 5 * time.Minute // a source that fails for so long ends the run
	// A Receive that takes longer has waited for messages. An attempt to connect ends
	// sooner: after 130 s on Linux.
	connectWait = sourceWait / 2
)

// input is the sequence that the operator reads.
func (w *worker[IN, OUT]) input(yield func(message.Message[IN], error) bool) {
	select {
	case w.feed <- struct{}{}:
		defer func() { <-w.feed }()
	case <-w.ended:
		return
	}
	var since time.Time // the source fails; zero if it does not
	wait := firstWait
	for w.receiving.Err() == nil {
		receiving := w.awaitResume()
		isProbe := w.flooded()
		if isProbe && !w.awaitProbe() {
			return
		}
		n := w.freeSlots()
		if n == 0 {
			return
		}
		if !isProbe && w.flooded() || receiving.Err() != nil { // since freeSlots or pause waited
			continue
		}
		var probe chan probeEnd
		if isProbe {
			n = min(n, w.flood.probe())
			probe = make(chan probeEnd, n)
		}
		asked := w.clock.Now()
		w.ask(asked)
		ms, err := w.source.Receive(receiving, n)
		if w.clock.Since(asked) > connectWait {
			since, wait = time.Time{}, firstWait
		}
		switch {
		case err == nil:
			w.answered(nil)
			since, wait = time.Time{}, firstWait
			if !w.pass(received(&w.tally, ms, probe), probe != nil, yield) {
				return
			}
			if probe != nil {
				w.probed(probe, len(ms))
			}
			continue
		case err == io.EOF: //nolint:errorlint // wrapped, it is a connection that was cut
			return
		case guard.IsPermanent(err): // also if the run is to end: its next start would fail as well
			w.sourceErr = fmt.Errorf("delivery: the source has failed for good: %w", err)
			w.takeNoMore(w.sourceErr)
			return
		case w.receiving.Err() != nil:
			if !guard.Is(err, context.Cause(w.receiving)) {
				w.logger.Warn("delivery: the source has failed", slog.Any("error", err))
			}
			return
		case receiving.Err() != nil: // people have paused the queue
			w.answered(nil)
			continue
		case since.IsZero():
			since = w.clock.Now()
		case w.clock.Since(since) >= sourceWait:
			w.sourceErr = fmt.Errorf("delivery: the source has failed for %v: %w", sourceWait, err)
			w.takeNoMore(w.sourceErr)
			return
		}
		w.answered(err)
		w.logger.Warn("delivery: the source has failed, and is retried", slog.Any("error", err), slog.Duration("wait", wait))
		if !w.sleep(w.receiving, wait) {
			return
		}
		wait = min(2*wait, lastWait)
	}
}

// freeSlots waits until the operator can take messages, and returns how many to receive,
// or 0 if the run or the operator has ended. Messages without a free slot stay in the
// source, for other workers.
func (w *worker[IN, OUT]) freeSlots() int {
	if w.awaitSlots == nil {
		return w.batch
	}
	return min(w.batch, w.awaitSlots(w.receiving))
}

// pass passes messages on to the operator, and releases the rest if it is to stop. It
// returns false if the operator takes no more.
func (w *worker[IN, OUT]) pass(ms []message.Message[IN], probe bool, yield func(message.Message[IN], error) bool) bool {
	for i, m := range ms {
		if w.receiving.Err() != nil || w.paused() || !probe && w.flooded() {
			release(ms[i:])
			return true
		}
		if m.IsPurged() || w.holdsKey(m.Meta().Key) { // since it was received
			m.Release()
			continue
		}
		if !yield(m, nil) {
			release(ms[i:]) // no effect on the first, which the operator has settled
			return false
		}
	}
	return true
}

// release releases messages that were not processed.
func release[T any](ms []message.Message[T]) {
	for _, m := range ms {
		m.Release()
	}
}
