package deliverytest

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// orderModel has the expected messages of a queue with ordered keys, by position.
type orderModel struct {
	b        *storeBench
	random   *rand.Rand
	now      time.Duration
	puts     int
	messages []*orderedMessage
	leases   []*orderedLease // all ever granted
}

type orderedMessage struct {
	id, key string
	due     time.Duration // the end of its own delay
	at      time.Duration // when due, or when its lease has ended
	fence   uint64
	leased  bool // taken and not released since
	held    bool
}

// release ends the lease of the message, which is due at a time.
func (o *orderedMessage) release(due time.Duration) {
	o.due = due
	o.at = due
	o.leased = false
}

type orderedLease struct {
	lease   store.Lease
	message store.Message
	of      *orderedMessage
}

// randomOrder compares a store with the model, on two open stores. In the end it takes
// all messages in order.
func randomOrder(b *storeBench) {
	b.inOrder()
	if b.RealTime {
		panic(notApplicable{}) // time passes between the steps
	}
	const steps = 500
	stores := []store.InOrder{b.inOrder(), b.open().(store.InOrder)}
	m := &orderModel{b: b, random: rand.New(rand.NewPCG(11, 47))}
	for step := range steps {
		s := stores[m.random.IntN(2)]
		switch step {
		case 100:
			m.flood(s)
		case 150:
			m.purgeFlood(s)
		}
		switch m.random.IntN(10) {
		case 0, 1, 2:
			m.put(s)
		case 3, 4:
			m.take(s, step)
		case 5:
			m.wait(m.random.IntN(3))
		case 6:
			m.edit(s, step)
		case 7:
			m.merge(s)
		default:
			m.settle(s, step)
		}
	}
	m.drain(stores[0])
}

func (m *orderModel) wait(units int) {
	m.b.wait(units)
	m.now += m.b.units(units)
}

func (m *orderModel) delay() time.Duration { return m.b.units(max(0, m.random.IntN(6)-3)) }

func (m *orderModel) put(s store.InOrder) {
	m.puts++
	d := m.delay()
	message := delayed(strconv.Itoa(m.puts), d)
	message.Meta.Key = []string{"", "a", "b", "c\x00", "d"}[m.random.IntN(5)]
	m.b.ok(s.Put(m.b.ctx, "q", message), "Put")
	m.messages = append(m.messages, &orderedMessage{id: message.Meta.ID, key: message.Meta.Key, due: m.now + d, at: m.now + d})
}

// flood puts more messages of a key than a few calls of TakeInOrder park. Calls take
// other messages all the same.
func (m *orderModel) flood(s store.InOrder) {
	flood := make([]store.Message, 1500)
	for i := range flood {
		m.puts++
		flood[i] = newMessage(strconv.Itoa(m.puts))
		flood[i].Meta.Key = "a"
		m.messages = append(m.messages, &orderedMessage{id: flood[i].Meta.ID, key: "a", due: m.now, at: m.now})
	}
	m.b.ok(s.Put(m.b.ctx, "q", flood...), "Put")
}

// purgeFlood removes the messages of the key that has flooded the queue.
func (m *orderModel) purgeFlood(s store.InOrder) {
	before := len(m.messages)
	m.messages = slices.DeleteFunc(m.messages, func(o *orderedMessage) bool { return o.key == "a" })
	n, err := s.Purge(m.b.ctx, "q", store.Filter{Key: "a"})
	m.b.ok(err, "Purge")
	m.b.must(n == before-len(m.messages), "Purge of a flood removed %d messages in place of %d", n, before-len(m.messages))
}

// canTake reports whether a message is due and the first of its key.
func (m *orderModel) canTake(o *orderedMessage) bool {
	if o.held || o.at > m.now {
		return false
	}
	isOfKey := func(other *orderedMessage) bool { return other.key == o.key }
	return o.key == "" || slices.IndexFunc(m.messages, isOfKey) == slices.Index(m.messages, o)
}

func (m *orderModel) find(id string) *orderedMessage {
	i := slices.IndexFunc(m.messages, func(o *orderedMessage) bool { return o.id == id })
	if i < 0 {
		return nil
	}
	return m.messages[i]
}

func (m *orderModel) remove(o *orderedMessage) {
	m.messages = slices.DeleteFunc(m.messages, func(other *orderedMessage) bool { return other == o })
}

// take returns how many messages it has taken.
func (m *orderModel) take(s store.InOrder, step int) int {
	b := m.b
	var can []string
	for _, o := range m.messages {
		if m.canTake(o) {
			can = append(can, o.id)
		}
	}
	limit, lease := 1+m.random.IntN(4), b.units(1+m.random.IntN(3))
	taken, err := s.TakeInOrder(b.ctx, "q", limit, lease)
	b.ok(err, "TakeInOrder")
	b.must(len(taken) <= limit && (len(taken) > 0) == (len(can) > 0), "step %d: TakeInOrder of %d returned %q, and %q can be taken", step, limit, ids(taken), can)
	for i := range taken {
		l := &taken[i]
		o := m.find(l.Meta.ID)
		b.must(o != nil && slices.Contains(can, o.id), "step %d: TakeInOrder returned %q, and %q can be taken", step, l.Meta.ID, can)
		o.fence++
		b.must(l.Lease.Fence == o.fence, "step %d: the fencing number of %q is %d in place of %d", step, o.id, l.Lease.Fence, o.fence)
		o.at, o.leased = m.now+lease, true
		m.leases = append(m.leases, &orderedLease{l.Lease, l.Message, o})
	}
	return len(taken)
}

