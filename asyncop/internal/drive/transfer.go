package drive

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
)

// grace is how long Via and To wait, after a cancel, for a next step that has stopped
// reading.
const grace = 500 * time.Millisecond

// Transfer moves results to the next step, on the goroutine of Via or To, which owns its
// fields.
//
// While the operator runs, it waits without a limit. After that:
//
//	end of the operator   wait for the next step
//	clean                 without a limit until the operator's context ends, or the deadline of
//	                      a Stop; then for at most the grace with each result
//	by a failure          the same; then for at most the grace in all
//	by a cancel           for at most the grace in all
//
// Undelivered results are counted, and their messages released.
type Transfer[IN, OUT any] struct {
	d           *Driver[IN, OUT]
	next        chan<- any
	sharesOut   bool // others receive from Out as well
	tellFailure bool // next takes a wiring.Failure

	ctx  context.Context //nolint:containedctx // ends with the operator's context, the deadline of a Stop, or the transfer
	stop context.CancelFunc

	ended    <-chan struct{}  // closed at the end of the operator; nil once the end was noticed
	ctxEnded <-chan struct{}  // closed at the end of ctx; nil until the operator has ended, and once the grace has begun
	late     <-chan time.Time // receives at the end of the grace; nil until the grace has begun
	timer    *clock.Timer     // of late
	renewed  bool             // each result has its own grace
	gaveUp   bool             // results are no longer delivered
}

// NewTransfer returns a transfer to the channel of the next step.
func (d *Driver[IN, OUT]) NewTransfer(next chan<- any, sharesOut, tellFailure bool) *Transfer[IN, OUT] {
	t := &Transfer[IN, OUT]{d: d, next: next, sharesOut: sharesOut, tellFailure: tellFailure, ended: d.ended}
	t.ctx, t.stop = context.WithCancel(d.Context)
	d.delivery.transfer.Store(&stoppable{t.ctx, t.stop})
	return t
}

// Run moves the results to next and closes it. If the stream has failed and next takes
// failures, it gets the failure first.
//
// If others receive from out as well, Run takes the results from out. Otherwise it takes
// them from a ring, which is cheaper for the loop. Earlier results may be in out, which
// the loop closes when it switches to the ring.
func (t *Transfer[IN, OUT]) Run() {
	d := t.d
	defer close(t.next)
	o := newOutlet[any](d.Buffer, d.observing != nil, d.host.WakeUp)
	defer close(o.stopped)
	if t.sharesOut {
		o.close()
	} else {
		d.attach(&attachment[IN, OUT]{port: &transferPort[IN, OUT]{flowPort[IN, OUT]{d}, o}})
	}
	for v := range d.out {
		if !t.send(v) && t.sharesOut {
			break // the rest is for the others
		}
	}
	for v, _, ok := o.next(); ok; v, _, ok = o.next() {
		if t.send(v) {
			o.noteConsumed()
		}
	}
	if err := d.Err(); err != nil && t.tellFailure {
		t.deliver(wiring.Failure{Err: err})
	}
	if n := d.delivery.undelivered.Load(); n > 0 {
		d.User.LogAfterEnd(slog.LevelWarn, "asyncop: results were not delivered: the next step has stopped reading", slog.Int64("results", n))
	}
}

// send delivers v. If it cannot, it counts a result, and releases its message.
func (t *Transfer[IN, OUT]) send(v any) (delivered bool) {
	if t.deliver(v) {
		return true
	}
	if participant.IsControl(v) {
		return false
	}
	t.d.delivery.undelivered.Add(1)
	if m, ok := message.FromElement(v); ok {
		t.d.release(message.With(m, struct{}{}))
	}
	return false
}

// deliver sends v to the next step, unless it has given up.
func (t *Transfer[IN, OUT]) deliver(v any) bool {
	if t.gaveUp {
		return false
	}
	select {
	case t.next <- v: // cheaper than the waiting select
		return true
	default:
	}
	if t.renewed {
		t.timer.Reset(grace)
	}
	for !t.gaveUp {
		select {
		case t.next <- v:
			return true
		case <-t.ended:
			t.noticeEnd()
		case <-t.ctxEnded:
			t.startGrace(t.d.Err() == nil)
		case <-t.late:
			t.giveUp()
		}
	}
	return false
}

