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

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/inband"
	"github.com/weirflow/weir/internal/lazyerr"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/timers"
)

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
	ends     *ends[IN, OUT]              // attached; nil for a flow
	carrier  *outlet[any]                // carried, in place of out, which is closed; nil: results go to out
	inClosed bool                        // upstream has closed in
	inOver   bool                        // nothing more is taken
	marked   bool                        // the marker of the end of the input has come: only barriers follow
	backlog  fifo.Queue[item[IN, OUT]]   // what goes into the queue before anything new
	checks   *checkpointing[IN, OUT]     // nil: no part in checkpoints
	barriers wiring.Barriers             // that have come
	loaded   bool                        // there is something to be emitted next
	next     any                         // it, as out carries it
	head     *queue.Entry[slot[IN, OUT]] // where next comes from; nil: it is a barrier
	results  []OUT                       // of head: what is left to be emitted, next included
	side     chan<- any                  // the side output, or nil
	failed   any                         // the oldest failing element, as a Failure[IN]
	offer    chan<- any                  // side, while failed is set
	opened   bool
	yielded  bool           // since there was something to do
	told     bool           // cancelUpstream was called
	unwatch  func() bool    // ends the watch on the operator's context
	upstream sync.WaitGroup // cancelUpstream's call

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
	p.core.resume()
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
	if c.failure != nil {
		c.hook.close = nil
		return
	}
	if err := c.offLoop(func() error { return c.hook.open.Open(c.host.Life) }); err != nil {
		c.hook.close = nil // what was not opened is not closed
		c.end(lazyerr.Named("asyncop: open", err))
	}
}

// step takes one turn and tells whether there is another.
func (p *pump[IN, OUT]) step() bool {
	c := p.core
	c.witness.watch()
	c.giveWay()
	c.warn()
	p.checkSignals()
	if c.failure == nil && !p.suspended() {
		c.sendWorkers()
		c.turn()
	}
	busy := p.acceptSome()
	if p.checks != nil {
		p.checks.holdSource(p.overflow() > c.overflow)
	}
	c.publish()
	if c.failure != nil {
		return false
	}
	p.passBarrier()
	if !p.suspended() {
		busy = c.offerJobs() || busy
	}
	slots := c.queue.Len()
	busy = p.emitSome() || busy
	busy = busy || c.queue.Len() < slots // elements that emit nothing have left
	busy = p.handOverSome() || busy
	if p.ended() {
		return false
	}
	switch {
	case busy:
		p.yielded = false
	case !p.yielded && c.permits < c.maxPermits(): // what calls are about to hand in then costs one turn, and no sleep
		p.yielded = true
		runtime.Gosched()
	default:
		p.park()
	}
	return true
}

// checkSignals looks at what other goroutines asked for.
func (p *pump[IN, OUT]) checkSignals() {
	p.core.endIfCancelled()
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
	p.core.endRetries()
}

// drained tells whether nothing follows and all that was taken has left.
func (p *pump[IN, OUT]) drained() bool {
	return p.inOver && p.backlog.Len() == 0 && p.core.queue.Len() == 0
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
	if p.backlog.Len() == 0 || p.core.failure != nil || !p.core.hasRoom() || p.suspended() {
		return false
	}
	if p.checks != nil && p.checks.restored > 0 {
		p.checks.restored--
	}
	it := p.backlog.Pop()
	if p.checks != nil {
		it.wait = p.checks.restOf(&it, p.core.timers.Now())
	}
	p.core.restore(it)
	return true
}

// mayRead tells whether the next element may be read: if a slot is free for it, or to let a barrier come nearer.
func (p *pump[IN, OUT]) mayRead() bool {
	if p.inOver || p.core.failure != nil || p.barrierArrived() {
		return false
	}
	return p.backlog.Len() == 0 && p.core.hasRoom() || p.mayOverflow()
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
		p.core.end(err)
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
		p.core.endIfCancelled() // whoever is upstream may have noticed it first: the end is no clean one
		p.endInput()
	case p.backlog.Len() == 0 && p.core.hasRoom():
		p.core.accept(in)
	default:
		p.backlog.Push(item[IN, OUT]{in: in})
	}
}

func (p *pump[IN, OUT]) receivedControl(v any) {
	switch b := v.(type) {
	case inband.Failure:
		p.core.end(lazyerr.Named("asyncop: upstream", b.Err))
		return
	case participant.Barrier:
		if err := p.barriers.Add(b.ID, isEndOfInput(b)); err != nil { // law C2
			p.core.end(lazyerr.Named("asyncop", err))
			return
		}
		if isEndOfInput(v) {
			p.receivedEndOfInput()
		} else if p.checks != nil {
			p.receivedBarrier(b)
			return
		}
	}
	if p.backlog.Len() == 0 && p.core.hasRoom() {
		p.core.acceptControl(v)
	} else {
		p.backlog.Push(item[IN, OUT]{kind: controlItem, rest: v})
	}
}

