package drive

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// finish ends the operator (law F1). It cancels the source, ends the contexts, and sets
// err before it closes out.
//
// onRequest means that this operator or an earlier step was cancelled or stopped. kept
// means that the final checkpoint has the elements in flight.
func (d *Driver[IN, OUT]) finish() {
	d.timers.Stop()
	d.unwatch()
	by, cause := d.core.State().EndedBy, d.core.State().Failure
	stateErr := d.checkpoints.finalStateError()
	if stateErr != nil && by == core.ByCancel {
		by, cause = core.ByDriver, stateErr // it caused the cancel
	}
	if cause != nil {
		d.host.Cancel(cause)
	}
	onRequest := by == core.ByCancel && cause != d.inputErr.get() //nolint:errorlint // cancelled, and not because the input failed
	abandoned := d.core.Abandon()
	d.warnOfCutRetries()
	d.User.FlushLines(true)
	d.offerJobs() // workers free the permits of attempts that have ended
	d.workers.Send()
	if cause == nil {
		cause = d.lastFailure()
	}
	kept := d.suspended() && cause == nil
	onRequest = onRequest || cause != nil && d.User.EndedOnRequest(cause)
	forSink, numCutOff := d.endAbandoned(abandoned, kept)
	err := cause
	if cause != nil && numCutOff > 0 {
		err = d.User.AbandonedError(cause, by == core.ByElement, onRequest, numCutOff)
	}
	d.endCheckpoints(err)
	d.refuseRest(kept)
	if err == nil {
		err = d.close() // before out: a failed close is not a clean end
	} else {
		d.cancelUpstream(err)
		d.failUpstream(err)
	}
	if err != nil {
		d.brokeOff = onRequest && d.core.State().Failure == d.ErrStopped //nolint:errorlint // a break
		d.logEnd(err, onRequest)
	}
	d.publish()
	d.err.set(err)
	if by == core.ByCancel && err != nil {
		d.cutDelivery(err)
	}
	d.life = finished
	close(d.ended)
	d.current.port.close()
	if a := d.attached.Load(); a != d.current { // a port that was attached since the last step
		a.port.close()
	}
	d.settleMessages()
	d.endSink(cause, forSink)
	if closeErr := d.close(); closeErr != nil { // closed already if the end was clean
		d.User.Log(d.host.Values, slog.LevelWarn, "asyncop: close after a failure", slog.Any("error", closeErr))
	}
	d.cleanUp()
	close(d.done)
}

// cleanUp reports the last events, ends the goroutines, and drops the elements. The
// results have left, and the function is closed.
func (d *Driver[IN, OUT]) cleanUp() {
	d.settleMessages()
	d.observeEnd()
	d.workers.Stop()
	d.host.Cancel(nil) // frees resources of the user's context
	d.publish()
	d.User.FlushLines(true)
	d.upstream.Wait()
	if d.checkpoints != nil {
		d.checkpoints.encoding.Wait()
	}
	d.forget()
	if !d.mayDiscard() {
		d.endCount()
	}
}

// refuseRest ends the items that have no slot: parts of a message that were not sent, and
// the backlog.
func (d *Driver[IN, OUT]) refuseRest(kept bool) {
	for _, part := range d.parts { // the last part releases the message: see message.Split
		d.messages.Release(message.With(part, struct{}{}))
	}
	for it := range d.backlog.All() { // overflow, or restored
		switch {
		case it.Kind == core.Control:
		case kept:
			d.refused(observe.Kept, call.Message{})
		default:
			d.late.count.Add(1)
			m, _ := it.Rest.(call.Message)
			d.refused(observe.Discarded, m)
		}
	}
}

// warnOfCutRetries logs how many elements did not get their retries. Without this line,
// their results would be lost silently.
func (d *Driver[IN, OUT]) warnOfCutRetries() {
	if n := d.core.State().Stats.CutByEndOfInput; n > 0 {
		d.User.Log(d.host.Values, slog.LevelWarn, "asyncop: the input ended while elements still asked for a retry, which they did not get; "+
			"WithDrainRetries lets retries continue", slog.Int64("elements", n))
	}
}

