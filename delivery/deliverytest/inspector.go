package deliverytest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirflow/weir/delivery/store"
)

func (b *storeBench) list(queue string, f store.Filter, p store.Page) []store.Entry {
	es, err := b.inspector().List(b.ctx, queue, f, p)
	b.ok(err, "List")
	return es
}

func entryIDs(es []store.Entry) []string {
	list := make([]string, len(es))
	for i := range es {
		list[i] = es[i].Meta.ID
	}
	return list
}

var everything = store.Page{Max: 100_000}

// dozen puts the messages 0 to 11, which differ in all that a filter can see.
func dozen(b *storeBench, queue string) {
	for i := range 12 {
		m := full(strconv.Itoa(i))
		m.Meta.Key = "key" + strconv.Itoa(i%3) + "\xff"
		m.Meta.Origin.Source = "source%" + strconv.Itoa(i%4)
		m.Meta.Provider = "provider" + strconv.Itoa(i%5)
		m.Meta.LastError = "failed: 100%_of " + strconv.Itoa(i%2)
		m.Meta.Reasons = []string{"REASON_" + strconv.Itoa(i%2), "ALWAYS", "ALWAYS"}
		m.Cause = []store.Cause{store.Permanent, store.Exhausted, store.UnsafeToRepeat}[i%3]
		m.Delay = b.units(1000 * (i % 2))
		b.put(queue, m)
		if i == 3 || i == 7 {
			b.wait(1)
		}
	}
}

func pages(b *storeBench) {
	dozen(b, "q")
	b.put("other", newMessage("other"))
	all := b.list("q", store.Filter{}, everything)
	b.must(len(all) == 12, "List returned %v", entryIDs(all))
	for i, e := range all {
		b.must(e.Meta.ID == strconv.Itoa(i), "List returned %v: not in the order of arrival", entryIDs(all))
		b.must(i == 0 || e.Position > all[i-1].Position, "position %d follows %d", e.Position, all[max(0, i-1)].Position)
		b.must(i == 0 || !e.Arrived.Before(all[i-1].Arrived), "arrived at %v after %v", e.Arrived, all[max(0, i-1)].Arrived)
		b.must(e.Fence == 0 && e.LeasedUntil.IsZero(), "a message that was never taken has the fencing number %d and is leased until %v", e.Fence, e.LeasedUntil)
		b.must(!e.Arrived.IsZero() && !e.Meta.Due.Before(e.Arrived), "arrived at %v, due %v", e.Arrived, e.Meta.Due)
	}
	b.must(len(b.list("q", store.Filter{}, everything)) == 12, "List has changed something")

	// Messages that were read, and messages to come, are removed while pages are read.
	var read []string
	for p := (store.Page{Max: 3, Until: all[10].Position}); ; {
		es := b.list("q", store.Filter{}, p)
		if len(es) == 0 {
			break
		}
		read = append(read, entryIDs(es)...)
		p.After = es[len(es)-1].Position
		if len(read) == 3 {
			_, err := b.inspector().Purge(b.ctx, "q", store.Filter{IDs: []string{"1", "4", "5"}})
			b.ok(err, "Purge")
			b.put("q", newMessage("later"))
			b.must(len(b.take("q", 1000)) > 0, "nothing is due")
		}
	}
	b.must(slices.Equal(read, []string{"0", "1", "2", "3", "6", "7", "8", "9", "10"}), "the pages had %v", read)
	leased := b.list("q", store.Filter{IDs: []string{"later"}}, everything)[0]
	b.must(leased.Fence == 1 && leased.LeasedUntil.After(leased.Arrived), "a leased message has the fencing number %d and is leased until %v", leased.Fence, leased.LeasedUntil)
	_, err := b.inspector().List(b.ctx, "q", store.Filter{}, store.Page{})
	b.must(err != nil, "a page of nothing is no error")
}