// receivedEndOfInput does what the marker makes known at once, also about elements of the backlog. It takes its turn like a
// watermark.
func (p *pump[IN, OUT]) receivedEndOfInput() {
	p.marked = true
	p.core.endRetries()
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
		p.loaded, p.head, p.next = true, nil, p.checks.passing.Peek()
		return true
	}
	for !p.suspended() {
		e := p.core.queue.Head()
		if e == nil {
			return false
		}
		s := &e.Value
		if s.phase == control {
			p.loaded, p.head, p.next = true, e, s.extra.held
			return true
		}
		if s.phase == done {
			if results := s.results(); len(results) > 0 {
				p.loaded, p.head, p.results = true, e, results
				p.loadResult()
				return true
			}
		}
		p.core.left(e)
	}
	return false
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
	if p.loaded && p.head != nil {
		if p.head.Value.phase != control && len(p.results) < len(p.head.Value.results()) {
			return false
		}
		p.loaded, p.head, p.results, p.next = false, nil, nil, nil
	}
	return true
}

// sent goes on after next was sent. The entry of an element with several results stays the head of the queue until the
// last one is sent.
func (p *pump[IN, OUT]) sent() {
	e := p.head
	if e != nil && e.Value.phase != control {
		p.core.stats.Emitted++
		if p.results = p.results[1:]; len(p.results) > 0 {
			p.loadResult()
			return
		}
	}
	if e != nil && e.Value.phase == control && p.checks != nil {
		p.checks.passedMarker(e.Value.extra.held)
	}
	p.loaded, p.head, p.results, p.next = false, nil, nil, nil
	if e == nil {
		p.checks.passing.Pop()
		return
	}
	p.core.left(e)
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
	if p.offer == nil && p.core.failing.Len() > 0 && !p.suspended() {
		s := &p.core.failing.Peek().Value
		p.offer, p.failed = p.side, p.core.failureOf(s, s.err)
	}
	return p.offer != nil
}

func (p *pump[IN, OUT]) handedOver() {
	p.offer, p.failed = nil, nil
	p.core.takenBySide()
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
		c.stale = true // after the sleep
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
	c.tick()
	c.warn()
	c.warnOfCutRetries()
	c.logSuppressed(true)
	c.timers.Stop() // no timer is armed after the end
	c.witness.stop()
	p.unwatch()
	cause := c.failure
	if c.failed != nil { // a copy, since what Err tells is not complete yet
		failed := *c.failed
		c.host.Cancel(&failed)
	} else if cause != nil {
		c.host.Cancel(cause)
	}
	abandoned := c.abandon()
	c.endJobs()
	if cause == nil {
		cause = p.lastFailure()
	}
	if cause == nil {
		cause = p.awaitInputEnd()
	}
	kept := p.suspended() && cause == nil // what is in flight is in the final checkpoint, and will be called again
	err := p.outcome(cause, kept, abandoned)
	p.endCheckpoints(err)
	if p.checks != nil {
		p.checks.holdSource(false)
	}
	for it := range p.backlog.All() { // read past the capacity, or restored and not yet fed
		if it.kind != controlItem && !kept {
			p.discarded.Add(1)
		}
	}
	if err == nil {
		err = p.close() // before out is closed, so that a failed close is not taken for a clean end
	} else {
		p.cancelUpstream(err)
	}
	if err != nil {
		c.logEnd(err)
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
	c := p.core
	c.queue, c.timers.Heap = nil, timers.Heap[*queue.Entry[slot[IN, OUT]]]{}
	c.ready, c.odd = c.timers.Heap, c.timers.Heap
	c.fresh, c.live, c.oldest = nil, nil, nil
	c.failing = fifo.Queue[*queue.Entry[slot[IN, OUT]]]{}
	for _, b := range []*beside[IN, OUT]{&c.asking, &c.before, &c.handlers} {
		b.waiting = fifo.Queue[waiting[IN, OUT]]{}
	}
	c.rest, c.slow, c.blocked = nil, slowCall[IN, OUT]{}, nil
	c.host.Mail.Take()
	p.backlog = fifo.Queue[item[IN, OUT]]{}
	p.head, p.next, p.results, p.failed = nil, nil, nil, nil
}

// outcome returns what Err will tell: nil after a clean end.
func (p *pump[IN, OUT]) outcome(cause error, kept bool, abandoned []*queue.Entry[slot[IN, OUT]]) error {
	c := p.core
	for _, e := range abandoned {
		if e.Value.phase != failing || kept { // those the side output gets as the failures they are
			c.stats.Abandoned++
		}
	}
	n := int(c.stats.Abandoned)
	if n == 0 || cause == nil {
		return cause
	}
	if c.failed != nil {
		c.failed.Abandoned = n
		return c.failed
	}
	return &AbandonedError{Cause: cause, Abandoned: n}
}

// sideLimit is how long an operator that was cut off waits for a side output that does nothing.
const sideLimit = 30 * time.Second

// endSide sends the rest to the side output, with why it was cut off, ends it and waits for its completion. After a failure
// or a cancel it gives up a side output that is dead (law F1), and counts what that did not get.
func (p *pump[IN, OUT]) endSide(cause error, abandoned []*queue.Entry[slot[IN, OUT]]) {
	if p.side == nil {
		return
	}
	c := p.core
	lost := 0
	for _, e := range abandoned {
		s := &e.Value
		f := c.failureOf(s, cause)
		if s.phase == failing {
			f = c.failureOf(s, s.err)
		} else {
			f.Abandoned = true
		}
		if lost > 0 || !p.offerLast(f) {
			lost++
		}
		switch {
		case s.phase != failing: // counted already
		case lost > 0:
			c.stats.Abandoned++
		default:
			c.stats.SideOutput++
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
	s, oldest := p.core.published.get()
	if s.InFlight > 0 && oldest != noOldest {
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