// logEnd logs a failed operator once, because the caller may not look at the error. A
// cancel is expected, so its level is INFO. A break has no line.
func (d *Driver[IN, OUT]) logEnd(err error, onRequest bool) {
	now := d.core.State()
	switch {
	case !onRequest:
		d.User.Log(now.FailedIn, slog.LevelError, "asyncop: operator failed", slog.Any("error", err))
	case d.brokeOff:
	default:
		d.User.Log(d.host.Values, slog.LevelInfo, "asyncop: operator cancelled", slog.Any("error", err))
	}
}

// lastFailure returns the error of a run that has not failed so far. With checkpoints, it
// waits for the encoding of the final state and for the end of the input, which may fail.
// Without checkpoints, the input of Results may have failed.
func (d *Driver[IN, OUT]) lastFailure() error {
	switch {
	case d.checkpoints != nil:
		if err := d.awaitFinalState(); err != nil {
			return err
		}
		return d.awaitInputEnd()
	case d.input == inputClosed:
		return d.inputErr.get()
	}
	return nil
}

// forget releases the elements that were cut off, because user code may keep futures and
// contexts that refer to them.
func (d *Driver[IN, OUT]) forget() {
	d.core.Forget()
	d.backlog = fifo.Queue[core.Item[IN, OUT]]{}
	d.upNext = upNext[OUT]{}
	d.jobs = nil
	if d.checkpoints != nil {
		d.checkpoints.restoredNumbers = fifo.Queue[int64]{}
	}
}

// endAbandoned ends the elements that Abandon has returned. It returns the elements for
// endSink, and how many were cut off. There are three cases:
//
//	kept      the final checkpoint has all elements: they end as Kept
//	cut off   the element ends as Abandoned, and endSink offers it, unless it is redelivered
//	failed    the element waits for the failure sink, and ends in endSink
func (d *Driver[IN, OUT]) endAbandoned(abandoned []*core.Slot[IN, OUT], kept bool) (forSink []*core.Slot[IN, OUT], numCutOff int) {
	for _, e := range abandoned {
		if kept {
			d.core.Ended(e, observe.Kept)
			continue
		}
		hasFailed := e.WaitsForSink()
		if hasFailed || !d.isRedelivered(e) {
			forSink = append(forSink, e)
		}
		if !hasFailed {
			d.core.Ended(e, observe.Abandoned)
			numCutOff++
		}
	}
	return forSink, numCutOff
}

// sinkLimit is the time for the last offers, after a running call of the failure sink has
// returned.
const sinkLimit = 30 * time.Second

var errSinkLimit = fmt.Errorf("asyncop: the operator has ended, and %v later there are failures that the sink has not taken", sinkLimit)

// endSink waits for the running call of the sink. Then it offers each element of
// endAbandoned once (law A1). There are two exceptions: an element that the running call
// has taken, and a failed element that is redelivered. Failed elements that are not taken
// end as Abandoned.
func (d *Driver[IN, OUT]) endSink(cause error, forSink []*core.Slot[IN, OUT]) {
	if d.sink == nil {
		return
	}
	d.sink.Await()
	ctx, cancel := context.WithCancelCause(d.host.Values)
	defer cancel(nil)
	if len(forSink) > 0 {
		timer := d.Clock.AfterFunc(sinkLimit, func() { cancel(errSinkLimit) })
		defer timer.Stop()
	}
	lost := 0
	for _, e := range forSink {
		failed, taken := e.WaitsForSink(), d.sink.WasTaken(e)
		if !taken && failed && d.isRedelivered(e) {
			d.core.Ended(e, observe.Abandoned)
			continue
		}
		if !taken {
			r, err := d.sink.OfferAtEnd(ctx, e, cause)
			taken = err == nil
			if !taken {
				d.User.LogDeclined(r, err)
			}
		}
		switch {
		case !failed: // it was cut off, and has ended in endAbandoned
		case taken:
			d.core.Ended(e, observe.HandedOver)
		default:
			lost++
			d.core.Ended(e, observe.Abandoned)
		}
	}
	if lost > 0 {
		d.User.Log(d.host.Values, slog.LevelError, "asyncop: the failure sink has not taken all failures: they are lost", slog.Int("lost", lost))
	}
}

