package deliverytest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// StoreSetup opens the stores of one test, which share their messages.
type StoreSetup struct {
	// Open opens a store. Several may be open at once and share their messages.
	Open func() (store.Store, error)
	// Wait lets the time d pass on the stores' clock.
	Wait func(d time.Duration)
	// RealTime is true if time also passes without Wait. It skips some rules.
	RealTime bool
	// SetBack sets the machine's clock back by d; nil skips the rule about it.
	SetBack func(d time.Duration)
	// Unit is the delay and lease that the suite counts in; 0 means a second. With real
	// time it must be long against a call of the store.
	Unit time.Duration
	// Full opens a store of its own that is full after a few messages of 1 KiB, at most
	// 10,000; nil skips the rule.
	Full func() (store.Store, error)
	// LooksFirst is true if HandOver looks for purged messages before, and not in, the
	// transaction of the put. It skips the rule about a purge at the same time.
	LooksFirst bool
}

// RunStore checks stores against each rule of [store.Store] in a subtest, and of
// [store.Inspector], [store.Keeper] and jobs if they implement these. newSetup returns
// new, empty storage each time.
func RunStore(t *testing.T, newSetup func(t *testing.T) StoreSetup) {
	t.Helper()
	for _, r := range slices.Concat(storeRules, putRules, orderRules, workerRules, keyLimitRules, jobRules) {
		t.Run(r.name, func(t *testing.T) {
			setup := newSetup(t)
			if r.setsClock && setup.SetBack == nil {
				t.Skip("the clock of these stores cannot be set")
			}
			if r.isAtomic && setup.LooksFirst {
				t.Skip("a purge at the same time may be missed")
			}
			if r.fills && setup.Full == nil {
				t.Skip("no store of this kind can be filled")
			}
			if err := r.run(setup); err != nil {
				t.Error(err)
			}
		})
	}
}

// A storeRule panics with a broken to report how a store breaks it, so that faulty stores
// can test the suite.
type storeRule struct {
	name      string
	check     func(*storeBench)
	setsClock bool
	fills     bool
	isAtomic  bool // not checked with StoreSetup.LooksFirst
}

type broken struct{ error }

