package delivery

import (
	"context"
	"errors"
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
	// connectWait is longer than an attempt to connect, which ends after 130 s on Linux.
	// So a Receive that fails after a longer time has waited for messages before.
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
	failures := sourceFailures{wait: firstWait}
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
		// freeSlots may have waited for long.
		isNewFlood := !isProbe && w.flooded()
		isNewPause := receiving.Err() != nil
		if isNewFlood || isNewPause {
			continue
		}
		var probe chan probeEnd
		if isProbe {
			n = min(n, w.flood.probeSize())
			probe = make(chan probeEnd, n)
		}
		asked := w.clock.Now()
		w.noteAsked(asked)
		ms, isEnded, err := w.receive(receiving, n, isProbe)
		if err == nil || w.clock.Since(asked) > connectWait {
			failures = sourceFailures{wait: firstWait}
		}
		if err != nil && !isEnded {
			if !w.continueAfter(receiving, err, &failures) {
				return
			}
			continue
		}
		w.noteReceiveReturned(nil)
		if !w.pass(watchReceived(&w.tally, ms, probe), isProbe, yield) {
			return
		}
		if isProbe {
			w.awaitProbeEnds(probe, len(ms))
		}
	}
}

var errFlooded = errors.New("delivery: most of the last messages have failed")

// receive receives messages from the source. isEnded reports that the flood guard has
// ended the Receive, because the source has rejected messages: see tally.noteRejected.
func (w *worker[IN, OUT]) receive(receiving context.Context, n int, isProbe bool) (ms []message.Message[IN], isEnded bool, err error) {
	ctx, end := context.WithCancelCause(receiving)
	defer end(nil)
	done := w.beginReceive(end, isProbe)
	defer done()
	ms, err = w.source.Receive(ctx, n)
	return ms, context.Cause(ctx) == errFlooded, err //nolint:errorlint // the cause is never wrapped
}

// sourceFailures are the failures of a source, one after the other. A Receive that
// succeeds, or has waited for messages, ends the series.
type sourceFailures struct {
	since time.Time     // of the first failure, or zero
	wait  time.Duration // between the last failure and the next Receive
}

// continueAfter handles an error of Receive. It waits before the next Receive, and
// returns true, or returns false to end the input. receiving was the context of the
// Receive.
func (w *worker[IN, OUT]) continueAfter(receiving context.Context, err error, failures *sourceFailures) bool {
	switch {
	case err == io.EOF: //nolint:errorlint // wrapped, it is a connection that was cut
		return false
	case guard.IsPermanent(err): // also if the run is to end: its next start would fail as well
		w.sourceErr = fmt.Errorf("delivery: the source has failed for good: %w", err)
		w.takeNoMore(w.sourceErr)
		return false
	case w.receiving.Err() != nil:
		if !guard.Is(err, context.Cause(w.receiving)) {
			w.logger.Warn("delivery: the source has failed", slog.Any("error", err))
		}
		return false
	case receiving.Err() != nil: // people have paused the queue
		w.noteReceiveReturned(nil)
		return true
	}
	now := w.clock.Now()
	if failures.since.IsZero() {
		failures.since = now
	}
	if now.Sub(failures.since) >= sourceWait {
		w.sourceErr = fmt.Errorf("delivery: the source has failed for %v: %w", sourceWait, err)
		w.takeNoMore(w.sourceErr)
		return false
	}
	wait := failures.wait
	failures.wait = min(2*wait, lastWait)
	w.noteReceiveReturned(err)
	w.logger.Warn("delivery: the source has failed, and is retried", slog.Any("error", err), slog.Duration("wait", wait))
	return w.sleep(w.receiving, wait)
}

// freeSlots waits until the operator can take messages, and returns how many to receive,
// or 0 if the run or the operator has ended.
func (w *worker[IN, OUT]) freeSlots() int {
	if w.awaitSlots == nil {
		return w.batch
	}
	return min(w.batch, w.awaitSlots(w.receiving))
}

// pass passes messages to the operator. It releases the rest when the run ends, or at a
// pause or a flood. It returns false if the operator has stopped reading.
func (w *worker[IN, OUT]) pass(ms []message.Message[IN], isProbe bool, yield func(message.Message[IN], error) bool) bool {
	for i, m := range ms {
		isNewFlood := !isProbe && w.flooded()
		if w.receiving.Err() != nil || w.paused() || isNewFlood {
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

func release[T any](ms []message.Message[T]) {
	for _, m := range ms {
		m.Release()
	}
}
