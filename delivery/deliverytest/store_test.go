package deliverytest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wrong is a sound store except for replaced functions.
type wrong struct {
	store.Inspector
	put     func(next store.Inspector, queue string, ms []store.Message) error
	take    func(next store.Inspector, queue string, limit int, lease time.Duration) ([]store.Leased, error)
	extend  func(next store.Inspector, d time.Duration, leases []store.Lease) error
	done    func(next store.Inspector, leases []store.Lease) error
	release func(next store.Inspector, delay time.Duration, leases []store.Lease) error
	amend   func(next store.Inspector, lease store.Lease, a store.Amendment) error
	list    func(next store.Inspector, queue string, f store.Filter, p store.Page) ([]store.Entry, error)
	count   func(c *store.Counts)
	keys    func(next store.KeyCounter, q store.KeyQuery) ([]store.KeyCounts, error)
	purge   func(next store.Inspector, queue string, f store.Filter) (int, error)
	claim   func(next store.Inspector, queue string, f store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error)
	move    func(next store.Inspector, moves []store.Move) error

	handOver func(next store.Inspector, moves []store.Move) error

	takeInOrder func(next store.InOrder, queue string, limit int, lease time.Duration) ([]store.Leased, error)
	replace     func(next store.InOrder, rs []store.Replacement) error
}

var bg = context.Background()

func (w *wrong) CountKeys(ctx context.Context, q store.KeyQuery) ([]store.KeyCounts, error) {
	next := w.Inspector.(store.KeyCounter)
	if w.keys == nil {
		return next.CountKeys(ctx, q)
	}
	return w.keys(next, q)
}

func (w *wrong) TakeInOrder(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	next := w.Inspector.(store.InOrder)
	if w.takeInOrder == nil {
		return next.TakeInOrder(ctx, queue, limit, lease)
	}
	return w.takeInOrder(next, queue, limit, lease)
}

func (w *wrong) Replace(ctx context.Context, rs ...store.Replacement) error {
	next := w.Inspector.(store.InOrder)
	if w.replace == nil {
		return next.Replace(ctx, rs...)
	}
	return w.replace(next, rs)
}

func (w *wrong) Put(ctx context.Context, queue string, ms ...store.Message) error {
	if w.put == nil {
		return w.Inspector.Put(ctx, queue, ms...)
	}
	return w.put(w.Inspector, queue, ms)
}

func (w *wrong) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	if w.take == nil {
		return w.Inspector.Take(ctx, queue, limit, lease)
	}
	return w.take(w.Inspector, queue, limit, lease)
}

func (w *wrong) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	if w.extend == nil {
		return w.Inspector.Extend(ctx, d, leases...)
	}
	return w.extend(w.Inspector, d, leases)
}

func (w *wrong) Done(ctx context.Context, leases ...store.Lease) error {
	if w.done == nil {
		return w.Inspector.Done(ctx, leases...)
	}
	return w.done(w.Inspector, leases)
}

func (w *wrong) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	if w.release == nil {
		return w.Inspector.Release(ctx, delay, leases...)
	}
	return w.release(w.Inspector, delay, leases)
}

func (w *wrong) Amend(ctx context.Context, lease store.Lease, a store.Amendment) error {
	if w.amend == nil {
		return w.Inspector.Amend(ctx, lease, a)
	}
	return w.amend(w.Inspector, lease, a)
}

func (w *wrong) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if w.list == nil {
		return w.Inspector.List(ctx, queue, f, p)
	}
	return w.list(w.Inspector, queue, f, p)
}

func (w *wrong) Count(ctx context.Context, queue string, f store.Filter) (store.Counts, error) {
	c, err := w.Inspector.Count(ctx, queue, f)
	if w.count != nil {
		w.count(&c)
	}
	return c, err
}

func (w *wrong) Purge(ctx context.Context, queue string, f store.Filter) (int, error) {
	if w.purge == nil {
		return w.Inspector.Purge(ctx, queue, f)
	}
	return w.purge(w.Inspector, queue, f)
}

func (w *wrong) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error) {
	if w.claim == nil {
		return w.Inspector.Claim(ctx, queue, f, p, lease)
	}
	return w.claim(w.Inspector, queue, f, p, lease)
}

