package deliverytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

var orderRules = []storeRule{
	{name: "in order: one message of a key at a time", check: oneOfAKey},
	{name: "in order: a lease that has ended", check: orderAfterLease},
	{name: "in order: a message that waits delays its key", check: waitingHead},
	{name: "in order: a replaced message keeps its place", check: replaced},
	{name: "in order: a replacement is refused", check: replacementRefused},
	{name: "in order: a late worker hands over a replaced message", check: handOverAfterReplace},
	{name: "in order: what frees a key", check: freedKeys},
	{name: "in order: a held message blocks its key", check: heldHead},
	{name: "in order: a flood of one key", check: floodOfAKey},
	{name: "in order: messages without a key behind a flood", check: withoutKeyBehindAFlood},
	{name: "in order: the other consumers", check: orderBesideOthers},
	{name: "in order: a random schedule", check: randomOrder},
	{name: "in order: many consumers", check: orderedConsumers},
}

func (b *storeBench) inOrder() store.InOrder {
	s, ok := b.Store.(store.InOrder)
	if !ok {
		panic(notApplicable{})
	}
	return s
}

// takeInOrder takes everything that may be taken, for a lease of units.
func (b *storeBench) takeInOrder(units int) (all []store.Leased) {
	for {
		ms, err := b.inOrder().TakeInOrder(b.ctx, "q", 100, b.units(units))
		b.ok(err, "TakeInOrder")
		if len(ms) == 0 {
			return all
		}
		all = append(all, ms...)
	}
}

// takeExactly checks that exactly these messages may be taken, in any order.
func (b *storeBench) takeExactly(why string, want ...string) []store.Leased {
	got := b.takeInOrder(1000)
	taken := ids(got)
	slices.Sort(taken)
	slices.Sort(want)
	b.must(slices.Equal(taken, want), "TakeInOrder returned %q in place of %q: %s", taken, want, why)
	return got
}

func leasesOf(ms []store.Leased) (list []store.Lease) {
	for i := range ms {
		list = append(list, ms[i].Lease)
	}
	return list
}

func oneOfAKey(b *storeBench) {
	b.inOrder()
	b.put("q", slices.Concat(ofKey("a", 3), ofKey("b\xff\x00", 2), []store.Message{newMessage("1"), newMessage("2")})...)
	b.put("other", ofKey("a", 1)...)
	first := b.takeExactly("one message of each key, and all without a key", "a#0", "b\xff\x00#0", "1", "2")
	b.must(first[0].Lease.Fence == 1 && first[0].Position > 0, "the first message is %+v", first[0])
	b.takeExactly("their predecessors are in flight")
	counts, err := b.inspector().Count(b.ctx, "q", store.Filter{})
	b.ok(err, "Count")
	b.must(counts.Messages == 7 && counts.Held == 0, "messages that wait for others count as %+v", counts)
	b.must(len(b.list("q", store.Filter{}, everything)) == 7, "List leaves out messages that wait for others")
	b.put("q", ofKey("a", 4)[3])
	b.takeExactly("a new message of a key comes last")
	b.ok(b.Done(b.ctx, leasesOf(first)...), "Done")
	second := b.takeExactly("the next ones", "a#1", "b\xff\x00#1")
	b.ok(b.Done(b.ctx, leasesOf(second)...), "Done")
	third := b.takeExactly("the third", "a#2")
	b.ok(b.Done(b.ctx, leasesOf(third)...), "Done")
	fourth := b.takeExactly("the last", "a#3")
	b.ok(b.Done(b.ctx, leasesOf(fourth)...), "Done")
	b.put("q", ofKey("a", 1)...)
	b.takeExactly("a key without messages begins anew", "a#0")
}