func filters(b *storeBench) {
	dozen(b, "q")
	all := b.list("q", store.Filter{}, everything)
	for _, f := range []store.Filter{
		{},
		{IDs: []string{"3", "5", "none"}},
		{Key: "key1\xff"},
		{Key: "key1"},
		{Source: "source%2"},
		{Provider: "provider3"},
		{Cause: store.UnsafeToRepeat},
		{Reason: "REASON_1"},
		{Reason: "REASON_"},
		{Error: "100%_of 1"},
		{Error: "_%"},
		{Error: "FAILED"},
		{Since: all[4].Arrived},
		{Before: all[4].Arrived},
		{Since: all[4].Arrived, Before: all[8].Arrived},
		{Since: all[4].Arrived.Add(1)},
		{Key: "key0\xff", Cause: store.Permanent, Reason: "ALWAYS", Error: "0", Since: all[0].Arrived, Provider: "provider1", Source: "source%2", IDs: []string{"6", "7"}},
	} {
		var want []string
		for _, e := range all {
			if f.Match(&e) {
				want = append(want, e.Meta.ID)
			}
		}
		got := entryIDs(b.list("q", f, everything))
		b.must(slices.Equal(got, want), "the filter %+v returned %v, Match says %v", f, got, want)
		c, err := b.inspector().Count(b.ctx, "q", f)
		b.ok(err, "Count")
		b.must(c.Messages == len(want), "the filter %+v counts %d, Match says %v", f, c.Messages, want)
	}
}

func count(b *storeBench) {
	i := b.inspector()
	c, err := i.Count(b.ctx, "q", store.Filter{})
	b.ok(err, "Count")
	b.must(c.Messages == 0 && c.Oldest.IsZero() && c.Age == 0 && c.Last == 0 && c.Next.IsZero(), "an empty queue counts %+v", c)
	dozen(b, "q")
	b.wait(3)
	all := b.list("q", store.Filter{}, everything)
	c, err = i.Count(b.ctx, "q", store.Filter{})
	b.ok(err, "Count")
	b.must(c.Messages == 12 && c.Oldest.Equal(all[0].Arrived) && c.Last == all[11].Position, "the count is %+v", c)
	b.must(c.Age >= b.units(5) && (b.RealTime || c.Age == b.units(5)), "the oldest has waited %v, the count says %v", b.units(5), c.Age)
	b.must(maps.Equal(c.Causes, map[store.Cause]int{store.Permanent: 4, store.Exhausted: 4, store.UnsafeToRepeat: 4}), "the causes are %v", c.Causes)
	b.must(maps.Equal(c.Reasons, map[string]int{"REASON_0": 6, "REASON_1": 6, "ALWAYS": 12}), "the reasons are %v", c.Reasons)
	b.must(c.Next.Equal(all[0].Meta.Due), "the first is due at %v, the count says %v", all[0].Meta.Due, c.Next)
	c, err = i.Count(b.ctx, "q", store.Filter{Reason: "REASON_1"}) // not due
	b.ok(err, "Count")
	b.must(c.Next.Equal(all[1].Meta.Due), "the first that matches is due at %v, the count says %v", all[1].Meta.Due, c.Next)
	b.must(len(b.take("q", 500)) == 6, "Take has not returned what is due")
	var end time.Time
	for _, e := range b.list("q", store.Filter{}, everything) {
		if !e.LeasedUntil.IsZero() && (end.IsZero() || e.LeasedUntil.Before(end)) {
			end = e.LeasedUntil
		}
	}
	c, err = i.Count(b.ctx, "q", store.Filter{})
	b.ok(err, "Count")
	b.must(c.Next.Equal(end), "the first lease ends at %v, the count says %v", end, c.Next)
}

func purge(b *storeBench) {
	i := b.inspector()
	dozen(b, "q")
	dozen(b, "other")
	leased := b.take("q", 1000)
	n, err := i.Purge(b.ctx, "q", store.Filter{Cause: store.Permanent})
	b.ok(err, "Purge")
	left := entryIDs(b.list("q", store.Filter{}, everything))
	b.must(n == 4 && slices.Equal(left, []string{"1", "2", "4", "5", "7", "8", "10", "11"}), "Purge returned %d and left %v", n, left)
	for _, l := range leased {
		if err := b.Done(b.ctx, l.Lease); l.Cause == store.Permanent {
			b.lost(err, "Done of what was purged", l.Lease)
		} else {
			b.ok(err, "Done of what was not purged")
		}
	}
	n, err = i.Purge(b.ctx, "q", store.Filter{})
	b.ok(err, "Purge")
	b.must(n == 4, "Purge of the rest returned %d", n)
	b.must(len(b.list("other", store.Filter{}, everything)) == 12, "Purge has removed from another queue")
}