func (w *wrong) Move(ctx context.Context, moves ...store.Move) error {
	if w.move == nil {
		return w.Inspector.Move(ctx, moves...)
	}
	return w.move(w.Inspector, moves)
}

func (w *wrong) HandOver(ctx context.Context, moves ...store.Move) error {
	if w.handOver == nil {
		return w.Inspector.HandOver(ctx, moves...)
	}
	return w.handOver(w.Inspector, moves)
}

// findings runs the rules of a name, or all for "", and returns the names of the rules
// that a store breaks.
func findings(w wrong, rule string) (names []string) {
	for _, r := range slices.Concat(storeRules, putRules, orderRules) {
		if rule != "" && rule != r.name {
			continue
		}
		mock := clock.NewMock()
		mock.Set(time.Unix(1_700_000_000, 0))
		engine := memory.Open(memory.WithClock(mock))
		wrap := func(m *memory.Engine) (store.Store, error) {
			c := w
			c.Inspector = m
			return &c, nil
		}
		err := r.run(StoreSetup{
			Open:    func() (store.Store, error) { return wrap(engine.Reopen()) },
			Wait:    mock.Add,
			SetBack: func(d time.Duration) { mock.Set(mock.Now().Add(-d)) },
			Full:    func() (store.Store, error) { return wrap(memory.Open(memory.WithClock(mock), memory.Limit(100))) },
		})
		if err != nil {
			names = append(names, r.name)
		}
	}
	return names
}

func TestRunStoreFindsNothingInASoundStore(t *testing.T) {
	assert.Empty(t, findings(wrong{}, ""))
}

func TestRunStoreFindsWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		store wrong
		found string
	}{
		"delays are forgotten": {wrong{put: func(next store.Inspector, queue string, ms []store.Message) error {
			for i := range ms {
				ms[i].Delay /= 2
			}
			return next.Put(bg, queue, ms...)
		}}, "never early"},
		"the origin of a put is forgotten": {wrong{put: func(next store.Inspector, queue string, ms []store.Message) error {
			ms = slices.Clone(ms)
			for i := range ms {
				ms[i].Meta.Put = ""
			}
			return next.Put(bg, queue, ms...)
		}}, "the origin of a put"},
		"one message of a Put is lost": {wrong{put: func(next store.Inspector, queue string, ms []store.Message) error {
			return next.Put(bg, queue, ms[:max(0, len(ms)-1)]...)
		}}, "what was put is taken"},
		"a part of a Put that fails": {wrong{put: func(next store.Inspector, queue string, ms []store.Message) error {
			for _, m := range ms {
				if err := next.Put(bg, queue, m); err != nil {
					return err
				}
			}
			return storearg.Put(queue)
		}}, "all or none"},
		"visits are not part of the identity": {wrong{put: func(next store.Inspector, queue string, ms []store.Message) error {
			for i := range ms {
				ms[i].Meta.Visit = 0
			}
			return next.Put(bg, queue, ms...)
		}}, "the same again changes nothing"},
		"the last Put counts": {wrong{put: func(next store.Inspector, queue string, ms []store.Message) error {
			for _, m := range ms {
				if _, err := next.Purge(bg, queue, store.Filter{IDs: []string{m.Meta.ID}}); err != nil {
					return err
				}
			}
			return next.Put(bg, queue, ms...)
		}}, "the same again changes nothing"},
		"full is not an error": {wrong{put: func(next store.Inspector, queue string, ms []store.Message) error {
			if err := storearg.Put(queue, ms...); err != nil {
				return err
			}
			_ = next.Put(bg, queue, ms...)
			return nil
		}}, "a full store refuses"},
		"leases are too short": {wrong{take: func(next store.Inspector, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
			return next.Take(bg, queue, limit, lease-lease/10)
		}}, "a lease keeps others away, until it ends"},
		"leases never end": {wrong{take: func(next store.Inspector, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
			return next.Take(bg, queue, limit, 1000*lease)
		}}, "a lease keeps others away, until it ends"},
		"a lease that is lost settles": {wrong{done: func(next store.Inspector, leases []store.Lease) error {
			for i, l := range leases {
				for fence := uint64(1); fence < 5; fence++ {
					leases[i].Fence = fence
					_ = next.Done(bg, leases[i])
				}
				leases[i] = l
			}
			return next.Done(bg, leases...)
		}}, "the loser of a lease cannot settle"},
		"Done is silent about a lost lease": {wrong{done: func(next store.Inspector, leases []store.Lease) error {
			_ = next.Done(bg, leases...)
			return nil
		}}, "settled once"},
		"one lost lease spoils a call": {wrong{done: func(next store.Inspector, leases []store.Lease) error {
			for _, l := range leases {
				if err := next.Done(bg, l); err != nil {
					return err
				}
			}
			return nil
		}}, "the loser of a lease cannot settle"},
		"Extend does nothing": {wrong{extend: func(next store.Inspector, d time.Duration, _ []store.Lease) error {
			return storearg.Extend(d)
		}}, "extend"},
		"Release is at once": {wrong{release: func(next store.Inspector, delay time.Duration, leases []store.Lease) error {
			return next.Release(bg, min(0, delay), leases...)
		}}, "release"},
		"Release keeps the lease": {wrong{release: func(next store.Inspector, delay time.Duration, leases []store.Lease) error {
			return next.Extend(bg, max(delay, 1), leases...)
		}}, "release"},
		"Amend does not keep the provider": {wrong{amend: func(next store.Inspector, lease store.Lease, a store.Amendment) error {
			err := next.Amend(bg, lease, a)
			if err != nil || a.Provider == nil {
				return err
			}
			none := ""
			return next.Amend(bg, lease, store.Amendment{Provider: &none})
		}}, "an amendment"},
		"Amend does not extend the lease": {wrong{amend: func(next store.Inspector, lease store.Lease, a store.Amendment) error {
			if a.Provider != nil {
				a.Delay = 0
			}
			return next.Amend(bg, lease, a)
		}}, "an amendment of the due time"},
		"Amend ends the lease": {wrong{amend: func(next store.Inspector, lease store.Lease, a store.Amendment) error {
			err := next.Amend(bg, lease, a)
			if err != nil || a.Delay == 0 {
				return err
			}
			return next.Release(bg, a.Delay, lease)
		}}, "an amendment of the due time"},
		"the queue is not looked at": {wrong{done: func(next store.Inspector, leases []store.Lease) error {
			for i := range leases {
				leases[i].Queue = "q"
			}
			return next.Done(bg, leases...)
		}}, "queues are separate"},
		"pages by number": {wrong{list: func(next store.Inspector, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
			all, err := next.List(bg, queue, f, store.Page{Max: 1000})
			return all[min(len(all), int(p.After)):min(len(all), int(p.After)+p.Max)], err
		}}, "inspector: pages"},
		"a filter that knows wildcards": {wrong{list: func(next store.Inspector, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
			if f.Error == "_%" {
				f.Error = ""
			}
			return next.List(bg, queue, f, p)
		}}, "inspector: filters"},
		"wrong counts": {wrong{count: func(c *store.Counts) {
			for r := range c.Reasons {
				c.Reasons[r]++
			}
		}}, "inspector: count"},
		"counts that know no leases": {wrong{count: func(c *store.Counts) { c.Next = c.Oldest }}, "inspector: count"},
		"dead letters wait": {wrong{keys: func(next store.KeyCounter, q store.KeyQuery) ([]store.KeyCounts, error) {
			if q.Dead != "" {
				q.Queues, q.Dead = append(slices.Clone(q.Queues), q.Dead), ""
			}
			return next.CountKeys(bg, q)
		}}, "inspector: counts by key"},
		"a choice of keys before the others are read": {wrong{keys: func(next store.KeyCounter, q store.KeyQuery) ([]store.KeyCounts, error) {
			contains := q.Contains
			q.Contains = ""
			list, err := next.CountKeys(bg, q)
			return slices.DeleteFunc(list, func(c store.KeyCounts) bool { return !strings.HasPrefix(c.Key, contains) }), err
		}}, "inspector: counts by key"},
		"keys that come first as usual": {wrong{keys: func(next store.KeyCounter, q store.KeyQuery) ([]store.KeyCounts, error) {
			q.First = nil
			return next.CountKeys(bg, q)
		}}, "inspector: counts by key"},
		"held messages that are due": {wrong{keys: func(next store.KeyCounter, q store.KeyQuery) ([]store.KeyCounts, error) {
			list, err := next.CountKeys(bg, q)
			for i := range list {
				list[i].Next = list[i].Oldest
			}
			return list, err
		}}, "inspector: counts by key of leased and held messages"},
		"Purge of everything": {wrong{purge: func(next store.Inspector, queue string, _ store.Filter) (int, error) {
			return next.Purge(bg, queue, store.Filter{})
		}}, "inspector: purge"},
		"Claim takes what is leased": {wrong{claim: func(next store.Inspector, queue string, f store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error) {
			all, err := next.List(bg, queue, f, p)
			if err != nil {
				return nil, err
			}
			for _, e := range all {
				if !e.LeasedUntil.IsZero() {
					_ = next.Release(bg, 0, store.Lease{Queue: queue, Entry: "1", Fence: e.Fence})
				}
			}
			return next.Claim(bg, queue, f, p, lease)
		}}, "inspector: claim"},
		"Claim does not count leases that have ended": {wrong{claim: func(next store.Inspector, queue string, f store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error) {
			ls, err := next.Claim(bg, queue, f, p, lease)
			for i := range ls {
				ls[i].Lapses = 0
			}
			return ls, err
		}}, "inspector: claim"},
		"Move puts although the lease is lost": {wrong{move: func(next store.Inspector, moves []store.Move) error {
			for _, m := range moves {
				if err := next.Put(bg, m.Queue, m.Message); err != nil {
					return err
				}
			}
			var leases []store.Lease
			for _, m := range moves {
				leases = append(leases, m.Lease)
			}
			return next.Done(bg, leases...)
		}}, "inspector: move"},
		"HandOver puts although the message is gone": {wrong{handOver: func(next store.Inspector, moves []store.Move) error {
			for _, m := range moves {
				if err := next.Put(bg, m.Queue, m.Message); err != nil {
					return err
				}
			}
			return nil
		}}, "inspector: hand over"},
		"HandOver ignores the visit": {wrong{handOver: func(next store.Inspector, moves []store.Move) error {
			moves = slices.Clone(moves)
			for i := range moves {
				moves[i].Visit = 0
			}
			return next.HandOver(bg, moves...)
		}}, "in order: a late worker hands over a replaced message"},
		"TakeInOrder does not look at keys": {wrong{takeInOrder: func(next store.InOrder, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
			return next.Take(bg, queue, limit, lease)
		}}, "in order: a random schedule"},
		"consumers that do not look at keys": {wrong{takeInOrder: func(next store.InOrder, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
			return next.Take(bg, queue, limit, lease)
		}}, "in order: many consumers"},
		"TakeInOrder puts the next message of a key before others": {wrong{takeInOrder: func(next store.InOrder, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
			entries, err := next.List(bg, queue, store.Filter{Key: "flood"}, store.Page{Max: 1})
			if err != nil || len(entries) == 0 || !entries[0].LeasedUntil.IsZero() {
				return next.TakeInOrder(bg, queue, limit, lease)
			}
			return next.Claim(bg, queue, store.Filter{Key: "flood"}, store.Page{Max: 1}, lease)
		}}, "in order: a flood of one key"},
		"a message that is done does not free its key": {wrong{done: func(next store.Inspector, leases []store.Lease) error {
			return next.Release(bg, 1000*time.Hour, leases...)
		}}, "in order: one message of a key at a time"},
		"a replaced message comes last": {wrong{replace: func(next store.InOrder, rs []store.Replacement) error {
			for _, r := range rs {
				err := next.Move(bg, store.Move{Lease: r.Lease, Queue: r.Lease.Queue, Message: r.Message})
				if err != nil {
					return err
				}
			}
			return nil
		}}, "in order: a replaced message keeps its place"},
		"Replace does half of a call": {wrong{replace: func(next store.InOrder, rs []store.Replacement) error {
			for _, r := range rs {
				err := next.Replace(bg, r)
				if err != nil {
					return err
				}
			}
			return nil
		}}, "in order: a replacement is refused"},
		"a key does not wait for a message that was released": {wrong{release: func(next store.Inspector, delay time.Duration, leases []store.Lease) error {
			return next.Release(bg, 0, leases...)
		}}, "in order: a message that waits delays its key"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Contains(t, findings(c.store, c.found), c.found)
		})
	}
}