func (r storeRule) run(setup StoreSetup) (err error) {
	if setup.Unit == 0 {
		setup.Unit = time.Second
	}
	b := &storeBench{StoreSetup: setup, ctx: context.Background()}
	defer func() {
		for _, s := range b.sources {
			err = errors.Join(err, s.Close(b.ctx))
		}
		for _, s := range b.opened {
			err = errors.Join(err, s.Close())
		}
	}()
	defer func() {
		switch p := recover().(type) {
		case nil, notApplicable:
		case broken:
			err = p.error
		default: // the store returned too little, or panicked
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	b.Store = b.open()
	r.check(b)
	return nil
}

var storeRules = []storeRule{
	{name: "what was put is taken", check: putIsTaken},
	{name: "odd and large messages", check: oddAndLarge},
	{name: "large messages come in parts", check: largeInParts},
	{name: "never early", check: neverEarly},
	{name: "never early when the clock is set", check: neverEarlyWhenClockIsSet, setsClock: true},
	{name: "due first, taken first", check: dueFirst},
	{name: "the same again changes nothing", check: sameAgain},
	{name: "all or none", check: allOrNone},
	{name: "a lease keeps others away, until it ends", check: leaseKeepsAway},
	{name: "the loser of a lease cannot settle", check: loserCannotSettle},
	{name: "a lease that has ended still settles", check: endedLeaseSettles},
	{name: "leases that have ended are counted", check: lapsesAreCounted},
	{name: "an amendment", check: amendment},
	{name: "an amendment of the due time", check: amendedDelay},
	{name: "extend", check: extend},
	{name: "release", check: release},
	{name: "settled once", check: settledOnce},
	{name: "queues are separate", check: queuesAreSeparate},
	{name: "nothing disappears", check: nothingDisappears},
	{name: "a full store refuses", check: fullRefuses, fills: true},
	{name: "wrong arguments are refused", check: wrongArguments},
	{name: "inspector: the longest delay", check: longestDelay},
	{name: "a reopened store goes on", check: reopened},
	{name: "a closed store says so", check: closedSaysSo},
	{name: "an ended context ends calls", check: endedContext},
	{name: "concurrent consumers", check: concurrentConsumers},
	{name: "a random schedule", check: randomSchedule},
	{name: "inspector: pages", check: pages},
	{name: "inspector: filters", check: filters},
	{name: "inspector: count", check: count},
	{name: "inspector: counts by key", check: countsByKey},
	{name: "inspector: counts by key of leased and held messages", check: countsOfLeasedAndHeldKeys},
	{name: "inspector: purge", check: purge},
	{name: "inspector: claim", check: claim},
	{name: "inspector: move", check: move},
	{name: "inspector: two who move", check: twoWhoMove},
	{name: "inspector: hand over", check: handOver},
	{name: "inspector: hand over beside a purge", check: handOverBesidePurge, isAtomic: true},
	{name: "inspector: queues", check: queues},
}

// storeBench is a store under test. Its methods end the rule when a call fails.
type storeBench struct {
	StoreSetup
	store.Store
	ctx     context.Context
	opened  []store.Store
	sources []delivery.Source[string] // closed at the end of the rule
}

func (b *storeBench) open() store.Store {
	s, err := b.Open()
	b.ok(err, "Open")
	b.opened = append(b.opened, s)
	return s
}

func (b *storeBench) fail(format string, args ...any) { panic(broken{fmt.Errorf(format, args...)}) }

func (b *storeBench) ok(err error, what string) {
	if err != nil {
		b.fail("%s: %w", what, err)
	}
}

func (b *storeBench) must(holds bool, format string, args ...any) {
	if !holds {
		b.fail(format, args...)
	}
}

func (b *storeBench) put(queue string, ms ...store.Message) {
	b.ok(b.Put(b.ctx, queue, ms...), "Put")
}

// take takes everything that is due, for a lease of units.
func (b *storeBench) take(queue string, units int) []store.Leased {
	ms, err := b.Take(b.ctx, queue, 100_000, b.units(units))
	b.ok(err, "Take")
	return ms
}

func (b *storeBench) takeOne(queue string, units int) store.Leased {
	ms := b.take(queue, units)
	b.must(len(ms) == 1, "Take returned %d messages in place of one: %v", len(ms), ids(ms))
	return ms[0]
}

func (b *storeBench) takeNone(queue, why string) {
	ms := b.take(queue, 1)
	b.must(len(ms) == 0, "Take returned %v: %s", ids(ms), why)
}

func (b *storeBench) units(n int) time.Duration { return time.Duration(n) * b.Unit }
func (b *storeBench) wait(n int)                { b.Wait(b.units(n)) }

// lost checks that a call has refused exactly these leases.
func (b *storeBench) lost(err error, what string, leases ...store.Lease) {
	e, ok := errors.AsType[*store.LeaseError](err)
	b.must(ok && storearg.IsLost(err), "%s of a lease that is lost returned the error %v", what, err)
	b.must(slices.Equal(e.Lost, leases), "%s named the leases %v as lost in place of %v", what, e.Lost, leases)
}

func (b *storeBench) inspector() store.Inspector {
	i, ok := b.Store.(store.Inspector)
	if !ok {
		panic(notApplicable{})
	}
	return i
}

type notApplicable struct{}

func ids(ms []store.Leased) []string {
	list := make([]string, len(ms))
	for i := range ms {
		list[i] = ms[i].Meta.ID
	}
	return list
}

func newMessage(id string) store.Message {
	return store.Message{Meta: message.Meta{ID: id}, Payload: []byte("payload of " + id)}
}

func delayed(id string, d time.Duration) store.Message {
	m := newMessage(id)
	m.Delay = d
	return m
}

func full(id string) store.Message {
	return store.Message{
		Meta: message.Meta{
			ID: id, Put: "receipts//9", Key: "key", Origin: message.Origin{Source: "orders", Partition: "3", Position: "17"},
			Visit: 2, Attempts: 7, FirstFailure: time.Unix(1_700_000_000, 123_456_000).UTC(), LastFailure: time.Unix(1_700_000_100, 1000).UTC(),
			LastError: "no answer", Reasons: []string{"SOCKET_NOT_AVAILABLE", "TIMED_OUT"}, UnsafeToRepeat: true, Provider: "bank", Merges: 1,
			Request: `"0af7651916cd43dd8448eb211c80319c";seq=2;attempt=9`, Remembered: time.Unix(1_700_000_200, 2000).UTC(),
			Headers: map[string]string{
				"Traceparent": "00-1", "empty": "",
				// Law W4: headers of a later version.
				"Weir-Tenant": "north", "Weir-Meta-later": `{"a":[1.5,"<"]}`, "Weir-Message-later": `"b"`,
			},
		},
		Payload: []byte(`{"total":12}`), Schema: []byte("json"), Cause: store.Exhausted,
	}
}

// same compares messages without the due time and the delay, which a store sets.
func same(a, b store.Message) bool {
	for _, m := range []*store.Message{&a, &b} {
		m.Delay, m.Meta.Due = 0, time.Time{}
		if len(m.Payload) == 0 {
			m.Payload = nil
		}
		if len(m.Schema) == 0 {
			m.Schema = nil
		}
	}
	return reflect.DeepEqual(a, b)
}

func putIsTaken(b *storeBench) {
	want := full("a")
	given := want.Clone()
	b.put("q", given)
	given.Payload[0] = 'X'
	given.Meta.Reasons[0] = "changed"
	given.Meta.Headers["Traceparent"] = "changed"
	got := b.takeOne("q", 20)
	b.must(same(got.Message, want), "put %+v, taken %+v", want, got.Message)
	b.must(!got.Meta.Due.IsZero(), "the message has no due time")
	b.must(got.Lease.Fence == 1 && got.Lease.Queue == "q" && got.Lease.Entry != "", "the lease of a first Take is %+v", got.Lease)
	b.takeNone("q", "it is leased")
	b.ok(b.Done(b.ctx, got.Lease), "Done")
	b.wait(25)
	b.takeNone("q", "it is done")
	b.ok(b.Put(b.ctx, "q"), "Put of nothing")
	b.ok(b.Done(b.ctx), "Done of nothing")
	b.takeNone("never put", "the queue does not exist")
}

func oddAndLarge(b *storeBench) {
	odd := string([]byte{0, 0xff, 0xfe, '\\', 'x', '"', '\'', '\n', 0})
	var want []store.Message
	for i, s := range []string{odd, `\x00`, `\`, "Grüße, 世界", strings.Repeat("long", 200)} {
		m := full("odd" + strconv.Itoa(i) + s)
		m.Meta.Key, m.Meta.Provider = s, s
		m.Meta.Origin = message.Origin{Source: s, Partition: s, Position: s}
		m.Meta.Headers = map[string]string{s: s}
		m.Payload, m.Schema = []byte(s), []byte(s)
		want = append(want, m)
	}
	large := newMessage("large")
	large.Payload = make([]byte, 2<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(large.Payload) // never fails
	want = append(want, large, store.Message{Meta: message.Meta{ID: "empty"}})
	b.put("q", want...)
	got := b.take("q", 100)
	b.must(len(got) == len(want), "put %d, taken %d", len(want), len(got))
	for i := range want {
		at := slices.IndexFunc(got, func(l store.Leased) bool { return l.Meta.ID == want[i].Meta.ID })
		b.must(at >= 0, "%q was not taken: %q", want[i].Meta.ID, ids(got))
		b.must(same(got[at].Message, want[i]), "put %+v, taken %+v", want[i].Meta, got[at].Meta)
	}
}

// A call stops behind the message with which the payloads have 16 MiB.
func largeInParts(b *storeBench) {
	const n, size = 22, 900_000
	for i := range n {
		m := newMessage(fmt.Sprintf("%02d", i))
		m.Payload = make([]byte, size)
		b.put("q", m)
	}
	parts := func(what string, next func() (got []string)) {
		var calls []int
		var all []string
		for got := next(); len(got) > 0; got = next() {
			calls, all = append(calls, len(got)), append(all, got...)
		}
		slices.Sort(all)
		b.must(slices.Equal(calls, []int{19, 3}) && len(slices.Compact(all)) == n, "%s: %d of %d bytes came in calls of %v: %v", what, n, size, calls, all)
	}
	var held []store.Lease
	leased := func(ls []store.Leased, err error) []string {
		b.ok(err, "Take or Claim")
		for _, l := range ls {
			held = append(held, l.Lease)
		}
		return ids(ls)
	}
	if i, ok := b.Store.(store.Inspector); ok {
		page := store.Page{Max: 100}
		parts("List", func() []string {
			es := b.list("q", store.Filter{}, page)
			if len(es) > 0 {
				page.After = es[len(es)-1].Position
			}
			return entryIDs(es)
		})
		parts("Claim", func() []string {
			return leased(i.Claim(b.ctx, "q", store.Filter{}, store.Page{Max: 100}, b.units(1000)))
		})
		b.ok(b.Release(b.ctx, 0, held...), "Release")
	}
	parts("Take", func() []string { return leased(b.Take(b.ctx, "q", 100, b.units(1000))) })
}

// Law D3.
func neverEarly(b *storeBench) {
	b.put("q", delayed("a", b.units(3)), delayed("b", b.units(6)), newMessage("now"))
	now := b.takeOne("q", 1000)
	b.must(now.Meta.ID == "now", "took %q before its delay has passed", now.Meta.ID)
	b.wait(2)
	b.takeNone("q", "its delay has not passed")
	b.wait(1)
	got := b.takeOne("q", 1000)
	b.must(got.Meta.ID == "a", "took %q, due is a", got.Meta.ID)
	b.must(!got.Meta.Due.Before(now.Meta.Due.Add(b.units(3))), "a was due at %v, put at %v with a delay of %v", got.Meta.Due, now.Meta.Due, b.units(3))
	b.wait(3)
	b.must(b.takeOne("q", 1000).Meta.ID == "b", "b is not due after its delay")
}

// Law D3.
func neverEarlyWhenClockIsSet(b *storeBench) {
	b.put("q", delayed("before", b.units(10)))
	b.put("leased", newMessage("leased"))
	b.takeOne("leased", 10)
	b.wait(5)
	b.takeNone("q", "its delay has not passed")
	b.SetBack(b.units(100))
	b.put("q", delayed("after", b.units(10)))
	other := b.open()
	b.ok(other.Put(b.ctx, "q", delayed("by another store", b.units(10))), "Put")
	b.wait(4)
	for _, s := range []store.Store{b.Store, other} {
		for _, q := range []string{"q", "leased"} {
			ms, err := s.Take(b.ctx, q, 10, b.units(1000))
			b.ok(err, "Take")
			b.must(len(ms) == 0, "%v of %s came early when the clock was set back", ids(ms), q)
		}
	}
	b.wait(1)
	b.must(b.takeOne("q", 1000).Meta.ID == "before", "before is not due after its delay, since the clock was set back")
	b.takeOne("leased", 1000)
	b.wait(4)
	b.takeNone("q", "the delay has not passed since the clock was set back")
	b.wait(1)
	b.must(len(b.take("q", 1000)) == 2, "messages do not become due after the clock was set back")
}

func dueFirst(b *storeBench) {
	b.put("q", delayed("d", b.units(4)), delayed("b", b.units(2)))
	b.put("q", delayed("a", b.units(1)), delayed("c", b.units(3)))
	b.wait(5)
	for _, want := range []string{"a", "b", "c", "d"} {
		ms, err := b.Take(b.ctx, "q", 1, b.units(1000))
		b.ok(err, "Take")
		b.must(len(ms) == 1 && ms[0].Meta.ID == want, "Take of one returned %v in place of %s", ids(ms), want)
	}
}

func sameAgain(b *storeBench) {
	first := delayed("a", b.units(5))
	other := delayed("a", 0)
	other.Payload = []byte("another payload")
	b.put("q", first, other)
	b.put("q", other)
	b.takeNone("q", "the delay of the first Put counts")
	b.wait(5)
	got := b.takeOne("q", 1000)
	b.must(same(got.Message, first), "a second Put has changed the message to %+v", got.Message)
	b.put("q", other)
	b.takeNone("q", "Put has doubled a message that is leased")

	for _, change := range []func(*message.Meta){func(m *message.Meta) { m.Visit++ }, func(m *message.Meta) { m.Merges++ }} {
		next := newMessage("a")
		change(&next.Meta)
		b.put("q", next)
		b.must(same(b.takeOne("q", 1000).Message, next), "a message of another visit or merge is another message")
	}
	b.ok(b.Done(b.ctx, got.Lease), "Done")
	b.put("q", other)
	b.must(same(b.takeOne("q", 1000).Message, other), "what is done can be put again")
}

func allOrNone(b *storeBench) {
	err := b.Put(b.ctx, "q", newMessage("good"), newMessage(""), newMessage("good too"))
	b.must(err != nil, "a message without an id was put")
	b.takeNone("q", "a Put that failed has put a part")
}

func leaseKeepsAway(b *storeBench) {
	b.put("q", newMessage("a"))
	first := b.takeOne("q", 10)
	b.wait(9)
	b.takeNone("q", "it is leased")
	b.wait(1)
	second := b.takeOne("q", 10)
	b.must(second.Lease.Fence > first.Lease.Fence, "the fencing number went from %d to %d", first.Lease.Fence, second.Lease.Fence)
	b.must(second.Lease.Entry == first.Lease.Entry, "the same message has the names %q and %q", first.Lease.Entry, second.Lease.Entry)
}

func loserCannotSettle(b *storeBench) {
	b.put("q", newMessage("a"), newMessage("b"))
	losers := b.take("q", 1)
	b.wait(1)
	winners := b.take("q", 1000)
	b.put("other", newMessage("mine"))
	mine := b.takeOne("other", 1000).Lease
	for _, l := range losers {
		b.lost(b.Extend(b.ctx, b.units(2000), mine, l.Lease), "Extend", l.Lease)
		b.lost(b.Release(b.ctx, 0, l.Lease), "Release", l.Lease)
		b.lost(b.Release(b.ctx, storearg.ForGood, l.Lease), "Release for good", l.Lease)
	}
	b.lost(b.Done(b.ctx, losers[0].Lease, mine, losers[1].Lease), "Done", losers[0].Lease, losers[1].Lease)
	b.lost(b.Done(b.ctx, mine), "the other leases of a call are served: a second Done", mine)
	b.takeNone("q", "a loser has released the winner's message")
	b.ok(b.Done(b.ctx, winners[0].Lease, winners[1].Lease), "Done of the winner")
	// An entry's name is not used again.
	b.put("q", newMessage("a"))
	b.takeOne("q", 1000)
	for _, l := range []store.Lease{winners[0].Lease, winners[1].Lease, losers[0].Lease, losers[1].Lease} {
		b.lost(b.Done(b.ctx, l), "Done of a message that was put again", l)
	}
	forged := store.Lease{Queue: "q", Entry: "no such entry", Fence: 1}
	b.lost(b.Done(b.ctx, forged), "Done of an entry that never was", forged)
}

// Law W2: ended leases show a message that kills its consumers.
func lapsesAreCounted(b *storeBench) {
	b.put("q", newMessage("a"))
	take := func(want int, why string) store.Leased {
		l := b.takeOne("q", 10)
		b.must(l.Lapses == want, "%s: Lapses is %d, want %d", why, l.Lapses, want)
		return l
	}
	b.ok(b.Release(b.ctx, 0, take(0, "a new message").Lease), "Release")
	b.ok(b.Extend(b.ctx, b.units(20), take(0, "released before its lease has ended").Lease), "Extend")
	b.wait(21)
	l := take(1, "after a lease that has ended")
	b.ok(b.Release(b.ctx, 0, l.Lease), "Release")
	take(1, "released after a lease that has ended")
	b.wait(11)
	b.Store = b.open()
	b.ok(b.Done(b.ctx, take(2, "after the second one, in another store").Lease), "Done")
	b.put("q", newMessage("a"))
	take(0, "put again")
}

// amendment is for stores that can change a message that was taken.
func amendment(b *storeBench) {
	c := b.Store
	choose := func(l store.Lease, provider string) error {
		return c.Amend(b.ctx, l, store.Amendment{Provider: &provider})
	}
	const odd = "north\x00\xff %"
	b.put("q", newMessage("a"))
	first := b.takeOne("q", 10)
	err := choose(first.Lease, odd)
	if errors.Is(err, errors.ErrUnsupported) {
		return
	}
	b.ok(err, "Amend")
	b.must(errors.Is(choose(first.Lease, strings.Repeat("x", 1025)), message.ErrRefused), "a name of 1,025 bytes is not refused")
	b.must(c.Amend(b.ctx, first.Lease, store.Amendment{}) != nil, "an amendment without a change returned no error")
	b.must(c.Amend(b.ctx, first.Lease, store.Amendment{Delay: -1}) != nil, "a negative delay returned no error")
	b.ok(b.Release(b.ctx, 0, first.Lease), "Release")
	second := b.takeOne("q", 10)
	b.must(second.Meta.Provider == odd, "the provider is %q, want %q", second.Meta.Provider, odd)
	b.lost(choose(first.Lease, "south"), "Amend under a lease that is lost", first.Lease)
	b.ok(choose(second.Lease, "south"), "another Amend")
	b.ok(b.Release(b.ctx, 0, second.Lease), "Release")
	third := b.takeOne("q", 10)
	b.must(third.Meta.Provider == "south", "the provider is %q, want %q", third.Meta.Provider, "south")
	b.ok(choose(third.Lease, ""), "Amend that removes the provider")
	b.ok(b.Release(b.ctx, 0, third.Lease), "Release")
	fourth := b.takeOne("q", 10)
	b.must(fourth.Meta.Provider == "", "the provider is %q after it was removed", fourth.Meta.Provider)
	b.ok(b.Done(b.ctx, fourth.Lease), "Done")
	b.lost(choose(fourth.Lease, "west"), "Amend after Done", fourth.Lease)
}

func amendedDelay(b *storeBench) {
	provider := "north"
	b.put("q", newMessage("a"))
	first := b.takeOne("q", 2)
	err := b.Amend(b.ctx, first.Lease, store.Amendment{Provider: &provider, Delay: b.units(10)})
	if errors.Is(err, errors.ErrUnsupported) {
		return
	}
	b.ok(err, "Amend with a delay after the end of the lease")
	b.wait(9)
	b.takeNone("q", "the delay of Amend has not passed")
	b.wait(1)
	second := b.takeOne("q", 20)
	b.must(second.Meta.Provider == provider, "the provider is %q, want %q", second.Meta.Provider, provider)
	b.must(!second.Meta.Due.Before(first.Meta.Due.Add(b.units(10))), "the due time is %v, it was %v before a delay of %v",
		second.Meta.Due, first.Meta.Due, b.units(10))
	b.lost(b.Done(b.ctx, first.Lease), "Done under a lease that has ended", first.Lease)
	b.ok(b.Amend(b.ctx, second.Lease, store.Amendment{Delay: b.units(1)}), "Amend with a delay within the lease")
	b.wait(2)
	b.takeNone("q", "the lease has not ended")
	b.ok(b.Extend(b.ctx, b.units(5), second.Lease), "Extend after Amend")
	b.ok(b.Done(b.ctx, second.Lease), "Done after Amend")
	b.wait(20)
	b.takeNone("q", "it is done")
}

func endedLeaseSettles(b *storeBench) {
	b.put("q", newMessage("a"), newMessage("b"))
	for _, l := range b.take("q", 1) {
		b.wait(2)
		if l.Meta.ID == "a" {
			b.ok(b.Done(b.ctx, l.Lease), "Done after the end of a lease that no one has taken over")
			continue
		}
		b.ok(b.Extend(b.ctx, b.units(10), l.Lease), "Extend after the end of a lease that no one has taken over")
		b.takeNone("q", "it was extended")
		b.ok(b.Done(b.ctx, l.Lease), "Done")
	}
}

func extend(b *storeBench) {
	b.put("q", newMessage("a"))
	l := b.takeOne("q", 2).Lease
	b.ok(b.Extend(b.ctx, b.units(10), l), "Extend")
	b.wait(9)
	b.takeNone("q", "its lease was extended")
	b.ok(b.Extend(b.ctx, b.units(1), l), "Extend to a sooner end")
	b.wait(1)
	b.takeOne("q", 1)
}

func release(b *storeBench) {
	b.put("q", newMessage("a"))
	first := b.takeOne("q", 1000)
	b.ok(b.Release(b.ctx, b.units(3), first.Lease), "Release")
	b.lost(b.Done(b.ctx, first.Lease), "Done after Release", first.Lease)
	b.lost(b.Release(b.ctx, 0, first.Lease), "a second Release", first.Lease)
	b.wait(2)
	b.takeNone("q", "the delay of Release has not passed")
	b.wait(1)
	second := b.takeOne("q", 1000)
	b.must(second.Lease.Fence > first.Lease.Fence, "the fencing number went from %d to %d", first.Lease.Fence, second.Lease.Fence)
	b.must(!second.Meta.Due.Before(first.Meta.Due.Add(b.units(3))), "the due time of a released message is %v, it was %v before", second.Meta.Due, first.Meta.Due)
	b.ok(b.Release(b.ctx, 0, second.Lease), "Release without a delay")
	b.takeOne("q", 1000)
}

func settledOnce(b *storeBench) {
	b.put("q", newMessage("a"))
	l := b.takeOne("q", 1000).Lease
	b.ok(b.Done(b.ctx, l), "Done")
	b.lost(b.Done(b.ctx, l), "a second Done", l)
	b.lost(b.Extend(b.ctx, b.Unit, l), "Extend after Done", l)
	b.lost(b.Release(b.ctx, 0, l), "Release after Done", l)
	b.takeNone("q", "it is done")
}

func queuesAreSeparate(b *storeBench) {
	b.put("q", newMessage("a"))
	b.put("r", newMessage("a"))
	l := b.takeOne("q", 1000).Lease
	wrong := l
	wrong.Queue = "r"
	b.lost(b.Done(b.ctx, wrong), "Done with the name of another queue", wrong)
	b.ok(b.Done(b.ctx, l), "Done")
	b.takeOne("r", 1000)
}

// Law D5.
func nothingDisappears(b *storeBench) {
	const n = 2000
	var ms []store.Message
	for i := range n {
		ms = append(ms, newMessage(strconv.Itoa(i)))
	}
	b.put("q", ms...)
	if !b.RealTime {
		b.Wait(10 * 365 * 24 * time.Hour)
	}
	seen := map[string]bool{}
	for range n {
		ms, err := b.Take(b.ctx, "q", 100, b.units(10_000))
		b.ok(err, "Take")
		if len(ms) == 0 {
			break
		}
		b.must(len(ms) <= 100, "Take of 100 returned %d", len(ms))
		for _, m := range ms {
			seen[m.Meta.ID] = true
		}
	}
	b.must(len(seen) == n, "of %d messages %d are left", n, len(seen))
}

// Law D5.
func fullRefuses(b *storeBench) {
	s, err := b.Full()
	b.ok(err, "Full")
	b.opened = append(b.opened, s)
	put := 0
	m := newMessage("")
	m.Payload = make([]byte, 1024)
	for ; put < 10_000; put++ {
		m.Meta.ID = strconv.Itoa(put)
		err = s.Put(b.ctx, "q", m)
		if err != nil {
			break
		}
	}
	b.must(errors.Is(err, store.ErrFull), "after %d messages of 1 KiB Put returned %v, which does not match ErrFull", put, err)
	ms, err := s.Take(b.ctx, "q", 100_000, b.units(1000))
	if err != nil { // a lease needs room, too
		i, ok := s.(store.Inspector)
		b.must(ok, "Take: %v", err)
		c, err := i.Count(b.ctx, "q", store.Filter{})
		b.ok(err, "Count")
		b.must(c.Messages == put, "%d were put before the store was full, %d are there", put, c.Messages)
		return
	}
	b.must(len(ms) == put, "%d were put before the store was full, %d are there", put, len(ms))
}

// longestDelay checks that engines have the same longest delay and can store its end.
func longestDelay(b *storeBench) {
	b.inspector()
	b.put("q", newMessage("now"), delayed("never", math.MaxInt64), delayed("longest", storearg.LongestDelay))
	es := b.list("q", store.Filter{}, everything)
	b.must(len(es) == 3, "%d messages are there", len(es))
	for _, e := range es[1:] {
		b.must((e.Meta.Due.Sub(es[0].Meta.Due)-storearg.LongestDelay).Abs() < time.Hour, "%q is due at %v", e.Meta.ID, e.Meta.Due)
	}
}

func wrongArguments(b *storeBench) {
	b.put("q", newMessage("a"))
	l := b.takeOne("q", 1000).Lease
	negative := delayed("b", -1)
	for what, f := range map[string]func() error{
		"Put without a queue":          func() error { return b.Put(b.ctx, "", newMessage("b")) },
		"Put without an id":            func() error { return b.Put(b.ctx, "q", newMessage("")) },
		"Put with a negative delay":    func() error { return b.Put(b.ctx, "q", negative) },
		"Take without a queue":         func() error { _, err := b.Take(b.ctx, "", 1, b.Unit); return err },
		"Take of nothing":              func() error { _, err := b.Take(b.ctx, "q", 0, b.Unit); return err },
		"Take without a lease":         func() error { _, err := b.Take(b.ctx, "q", 1, 0); return err },
		"Extend by nothing":            func() error { return b.Extend(b.ctx, 0, l) },
		"Release with a negative time": func() error { return b.Release(b.ctx, -1, l) },
	} {
		b.must(f() != nil, "%s returned no error", what)
	}
	b.ok(b.Done(b.ctx, l), "Done after wrong calls")
}

func reopened(b *storeBench) {
	other := b.open()
	b.put("q", newMessage("a"), delayed("b", b.units(20)))
	l := b.takeOne("q", 10)
	b.ok(b.Close(), "Close")
	b.Store = other
	b.takeNone("q", "another store has leased it")
	b.wait(10)
	second := b.takeOne("q", 1000)
	b.must(second.Meta.ID == "a" && second.Lease.Fence > l.Lease.Fence, "taken again: %q, fencing number %d", second.Meta.ID, second.Lease.Fence)
	b.wait(10)
	b.must(b.takeOne("q", 1000).Meta.ID == "b", "b is not there")
}

func closedSaysSo(b *storeBench) {
	b.put("q", newMessage("a"))
	l := b.takeOne("q", 1000).Lease
	s := b.Store
	b.ok(s.Close(), "Close")
	b.ok(s.Close(), "a second Close")
	for what, f := range map[string]func() error{
		"Put":     func() error { return s.Put(b.ctx, "q", newMessage("b")) },
		"Take":    func() error { _, err := s.Take(b.ctx, "q", 1, b.Unit); return err },
		"Extend":  func() error { return s.Extend(b.ctx, b.Unit, l) },
		"Done":    func() error { return s.Done(b.ctx, l) },
		"Release": func() error { return s.Release(b.ctx, 0, l) },
		"Amend":   func() error { return s.Amend(b.ctx, l, store.Amendment{Delay: b.Unit}) },
	} {
		err := f()
		b.must(errors.Is(err, store.ErrClosed), "%s after Close returned %v", what, err)
	}
}

func endedContext(b *storeBench) {
	ctx, cancel := context.WithCancelCause(b.ctx)
	cause := errors.New("the cause")
	cancel(cause)
	for what, err := range map[string]error{
		"Put":  b.Put(ctx, "q", newMessage("b")),
		"Done": b.Done(ctx, store.Lease{Queue: "q", Entry: "1", Fence: 1}),
	} {
		b.must(errors.Is(err, cause) || errors.Is(err, context.Canceled), "%s with an ended context returned %v", what, err)
	}
	_, err := b.Take(ctx, "q", 1, b.Unit)
	b.must(errors.Is(err, cause) || errors.Is(err, context.Canceled), "Take with an ended context returned %v", err)
	b.takeNone("q", "a Put with an ended context has put it")
}

func concurrentConsumers(b *storeBench) {
	const producers, consumers, each = 4, 4, 20
	stores := []store.Store{b.Store, b.open()}
	var mu sync.Mutex
	seen := map[string]int{}
	var errs []error
	var producing, consuming sync.WaitGroup
	for p := range producers {
		producing.Go(func() {
			for i := range each {
				m := newMessage(fmt.Sprintf("%d/%d", p, i))
				if err := errors.Join(stores[p%2].Put(b.ctx, "q", m), stores[(p+1)%2].Put(b.ctx, "q", m)); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for c := range consumers {
		consuming.Go(func() {
			s := stores[c%2]
			for {
				ms, err := s.Take(b.ctx, "q", 7, b.units(10_000))
				mu.Lock()
				for _, m := range ms {
					seen[m.Meta.ID]++
					// Not Done, so that the second Put finds each.
				}
				if err != nil {
					errs = append(errs, err)
				}
				ready := len(seen) >= producers*each || len(errs) > 0
				mu.Unlock()
				if ready {
					return
				}
			}
		})
	}
	producing.Wait()
	consuming.Wait()
	b.ok(errors.Join(errs...), "concurrent use")
	for id, n := range seen {
		b.must(n == 1, "%s was taken %d times at once", id, n)
	}
	b.takeNone("q", "all are leased")
}
