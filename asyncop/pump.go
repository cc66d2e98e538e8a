package asyncop

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/queue"
)

// pump is the loop of an operator: it moves elements from a channel into the core and results out of it. I and O are
// what the channels carry: any for a go-streams flow.
type pump[I, O, IN, OUT any] struct {
	core *core[IN, OUT]
	codec[I, O, IN, OUT]

	in  chan I // upstream sends and closes; the loop receives
	out chan O // the loop sends and closes; downstream receives

	// Owned by the loop.
	source  <-chan I // in, until it is closed or nothing more is taken
	results []OUT    // of the head of the queue: what is left to be emitted
	head    *queue.Entry[slot[IN, OUT]]
	next    O           // the first of results, or the watermark, as out carries it; ready while head is set
	side    chan<- any  // the side output, or nil
	failed  Failure[IN] // the oldest failing element
	offer   chan<- any  // side, while failed is set
	opened  bool
	told    bool        // cancelUpstream was called
	unwatch func() bool // ends the watch on the operator's context

	stopping  atomic.Bool           // Stop was called
	cancelled atomic.Pointer[error] // why the operator must end now
	err       atomic.Pointer[error] // set before ended is closed
	ended     chan struct{}         // closed by the loop before out: err is final
	done      chan struct{}         // closed by the loop when all is done
	discarded atomic.Int64          // elements that came too late
}

// codec says how elements travel in the channels.
type codec[I, O, IN, OUT any] struct {
	// decode returns the element, or the watermark, or an error for neither.
	decode func(I) (in IN, w *queue.Watermark, err error)
	// encode returns a result as out carries it.
	encode func(OUT) O
	// encodeWatermark does the same for a watermark.
	encodeWatermark func(queue.Watermark) O
}

func newPump[I, O, IN, OUT any](c *core[IN, OUT], cd codec[I, O, IN, OUT]) *pump[I, O, IN, OUT] {
	p := &pump[I, O, IN, OUT]{
		core:  c,
		codec: cd,
		in:    make(chan I, c.buffer),
		out:   make(chan O, c.buffer),
		ended: make(chan struct{}),
		done:  make(chan struct{}),
	}
	p.source = p.in
	if c.sideOutput != nil {
		p.side = c.sideOutput.In()
	}
	p.unwatch = context.AfterFunc(c.ctx, func() { p.cancel(context.Cause(c.ctx)) })
	if c.ctx.Err() != nil {
		p.cancel(context.Cause(c.ctx)) // before the first element, not when AfterFunc comes to it
	}
	return p
}

// run is the loop. If user code ends its goroutine, another one goes on (law A6): everything it needs is in p.
func (p *pump[I, O, IN, OUT]) run() {
	returned := false
	defer func() {
		if !returned {
			go p.run()
		}
	}()
	p.core.resume()
	if !p.opened {
		p.opened = true
		p.open()
	}
	for p.step() {
	}
	p.finish()
	returned = true
}

func (p *pump[I, O, IN, OUT]) open() {
	c := p.core
	if c.hook.open == nil {
		return
	}
	if err := offLoop(func() error { return c.hook.open.Open(c.ctx) }); err != nil {
		c.hook.close = nil // what was not opened is not closed
		c.end(fmt.Errorf("asyncop: open: %w", err))
	}
}

// step takes one turn and tells whether there is another.
func (p *pump[I, O, IN, OUT]) step() bool {
	c := p.core
	p.checkSignals()
	if c.failure == nil {
		c.turn()
	}
	busy := p.acceptSome()
	c.publish()
	if c.failure != nil {
		return false
	}
	busy = p.emitSome() || busy
	busy = p.handOverSome() || busy
	if c.drained() {
		return false
	}
	if !busy {
		p.park()
	}
	return true
}

// checkSignals looks at what other goroutines asked for.
func (p *pump[I, O, IN, OUT]) checkSignals() {
	if cause := p.cancelled.Load(); cause != nil {
		p.core.end(*cause)
	}
	if p.stopping.Load() && p.source != nil {
		p.source = nil
		p.core.endInput()
		p.cancelUpstream(ErrStopped)
	}
}