// noticeEnd begins the wait after the end of the operator: see Transfer.
func (t *Transfer[IN, OUT]) noticeEnd() {
	t.ended = nil
	switch {
	case t.d.delivery.cutUpstream.Load(): // an earlier step has waited for the grace
		t.giveUp()
	case t.d.delivery.cut.Load():
		t.startGrace(false)
	default:
		t.ctxEnded = t.ctx.Done()
	}
}

// startGrace starts the grace. renewed is set if each result has its own.
func (t *Transfer[IN, OUT]) startGrace(renewed bool) {
	t.ctxEnded = nil
	t.renewed = renewed
	t.timer = t.d.Clock.Timer(grace)
	t.late = t.timer.C
}

func (t *Transfer[IN, OUT]) giveUp() {
	t.gaveUp = true
	if t.d.Err() != nil {
		t.d.Node.CutDownstream(t.d.Err())
	}
}

// Await calls awaitSink, which waits until a sink that has received all results
// completes. After a clean end Await waits without a limit. After another end it gives up
// like Run.
func (t *Transfer[IN, OUT]) Await(awaitSink func()) {
	defer t.End()
	if t.d.Err() == nil && !t.gaveUp {
		awaitSink()
		return
	}
	completed := make(chan struct{})
	go func() { // ends with awaitSink, perhaps never
		defer close(completed)
		awaitSink()
	}()
	for !t.gaveUp {
		select {
		case <-completed:
			return
		case <-t.ended:
			t.noticeEnd()
		case <-t.ctxEnded:
			t.startGrace(false)
		case <-t.late:
			t.giveUp()
		}
	}
}

// End ends the transfer, after Run and, for a sink, Await.
func (t *Transfer[IN, OUT]) End() {
	t.stop()
	if t.timer != nil {
		t.timer.Stop()
	}
}

// delivery is a driver's state for its Transfer, for any goroutine.
type delivery struct {
	transfer    atomic.Pointer[stoppable] // or nil
	cut         atomic.Bool               // by a cancel; set before ended is closed
	cutUpstream atomic.Bool               // an earlier step was cancelled, and has waited for the grace
	undelivered atomic.Int64              // results that the next step did not take
}

type stoppable struct {
	ctx  context.Context //nolint:containedctx // see Transfer
	stop context.CancelFunc
}

// stopDeliveryAt ends the transfer at the deadline of ctx, if any. Stop may return before
// the results were delivered.
func (d *Driver[IN, OUT]) stopDeliveryAt(ctx context.Context) {
	t := d.delivery.transfer.Load()
	deadline, ok := ctx.Deadline()
	if t == nil || !ok {
		return
	}
	atDeadline, release := context.WithDeadline(t.ctx, deadline)
	context.AfterFunc(atDeadline, func() {
		t.stop()
		release()
	})
}

// cutDelivery records a cancel with err. Later steps that cannot deliver end after the
// grace.
func (d *Driver[IN, OUT]) cutDelivery(err error) {
	d.delivery.cut.Store(true)
	if node := d.Node; node.HasDownstream() {
		d.Clock.AfterFunc(grace, func() { node.CutDownstream(err) })
	}
}

// CutByUpstream ends the operator because an earlier step was cancelled with err, and
// could not deliver within the grace.
func (d *Driver[IN, OUT]) CutByUpstream(err error) {
	d.delivery.cutUpstream.Store(true)
	if t := d.delivery.transfer.Load(); t != nil {
		t.stop() // it may still deliver after the end
	}
	d.host.Cancel(guard.Wrap("asyncop: upstream", err))
}

// DownstreamFailed ends the operator because a later step has failed.
func (d *Driver[IN, OUT]) DownstreamFailed(err *wiring.DownstreamError) {
	d.host.Cancel(guard.Wrap("asyncop", err))
}

// failUpstream ends the steps upstream, unless the input has ended. With checkpoints, the
// coordinator ends them.
func (d *Driver[IN, OUT]) failUpstream(err error) {
	if d.checkpoints == nil && d.input != inputClosed {
		d.Node.FailUpstream(err)
	}
}
