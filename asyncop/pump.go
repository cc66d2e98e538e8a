package asyncop

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/asyncop/internal/engine"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/inband"
	"github.com/weirflow/weir/internal/lazyerr"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/queue"
)

// turnLimit bounds what one kind of work does in one step, so that everything gets its turn.
const turnLimit = 128

// pump is the loop of an operator: it moves elements into the core and results out of it, through the channels of a
// go-streams flow or, if Results drives the operator, through rings.
type pump[IN, OUT any] struct {
	core   *core[IN, OUT]
	decode func(any) (in IN, control bool, err error) // tells elements, control elements and wrong ones apart

	in       chan any                      // upstream sends and closes; the loop receives
	out      chan any                      // the loop sends and closes; downstream receives
	attached atomic.Pointer[ends[IN, OUT]] // set by Results
	carried  atomic.Pointer[outlet[any]]   // set by Via or To

	// Owned by the loop.
	ends     *ends[IN, OUT]                   // attached; nil for a flow
	carrier  *outlet[any]                     // carried, in place of out, which is closed; nil: results go to out
	inClosed bool                             // upstream has closed in
	inOver   bool                             // nothing more is taken
	marked   bool                             // the marker of the end of the input has come: only barriers follow
	backlog  fifo.Queue[engine.Item[IN, OUT]] // what goes into the queue before anything new
	checks   *checkpointing[IN, OUT]          // nil: no part in checkpoints
	barriers wiring.Barriers                  // that have come
	loaded   bool                             // there is something to be emitted next
	next     any                              // it, as out carries it
	barrier  bool                             // next is one that passes ahead of the queue; if not, it comes from the head of that
	control  any                              // next, if it is a control element of the head
	results  []OUT                            // of the head: what is left to be emitted, next included
	whole    int                              // how many results the head has
	side     chan<- any                       // the side output, or nil
	failed   any                              // the oldest failing element, as a Failure[IN]
	offer    chan<- any                       // side, while failed is set
	opened   bool
	yielded  bool           // since there was something to do
	told     bool           // cancelUpstream was called
	unwatch  func() bool    // ends the watch on the operator's context
	upstream sync.WaitGroup // cancelUpstream's call

	unstarted bool                  // Stop came before the start
	stopping  atomic.Bool           // Stop was called
	err       atomic.Pointer[error] // set before over is closed
	over      chan struct{}         // closed by the loop before out: err is final
	done      chan struct{}         // closed by the loop when all is done
	discarded atomic.Int64          // elements that came too late
	wiring    atomic.Uint32         // whether in was handed out
}

// Whether in was handed out.
const (
	unwired uint32 = iota
	wired
	endedUnwired // nothing discards what comes
)

// handOutIn returns in for an upstream, which will close it.
func (p *pump[IN, OUT]) handOutIn() chan<- any {
	if !p.wiring.CompareAndSwap(unwired, wired) && p.wiring.CompareAndSwap(endedUnwired, wired) {
		go p.discard()
	}
	return p.in
}

func newPump[IN, OUT any](c *core[IN, OUT]) *pump[IN, OUT] {
	p := &pump[IN, OUT]{
		core:   c,
		decode: newDecoder[IN](c.name),
		in:     make(chan any, c.buffer),
		out:    make(chan any, c.buffer),
		over:   make(chan struct{}),
		done:   make(chan struct{}),
	}
	if c.sideOutput != nil {
		p.side = c.sideOutput.In()
	}
	p.unwatch = context.AfterFunc(c.host.Life, c.host.WakeUp)
	return p
}

// run is the loop. If user code ends its goroutine, another one goes on (law A6): everything it needs is in p.
func (p *pump[IN, OUT]) run() {
	returned := false
	defer func() {
		if !returned {
			go p.run()
		}
	}()
	p.core.engine.Resume()
	if !p.opened {
		p.opened = true
		p.awaitStart()
		p.open()
	}
	for p.step() {
	}
	p.finish()
	returned = true
}

func (p *pump[IN, OUT]) open() {
	c := p.core
	if c.hook.open == nil {
		return
	}
	if c.engine.Failed() {
		c.hook.close = nil
		return
	}
	if err := c.offLoop(func() error { return c.hook.open.Open(c.host.Life) }); err != nil {
		c.hook.close = nil // what was not opened is not closed
		c.engine.End(lazyerr.Named("asyncop: open", err))
	}
}

