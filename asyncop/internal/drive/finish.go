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
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
)

// finish ends the operator (law F1). It cancels the source and ends the contexts, and
// sets err before it closes out. Elements that still arrive are discarded and counted
// until upstream closes in.
func (d *Driver[IN, OUT]) finish() {
	d.timers.Stop() // no timer is armed after the end
	d.unwatch()
	by, cause := d.core.State().Cause, d.core.State().Failure
	if lost := d.checks.lostSoFar(); lost != nil && by == core.ByCancel {
		by, cause = core.ByDriver, lost // it has led to the cancel
	}
	if cause != nil {
		d.host.Cancel(cause)
	}
	cut := by == core.ByCancel && cause != d.inputErr.get() //nolint:errorlint // cancelled on request, and not because the input has failed
	abandoned := d.core.Abandon()
	d.warnOfCutRetries()
	d.Hooks.FlushLines(true)
	d.offerJobs() // their attempts have ended: workers make no calls, and free the permits
	d.workers.Send()
	if cause == nil {
		cause = d.lastFailure()
	}
	kept := d.suspended() && cause == nil // the elements in flight are in the final checkpoint, and will be called again
	abandoned, err := d.outcome(cause, by, kept, abandoned)
	d.endCheckpoints(err)
	d.refuseRest(kept)
	if err == nil {
		err = d.close() // before out is closed, so that a failed close is not taken for a clean end
	} else {
		d.cancelUpstream(err)
		d.failUpstream(err)
	}
	if err != nil {
		d.logEnd(err, cut)
	}
	d.publish()
	d.err.set(err)
	if by == core.ByCancel && err != nil {
		d.cutDelivery(err)
	}
	d.life = finished
	close(d.ended)
	d.current.port.close()
	if a := d.attached.Load(); a != d.current { // it was attached since the loop last looked
		a.port.close()
	}
	d.settleMessages()
	d.endSink(cause, abandoned)
	if closeErr := d.close(); closeErr != nil { // after a clean end it was closed
		d.Hooks.Log(d.host.Values, slog.LevelWarn, "asyncop: close after a failure", slog.Any("error", closeErr))
	}
	d.cleanUp()
	close(d.done)
}

// cleanUp reports the last events, ends the goroutines of the operator, and drops its
// elements. The results have left, and the function is closed.
func (d *Driver[IN, OUT]) cleanUp() {
	d.settleMessages()
	d.observeEnd()
	d.workers.Stop()
	d.host.Cancel(nil) // frees the resources that the user's context has for it
	d.publish()
	d.Hooks.FlushLines(true)
	d.upstream.Wait()
	if d.checks != nil {
		d.checks.encoding.Wait()
	}
	d.forget()
	if !d.mayDiscard() {
		d.endCount()
	}
}