// Law W2: a Claim also counts ended leases.
func claim(b *storeBench) {
	i := b.inspector()
	dozen(b, "q")
	all := b.list("q", store.Filter{}, everything)
	taken := b.take("q", 10) // 0, 2, … are due
	b.must(len(taken) == 6, "Take returned %v", ids(taken))
	first, err := i.Claim(b.ctx, "q", store.Filter{}, store.Page{Max: 2, After: all[1].Position}, b.units(5))
	b.ok(err, "Claim")
	b.must(slices.Equal(ids(first), []string{"3", "5"}), "Claim returned %v", ids(first))
	rest, err := i.Claim(b.ctx, "q", store.Filter{}, store.Page{Max: 100, Until: all[10].Position}, b.units(5))
	b.ok(err, "Claim")
	b.must(slices.Equal(ids(rest), []string{"1", "7", "9"}), "a second Claim returned %v", ids(rest))
	for _, l := range slices.Concat(first, rest) {
		b.must(l.Lease.Fence == 1 && l.Position > 0, "the lease of a first Claim is %+v at position %d", l.Lease, l.Position)
		b.must(l.Meta.Reasons != nil && l.Payload != nil, "Claim returned %+v", l)
	}
	b.ok(b.Done(b.ctx, first[0].Lease), "Done")
	b.ok(b.Release(b.ctx, 0, first[1].Lease), "Release")
	b.wait(5)
	again, err := i.Claim(b.ctx, "q", store.Filter{Reason: "REASON_1"}, everything, b.units(5))
	b.ok(err, "Claim")
	b.must(slices.Equal(ids(again), []string{"1", "5", "7", "9", "11"}), "after the leases Claim returned %v", ids(again))
	for i, want := range []int{1, 0, 1, 1, 0} { // 5 was released, 11 is new
		b.must(again[i].Lapses == want, "Claim returned %s with %d lapses in place of %d", again[i].Meta.ID, again[i].Lapses, want)
	}
	b.lost(b.Done(b.ctx, rest[0].Lease), "Done of one that was claimed again", rest[0].Lease)
	_, err = i.Claim(b.ctx, "q", store.Filter{}, everything, 0)
	b.must(err != nil, "a Claim without a lease is no error")
}

func move(b *storeBench) {
	i := b.inspector()
	b.put("dead", full("a"), full("b"), full("c"), full("d"))
	other := full("b")
	other.Meta.Visit, other.Payload = 0, []byte("there already")
	b.put("q", other)
	claimed, err := i.Claim(b.ctx, "dead", store.Filter{}, everything, b.units(5))
	b.ok(err, "Claim")
	_, err = i.Purge(b.ctx, "dead", store.Filter{IDs: []string{"c"}})
	b.ok(err, "Purge")
	var moves []store.Move
	for _, l := range claimed {
		m := l.Clone()
		m.Meta.Visit = 0
		m.Meta.LastError = "changed"
		m.Cause = ""
		if m.Meta.ID == "d" {
			m.Meta.Visit, m.Delay = 3, b.units(20) // the rest may be slow
			moves = append(moves, store.Move{Lease: l.Lease, Queue: "dead", Message: m})
			continue
		}
		moves = append(moves, store.Move{Lease: l.Lease, Queue: "q", Message: m})
	}
	b.lost(i.Move(b.ctx, moves...), "Move", claimed[2].Lease)
	left := b.list("dead", store.Filter{}, everything)
	b.must(slices.Equal(entryIDs(left), []string{"d"}) && left[0].Meta.Visit == 3 && left[0].LeasedUntil.IsZero(), "Move left %+v", left)
	b.takeNone("dead", "it was moved within its queue with a delay")
	got := b.take("q", 1000)
	b.must(slices.Equal(ids(got), []string{"b", "a"}), "Move has put %v", ids(got))
	b.must(same(got[0].Message, other), "Move has changed a message with the same identity to %+v", got[0].Message)
	b.must(same(got[1].Message, moves[0].Message), "moved %+v, put %+v", moves[0].Message, got[1].Message)
	var lost []store.Lease
	for _, m := range moves {
		lost = append(lost, m.Lease)
	}
	b.lost(i.Move(b.ctx, moves...), "a second Move", lost...)

	l := b.take("q", 1000) // empty: they are leased
	b.must(len(l) == 0, "Move has doubled %v", ids(l))
	err = i.Move(b.ctx, store.Move{Lease: got[1].Lease, Queue: "r", Message: newMessage("")})
	b.must(err != nil, "Move to a message without an id is no error")
	b.ok(b.Done(b.ctx, got[1].Lease), "Done after a Move that was refused")
	b.ok(i.Move(b.ctx), "Move of nothing")
}

