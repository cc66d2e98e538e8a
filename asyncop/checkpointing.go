package asyncop

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/lazyerr"
)

// checkpointing is an operator's part in checkpoints: it is their Participant.
type checkpointing[IN, OUT any] struct {
	coordinator *checkpoint.Coordinator
	name        string
	codec       stateCodec[IN, OUT]
	wakeUp      func()

	expected atomic.Uint64 // the newest barrier that is on its way

	// Owned by the loop.
	seen     uint64                         // the newest barrier that has come
	restored int                            // elements of the backlog that are from a checkpoint; the others are overflow
	arrived  *checkpoint.Barrier            // has come and waits for its turn to be handled
	passing  fifo.Queue[checkpoint.Barrier] // handled, to be emitted before anything else
	final    checkpoint.Kind                // of the final barrier, once it was handled; nothing is taken after it
	encoding sync.WaitGroup                 // states being encoded
}

// errNoFinalBarrier is what the coordinator is told of a stream that ends without a final barrier.
var errNoFinalBarrier = errors.New("asyncop: the input ended without a final barrier")

// joinCheckpoints registers the operator and fills the backlog with what is restored.
func (p *pump[I, O, IN, OUT]) joinCheckpoints(codec stateCodec[IN, OUT]) {
	c := p.core
	p.checks = &checkpointing[IN, OUT]{coordinator: c.coordinator, name: c.name, codec: codec, wakeUp: c.wakeUp}
	state, ok := c.coordinator.Register(c.name, p.checks)
	if !ok {
		return
	}
	var items []item[IN, OUT]
	err := offLoop(func() (err error) { // not on the goroutine of whoever builds the operator: codecs are user code
		items, err = codec.decode(state.Bytes())
		return err
	})
	if err != nil {
		c.coordinator.Refuse(c.name, err)
		return
	}
	for _, it := range items {
		p.backlog.Push(it)
	}
	p.checks.restored = len(items)
}

// Pending implements checkpoint.Participant.
func (k *checkpointing[IN, OUT]) Pending(b checkpoint.Barrier) {
	k.expected.Store(b.ID)
	k.wakeUp()
}

// Completed implements checkpoint.Participant.
func (k *checkpointing[IN, OUT]) Completed(uint64) {}

// Aborted implements checkpoint.Participant.
func (k *checkpointing[IN, OUT]) Aborted(id uint64, _ error) { k.expected.CompareAndSwap(id, 0) }

// quiet tells whether no barrier waits to be handled or emitted.
func (k *checkpointing[IN, OUT]) quiet() bool { return k.arrived == nil && k.passing.Len() == 0 }

// awaitStart waits until all participants have registered and their states are known to be good.
func (p *pump[I, O, IN, OUT]) awaitStart() {
	k := p.checks
	if k == nil {
		return
	}
	c := p.core
	c.parked.Store(true)
	defer c.parked.Store(false)
	for {
		if cause := p.cancelled.Load(); cause != nil {
			c.end(*cause)
			return
		}
		if p.stopping.Load() {
			c.end(lazyerr.Named("asyncop: not started", ErrStopped))
			return
		}
		select {
		case <-k.coordinator.Started():
			return
		case <-k.coordinator.Ended():
			err := k.coordinator.Err()
			if err == nil {
				err = checkpoint.ErrClosed
			}
			c.end(lazyerr.Named("asyncop: not started", err))
			return
		case <-c.wake:
		}
	}
}

// mayOverflow tells whether an element may be read past the capacity, because a barrier is behind it.
func (p *pump[I, O, IN, OUT]) mayOverflow() bool {
	k := p.checks
	return k != nil && k.expected.Load() > k.seen && p.backlog.Len()-k.restored < p.core.overflow
}

func (p *pump[I, O, IN, OUT]) barrierArrived() bool {
	return p.checks != nil && p.checks.arrived != nil
}

// suspended tells whether what is in flight is left to the checkpoint.
func (p *pump[I, O, IN, OUT]) suspended() bool {
	return p.checks != nil && p.checks.final == checkpoint.Suspend
}

func (p *pump[I, O, IN, OUT]) receivedBarrier(b checkpoint.Barrier) {
	p.checks.seen = max(p.checks.seen, b.ID)
	p.checks.arrived = &b
	if b.Kind == checkpoint.Drain {
		p.endInput() // what is in flight is finished first
	}
	p.passBarrier()
}

// passBarrier handles the barrier that has come, as soon as it may go on: it reports the state of this moment and lets
// the barrier pass ahead of everything that is queued. Nothing is read until then.
func (p *pump[I, O, IN, OUT]) passBarrier() {
	k := p.checks
	if k == nil || k.arrived == nil || p.core.failure != nil {
		return
	}
	b := *k.arrived
	if b.Kind == checkpoint.Drain && !p.core.drained() || !p.unload() {
		return
	}
	k.arrived = nil
	if b.Kind.Final() {
		k.final = b.Kind
		p.source, p.inOver = nil, true
		if p.suspended() {
			p.offer, p.failed = nil, nil // left to the checkpoint, too
		}
	}
	items := make([]item[IN, OUT], 0, p.core.queue.Len()+p.backlog.Len())
	items = p.core.items(items, k.codec.results != nil)
	for it := range p.backlog.All() {
		items = append(items, it)
	}
	k.encoding.Go(func() {
		var state []byte
		err := ErrGoexit // unless encode returns
		defer func() { b.Report(k.name, checkpoint.State{state}, err) }()
		state, err = k.codec.encode(items)
	})
	k.passing.Push(b)
}

// endCheckpoints tells the coordinator if the stream ends other than by a final barrier.
func (p *pump[I, O, IN, OUT]) endCheckpoints(err error) {
	k := p.checks
	if k == nil {
		return
	}
	k.encoding.Wait()
	if err == nil && !k.final.Final() {
		err = errNoFinalBarrier
	}
	if err != nil {
		k.coordinator.Fail(k.name, err)
	}
}