func orderAfterLease(b *storeBench) {
	b.inOrder()
	b.put("q", ofKey("a", 2)...)
	first := b.takeInOrder(5)
	b.must(len(first) == 1, "TakeInOrder returned %q in place of one message", ids(first))
	b.takeExactly("its predecessor is leased")
	b.ok(b.Extend(b.ctx, b.units(10), first[0].Lease), "Extend")
	b.wait(6)
	b.takeExactly("the lease was extended")
	b.wait(5)
	again := b.takeExactly("the lease has ended", "a#0")
	b.must(again[0].Lapses == 1 && again[0].Lease.Fence == 2, "a message whose lease has ended is %+v", again[0])
	b.lost(b.Done(b.ctx, first[0].Lease), "Done", first[0].Lease)
	b.takeExactly("a lease that was lost does not free the key")
	b.ok(b.Done(b.ctx, again[0].Lease), "Done")
	b.takeExactly("the next one", "a#1")
}

// waitingHead checks that a key waits for a delayed or released message.
func waitingHead(b *storeBench) {
	b.inOrder()
	late := ofKey("a", 2)
	late[0].Delay = b.units(5)
	b.put("q", late...)
	b.put("q", ofKey("b", 2)...)
	of := b.takeExactly("the first message of a has a delay", "b#0")
	b.ok(b.Release(b.ctx, b.units(3), of[0].Lease), "Release")
	b.takeExactly("the first message of b was released with a delay")
	c, err := b.inspector().Count(b.ctx, "q", store.Filter{Key: "a"})
	b.ok(err, "Count")
	due := b.list("q", store.Filter{IDs: []string{"a#0"}}, everything)[0].Meta.Due
	b.must(c.Next.Equal(due), "the first message of a can be taken at %v in place of %v", c.Next, due)
	b.wait(4)
	of = b.takeExactly("the delay of b has passed", "b#0")
	b.ok(b.Done(b.ctx, leasesOf(of)...), "Done")
	b.takeExactly("b is free", "b#1")
	b.wait(1)
	b.takeExactly("the delay of a has passed", "a#0")
}

func replaced(b *storeBench) {
	s := b.inOrder()
	b.put("q", ofKey("a", 2)...)
	before := b.list("q", store.Filter{}, everything)
	of := b.takeExactly("the first", "a#0")
	next := full("a#0")
	next.Meta.Key = "a"
	next.Delay = b.units(3)
	next.Cause = ""
	b.ok(s.Replace(b.ctx, store.Replacement{Lease: of[0].Lease, Message: next}), "Replace")
	b.lost(b.Done(b.ctx, of[0].Lease), "Done after Replace", of[0].Lease)
	after := b.list("q", store.Filter{}, everything)
	b.must(same(after[0].Message, next) && after[0].LeasedUntil.IsZero(), "the message was replaced by %+v in place of %+v", after[0], next)
	b.must(after[0].Position == before[0].Position && after[0].Arrived.Equal(before[0].Arrived), "a replaced message has the place %+v in place of %+v", after[0], before[0])
	b.takeExactly("its delay has not passed, and its key waits for it")
	b.wait(3)
	again := b.takeExactly("its delay has passed", "a#0")
	b.must(same(again[0].Message, next) && again[0].Lapses == 0 && again[0].Lease.Fence == 2, "the replaced message was taken as %+v", again[0])
	b.ok(b.Done(b.ctx, again[0].Lease), "Done")
	b.takeExactly("it is done", "a#1")
	b.ok(s.Replace(b.ctx), "Replace of nothing")
}

