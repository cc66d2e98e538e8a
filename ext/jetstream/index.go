package jetstream

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
)

// index has the time when each message of a queue can be taken, from headers in the
// stream and changes by this engine. It may lag, so each message is read before it is
// taken.
type index struct {
	consumer jetstream.Consumer
	iterator jetstream.MessagesContext
	life     context.Context //nolint:containedctx // ends with close
	end      context.CancelFunc
	running  sync.WaitGroup
	logger   *slog.Logger
	subjects string // of the queue

	used     time.Time     // last use; guarded by the engine's mu
	consumed string        // name of the consumer: the client replaces it after a fault
	naming   chan struct{} // capacity 1: one request for the consumer's name at a time

	mu      sync.Mutex
	items   map[string]*item // by identity
	ready   readyHeap
	order   []*item // by position, if sorted; dropped items stay for a while
	sorted  bool
	dropped int
	whys    map[string]*why // shared by items
	seen    uint64          // received up to this number
	wanted  uint64          // to be received: the last message at the opening, or a later message of this engine
	passed  uint64          // up to this a Take no longer waits
	changed chan struct{}   // closed, and replaced, after a change
	err     error           // why receiving has ended
}

type item struct {
	identity string
	seq      uint64
	ready    uint64
	position uint64
	arrived  uint64
	fence    uint64
	why      *why
	kind     byte
	dropped  bool
	size     uint32
	index    int // in readyHeap
}

// errGap means that marks may have been removed before the index saw them.
var errGap = errors.New("jetstream: the connection was broken, and the index of the queue is rebuilt")

var errReplacing = errors.New("the servers did not make a consumer")

func (s *Engine) openIndex(ctx context.Context, queue string) (*index, error) {
	consumer, err := s.js.OrderedConsumer(ctx, s.name, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{s.queueSubject(queue) + "*"}, HeadersOnly: true,
	})
	if err != nil {
		return nil, err
	}
	last, err := s.lastSeq(ctx, s.queueSubject(queue)+"*") // from the leader: the consumer's server may be behind
	if err != nil {
		return nil, err
	}
	// Heartbeats detect soon that the consumer's server has died.
	iterator, err := consumer.Messages(jetstream.PullMaxMessages(2000), jetstream.PullExpiry(expiry), jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return nil, err
	}
	ix := &index{
		consumer: consumer, iterator: iterator, logger: s.logger, subjects: s.queueSubject(queue) + "*",
		items: map[string]*item{}, whys: map[string]*why{}, sorted: true, changed: make(chan struct{}),
		naming: make(chan struct{}, 1),
	}
	if info := consumer.CachedInfo(); info != nil {
		ix.consumed = info.Name
	}
	ix.life, ix.end = context.WithCancel(context.Background())
	ix.wanted = last
	ix.running.Go(ix.read) // ends with close
	return ix, nil
}

func (ix *index) read() {
	for {
		m, err := ix.iterator.Next(jetstream.NextContext(ix.life))
		if err != nil {
			ix.mu.Lock()
			if ix.err == nil {
				ix.err = err
			}
			ix.notify()
			ix.mu.Unlock()
			return
		}
		at, err := m.Metadata()
		if err != nil {
			continue // the iterator handles it
		}
		r, err := newRecord(m.Subject(), at.Sequence.Stream, at.Timestamp, m.Headers(), nil)
		if err != nil {
			logOther(ix.logger, err)
		}
		ix.mu.Lock()
		ix.seen = at.Sequence.Stream
		if r != nil {
			ix.apply(r)
		}
		ix.notify()
		ix.mu.Unlock()
	}
}

// Called with mu held.
func (ix *index) notify() {
	close(ix.changed)
	ix.changed = make(chan struct{})
}

// apply applies a state that was read. Called with mu held.
func (ix *index) apply(r *record) {
	identity := identityOf(r.subject)
	it := ix.items[identity]
	switch {
	case it != nil && it.seq > r.seq:
		return
	case r.kind == removed:
		if it != nil {
			ix.drop(it)
		}
		return
	case it != nil && it.position != r.position: // removed and put again
		ix.drop(it)
		it = nil
	}
	if it == nil {
		it = &item{identity: identity, position: r.position, arrived: r.arrived}
		ix.items[identity] = it
		heap.Push(&ix.ready, it)
		ix.sorted = ix.sorted && (len(ix.order) == 0 || ix.order[len(ix.order)-1].position < it.position)
		ix.order = append(ix.order, it)
	}
	it.seq = r.seq
	it.fence = r.fence
	it.kind = r.kind
	it.ready = r.ready()
	it.why = ix.whyOf(r.why)
	it.size = r.size
	heap.Fix(&ix.ready, it.index)
}