// step takes one turn and tells whether there is another.
func (p *pump[IN, OUT]) step() bool {
	c := p.core
	c.witness.watch()
	c.giveWay()
	c.warn()
	p.checkSignals()
	if !c.engine.Failed() && !p.suspended() {
		c.sendWorkers()
		c.engine.Turn()
	}
	busy := p.acceptSome()
	if p.checks != nil {
		p.checks.holdSource(p.overflow() > c.overflow)
	}
	c.publish()
	if c.engine.Failed() {
		return false
	}
	p.passBarrier()
	if !p.suspended() {
		busy = c.offerJobs() || busy
	}
	slots := c.engine.Len()
	busy = p.emitSome() || busy
	busy = busy || c.engine.Len() < slots // elements that emit nothing have left
	busy = p.handOverSome() || busy
	if p.ended() {
		return false
	}
	switch {
	case busy:
		p.yielded = false
	case !p.yielded && c.engine.Running() > 0: // what calls are about to hand in then costs one turn, and no sleep
		p.yielded = true
		runtime.Gosched()
	default:
		p.park()
	}
	return true
}

// checkSignals looks at what other goroutines asked for.
func (p *pump[IN, OUT]) checkSignals() {
	p.core.engine.EndIfCancelled()
	if p.mustStop() {
		p.cancelUpstream(ErrStopped)
		p.endInput()
	}
	if p.ends == nil {
		if p.ends = p.attached.Load(); p.ends != nil && p.core.atEnd == byDriver {
			p.core.drains = true // before an element is accepted, so before the end of the input is noticed
		}
	}
	if p.carrier == nil {
		if p.carrier = p.carried.Load(); p.carrier != nil {
			close(p.out)
		}
	}
}

// mustStop tells whether Stop has something to end. After the marker only barriers are taken, and the final one makes a
// clean end.
func (p *pump[IN, OUT]) mustStop() bool {
	return p.stopping.Load() && !p.inOver && !p.marked
}

// endInput takes nothing more. What is in the backlog was taken already: it gets its first attempts, and no retries (law A5).
func (p *pump[IN, OUT]) endInput() {
	p.inOver = true
	p.endRetries()
}

// endRetries ends retries, unless they are to be drained (law A5).
func (p *pump[IN, OUT]) endRetries() {
	if !p.core.drains {
		p.core.engine.EndRetries()
	}
}

// drained tells whether nothing follows and all that was taken has left.
func (p *pump[IN, OUT]) drained() bool {
	return p.inOver && p.backlog.Len() == 0 && p.core.engine.Len() == 0
}

// acceptSome takes elements as long as there are some and slots for them. End of input is noticed only when a slot is
// free to read for.
func (p *pump[IN, OUT]) acceptSome() (busy bool) {
	for range turnLimit {
		if p.feed() {
			busy = true
			continue
		}
		if !p.mayRead() || !p.read() {
			return busy
		}
		busy = true
	}
	return busy
}

// read takes what comes next, if it is there.
func (p *pump[IN, OUT]) read() bool {
	if e := p.ends; e != nil {
		v, ok := e.in.take()
		if !ok && !e.in.ring.over() {
			return false
		}
		p.receivedElement(v, ok)
		return true
	}
	select {
	case v, ok := <-p.in:
		p.received(v, ok)
		return true
	default:
		return false
	}
}

// feed moves one element of the backlog into the queue, if there are one and a slot for it.
func (p *pump[IN, OUT]) feed() bool {
	if p.backlog.Len() == 0 || p.core.engine.Failed() || !p.core.engine.HasRoom() || p.suspended() {
		return false
	}
	if p.checks != nil && p.checks.restored > 0 {
		p.checks.restored--
	}
	it := p.backlog.Pop()
	if p.checks != nil {
		it.Wait = p.checks.restOf(&it, p.core.timers.Now())
	}
	p.core.engine.Restore(it)
	return true
}

// mayRead tells whether the next element may be read: if a slot is free for it, or to let a barrier come nearer.
func (p *pump[IN, OUT]) mayRead() bool {
	if p.inOver || p.core.engine.Failed() || p.barrierArrived() {
		return false
	}
	return p.backlog.Len() == 0 && p.core.engine.HasRoom() || p.mayOverflow()
}