func replacementRefused(b *storeBench) {
	s := b.inOrder()
	b.put("q", ofKey("a", 2)...)
	b.put("q", ofKey("b", 1)...)
	of := b.takeExactly("the heads", "a#0", "b#0")
	at := slices.IndexFunc(of, func(l store.Leased) bool { return l.Meta.ID == "a#0" })
	a, other := of[at], of[1-at]
	second := func(l store.Leased) store.Message {
		m := l.Message.Clone()
		m.Meta.Visit++
		return m
	}
	moved := second(other)
	moved.Meta.Key = "c"
	err := s.Replace(b.ctx, store.Replacement{Lease: a.Lease, Message: second(a)}, store.Replacement{Lease: other.Lease, Message: moved})
	b.must(errors.Is(err, message.ErrRefused), "a replacement with another key returned %v", err)
	b.must(b.list("q", store.Filter{IDs: []string{"a#0"}}, everything)[0].Meta.Visit == 0, "a part of a call that was refused is done")

	gone := a.Lease
	gone.Fence++
	err = s.Replace(b.ctx, store.Replacement{Lease: gone, Message: second(a)}, store.Replacement{Lease: other.Lease, Message: second(other)})
	b.lost(err, "Replace", gone)
	b.must(b.list("q", store.Filter{IDs: []string{"b#0"}}, everything)[0].Meta.Visit == 1, "one lost lease spoils a call")

	b.put("q", second(a)) // handed over by a late worker of another version
	b.ok(s.Replace(b.ctx, store.Replacement{Lease: a.Lease, Message: second(a)}), "Replace by a message that is queued")
	entries := b.list("q", store.Filter{Key: "a"}, everything)
	b.must(slices.Equal(entryIDs(entries), []string{"a#1", "a#0"}), "after Replace by a message that is queued, there are %q", entryIDs(entries))
	b.takeExactly("the key is free", "a#1", "b#0")
	err = s.Replace(b.ctx, store.Replacement{Lease: a.Lease, Message: store.Message{}})
	b.must(err != nil && !storearg.IsLost(err), "Replace by a message without an id returned %v", err)
}

// handOverAfterReplace hands over a message by a worker whose lease has ended. Meanwhile
// another worker has replaced the message: the failure of this visit is stored.
func handOverAfterReplace(b *storeBench) {
	s := b.inOrder()
	b.put("q", ofKey("a", 1)...)
	late := b.takeInOrder(2)
	b.must(len(late) == 1, "TakeInOrder returned %d messages", len(late))
	handOver := func(l store.Leased, visit int) error {
		m := l.Message.Clone()
		m.Meta.Visit = visit
		return s.HandOver(b.ctx, store.Move{Lease: l.Lease, Queue: "dead", Message: m, Visit: visit})
	}
	b.wait(2)
	of := b.takeExactly("the lease has ended", "a#0")
	next := of[0].Message.Clone()
	next.Meta.Visit = 1
	b.ok(s.Replace(b.ctx, store.Replacement{Lease: of[0].Lease, Message: next}), "Replace")
	b.lost(handOver(late[0], 1), "HandOver by a late worker after Replace", late[0].Lease)
	b.takeNone("dead", "the message waits for its next visit")
	again := b.takeExactly("its next visit", "a#0")
	b.lost(handOver(late[0], 1), "HandOver by a late worker in the next visit", late[0].Lease)
	b.ok(handOver(again[0], 2), "HandOver in the next visit")
	b.must(len(b.take("dead", 1000)) == 1, "the message of the next visit was not handed over")
}

