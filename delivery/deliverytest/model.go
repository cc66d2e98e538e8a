package deliverytest

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// model is a queue's expected messages, by id.
type model struct {
	now      time.Duration
	messages map[string]*modelMessage
	leases   []modelLease // all ever granted
}

type modelMessage struct {
	at     time.Duration // when it can be taken
	lease  int           // the last lease granted, from 1; 0 before the first
	leased bool
}

type modelLease struct {
	id    string
	lease store.Lease
	of    *modelMessage
	n     int
}

func randomSchedule(b *storeBench) {
	if b.RealTime {
		panic(notApplicable{}) // time passes between the steps
	}
	const steps = 600
	random := rand.New(rand.NewPCG(7, 15))
	m := &model{messages: map[string]*modelMessage{}}
	stores := []store.Store{b.Store, b.open()}
	for step := range steps {
		s := stores[random.IntN(2)]
		switch random.IntN(7) {
		case 0, 1:
			m.put(b, s, random)
		case 2, 3:
			m.take(b, s, random, step)
		case 4:
			n := random.IntN(3)
			b.wait(n)
			m.now += b.units(n)
		default:
			m.settle(b, s, random, step)
		}
	}
}

func (m *model) put(b *storeBench, s store.Store, random *rand.Rand) {
	id := strconv.Itoa(random.IntN(20))
	d := b.units(random.IntN(4))
	b.ok(s.Put(b.ctx, "q", delayed(id, d)), "Put")
	if m.messages[id] == nil {
		m.messages[id] = &modelMessage{at: m.now + d}
	}
}

func (m *model) take(b *storeBench, s store.Store, random *rand.Rand, step int) {
	limit, lease := 1+random.IntN(4), b.units(1+random.IntN(3))
	var due []time.Duration
	for _, message := range m.messages {
		if message.at <= m.now {
			due = append(due, message.at)
		}
	}
	slices.Sort(due)
	ms, err := s.Take(b.ctx, "q", limit, lease)
	b.ok(err, "Take")
	b.must(len(ms) == min(limit, len(due)), "step %d: Take of %d returned %v, %d are due", step, limit, ids(ms), len(due))
	for _, got := range ms {
		message := m.messages[got.Meta.ID]
		b.must(message != nil, "step %d: Take returned %q, which is not there", step, got.Meta.ID)
		b.must(message.at <= due[len(ms)-1], "step %d: Take returned %q, others were due before", step, got.Meta.ID)
		message.lease++
		b.must(got.Lease.Fence == uint64(message.lease), "step %d: the fencing number of %q is %d, want %d", step, got.Meta.ID, got.Lease.Fence, message.lease)
		message.at, message.leased = m.now+lease, true
		m.leases = append(m.leases, modelLease{got.Meta.ID, got.Lease, message, message.lease})
	}
}

func (m *model) settle(b *storeBench, s store.Store, random *rand.Rand, step int) {
	if len(m.leases) == 0 {
		return
	}
	recent := min(len(m.leases), 8)
	l := m.leases[len(m.leases)-1-random.IntN(recent)]
	lost := m.messages[l.id] != l.of || l.of.lease != l.n || !l.of.leased
	d := b.units(1 + random.IntN(3))
	var err error
	switch random.IntN(3) {
	case 0:
		err = s.Done(b.ctx, l.lease)
		if !lost {
			delete(m.messages, l.id)
		}
	case 1:
		err = s.Extend(b.ctx, d, l.lease)
		if !lost {
			l.of.at = m.now + d
		}
	case 2:
		err = s.Release(b.ctx, d, l.lease)
		if !lost {
			l.of.at, l.of.leased = m.now+d, false
		}
	}
	b.must(storearg.IsLost(err) == lost && (lost || err == nil), "step %d: lease %+v, lost: %v, error: %v", step, l.lease, lost, err)
}