// close closes the function once, if it was opened.
func (d *Driver[IN, OUT]) close() error {
	closer := d.closer
	if closer == nil {
		return nil
	}
	d.closer = nil
	if err := call.OffLoop(closer.Close); err != nil {
		return guard.Wrap("asyncop: close", err)
	}
	return nil
}

// cancelUpstream cancels the source, unless the input has ended.
func (d *Driver[IN, OUT]) cancelUpstream(cause error) {
	cancel := d.CancelUpstream
	if cancel == nil || d.life >= ending {
		return
	}
	d.upstream.Go(func() { // cancel may wait for the source, and the source for the operator
		_ = call.OffLoop(func() error { cancel(cause); return nil })
	})
}

// discardFromIn makes elements that arrive through In from now on be discarded.
func (d *Driver[IN, OUT]) discardFromIn() {
	d.late.discards.Store(true)
	if d.input != inputClosed {
		d.startDiscarding()
	}
}

// startDiscarding starts discard once, if upstream will close In.
func (d *Driver[IN, OUT]) startDiscarding() {
	if d.late.discards.Load() && d.late.wired.Load() {
		d.late.discarder.Do(func() { go d.discard() })
	}
}

func (d *Driver[IN, OUT]) mayDiscard() bool {
	return d.late.discards.Load() && d.late.wired.Load() && d.input != inputClosed
}

// discard receives elements until upstream closes In. Control elements are not counted.
func (d *Driver[IN, OUT]) discard() {
	n := 0 // not reported yet
	for v := range d.in {
		if participant.IsControl(v) {
			continue
		}
		d.late.count.Add(1)
		if m, ok := message.FromElement(v); ok {
			d.release(message.With(m, struct{}{}))
		}
		n++
		select {
		case <-d.done:
			d.observeLate(n)
			n = 0
		default: // the loop has not ended
		}
	}
	d.observeLate(n)
	<-d.done
	d.endCount()
}

func (d *Driver[IN, OUT]) endCount() {
	d.logDiscarded()
	d.late.once.Do(func() { close(d.late.counted) })
}

// logDiscarded logs the number of discarded elements, except after a break.
func (d *Driver[IN, OUT]) logDiscarded() {
	n := d.late.count.Load()
	switch err := d.Err(); {
	case n == 0 || d.brokeOff:
	case err == nil:
		d.User.LogAfterEnd(slog.LevelInfo, "asyncop: elements came after the operator was stopped, and were discarded", slog.Int64("elements", n))
	default:
		d.User.LogAfterEnd(slog.LevelWarn, "asyncop: elements came after the operator had ended early, and were discarded", slog.Int64("elements", n))
	}
}

// Err returns nil before the end and after a clean end.
func (d *Driver[IN, OUT]) Err() error { return d.err.get() }

type sharedError struct{ is atomic.Pointer[error] }

func (e *sharedError) set(err error) { e.is.Store(&err) }

func (e *sharedError) get() error {
	if err := e.is.Load(); err != nil {
		return *err
	}
	return nil
}

// stopError is the error of a run that the context of Stop has cut off. Its text is made
// on demand, because the cause may be a user's error.
type stopError struct{ stopped, cause error }

func (e *stopError) Error() string   { return fmt.Sprintf("%v: %v", e.stopped, e.cause) }
func (e *stopError) Unwrap() []error { return []error{e.stopped, e.cause} }

// Stop ends the run in an orderly way, or with ctx: see asyncop.
func (d *Driver[IN, OUT]) Stop(ctx context.Context) error {
	d.stopping.Store(true)
	d.host.WakeUp()
	select {
	case <-d.done:
	case <-ctx.Done():
		d.host.Cancel(&stopError{d.ErrStopped, context.Cause(ctx)})
		<-d.ended
	}
	d.stopDeliveryAt(ctx)
	return d.Err()
}