// freedKeys checks all that removes the head of a key.
func freedKeys(b *storeBench) {
	b.inOrder()
	k, isKeeper := b.Store.(store.Keeper)
	edit := func(do store.Action) func(store.Leased, store.Entry) {
		return func(_ store.Leased, e store.Entry) {
			if !isKeeper {
				b.ok(b.Done(b.ctx, store.Lease{Queue: "q", Entry: strconv.FormatInt(e.Position, 10), Fence: e.Fence}), "Done")
				return
			}
			b.wait(1001) // a merge skips leased messages
			b.ok(k.Update(b.ctx, func(ctx context.Context, tx store.Tx) error {
				done, err := tx.Edit(ctx, store.Edit{Do: do, Queue: "q", Entry: e, To: "merged"})
				if err == nil && !done[0] {
					err = errors.New("it was not done")
				}
				return err
			}), string(do))
		}
	}
	purge := func(ids ...string) {
		n, err := b.inspector().Purge(b.ctx, "q", store.Filter{IDs: ids})
		b.ok(err, "Purge")
		b.must(n == len(ids), "Purge removed %d messages in place of %d", n, len(ids))
	}
	for what, free := range map[string]func(l store.Leased, e store.Entry){
		"move": func(l store.Leased, _ store.Entry) {
			b.ok(b.inspector().Move(b.ctx, store.Move{Lease: l.Lease, Queue: "dead", Message: l.Message}), "Move")
		},
		"move to its own queue": func(l store.Leased, _ store.Entry) {
			m := l.Message
			m.Meta.ID, m.Meta.Key = "moved", "moved"
			b.ok(b.inspector().Move(b.ctx, store.Move{Lease: l.Lease, Queue: "q", Message: m}), "Move")
		},
		"purge":       func(l store.Leased, _ store.Entry) { purge(l.Meta.ID) },
		"merge":       edit(store.Merge),
		"purge by id": edit(store.Purge),
		"purge of the messages behind it": func(l store.Leased, _ store.Entry) {
			purge(l.Meta.Key+"#1", l.Meta.Key+"#2")
			b.takeExactly("the first message of the key is in flight")
			b.put("q", ofKey(l.Meta.Key, 2)[1])
			b.ok(b.Done(b.ctx, l.Lease), "Done")
		},
	} {
		b.put("q", ofKey(what, 3)...)
		of := b.takeInOrder(1000)
		b.must(len(of) == 1, "%s: TakeInOrder returned %q in place of one message", what, ids(of))
		free(of[0], b.list("q", store.Filter{IDs: []string{what + "#0"}}, everything)[0])
		next := b.takeInOrder(1000)
		next = slices.DeleteFunc(next, func(l store.Leased) bool { return l.Meta.ID == "moved" })
		b.must(slices.Equal(ids(next), []string{what + "#1"}), "after %s of the first message TakeInOrder returned %q", what, ids(next))
		_, err := b.inspector().Purge(b.ctx, "q", store.Filter{})
		b.ok(err, "Purge")
	}

	late := ofKey("late", 2)
	late[0].Delay = b.units(100)
	b.put("q", late...)
	b.takeExactly("the delay of the first has not passed")
	purge("late#0")
	b.takeExactly("the first was purged before it was due", "late#1")
}

func heldHead(b *storeBench) {
	b.inOrder()
	k, ok := b.Store.(store.Keeper)
	if !ok {
		panic(notApplicable{})
	}
	edit := func(do store.Action, id string, want bool) {
		e := b.list("q", store.Filter{IDs: []string{id}}, everything)[0]
		b.ok(k.Update(b.ctx, func(ctx context.Context, tx store.Tx) error {
			done, err := tx.Edit(ctx, store.Edit{Do: do, Queue: "q", Entry: e})
			if err == nil && done[0] != want {
				err = fmt.Errorf("of %s it is %v that it was done", id, done[0])
			}
			return err
		}), string(do))
	}
	b.put("q", ofKey("a", 4)...)
	edit(store.Hold, "a#0", true)
	b.takeExactly("the first message of the key is held")
	edit(store.Due, "a#1", false)
	b.takeExactly("a message that waits for its predecessor is due already")
	c, err := b.inspector().Count(b.ctx, "q", store.Filter{})
	b.ok(err, "Count")
	b.must(c.Held == 1 && c.Next.IsZero(), "messages behind a held one can be taken at %v", c.Next)
	counter, ok := b.Store.(store.KeyCounter)
	if ok {
		byKey, err := counter.CountKeys(b.ctx, store.KeyQuery{Queues: []string{"q"}, Max: 1})
		b.ok(err, "CountKeys")
		b.must(byKey[0].Waiting == 4 && byKey[0].Held == 1 && byKey[0].Next.IsZero(), "a key with a held head has the counts %+v", byKey[0])
	}
	edit(store.Hold, "a#1", true) // it also waits for a#0
	edit(store.Release, "a#0", true)
	of := b.takeExactly("the first message of the key was released", "a#0")
	b.ok(b.Done(b.ctx, leasesOf(of)...), "Done")
	b.takeExactly("the next message is held as well")
	edit(store.Release, "a#1", true)
	of = b.takeExactly("it was released", "a#1")
	edit(store.Hold, "a#2", true)
	edit(store.Release, "a#2", true)
	b.takeExactly("a release does not overtake")
	b.ok(b.Done(b.ctx, leasesOf(of)...), "Done")
	b.takeExactly("the third", "a#2")
}