func twoWhoMove(b *storeBench) {
	const n = 200
	for i := range n {
		b.put("dead", newMessage(strconv.Itoa(i)))
	}
	stores := []store.Inspector{b.inspector(), b.open().(store.Inspector)}
	errs := make([]error, len(stores))
	moved := make([]int, len(stores))
	var wg sync.WaitGroup
	for w, s := range stores {
		wg.Go(func() {
			for {
				claimed, err := s.Claim(b.ctx, "dead", store.Filter{}, store.Page{Max: 7}, b.units(1000))
				if err != nil || len(claimed) == 0 {
					errs[w] = err
					return
				}
				var moves []store.Move
				for _, l := range claimed {
					moves = append(moves, store.Move{Lease: l.Lease, Queue: "q", Message: l.Message})
				}
				if err := s.Move(b.ctx, moves...); err != nil {
					errs[w] = fmt.Errorf("Move: %w", err)
					return
				}
				moved[w] += len(claimed)
			}
		})
	}
	wg.Wait()
	b.ok(errors.Join(errs...), "two who move")
	b.must(moved[0]+moved[1] == n, "%d and %d of %d were moved", moved[0], moved[1], n)
	b.must(len(b.take("q", 1000)) == n, "not all arrived")
	b.must(len(b.list("dead", store.Filter{}, everything)) == 0, "something is left")
}