// acceptSome takes elements as long as there are some and slots for them. End of input is noticed only when a slot is
// free to read for.
func (p *pump[I, O, IN, OUT]) acceptSome() (busy bool) {
	for n := 0; n < turnLimit && p.mayAccept(); n++ {
		select {
		case v, ok := <-p.source:
			p.received(v, ok)
			busy = true
		default:
			return busy
		}
	}
	return busy
}

func (p *pump[I, O, IN, OUT]) mayAccept() bool {
	return p.source != nil && p.core.failure == nil && p.core.hasRoom()
}

func (p *pump[I, O, IN, OUT]) received(v I, ok bool) {
	if !ok {
		p.source = nil
		p.core.endInput()
		return
	}
	in, w, err := p.decode(v)
	switch {
	case err != nil:
		p.discarded.Add(1)
		p.core.end(err)
	case w != nil:
		p.core.acceptWatermark(*w)
	default:
		p.core.accept(in)
	}
}

// emitSome sends what may leave, as long as downstream takes it.
func (p *pump[I, O, IN, OUT]) emitSome() (busy bool) {
	for n := 0; n < turnLimit && p.load(); n++ {
		select {
		case p.out <- p.next:
			p.sent()
			busy = true
		default:
			return busy
		}
	}
	return busy
}

// load makes next the next thing to emit and tells whether there is one. Elements that emit nothing leave here.
func (p *pump[I, O, IN, OUT]) load() bool {
	for p.head == nil {
		e := p.core.queue.Head()
		if e == nil {
			return false
		}
		switch s := &e.Value; {
		case s.phase == control:
			p.head, p.next = e, p.encodeWatermark(*s.control)
		case s.attempt != nil && len(s.attempt.results) > 0:
			p.head, p.results = e, s.attempt.results
			p.next = p.encode(p.results[0])
		default:
			p.core.left(e)
		}
	}
	return true
}

// sent goes on after next was sent. The results of one element are not split: its entry stays the head of the queue
// until the last one is sent.
func (p *pump[I, O, IN, OUT]) sent() {
	if p.head.Value.phase != control {
		p.core.stats.Emitted++
		if p.results = p.results[1:]; len(p.results) > 0 {
			p.next = p.encode(p.results[0])
			return
		}
	}
	e := p.head
	var none O
	p.head, p.results, p.next = nil, nil, none
	p.core.left(e)
}