// received goes on with what has come through in; ok is false if that was closed.
func (p *pump[IN, OUT]) received(v any, ok bool) {
	if !ok {
		var none IN
		p.receivedElement(none, false)
		return
	}
	in, control, err := p.decode(v)
	switch {
	case err != nil:
		p.discarded.Add(1)
		p.core.engine.End(err)
	case control:
		p.receivedControl(v)
	default:
		p.receivedElement(in, true)
	}
}

// receivedElement goes on with an element; ok is false at the end of the input.
func (p *pump[IN, OUT]) receivedElement(in IN, ok bool) {
	switch {
	case !ok:
		p.inClosed = true
		p.core.engine.EndIfCancelled() // whoever is upstream may have noticed it first: the end is no clean one
		p.endInput()
	case p.backlog.Len() == 0 && p.core.engine.HasRoom():
		p.core.engine.Accept(in)
	default:
		p.backlog.Push(engine.Item[IN, OUT]{In: in})
	}
}

func (p *pump[IN, OUT]) receivedControl(v any) {
	switch b := v.(type) {
	case inband.Failure:
		p.core.engine.End(lazyerr.Named("asyncop: upstream", b.Err))
		return
	case participant.Barrier:
		if err := p.barriers.Add(b.ID, isEndOfInput(b)); err != nil { // law C2
			p.core.engine.End(lazyerr.Named("asyncop", err))
			return
		}
		if isEndOfInput(v) {
			p.receivedEndOfInput()
		} else if p.checks != nil {
			p.receivedBarrier(b)
			return
		}
	}
	if p.backlog.Len() == 0 && p.core.engine.HasRoom() {
		p.core.engine.AcceptControl(v)
	} else {
		p.backlog.Push(engine.Item[IN, OUT]{Kind: engine.Control, Rest: v})
	}
}

// receivedEndOfInput does what the marker makes known at once, also about elements of the backlog. It takes its turn like a
// watermark.
func (p *pump[IN, OUT]) receivedEndOfInput() {
	p.marked = true
	p.endRetries()
}

// ended tells whether everything that was taken has left.
func (p *pump[IN, OUT]) ended() bool {
	if p.checks != nil && !p.checks.quiet() {
		return false
	}
	return p.suspended() || p.drained()
}

// emitSome hands over what may leave, as long as downstream takes it.
func (p *pump[IN, OUT]) emitSome() (busy bool) {
	for n := 0; n < turnLimit && p.mayEmit() && p.load() && p.send(); n++ {
		p.sent()
		busy = true
	}
	switch {
	case !busy:
	case p.ends != nil:
		p.ends.out.reader.WakeUp()
	case p.carrier != nil:
		p.carrier.reader.WakeUp()
	}
	return busy
}

// send hands over what is loaded, if downstream takes it now.
func (p *pump[IN, OUT]) send() bool {
	if p.ends != nil {
		return p.ends.out.ring.put(p.results[0])
	}
	if p.carrier != nil {
		return p.carrier.ring.put(p.next)
	}
	select {
	case p.out <- p.next:
		return true
	default:
		return false
	}
}

// mayEmit tells whether the next element may be begun: not while a barrier waits for the present one to end, unless it
// waits for all of them.
func (p *pump[IN, OUT]) mayEmit() bool {
	return p.loaded || !p.barrierArrived() || p.checks.arrived.Kind == participant.Drain
}

// load makes next the next thing to emit and tells whether there is one. Barriers go before everything, but not into
// the middle of an element. Elements that emit nothing leave here.
func (p *pump[IN, OUT]) load() bool {
	if p.loaded {
		return true
	}
	if p.checks != nil && p.checks.passing.Len() > 0 {
		p.loaded, p.barrier, p.next = true, true, p.checks.passing.Peek()
		return true
	}
	if p.suspended() {
		return false
	}
	results, control := p.core.engine.Head()
	switch {
	case control != nil:
		p.loaded, p.control, p.next = true, control, control
	case len(results) > 0:
		p.loaded, p.results, p.whole = true, results, len(results)
		p.loadResult()
	}
	return p.loaded
}