// handOver puts messages made of messages in flight, of which one was purged and one was
// taken again.
func handOver(b *storeBench) {
	i := b.inspector()
	b.put("q", full("a"), full("b"), full("c"))
	taken := b.take("q", 1000)
	slices.SortFunc(taken, func(a, b store.Leased) int { return strings.Compare(a.Meta.ID, b.Meta.ID) })
	_, err := i.Purge(b.ctx, "q", store.Filter{IDs: []string{"b"}})
	b.ok(err, "Purge")
	b.ok(b.Release(b.ctx, 0, taken[2].Lease), "Release")
	b.put("layer", newMessage("there"))
	var moves []store.Move
	for _, l := range taken {
		m := l.Clone()
		m.Meta.Visit++
		moves = append(moves, store.Move{Lease: l.Lease, Queue: "layer", Message: m})
	}
	second := taken[0].Clone()
	second.Meta.ID = "a#2"
	moves = append(moves, store.Move{Lease: taken[0].Lease, Queue: "results", Message: second},
		store.Move{Queue: "results", Message: newMessage("free")})
	for range 2 { // the second has no effect
		b.lost(i.HandOver(b.ctx, moves...), "HandOver", taken[1].Lease)
		layer := b.list("layer", store.Filter{}, everything)
		b.must(slices.Equal(entryIDs(layer), []string{"there", "a", "c"}), "HandOver has put %v", entryIDs(layer))
		b.must(same(layer[1].Message, moves[0].Message), "handed over %+v, put %+v", moves[0].Message, layer[1].Message)
		results := entryIDs(b.list("results", store.Filter{}, everything))
		slices.Sort(results)
		b.must(slices.Equal(results, []string{"a#2", "free"}), "HandOver has put %v", results)
	}
	left := b.list("q", store.Filter{}, everything)
	b.must(slices.Equal(entryIDs(left), []string{"a", "c"}), "HandOver left %v", entryIDs(left))
	b.must(!left[0].LeasedUntil.IsZero() && left[0].Fence == 1, "HandOver has changed the lease: %+v", left[0])
	b.must(left[1].LeasedUntil.IsZero(), "HandOver has leased a message that was released: %+v", left[1])
	again := b.take("q", 1000)
	b.must(slices.Equal(ids(again), []string{"c"}), "after HandOver Take returned %v", ids(again))
	late := taken[2].Clone() // its first worker is late
	late.Meta.Visit = 7
	b.ok(i.HandOver(b.ctx, store.Move{Lease: taken[2].Lease, Queue: "late", Message: late}), "HandOver by a late worker")
	b.must(len(b.take("late", 1000)) == 1, "the message of a late worker is lost")
	elsewhere := again[0].Lease
	elsewhere.Queue = "other"
	b.lost(i.HandOver(b.ctx, store.Move{Lease: elsewhere, Queue: "late", Message: newMessage("other")}), "HandOver from another queue", elsewhere)
	b.must(i.HandOver(b.ctx, store.Move{Lease: again[0].Lease, Queue: "late", Message: newMessage("")}) != nil, "HandOver of a message without an id is no error")
	b.ok(b.Done(b.ctx, taken[0].Lease, again[0].Lease), "Done after HandOver")
	b.lost(i.HandOver(b.ctx, store.Move{Lease: again[0].Lease, Queue: "late", Message: newMessage("done")}), "HandOver after Done", again[0].Lease)
	b.takeNone("late", "the message that it was made of is gone")
	b.ok(i.HandOver(b.ctx), "HandOver of nothing")
}

// handOverBesidePurge hands messages over while another store purges both queues.
func handOverBesidePurge(b *storeBench) {
	const n = 50
	i, other := b.inspector(), b.open().(store.Inspector)
	for k := range n {
		b.put("q", newMessage(strconv.Itoa(k)))
	}
	taken := b.take("q", 1000)
	b.must(len(taken) == n, "Take returned %d of %d messages", len(taken), n)
	var purged error
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, queue := range []string{"q", "layer"} {
			_, err := other.Purge(b.ctx, queue, store.Filter{})
			purged = errors.Join(purged, err)
		}
	})
	errs := make([]error, 4)
	for w := range errs {
		wg.Go(func() {
			for k := w; k < n; k += len(errs) {
				m := taken[k].Clone()
				m.Meta.Visit = 1
				err := i.HandOver(b.ctx, store.Move{Lease: taken[k].Lease, Queue: "layer", Message: m})
				if _, isLost := errors.AsType[*store.LeaseError](err); err != nil && !isLost {
					errs[w] = errors.Join(errs[w], err)
				}
			}
		})
	}
	wg.Wait()
	b.ok(errors.Join(append(errs, purged)...), "HandOver beside Purge")
	for _, queue := range []string{"q", "layer"} {
		left := entryIDs(b.list(queue, store.Filter{}, everything))
		b.must(len(left) == 0, "the purge has left %v in %q", left, queue)
	}
}

func queues(b *storeBench) {
	names := func() []string {
		names, err := b.inspector().Queues(b.ctx)
		b.ok(err, "Queues")
		return names
	}
	b.must(len(names()) == 0, "an empty store has the queues %q", names())
	b.put("b", newMessage("1"))
	b.put("a", delayed("1", time.Hour), newMessage("2"))
	b.must(slices.Equal(names(), []string{"a", "b"}), "the queues are %q", names())
	b.ok(b.Done(b.ctx, b.takeOne("b", 1).Lease), "Done")
	b.must(slices.Equal(names(), []string{"a"}), "the queues are %q", names())
}