// handOverSome offers failing elements to the side output, as long as it takes them.
func (p *pump[I, O, IN, OUT]) handOverSome() (busy bool) {
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

func (p *pump[I, O, IN, OUT]) loadFailed() bool {
	if p.offer == nil && p.core.failing.Len() > 0 {
		s := &p.core.failing.Peek().Value
		p.offer, p.failed = p.side, p.core.failureOf(s, s.err)
	}
	return p.offer != nil
}

func (p *pump[I, O, IN, OUT]) handedOver() {
	p.offer, p.failed = nil, Failure[IN]{}
	p.core.takenBySide()
}

// park sleeps until something happens. What is posted after parked is set wakes it; what was before is seen by mayPark.
func (p *pump[I, O, IN, OUT]) park() {
	c := p.core
	c.parked.Store(true)
	if !p.signalled() && c.mayPark() {
		c.publish()
		var in <-chan I
		if p.mayAccept() {
			in = p.source
		}
		var out chan<- O
		if p.head != nil {
			out = p.out
		}
		select {
		case v, ok := <-in:
			c.parked.Store(false)
			p.received(v, ok)
		case out <- p.next:
			p.sent()
		case p.offer <- p.failed:
			p.handedOver()
		case <-c.wake:
		}
	}
	c.parked.Store(false)
}

func (p *pump[I, O, IN, OUT]) signalled() bool {
	return p.cancelled.Load() != nil || p.stopping.Load() && p.source != nil
}

// finish ends the operator (law F1): the source is told, contexts end, err is set before out is closed, and what still
// comes is discarded and counted until upstream closes in.
func (p *pump[I, O, IN, OUT]) finish() {
	c := p.core
	c.timers.Stop() // no timer is armed after the end
	p.unwatch()
	abandoned := c.abandon()
	err := p.outcome(abandoned)
	if err == nil {
		err = p.close() // before out is closed, so that a failed close is not taken for a clean end
	} else {
		p.cancelUpstream(err)
	}
	c.publish()
	p.err.Store(&err)
	close(p.ended)
	close(p.out)
	if p.source != nil || p.stopping.Load() {
		go p.discard()
	}
	p.endSide(abandoned)
	if err != nil {
		if closeErr := p.close(); closeErr != nil {
			c.logAttrs(slog.LevelWarn, "asyncop: close after a failure", slog.String("operator", c.name),
				slog.Any("error", closeErr))
		}
	}
	c.workers.stop()
	c.publish()
	close(p.done)
}

// outcome returns what Err will tell: nil after a clean end.
func (p *pump[I, O, IN, OUT]) outcome(abandoned []*queue.Entry[slot[IN, OUT]]) error {
	c := p.core
	for _, e := range abandoned {
		if e.Value.phase != failing { // those the side output gets as the failures they are
			c.stats.Abandoned++
		}
	}
	n := int(c.stats.Abandoned)
	if n == 0 {
		return c.failure
	}
	if e, ok := c.failure.(*ElementError); ok { //nolint:errorlint // our own, made by fail
		e.Abandoned = n
		return e
	}
	return &AbandonedError{Cause: c.failure, Abandoned: n}
}

// endSide sends the rest to the side output, ends it and waits for its completion.
func (p *pump[I, O, IN, OUT]) endSide(abandoned []*queue.Entry[slot[IN, OUT]]) {
	if p.side == nil {
		return
	}
	c := p.core
	for _, e := range abandoned {
		if s := &e.Value; s.phase == failing {
			p.side <- c.failureOf(s, s.err)
			c.stats.SideOutput++
		} else {
			p.side <- c.failureOf(s, c.failure)
		}
	}
	close(p.side)
	if sink, ok := c.sideOutput.(streams.Sink); ok {
		if err := offLoop(func() error { sink.AwaitCompletion(); return nil }); err != nil {
			c.logAttrs(slog.LevelWarn, "asyncop: side output", slog.String("operator", c.name), slog.Any("error", err))
		}
	}
}

// close closes the function, if it was opened.
func (p *pump[I, O, IN, OUT]) close() error {
	if p.core.hook.close == nil {
		return nil
	}
	if err := offLoop(p.core.hook.close.Close); err != nil {
		return fmt.Errorf("asyncop: close: %w", err)
	}
	return nil
}

// cancelUpstream tells the source, once, that nothing more is taken.
func (p *pump[I, O, IN, OUT]) cancelUpstream(cause error) {
	cancel := p.core.config.cancelUpstream
	if cancel == nil || p.told || p.source == nil && !p.stopping.Load() {
		return
	}
	p.told = true
	_ = offLoop(func() error { cancel(cause); return nil })
}

// discard takes what upstream still sends, so that it is not blocked for ever.
func (p *pump[I, O, IN, OUT]) discard() {
	for range p.in {
		p.discarded.Add(1)
	}
}

// cancel makes the loop end the operator with cause. Called from any goroutine; the first cause counts.
func (p *pump[I, O, IN, OUT]) cancel(cause error) {
	p.cancelled.CompareAndSwap(nil, &cause)
	p.core.wakeUp()
}

// Err returns nil before the end of the operator and after a clean end.
func (p *pump[I, O, IN, OUT]) Err() error {
	if err := p.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (p *pump[I, O, IN, OUT]) stop(ctx context.Context) error {
	p.stopping.Store(true)
	p.core.wakeUp()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.cancel(fmt.Errorf("asyncop: stop: %w", context.Cause(ctx)))
		<-p.ended
	}
	return p.Err()
}

func (p *pump[I, O, IN, OUT]) statistics() Stats {
	s, oldest := p.core.published.get()
	if s.InFlight > 0 && oldest >= 0 {
		s.OldestAge = max(0, p.core.timers.Now()-oldest)
	}
	s.LateCompletions = p.core.late.Load()
	s.Discarded = p.discarded.Load()
	return s
}