// loadResult makes next the next result of the head.
func (p *pump[IN, OUT]) loadResult() {
	if p.ends == nil {
		p.next = p.results[0] // rings take it unboxed
	}
}

// unload takes back what was loaded and not sent, so that a barrier can go before it, and tells whether it could:
// the results of one element are not split (law Q1).
func (p *pump[IN, OUT]) unload() bool {
	if p.loaded && !p.barrier {
		if len(p.results) < p.whole {
			return false
		}
		p.nothingLoaded()
	}
	return true
}

func (p *pump[IN, OUT]) nothingLoaded() {
	p.loaded, p.barrier, p.control, p.results, p.whole, p.next = false, false, nil, nil, 0, nil
}

// sent goes on after next was sent. The entry of an element with several results stays the head of the queue until the
// last one is sent.
func (p *pump[IN, OUT]) sent() {
	if p.whole > 0 {
		p.core.emitted++
		if p.results = p.results[1:]; len(p.results) > 0 {
			p.loadResult()
			return
		}
	}
	barrier, control := p.barrier, p.control
	p.nothingLoaded()
	if barrier {
		p.checks.passing.Pop()
		return
	}
	if control != nil && p.checks != nil {
		p.checks.passedMarker(control)
	}
	p.core.engine.Left()
}

// handOverSome offers failing elements to the side output, as long as it takes them.
func (p *pump[IN, OUT]) handOverSome() (busy bool) {
	for n := 0; n < turnLimit && p.loadFailed(); n++ {
		select {
		case p.offer <- p.failed:
			p.handedOver()
			busy = true
		default:
			return busy
		}
	}
	return busy
}

func (p *pump[IN, OUT]) loadFailed() bool {
	if p.offer == nil && !p.suspended() {
		if e := p.core.engine.Failing(); e != nil {
			p.offer, p.failed = p.side, p.core.failureOf(p.core.engine.Describe(e))
		}
	}
	return p.offer != nil
}

func (p *pump[IN, OUT]) handedOver() {
	p.offer, p.failed = nil, nil
	p.core.engine.Taken()
}

// park sleeps until something happens. What is posted after parked is set wakes it; what was before is seen by mayPark.
func (p *pump[IN, OUT]) park() {
	c := p.core
	c.host.Parked.Store(true)
	if !p.signalled() && !p.mayMove() && (p.suspended() || c.mayPark()) {
		c.publish()
		var in <-chan any
		var out chan<- any
		if p.ends == nil {
			if p.mayRead() {
				in = p.in
			}
			if p.loaded && p.carrier == nil {
				out = p.out
			}
		}
		c.engine.Slept()
		select {
		case v, ok := <-in:
			c.host.Parked.Store(false)
			c.witness.watch()
			p.received(v, ok)
		case out <- p.next:
			p.sent()
		case p.offer <- p.failed:
			p.handedOver()
		case <-c.host.C:
		}
	}
	c.host.Parked.Store(false)
}

func (p *pump[IN, OUT]) signalled() bool {
	return p.core.host.Cancelled() || p.mustStop() || p.ends == nil && p.attached.Load() != nil ||
		p.carrier == nil && p.carried.Load() != nil
}

// mayMove tells whether the rings have something for the loop.
func (p *pump[IN, OUT]) mayMove() bool {
	if p.carrier != nil {
		return p.loaded && p.carrier.mayPut()
	}
	e := p.ends
	if e == nil {
		return false
	}
	return p.loaded && e.out.mayPut() || p.mayRead() && (e.in.ring.len() > 0 || e.in.ring.ended.Load())
}