// floodOfAKey checks that many messages of a key in front of others do not delay them,
// and that a purge removes the parked messages.
func floodOfAKey(b *storeBench) {
	s := b.inOrder()
	const flood = 2500 // more than an engine looks at in one step
	b.put("q", ofKey("flood", flood)...)
	b.put("q", ofKey("a", 2)...)
	var got []string
	for range 2 {
		ms, err := s.TakeInOrder(b.ctx, "q", 1, b.units(10_000))
		b.ok(err, "TakeInOrder")
		got = append(got, ids(ms)...)
		b.wait(1)
		b.ok(b.Done(b.ctx, leasesOf(ms)...), "Done")
	}
	b.must(slices.Equal(got, []string{"flood#0", "a#0"}), "two calls took %q: the next message of the flood must come after others that are due", got)
	n, err := b.inspector().Purge(b.ctx, "q", store.Filter{Key: "flood"})
	b.ok(err, "Purge")
	b.must(n == flood-1, "Purge removed %d messages of the flood in place of %d", n, flood-1)
	b.takeExactly("the flood was purged", "a#1")
}

// withoutKeyBehindAFlood checks that messages without a key, and messages of other keys, do
// not wait until the store has parked the messages of a key in front of them, and that
// neither of them waits for the others. The flood and the message without a key in it are
// due at the same time.
func withoutKeyBehindAFlood(b *storeBench) {
	s := b.inOrder()
	flood := ofKey("flood", 4000)
	flood[3500].Meta.Key = ""
	b.put("q", flood...)
	var others []store.Message
	for i := range 30 {
		others = append(others, ofKey("k"+strconv.Itoa(i), 1)[0], newMessage(strconv.Itoa(i)))
	}
	b.put("q", others...)
	b.wait(2)
	withKeys, withoutKeys := 0, 0
	isInFlood := false
	for range 24 {
		ms, err := s.TakeInOrder(b.ctx, "q", 1, b.units(10_000))
		b.ok(err, "TakeInOrder")
		for i := range ms {
			switch {
			case ms[i].Meta.ID == flood[3500].Meta.ID:
				isInFlood = true
			case ms[i].Meta.Key != "":
				withKeys++
			default:
				withoutKeys++
			}
		}
	}
	b.must(isInFlood, "24 calls did not take the message without a key in the flood")
	b.must(withKeys >= 5 && withoutKeys >= 5, "24 calls took %d messages of other keys and %d without a key: neither may wait for the flood",
		withKeys, withoutKeys)
}

// orderBesideOthers checks that consumers that ignore the order lose no message, and that
// the order holds again after them.
func orderBesideOthers(b *storeBench) {
	b.inOrder()
	b.put("q", ofKey("a", 4)...)
	first := b.takeExactly("the first", "a#0")
	b.takeNone("q", "Take of messages that wait for others")
	claimed, err := b.inspector().Claim(b.ctx, "q", store.Filter{IDs: []string{"a#1", "a#2"}}, everything, b.units(1000))
	b.ok(err, "Claim")
	b.must(len(claimed) == 2, "Claim returned %q", ids(claimed))
	b.ok(b.Done(b.ctx, claimed[0].Lease), "Done")
	b.ok(b.Release(b.ctx, 0, claimed[1].Lease), "Release")
	b.takeExactly("a#2 was released behind a#0")
	b.ok(b.Release(b.ctx, 0, first[0].Lease), "Release")
	plain := b.takeOne("q", 1000)
	b.must(plain.Meta.ID == "a#0", "Take returned %q", plain.Meta.ID)
	b.ok(b.Done(b.ctx, plain.Lease), "Done")
	second := b.takeExactly("the head was done by a consumer that does not keep the order", "a#2")
	b.ok(b.Done(b.ctx, leasesOf(second)...), "Done")
	b.takeExactly("the last", "a#3")
}