func (m *orderModel) settle(s store.InOrder, step int) {
	if len(m.leases) == 0 {
		return
	}
	b := m.b
	recent := min(len(m.leases), 8)
	l := m.leases[len(m.leases)-1-m.random.IntN(recent)]
	o := l.of
	isLost := !slices.Contains(m.messages, o) || o.fence != l.lease.Fence || !o.leased
	d := m.delay()
	var err error
	switch m.random.IntN(6) {
	case 0:
		err = s.Extend(b.ctx, d+b.Unit, l.lease)
		if !isLost {
			o.at = m.now + d + b.Unit
		}
	case 1:
		err = s.Release(b.ctx, d, l.lease)
		if !isLost {
			o.release(m.now + d)
		}
	case 2:
		next := l.message.Clone()
		next.Meta.Visit++
		next.Delay = d
		err = s.Replace(b.ctx, store.Replacement{Lease: l.lease, Message: next})
		if !isLost {
			o.release(m.now + d)
		}
	case 3:
		dead := l.message.Clone()
		dead.Delay, dead.Cause = 0, store.Permanent
		err = s.Move(b.ctx, store.Move{Lease: l.lease, Queue: "dead", Message: dead})
		if !isLost {
			m.remove(o)
		}
	default:
		err = s.Done(b.ctx, l.lease)
		if !isLost {
			m.remove(o)
		}
	}
	b.must(storearg.IsLost(err) == isLost && (isLost || err == nil), "step %d: lease %+v, lost: %v, error: %v", step, l.lease, isLost, err)
}

// edit changes a message as a person does.
func (m *orderModel) edit(s store.InOrder, step int) {
	b := m.b
	k, isKeeper := s.(store.Keeper)
	if len(m.messages) == 0 {
		return
	}
	o := m.messages[m.random.IntN(len(m.messages))]
	if !isKeeper || m.random.IntN(8) == 0 {
		n, err := s.Purge(b.ctx, "q", store.Filter{IDs: []string{o.id}})
		b.ok(err, "Purge")
		b.must(n == 1, "step %d: Purge of %q removed %d messages", step, o.id, n)
		m.remove(o)
		return
	}
	isLeased := o.leased && o.at > m.now
	var do store.Action
	var want bool
	switch m.random.IntN(4) {
	case 0:
		do, want = store.Hold, !o.held && !isLeased
	case 1:
		do, want = store.Release, o.held
	case 2:
		do, want = store.Due, !o.held && !isLeased && o.at > m.now
	case 3:
		do, want = store.Purge, true
	}
	entry := b.list("q", store.Filter{IDs: []string{o.id}}, everything)[0]
	var done []bool
	b.ok(k.Update(b.ctx, func(ctx context.Context, tx store.Tx) (err error) {
		done, err = tx.Edit(ctx, store.Edit{Do: do, Queue: "q", Entry: entry})
		return err
	}), "Update")
	b.must(done[0] == want, "step %d: of %s of %q it is %v that it was done: %+v", step, do, o.id, done[0], *o)
	if !want {
		return
	}
	switch do {
	case store.Hold:
		o.held, o.leased = true, false
	case store.Release:
		o.held, o.at = false, o.due
	case store.Due:
		o.at, o.due = m.now, m.now
	default:
		m.remove(o)
	}
}

// merge puts the first dead letter back, as the last message of its key.
func (m *orderModel) merge(s store.InOrder) {
	b := m.b
	dead := b.list("dead", store.Filter{}, store.Page{Max: 1})
	k, isKeeper := s.(store.Keeper)
	if !isKeeper || len(dead) == 0 {
		return
	}
	e := dead[0]
	e.Meta.Merges++
	e.Cause, e.Delay = "", m.delay()
	var done []bool
	b.ok(k.Update(b.ctx, func(ctx context.Context, tx store.Tx) (err error) {
		done, err = tx.Edit(ctx, store.Edit{Do: store.Merge, Queue: "dead", Entry: e, To: "q"})
		return err
	}), "Update")
	b.must(done[0], "the dead letter %q was not merged", e.Meta.ID)
	m.messages = append(m.messages, &orderedMessage{id: e.Meta.ID, key: e.Meta.Key, due: m.now + e.Delay, at: m.now + e.Delay})
}

func (m *orderModel) drain(s store.InOrder) {
	b := m.b
	k, isKeeper := s.(store.Keeper)
	for _, o := range m.messages {
		if !isKeeper || !o.held {
			continue
		}
		entry := b.list("q", store.Filter{IDs: []string{o.id}}, everything)[0]
		b.ok(k.Update(b.ctx, func(ctx context.Context, tx store.Tx) error {
			_, err := tx.Edit(ctx, store.Edit{Do: store.Release, Queue: "q", Entry: entry})
			return err
		}), "Update")
		o.held, o.at = false, o.due
	}
	m.wait(10)
	for len(m.messages) > 0 {
		n := m.take(s, -1)
		for _, l := range m.leases[len(m.leases)-n:] {
			b.ok(s.Done(b.ctx, l.lease), "Done")
			m.remove(l.of)
		}
	}
	b.must(len(b.list("q", store.Filter{}, everything)) == 0, "messages are left")
}