// finish ends the operator (law F1): the source is told, contexts end, err is set before out is closed, and what still
// comes is discarded and counted until upstream closes in.
func (p *pump[IN, OUT]) finish() {
	c := p.core
	c.timers.Stop() // no timer is armed after the end
	p.unwatch()
	by, cause := c.engine.Failure()
	if cause != nil {
		c.host.Cancel(cause)
	}
	cut := by == engine.ByCancel && !c.isBroken(cause) || p.unstarted // as wanted
	abandoned := c.engine.Abandon()
	c.witness.stop()
	c.warn()
	c.warnOfCutRetries()
	c.logSuppressed(true)
	c.endJobs()
	if cause == nil {
		cause = p.lastFailure()
	}
	if cause == nil {
		cause = p.awaitInputEnd()
	}
	kept := p.suspended() && cause == nil // what is in flight is in the final checkpoint, and will be called again
	err := p.outcome(cause, by, kept, abandoned)
	p.endCheckpoints(err)
	if p.checks != nil {
		p.checks.holdSource(false)
	}
	for it := range p.backlog.All() { // read past the capacity, or restored and not yet fed
		if it.Kind != engine.Control && !kept {
			p.discarded.Add(1)
		}
	}
	if err == nil {
		err = p.close() // before out is closed, so that a failed close is not taken for a clean end
	} else {
		p.cancelUpstream(err)
	}
	if err != nil {
		c.logEnd(err, cut)
	}
	c.publish()
	p.err.Store(&err)
	close(p.over)
	if p.carrier == nil {
		close(p.out)
	}
	if o := p.carried.Load(); o != nil { // it may have come since p.carrier was set
		o.close()
	}
	if e := p.attached.Load(); e != nil {
		e.close()
	} else if !p.inClosed && !p.wiring.CompareAndSwap(unwired, endedUnwired) { // without an upstream, none closes in
		go p.discard()
	}
	if kept {
		abandoned = nil
	}
	p.endSide(cause, abandoned)
	if err != nil {
		if closeErr := p.close(); closeErr != nil {
			c.logAttrs(slog.LevelWarn, "asyncop: close after a failure", slog.Any("error", closeErr))
		}
	}
	c.workers.Stop()
	c.host.Cancel(nil) // lets go of the user's context
	c.publish()
	p.upstream.Wait()
	if p.checks != nil {
		p.checks.encoding.Wait()
	}
	p.forget()
	close(p.done)
}

// lastFailure waits for what may still fail an end without failure, and returns how: the encoding of the final checkpoint's
// state, the handler of the last failures, the error that ended the input.
func (p *pump[IN, OUT]) lastFailure() error {
	if p.checks != nil {
		if err := p.lostState(); err != nil {
			return err
		}
	}
	if s, ok := p.core.sideOutput.(*failureSink[IN]); ok && !p.suspended() {
		close(p.side)
		p.side = nil
		s.AwaitCompletion()
		if s.failed != nil {
			return s.failed
		}
	}
	if p.ends != nil && p.inClosed {
		return p.ends.failed
	}
	return nil
}

// forget lets go of what was cut off: futures and contexts may be kept for ever, and the operator with them.
func (p *pump[IN, OUT]) forget() {
	p.core.engine.Forget()
	p.backlog = fifo.Queue[engine.Item[IN, OUT]]{}
	p.nothingLoaded()
	p.failed = nil
}

// outcome returns what Err will tell: nil after a clean end. What the side output is still to get has not ended.
func (p *pump[IN, OUT]) outcome(
	cause error, by engine.Cause, kept bool, abandoned []*queue.Entry[engine.Slot[IN, OUT]],
) error {
	c := p.core
	n := 0
	for _, e := range abandoned {
		switch {
		case kept:
			c.engine.Ended(e, engine.Kept)
		case c.engine.Describe(e).Failed:
			continue
		default:
			c.engine.Ended(e, engine.Abandoned)
		}
		n++
	}
	switch {
	case n == 0 || cause == nil:
		return cause
	case by == engine.ByElement:
		return withAbandoned(cause, n)
	}
	return &AbandonedError{Cause: cause, Abandoned: n}
}

// sideLimit is how long an operator that was cut off waits for a side output that does nothing.
const sideLimit = 30 * time.Second

// endSide sends the rest to the side output, with why it was cut off, ends it and waits for its completion. After a failure
// or a cancel it gives up a side output that is dead (law F1), and counts what that did not get.
func (p *pump[IN, OUT]) endSide(cause error, abandoned []*queue.Entry[engine.Slot[IN, OUT]]) {
	if p.side == nil {
		return
	}
	c := p.core
	lost := 0
	for _, e := range abandoned {
		r := c.engine.Describe(e)
		if !r.Failed {
			r.Err = cause
		}
		f := c.failureOf(r)
		f.Abandoned = !r.Failed
		if lost > 0 || !p.offerLast(f) {
			lost++
		}
		switch {
		case !r.Failed: // it has ended already
		case lost > 0:
			c.engine.Ended(e, engine.Abandoned)
		default:
			c.engine.Ended(e, engine.HandedOver)
		}
	}
	close(p.side)
	if lost > 0 {
		c.logAttrs(slog.LevelError, fmt.Sprintf("asyncop: the side output has taken nothing for %v: failures are lost", sideLimit),
			slog.Int("lost", lost))
		return
	}
	if sink, ok := c.sideOutput.(streams.Sink); ok {
		p.awaitSide(sink, cause == nil)
	}
}