// orderedConsumers lets many consumers take messages of some keys. Killed consumers do
// not settle what they have taken.
func orderedConsumers(b *storeBench) {
	b.inOrder()
	const keys, each, consumers = 12, 25, 8
	w := &orderWatch{left: keys * each, keys: map[string]*watchedKey{}}
	stores := []store.InOrder{b.inOrder(), b.open().(store.InOrder)}
	var all sync.WaitGroup
	for k := range keys {
		key := "key" + strconv.Itoa(k)
		w.keys[key] = &watchedKey{last: -1}
		all.Go(func() {
			for _, m := range ofKey(key, each) {
				w.note(stores[k%2].Put(b.ctx, "q", m))
			}
		})
	}
	for c := range consumers {
		random := rand.New(rand.NewPCG(19, uint64(c)))
		all.Go(func() {
			for w.isOpen() {
				w.clock.RLock() // no lease ends before it is noted
				ms, err := stores[c%2].TakeInOrder(b.ctx, "q", 1+random.IntN(5), b.units(20))
				w.note(err)
				for _, m := range ms {
					w.taken(m)
				}
				w.clock.RUnlock()
				for _, m := range ms {
					w.settle(b, stores[c%2], m, random.IntN(20))
				}
				if len(ms) == 0 {
					w.clock.Lock()
					b.wait(1)
					w.clock.Unlock()
				}
			}
		})
	}
	all.Wait()
	b.ok(errors.Join(w.errs...), "concurrent use")
	b.takeExactly("all messages are done")
	b.must(len(b.list("q", store.Filter{}, everything)) == 0, "messages are left")
}

// orderWatch checks the order of messages that many consumers take. Safe for concurrent
// use.
type orderWatch struct {
	clock sync.RWMutex // time passes while it is locked

	mu   sync.Mutex
	left int
	errs []error
	keys map[string]*watchedKey
}

type watchedKey struct {
	last    int         // the message taken last
	current store.Lease // its lease while in flight or if its consumer was killed; zero once settled
}

func (w *orderWatch) isOpen() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left > 0 && len(w.errs) == 0
}

// note notes an error, except for lost leases: time passes while consumers work.
func (w *orderWatch) note(err error) {
	if err == nil || storearg.IsLost(err) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, err)
}

// taken checks that a message is the next of its key, or the last one again.
func (w *orderWatch) taken(m store.Leased) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.keys[m.Meta.Key]
	n, err := strconv.Atoi(m.Meta.ID[strings.IndexByte(m.Meta.ID, '#')+1:])
	isAgain := n == k.last
	isNext := n == k.last+1 && k.current == (store.Lease{})
	if err != nil || !isAgain && !isNext {
		w.errs = append(w.errs, fmt.Errorf("%s was taken after %d, which is in flight with the lease %+v", m.Meta.ID, k.last, k.current))
	}
	k.last = n
	k.current = m.Lease
}

// settle settles a message unless its consumer is killed. choice is from 0 to 19.
func (w *orderWatch) settle(b *storeBench, s store.InOrder, m store.Leased, choice int) {
	var err error
	isLast := false
	switch choice {
	case 0:
		return
	case 1, 2:
		next := m.Message
		next.Meta.Visit++
		next.Delay = b.units(1)
		err = s.Replace(b.ctx, store.Replacement{Lease: m.Lease, Message: next})
	case 3:
		err = s.Release(b.ctx, 0, m.Lease)
	case 4:
		isLast = true
		w.free(m)
		err = s.Move(b.ctx, store.Move{Lease: m.Lease, Queue: "dead", Message: m.Message})
	default:
		isLast = true
		w.free(m)
		err = s.Done(b.ctx, m.Lease)
	}
	w.note(err)
	if isLast && err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.left--
	}
}

// free notes, before a message's last settlement, that its key's next may be taken.
func (w *orderWatch) free(m store.Leased) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.keys[m.Meta.Key]
	if k.current == m.Lease {
		k.current = store.Lease{}
	}
}
