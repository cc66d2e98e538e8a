package ladder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

const (
	defaultMaxBlocked = 10_000
	pageSize          = 500
	// A message that should have returned so long ago is looked for: it may have been
	// purged.
	overdue = 30 * time.Second
)

// keys keep the messages of a key in order (law D4): at most one of them is in flight in
// this process, and none of them while one waits in a layer.
//
//	new message ─▶ deliver │ hold behind a message in flight │ park in the queue Blocked, behind a waiting message
//	                             └─ the one in flight has gone to a layer ─▶ park
//	settled ─▶ the next parked message, or else the next held one
//
// A key is known as long as it has messages. The store has the waiting and the parked
// messages, in order, so a restart finds them again.
type keys[T any] struct {
	clock   clock.Clock
	logger  *slog.Logger
	limit   int
	blocked string // the queue

	mu      sync.Mutex // guards what follows; not held while the store or a message is called
	of      map[string]*keyed[T]
	size    int                  // messages that are held, parked or wait
	free    []string             // keys whose next parked message may be taken
	taken   map[entryRef]taken   // messages in flight from layers and from Blocked
	ready   []message.Message[T] // to be delivered
	parking []message.Message[T] // to be parked
	checked time.Time            // when messages that are overdue were looked for
	warned  bool                 // that there is another worker
	wake    []func()             // called when a key may be free, or a message ready

	// copies has messages that an earlier process has handed over, to a layer or to
	// Blocked, and was killed before it acknowledged them. Their sources deliver them
	// again as new messages.
	copies map[leases.AcceptedPut]bool
}

// keyed is the state of a key. Guarded by keys.mu.
type keyed[T any] struct {
	running   int // in flight here; more than one only between a hand-over and its acknowledgement
	waits     map[leases.AcceptedPut]waiting
	parked    int // in the queue
	parking   int // not there yet
	held      []message.Message[T]
	notBefore time.Time // when to look again for the next parked message: see mustWait
	leased    grant     // of the next parked message, when it was leased to another worker
	last      int64     // lowest position of a parked message, when it was last looked for
}

// grant is a lease as a List shows it.
type grant struct {
	position int64
	fence    uint64
	until    time.Time
}

// waiting is a message in a layer.
type waiting struct {
	queue  string
	stored bool      // it is in the layer; false while it is handed over
	due    time.Time // at the latest
	visit  int       // number of its last visit
	merges int
}

// isOutdatedBy reports whether meta is a later state of the message: it was merged more
// often, or is in a later visit than the one after which w was handed over. Then the
// message is no longer in the layer of w: another worker, which does not keep the order of
// keys, has taken it there. Otherwise meta is a redelivery of the message as it was before
// the hand-over.
func (w waiting) isOutdatedBy(meta message.Meta) bool {
	return meta.Merges > w.merges || meta.Merges == w.merges && meta.Visit > w.visit
}

// entryRef is the entry of a message in the store, under whatever lease.
type entryRef struct{ queue, entry string }

// taken is a message that was taken from the store.
type taken struct {
	key    string
	of     leases.AcceptedPut
	visit  int // number of its last visit
	merges int
	parked bool // from the queue Blocked
}

func newKeys[T any](c Config[T]) *keys[T] {
	return &keys[T]{
		clock: c.Clock, logger: c.Logger, limit: c.MaxBlocked, blocked: c.Blocked,
		of: map[string]*keyed[T]{}, taken: map[entryRef]taken{}, copies: map[leases.AcceptedPut]bool{}, checked: c.Clock.Now(),
	}
}

func (k *keys[T]) get(key string) *keyed[T] {
	e := k.of[key]
	if e == nil {
		e = &keyed[T]{waits: map[leases.AcceptedPut]waiting{}}
		k.of[key] = e
	}
	return e
}

func (e *keyed[T]) isBlocked() bool { return len(e.waits)+e.parked+e.parking > 0 }

// isFull reports whether new messages must wait in their source: there are MaxBlocked
// messages already, or some are still to be parked.
func (k *keys[T]) isFull() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.size >= k.limit || len(k.parking) > 0
}

// isIdle reports whether only messages that wait in layers are still to be delivered. It
// is false while a settlement is not stored yet, since that may free a key.
func (k *keys[T]) isIdle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.ready)+len(k.parking)+len(k.free)+len(k.taken) == 0
}