// whyOf returns the parsed header, shared between messages.
func (ix *index) whyOf(text string) *why {
	if w := ix.whys[text]; w != nil {
		return w
	}
	w := readWhy(text)
	if len(ix.whys) >= maxWhys {
		clear(ix.whys)
	}
	ix.whys[text] = &w
	return &w
}

const maxWhys = 10_000

func (ix *index) drop(it *item) {
	heap.Remove(&ix.ready, it.index)
	delete(ix.items, it.identity)
	it.dropped = true
	if ix.dropped++; ix.dropped > len(ix.order)/2 { // law W3: a queue that is only taken from is never sorted
		ix.order = slices.DeleteFunc(ix.order, func(it *item) bool { return it.dropped })
		ix.dropped = 0
	}
}

// Called with mu held.
func (ix *index) sort() {
	if !ix.sorted {
		slices.SortFunc(ix.order, func(a, b *item) int { return cmp.Compare(a.position, b.position) })
		ix.sorted = true
	}
}

// after returns up to limit items behind a position, in order.
func (ix *index) after(position uint64, limit int) (list []item) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.sort()
	i, _ := slices.BinarySearchFunc(ix.order, position+1, func(it *item, p uint64) int { return cmp.Compare(it.position, p) })
	for _, it := range ix.order[i:] {
		if len(list) == limit {
			break
		}
		if !it.dropped {
			list = append(list, *it)
		}
	}
	return list
}

func (ix *index) at(position uint64) (it item, ok bool) {
	if list := ix.after(position-1, 1); len(list) == 1 && list[0].position == position {
		return list[0], true
	}
	return it, false
}

func (ix *index) has(identity string) (it item, ok bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if found := ix.items[identity]; found != nil {
		return *found, true
	}
	return it, false
}

// count counts the matching items, by cause and reasons.
func (ix *index) count(match func(it *item) bool) (c store.Counts) {
	type sum struct {
		n            int
		oldest, next uint64
		last         uint64
	}
	sums := map[*why]*sum{}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for _, it := range ix.items {
		if !match(it) {
			continue
		}
		s := sums[it.why]
		if s == nil {
			s = &sum{oldest: it.arrived, next: math.MaxUint64}
			sums[it.why] = s
		}
		s.n++
		s.oldest, s.last = min(s.oldest, it.arrived), max(s.last, it.position)
		if it.kind == held {
			c.Held++
		} else {
			s.next = min(s.next, it.ready)
		}
	}
	for w, s := range sums {
		var next time.Time
		if s.next != math.MaxUint64 {
			next = instant(s.next)
		}
		c.Add(w.Cause, w.Reasons, s.n, instant(s.oldest), next, int64(s.last))
	}
	return c
}

// refresh updates an item after its subject was read. had is the sequence number in the
// index; r is the server's message, or nil if there is none.
func (ix *index) refresh(identity string, had uint64, r *record) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if it := ix.items[identity]; it != nil && it.seq <= had && (r == nil || r.seq < had) {
		ix.drop(it) // the indexed state is gone, even if the server lost it
	}
	if it := ix.items[identity]; r != nil && (it == nil || it.seq < r.seq) { // otherwise the consumer has delivered it, with its exact time
		ix.apply(r)
	}
}

func (ix *index) published(seq uint64) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.wanted = max(ix.wanted, seq)
}

// held returns a lease's sequence number, if the index knows it.
func (ix *index) held(e entry, fence uint64) (uint64, bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	it := ix.items[e.identity]
	if it == nil || it.kind != leased || it.position != e.position || it.fence != fence {
		return 0, false
	}
	return it.seq, true
}

// due returns up to limit items that can be taken, in the order of their times, up to the
// item that fills room bytes.
func (ix *index) due(now uint64, limit, room int) []item {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	var list []item
	var popped []*item
	for len(ix.ready) > 0 && len(list) < limit && room > 0 && ix.ready[0].ready <= now {
		it := heap.Pop(&ix.ready).(*item)
		popped = append(popped, it)
		list = append(list, *it)
		room -= int(it.size)
	}
	for _, it := range popped {
		heap.Push(&ix.ready, it)
	}
	return list
}