// refuseRest ends the items that have neither left nor taken a slot.
func (d *Driver[IN, OUT]) refuseRest(kept bool) {
	for _, part := range d.parts { // other parts of the same message have left
		d.messages.Release(message.With(part, struct{}{}))
	}
	for it := range d.backlog.All() { // read past the capacity, or restored and not yet fed
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

// warnOfCutRetries logs at the end that elements did not get their retries.
func (d *Driver[IN, OUT]) warnOfCutRetries() {
	if n := d.core.State().Stats.CutByEndOfInput; n > 0 {
		d.Hooks.Log(d.host.Values, slog.LevelWarn, "asyncop: the input ended while elements still asked for a retry, which they did not get; "+
			"WithDrainRetries lets retries continue", slog.Int64("elements", n))
	}
}

// logEnd logs once that the operator has failed, because the caller of Wait or of Results
// may not look at the error. A cancel is expected, so its line has level INFO. A break
// out of a loop has no line.
func (d *Driver[IN, OUT]) logEnd(err error, cut bool) {
	switch now := d.core.State(); {
	case !cut:
		d.Hooks.Log(now.FailedIn, slog.LevelError, "asyncop: operator failed", slog.Any("error", err))
	case now.Failure == d.ErrStopped: //nolint:errorlint // a break is this error itself
		d.brokeOff = true
	default:
		d.Hooks.Log(d.host.Values, slog.LevelInfo, "asyncop: operator cancelled", slog.Any("error", err))
	}
}

// lastFailure waits for the tasks that may still fail a run without a failure, and
// returns their error: the encoding of the final checkpoint's state, elements behind its
// barrier, and the error with which the input ended.
func (d *Driver[IN, OUT]) lastFailure() error {
	switch {
	case d.checks != nil:
		if err := d.lostState(); err != nil {
			return err
		}
		return d.awaitInputEnd()
	case d.input == inputClosed:
		return d.inputErr.get()
	}
	return nil
}

// forget releases the elements that were cut off. User code may keep futures and contexts
// forever, and the operator with them.
func (d *Driver[IN, OUT]) forget() {
	d.core.Forget()
	d.backlog = fifo.Queue[core.Item[IN, OUT]]{}
	d.upNext = upNext[OUT]{}
	d.jobs = nil
	if d.checks != nil {
		d.checks.restored = fifo.Queue[int64]{}
	}
}

// outcome returns the elements that are offered to the failure sink, and the error that
// Err will return: nil after a clean end. Elements that are redelivered are not offered.
// A failed element that the sink is still to get has not ended.
func (d *Driver[IN, OUT]) outcome(
	cause error, by core.Cause, kept bool, abandoned []*core.Slot[IN, OUT],
) (offer []*core.Slot[IN, OUT], err error) {
	n := 0
	for _, e := range abandoned {
		failed := e.Failed()
		if !kept && (failed || !d.isRedelivered(e)) {
			offer = append(offer, e)
		}
		switch {
		case kept:
			d.core.Ended(e, observe.Kept)
		case failed:
			continue
		default:
			d.core.Ended(e, observe.Abandoned)
		}
		n++
	}
	if n == 0 || cause == nil {
		return offer, cause
	}
	return offer, d.Hooks.Abandoned(cause, by == core.ByElement, n)
}

// sinkLimit is the time from a failure or a cancel to the end of the failure sink's
// context.
const sinkLimit = 30 * time.Second

var errSinkLimit = fmt.Errorf("asyncop: the operator has ended, and %v later there are failures that the sink has not taken", sinkLimit)

// endSink waits for the sink. It then offers each failed element that the sink has not
// taken once more, and each element that was cut off (law A1), except elements that are
// redelivered. There are no further offers: failed elements that the sink does not take
// are abandoned.
func (d *Driver[IN, OUT]) endSink(cause error, abandoned []*core.Slot[IN, OUT]) {
	if d.sink == nil {
		return
	}
	d.sink.Await()
	ctx, cancel := context.WithCancelCause(d.host.Values)
	defer cancel(nil)
	if len(abandoned) > 0 {
		timer := d.Clock.AfterFunc(sinkLimit, func() { cancel(errSinkLimit) })
		defer timer.Stop()
	}
	lost := 0
	for _, e := range abandoned {
		failed, taken := e.Failed(), d.sink.WasTaken(e)
		if !taken && failed && d.isRedelivered(e) {
			d.core.Ended(e, observe.Abandoned)
			continue
		}
		if !taken {
			r, err := d.sink.Last(ctx, e, cause)
			taken = err == nil
			if !taken {
				d.Hooks.Declined(r, err)
			}
		}
		switch {
		case !failed: // it has ended before
		case taken:
			d.core.Ended(e, observe.HandedOver)
		default:
			lost++
			d.core.Ended(e, observe.Abandoned)
		}
	}
	if lost > 0 {
		d.Hooks.Log(d.host.Values, slog.LevelError, "asyncop: the failure sink has not taken all failures: they are lost", slog.Int("lost", lost))
	}
}

// close closes the function once, if it was opened.
func (d *Driver[IN, OUT]) close() error {
	closer := d.closer
	if closer == nil {
		return nil
	}
	d.closer = nil
	if err := call.OffLoop(closer); err != nil {
		return guard.Wrap("asyncop: close", err)
	}
	return nil
}

// cancelUpstream cancels the source, because no more elements are taken. It does nothing
// if the input has ended.
func (d *Driver[IN, OUT]) cancelUpstream(cause error) {
	cancel := d.CancelUpstream
	if cancel == nil || d.life >= ending {
		return
	}
	d.upstream.Go(func() { // cancel may wait for the source, which may wait for the operator
		_ = call.OffLoop(func() error { cancel(cause); return nil })
	})
}

// endInlet discards the elements that still arrive through In.
func (d *Driver[IN, OUT]) endInlet() {
	d.late.discards.Store(true)
	if d.input != inputClosed {
		d.startDiscarding()
	}
}

// startDiscarding starts discard once, if upstream may send. Without an upstream, In is
// never closed.
func (d *Driver[IN, OUT]) startDiscarding() {
	if d.late.discards.Load() && d.late.wired.Load() {
		d.late.discarder.Do(func() { go d.discard() })
	}
}

// mayDiscard reports whether elements may still come through In after the end of the
// loop.
func (d *Driver[IN, OUT]) mayDiscard() bool {
	return d.late.discards.Load() && d.late.wired.Load() && d.input != inputClosed
}

// discard receives the elements that upstream still sends, so that upstream is not
// blocked forever. It ends when upstream closes In.
func (d *Driver[IN, OUT]) discard() {
	n := 0 // number of elements that were not reported yet
	for v := range d.in {
		if _, failure := v.(wiring.Failure); failure {
			continue
		}
		d.late.count.Add(1)
		if m, ok := message.FromElement(v); ok {
			d.release(message.With(m, struct{}{}))
		}
		n++
		select {
		case <-d.done:
			n = d.observeLate(n)
		default: // the loop still reports
		}
	}
	d.observeLate(n)
	<-d.done
	d.endCount()
}

// endCount ends the count of discarded elements: no more can arrive.
func (d *Driver[IN, OUT]) endCount() {
	d.logDiscarded()
	d.late.once.Do(func() { close(d.late.counted) })
}

// logDiscarded logs the number of discarded elements, once no more can arrive. A break
// out of a loop over results has no line.
func (d *Driver[IN, OUT]) logDiscarded() {
	n := d.late.count.Load()
	switch err := d.Err(); {
	case n == 0 || d.brokeOff:
	case err == nil:
		d.Hooks.LogLate(slog.LevelInfo, "asyncop: elements came after the operator was stopped, and were discarded", slog.Int64("elements", n))
	default:
		d.Hooks.LogLate(slog.LevelWarn, "asyncop: elements came after the operator had ended early, and were discarded", slog.Int64("elements", n))
	}
}

// Err returns nil before the end of the operator and after a clean end.
func (d *Driver[IN, OUT]) Err() error { return d.err.get() }

// sharedError is an error that one goroutine sets and others get. It is nil until then.
type sharedError struct{ is atomic.Pointer[error] }

func (e *sharedError) set(err error) { e.is.Store(&err) }

func (e *sharedError) get() error {
	if err := e.is.Load(); err != nil {
		return *err
	}
	return nil
}

// Stop ends the run in an orderly way, or with ctx: see asyncop.
func (d *Driver[IN, OUT]) Stop(ctx context.Context) error {
	d.stopping.Store(true)
	d.host.WakeUp()
	select {
	case <-d.done:
	case <-ctx.Done():
		d.host.Cancel(guard.Wrap("asyncop: stop", context.Cause(ctx)))
		<-d.ended
	}
	d.stopDeliveryAt(ctx)
	return d.Err()
}