// resumer is a source of new messages that delivers what an earlier process has left
// before all others, in order: a *leases.Source.
type resumer interface {
	Resume(ctx context.Context) ([]leases.AcceptedPut, error)
}

var _ resumer = (*leases.Source[any])(nil)

// restore finds what an earlier process has left in queues, which are Blocked and layers.
// After an error it is called again.
func (k *keys[T]) restore(ctx context.Context, s store.Inspector, queues []string, inputs []*input[T]) error {
	left := map[leases.AcceptedPut]bool{}
	for _, in := range inputs {
		r, ok := in.source.(resumer)
		if !ok || !in.kind.isNew() {
			continue
		}
		puts, err := r.Resume(ctx)
		if err != nil {
			return err
		}
		for _, put := range puts {
			left[put] = true
		}
	}
	parked := map[string]int{}
	for _, queue := range queues {
		found, err := k.noteWaiting(ctx, s, queue, left)
		if err != nil {
			return err
		}
		if queue == k.blocked {
			parked = found
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, n := range parked {
		k.get(key).parked = n
		k.size += n
	}
	for key := range k.of {
		k.next(key)
	}
	return nil
}

// noteWaiting notes the messages that wait in a layer. If the queue is Blocked, it counts
// its messages by key instead. left are the messages that the sources of new messages
// will deliver again.
func (k *keys[T]) noteWaiting(ctx context.Context, s store.Inspector, queue string, left map[leases.AcceptedPut]bool) (parked map[string]int, err error) {
	parked = map[string]int{}
	for page := (store.Page{Max: pageSize}); ; {
		entries, err := s.List(ctx, queue, store.Filter{}, page)
		if err != nil {
			return nil, fmt.Errorf("ladder: messages waiting in %q: %w", queue, err)
		}
		if len(entries) == 0 {
			return parked, nil
		}
		page.After = entries[len(entries)-1].Position
		k.mu.Lock()
		for i := range entries {
			put := leases.AcceptedPutOf(&entries[i].Meta)
			if left[put] {
				k.copies[put] = true
			}
			switch meta := &entries[i].Meta; {
			case meta.Key == "":
			case leases.IsSetAside(meta.Due, k.clock.Now()):
			case queue == k.blocked:
				parked[meta.Key]++
			default:
				k.wait(meta.Key, put, waiting{queue: queue, stored: true, due: meta.Due, visit: meta.Visit, merges: meta.Merges})
			}
		}
		k.mu.Unlock()
	}
}

// wait notes that a message waits in a layer. A message that a kill has left in two
// layers counts once. It runs under mu.
func (k *keys[T]) wait(key string, put leases.AcceptedPut, w waiting) *keyed[T] {
	e := k.get(key)
	_, isKnown := e.waits[put]
	if !isKnown {
		k.size++
	}
	e.waits[put] = w
	return e
}

// arrive returns a new message if it may be delivered now.
func (k *keys[T]) arrive(m message.Message[T]) (message.Message[T], bool) {
	meta := m.Meta()
	if meta.Key == "" {
		return m, true
	}
	k.mu.Lock()
	put := leases.AcceptedPutOf(&meta)
	if k.copies[put] { // the message that was handed over may be done by now
		delete(k.copies, put)
		k.mu.Unlock()
		m.Ack()
		return m, false
	}
	e := k.get(meta.Key)
	switch {
	case k.wasHandedOver(e, put, meta):
		k.mu.Unlock()
		k.logger.Warn("weir: a message is redelivered, and was handed over before: it waits in a layer or is in flight, "+
			"so this delivery is acknowledged without a call", "id", meta.ID, "key", meta.Key)
		m.Ack()
		return m, false
	case e.running > 0:
		// Also while the message in flight is handed over: if that fails, it is delivered
		// again before m.
		e.held = append(e.held, m)
		k.size++
	case e.isBlocked():
		k.park(e, m)
		k.size++
	default:
		e.running++
		k.mu.Unlock()
		return k.watched(meta.Key, m), true
	}
	k.mu.Unlock()
	return m, false
}

// wasHandedOver reports whether a message that its source delivers as new was handed over
// before, and not acknowledged: it waits in a layer, or is in flight from a layer or from
// Blocked. That copy is durable, so this delivery can be acknowledged without a call
// (laws D1, D2). A later put under the id of a message is another message (law W5). It
// runs under mu.
func (k *keys[T]) wasHandedOver(e *keyed[T], put leases.AcceptedPut, meta message.Meta) bool {
	w, waits := e.waits[put]
	if waits && w.stored && !w.isOutdatedBy(meta) {
		return true
	}
	return e.running > 0 && k.isTaken(meta.Key, put)
}

// isTaken reports whether a message is in flight from a layer or from Blocked. It runs
// under mu.
func (k *keys[T]) isTaken(key string, put leases.AcceptedPut) bool {
	for _, t := range k.taken {
		if t.key == key && t.of == put {
			return true
		}
	}
	return false
}

// park makes messages wait until store parks them. It runs under mu.
func (k *keys[T]) park(e *keyed[T], ms ...message.Message[T]) {
	e.parking += len(ms)
	k.parking = append(k.parking, ms...)
}

// watched returns a message in place of m, which continues with the key when it is
// settled.
func (k *keys[T]) watched(key string, m message.Message[T]) message.Message[T] {
	return message.Watch(m, func(v message.Settlement) {
		m.Settle(v)
		k.mu.Lock()
		e := k.get(key)
		e.running--
		var back []message.Message[T]
		if v.Kind.IsRedelivered() && !m.IsPurged() { // the later messages are released as well, behind it
			back, e.held = e.held, nil
			k.size -= len(back)
		}
		k.next(key)
		wake := k.wake
		k.mu.Unlock()
		for _, m := range back {
			m.Settle(message.Settlement{Kind: message.Released, Delay: v.Delay})
		}
		for _, f := range wake {
			f()
		}
	})
}

// next continues with a key after a change: its next message is to be delivered, parked
// or taken from Blocked; or the key is forgotten, if it has no messages. It runs under
// mu.
func (k *keys[T]) next(key string) {
	e := k.of[key]
	switch {
	case e == nil || e.running > 0:
	case e.isBlocked():
		if len(e.held) > 0 { // the message before them has gone to a layer
			k.park(e, e.held...)
			e.held = nil
		}
		if len(e.waits)+e.parking == 0 && !slices.Contains(k.free, key) {
			k.free = append(k.free, key)
		}
	case len(e.held) > 0:
		e.running++
		k.size--
		k.ready = append(k.ready, k.watched(key, e.held[0]))
		e.held = e.held[1:]
	default:
		delete(k.of, key)
	}
}

// handOver is a hand-over of a message to a layer, as the order of its key sees it. The
// zero handOver is for messages without an order.
type handOver[T any] struct {
	keys  *keys[T] // nil without an order
	key   string
	of    *keyed[T]
	put   leases.AcceptedPut
	queue string // the layer
}

// beginHandOver notes that a message waits in a layer, before it is put there. So later
// messages of its key wait behind it.
func (k *keys[T]) beginHandOver(meta message.Meta, queue string, delay time.Duration) handOver[T] {
	if meta.Key == "" {
		return handOver[T]{}
	}
	put := leases.AcceptedPutOf(&meta)
	k.mu.Lock()
	defer k.mu.Unlock()
	w := waiting{queue: queue, due: k.clock.Now().Add(delay), visit: meta.Visit, merges: meta.Merges}
	return handOver[T]{keys: k, key: meta.Key, of: k.wait(meta.Key, put, w), put: put, queue: queue}
}

// noteStored notes that the message was put into the layer. It may have left the layer
// again meanwhile.
func (h *handOver[T]) noteStored() {
	k := h.keys
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	w, waits := h.of.waits[h.put]
	if waits && w.queue == h.queue {
		w.stored = true
		h.of.waits[h.put] = w
	}
}

// undo notes that the message does not wait in the layer, because the hand-over has
// failed or the message was purged. A hand-over that seemed to fail may have stored the
// message all the same. Then the layer may have delivered it, and it may wait in another
// one: that wait stays.
func (h *handOver[T]) undo() {
	k := h.keys
	if k == nil {
		return
	}
	k.mu.Lock()
	if h.of.waits[h.put].queue == h.queue {
		k.removed(h.of, h.put)
	}
	k.next(h.key) // watched may have called next before: then the wait kept the key from continuing
	wake := k.wake
	k.mu.Unlock()
	for _, f := range wake {
		f()
	}
}

// removed notes that a message no longer waits in a layer. It runs under mu.
func (k *keys[T]) removed(e *keyed[T], put leases.AcceptedPut) {
	if _, ok := e.waits[put]; ok {
		delete(e.waits, put)
		k.size--
	}
}

func (k *keys[T]) takeReady() (ms []message.Message[T]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ms, k.ready = k.ready, nil
	return ms
}

// store parks messages: durable first, then acknowledged (law D1). After an error they
// are still to be parked. A message that can never be parked is rejected, and does not
// delay others (law W2).
func (k *keys[T]) store(ctx context.Context, l *Ladder[T]) error {
	k.mu.Lock()
	ms := k.parking
	k.mu.Unlock()
	if len(ms) == 0 {
		return nil
	}
	parked := make([]store.Message, 0, len(ms))
	of := make([]message.Message[T], 0, len(ms)) // of parked
	from := make([]message.Delivery, 0, len(ms)) // of parked
	for _, m := range ms {
		p, err := l.unvisited(m)
		if err != nil {
			m.Reject(fmt.Errorf("ladder: %w", err))
			continue
		}
		parked, of = append(parked, p), append(of, m)
		from = append(from, message.DeliveryOf(m))
	}
	_, err := leases.HandOver(ctx, l.c.Store, k.blocked, parked, from)
	if errors.Is(err, message.ErrRefused) {
		err = nil
		for i := 0; i < len(parked) && err == nil; i++ {
			_, err = leases.HandOver(ctx, l.c.Store, k.blocked, parked[i:i+1], from[i:i+1])
			if errors.Is(err, message.ErrRefused) {
				of[i].Reject(fmt.Errorf("ladder: %q: %w", k.blocked, err))
				err = nil
			}
		}
	}
	if err != nil {
		return fmt.Errorf("ladder: park %d messages in %q: %w", len(parked), k.blocked, err)
	}
	for _, m := range of {
		m.Ack() // no effect if it was rejected above
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.parking = k.parking[len(ms):]
	for _, m := range ms {
		key := m.Meta().Key
		e := k.get(key)
		e.parking--
		e.parked++ // also if it was rejected or purged: takeParked sets parked to 0 when it finds no message
		k.next(key)
	}
	return nil
}

// check looks for overdue messages, and frees the keys of messages that are gone, because
// a person has purged them, or that another process has set aside for good.
func (k *keys[T]) check(ctx context.Context, s store.Inspector) error {
	type late struct {
		key   string
		of    leases.AcceptedPut
		queue string
	}
	var all []late
	now := k.clock.Now()
	k.mu.Lock()
	if now.Sub(k.checked) < overdue {
		k.mu.Unlock()
		return nil
	}
	k.checked = now
	for key, e := range k.of {
		for put, w := range e.waits {
			if w.stored && now.Sub(w.due) > overdue {
				all = append(all, late{key, put, w.queue})
			}
		}
	}
	k.mu.Unlock()
	for _, l := range all {
		found, err := s.List(ctx, l.queue, store.Filter{IDs: []string{l.of.ID}}, store.Page{Max: pageSize})
		if err != nil {
			return fmt.Errorf("ladder: messages waiting in %q: %w", l.queue, err)
		}
		if slices.ContainsFunc(found, func(e store.Entry) bool {
			return leases.AcceptedPutOf(&e.Meta) == l.of && !leases.IsSetAside(e.Meta.Due, now)
		}) {
			continue
		}
		k.mu.Lock()
		if e := k.of[l.key]; e != nil && e.waits[l.of].queue == l.queue {
			k.removed(e, l.of)
			k.next(l.key)
		}
		k.mu.Unlock()
	}
	return nil
}

// parkedElsewhere notes that another worker has a parked message. If that worker extends
// its lease, it is alive, so two workers use the queue.
func (k *keys[T]) parkedElsewhere(key string, g grant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.get(key)
	before := e.leased
	e.leased = g
	extended := before.position == g.position && before.fence == g.fence && !before.until.IsZero() && before.until.Before(g.until)
	if extended && !k.warned {
		k.warned = true
		k.logger.Warn("ladder: another worker has messages of the same queue: the order of keys holds for the messages of one process",
			"queue", k.blocked, "key", key)
	}
}