// offerLast offers f to the side output until that is taken for dead.
func (p *pump[IN, OUT]) offerLast(f Failure[IN]) bool {
	select {
	case p.side <- f:
		return true
	default:
	}
	dead, stop := p.sideDeadline()
	defer stop()
	select {
	case p.side <- f:
		return true
	case <-dead:
		return false
	}
}

// awaitSide waits for the completion of a side output: after a clean end as long as it takes, else as long as it takes
// something of what its channel holds now and then.
func (p *pump[IN, OUT]) awaitSide(sink streams.Sink, clean bool) {
	c := p.core
	done := make(chan error, 1)
	go func() { done <- offLoop(func() error { sink.AwaitCompletion(); return nil }) }()
	for {
		var dead <-chan struct{}
		stop := func() {}
		if !clean {
			dead, stop = p.sideDeadline()
		}
		held := len(p.side)
		select {
		case err := <-done:
			stop()
			if err != nil {
				c.logAttrs(slog.LevelWarn, "asyncop: side output", slog.Any("error", err))
			}
			return
		case <-dead:
			if held > 0 && len(p.side) < held {
				continue
			}
			c.logAttrs(slog.LevelError, fmt.Sprintf("asyncop: the side output has not completed within %v", sideLimit))
			return
		}
	}
}

// sideDeadline returns what is closed after sideLimit. A failure handler has none: it is a call, and awaited.
func (p *pump[IN, OUT]) sideDeadline() (dead <-chan struct{}, stop func()) {
	if p.core.failureHandler != nil {
		return nil, func() {}
	}
	over := make(chan struct{})
	timer := p.core.clock.AfterFunc(sideLimit, sync.OnceFunc(func() { close(over) }))
	return over, func() { timer.Stop() }
}

// close closes the function, if it was opened, once.
func (p *pump[IN, OUT]) close() error {
	closer := p.core.hook.close
	if closer == nil {
		return nil
	}
	p.core.hook.close = nil
	if err := offLoop(closer.Close); err != nil {
		return lazyerr.Named("asyncop: close", err)
	}
	return nil
}

// cancelUpstream tells the source, once, that nothing more is taken, unless its input has ended.
func (p *pump[IN, OUT]) cancelUpstream(cause error) {
	cancel := p.core.config.cancelUpstream
	if cancel == nil || p.told || p.inOver {
		return
	}
	p.told = true
	p.upstream.Go(func() { // it may wait for the source, which may wait for the operator
		_ = offLoop(func() error { cancel(cause); return nil })
	})
}

// discard takes what upstream still sends, so that it is not blocked for ever.
func (p *pump[IN, OUT]) discard() {
	for v := range p.in {
		if _, failure := v.(inband.Failure); !failure {
			p.discarded.Add(1)
		}
	}
}

// Err returns nil before the end of the operator and after a clean end.
func (p *pump[IN, OUT]) Err() error {
	if err := p.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (p *pump[IN, OUT]) stop(ctx context.Context) error {
	p.stopping.Store(true)
	p.core.host.WakeUp()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.core.host.Cancel(lazyerr.Named("asyncop: stop", context.Cause(ctx)))
		<-p.over
	}
	return p.Err()
}

func (p *pump[IN, OUT]) statistics() Stats {
	counts, oldest := p.core.published.get()
	s := Stats(counts)
	if s.InFlight > 0 && oldest != engine.Never {
		s.OldestAge = max(0, p.core.timers.Now()-oldest)
	}
	s.Running = max(0, s.Running-p.core.host.Freed()) // after the end, nobody takes the permits back any more
	s.LateCompletions = p.core.host.Late()
	s.Discarded = p.discarded.Load()
	if e := p.attached.Load(); e != nil && e.in.ring.stopped.Load() {
		s.Discarded += int64(e.in.ring.len())
	}
	return s
}