// next returns when the next message can be taken; ok is false if the queue is empty.
func (ix *index) next() (ready uint64, ok bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if len(ix.ready) == 0 {
		return 0, false
	}
	return ix.ready[0].ready, true
}

const (
	// lookAgain is how long sync waits for a message that may have been removed.
	lookAgain = 20 * time.Millisecond
	// behind is how long a Take waits for a lagging server. A later Take gets the missing
	// messages. Calls that inspect the queue wait for farBehind.
	behind    = 2 * time.Second
	farBehind = 10 * time.Second

	heartbeat = time.Second
	expiry    = 10 * time.Second
)

// sync waits until the index has the messages from its opening, and this engine's own. If
// all is true, it returns an error if no more messages come; otherwise it continues
// without them.
func (ix *index) sync(ctx context.Context, s *Engine, all bool) error {
	begun, before := s.clock.Now(), uint64(0)
	for {
		ix.mu.Lock()
		if all && ix.seen != before { // it is still reading
			begun, before = s.clock.Now(), ix.seen
		}
		done := ix.seen >= ix.wanted || !all && ix.passed >= ix.wanted
		err := ix.err
		changed := ix.changed
		wanted := ix.wanted
		ix.mu.Unlock()
		switch {
		case err != nil:
			return readingFailed(err)
		case done:
			return ix.unbroken(ctx, s.clock)
		}
		timer := s.clock.Timer(lookAgain)
		select {
		case <-changed:
			timer.Stop()
			continue
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		if err := ix.unbroken(ctx, s.clock); err != nil {
			return err
		}
		last, err := s.lastSeq(ctx, ix.subjects)
		if err != nil {
			return err
		}
		if ix.goOn(last, wanted, s.clock.Since(begun), all) {
			return errors.New("jetstream: the server that reads the queue is behind the one that writes it")
		}
	}
}

// goOn notes that sync need not wait for messages that the leader lacks and, if all is
// false, after a while, for the rest. It returns true if all is true and the wait was too
// long.
func (ix *index) goOn(last, wanted uint64, waited time.Duration, all bool) (late bool) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	switch {
	case last <= ix.seen:
		ix.seen = max(ix.seen, wanted)
	case waited > behind && !all:
		ix.passed = max(ix.passed, wanted)
	}
	return all && ix.seen < ix.wanted && waited > farBehind
}

func readingFailed(err error) error { return fmt.Errorf("jetstream: reading the queue: %w", err) }

// unbroken returns nil if the client still has its first consumer. The client does not
// answer while it replaces the consumer, with servers that may not answer either.
func (ix *index) unbroken(ctx context.Context, c clock.Clock) error {
	timer := c.Timer(farBehind)
	defer timer.Stop()
	late := timer.C
	select {
	case ix.naming <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late:
		return readingFailed(errReplacing)
	}
	broken := make(chan bool, 1)
	go func() { // ends when the client has a consumer, or the index is closed
		defer func() { <-ix.naming }()
		info := ix.consumer.CachedInfo()
		broken <- info == nil || info.Name != ix.consumed
	}()
	select {
	case is := <-broken:
		if !is {
			return nil
		}
		ix.mu.Lock()
		defer ix.mu.Unlock()
		ix.err = cmp.Or(ix.err, errGap)
		return readingFailed(ix.err)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late:
		return readingFailed(errReplacing)
	}
}

func (ix *index) failed() bool {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return ix.err != nil
}

// close ends the index. The server removes its consumer within some minutes.
func (ix *index) close(ctx context.Context, s *Engine) {
	ix.end()
	late := s.clock.AfterFunc(behind, ix.iterator.Stop) // it may be replacing its consumer, with silent servers
	ix.running.Wait()
	late.Stop()
	ix.iterator.Stop() // a Stop is missed while it replaces its consumer
	if info := ix.consumer.CachedInfo(); info != nil {
		_ = s.js.DeleteConsumer(ctx, s.name, info.Name)
	}
}

type readyHeap []*item

func (h readyHeap) Len() int { return len(h) }
func (h readyHeap) Less(i, j int) bool {
	if h[i].ready != h[j].ready {
		return h[i].ready < h[j].ready
	}
	return h[i].position < h[j].position
}

func (h readyHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *readyHeap) Push(x any) {
	it := x.(*item)
	it.index = len(*h)
	*h = append(*h, it)
}

func (h *readyHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return it
}
