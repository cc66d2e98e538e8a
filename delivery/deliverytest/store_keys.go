package deliverytest

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/weirflow/weir/delivery/store"
)

func (b *storeBench) keyCounter() store.KeyCounter {
	c, ok := b.Store.(store.KeyCounter)
	if !ok {
		panic(notApplicable{})
	}
	return c
}

func (b *storeBench) countKeys(q store.KeyQuery) []store.KeyCounts {
	list, err := b.keyCounter().CountKeys(b.ctx, q)
	b.ok(err, "CountKeys")
	return list
}

// countsByKey checks the counts of keys over several queues, their order and choice. Keys
// may have any bytes.
func countsByKey(b *storeBench) {
	all := store.KeyQuery{Queues: []string{"q", "q-retry-1"}, Dead: "q-dead", Max: 100}
	list := b.countKeys(all)
	b.must(len(list) == 0, "empty queues have the keys %+v", list)

	const hostile = "<b>\x00\x1b[31m\u202e 100%\xff "
	b.put("q", newMessage("keyless"))
	b.put("q", ofKey("large", 4)...)
	b.wait(1)
	later := ofKey("layered", 3)
	for i := range later {
		later[i].Delay = b.units(100 * (i + 1))
	}
	b.put("q-retry-1", later...)
	b.put("q", ofKey(hostile, 3)...)
	b.put("q-dead", ofKey(hostile, 2)...)
	b.put("q-dead", ofKey("dead only", 5)...)
	b.put("other", ofKey("other", 9)...)

	byKey := map[string]store.KeyCounts{}
	var order []string
	for _, c := range b.countKeys(all) {
		byKey[c.Key] = c
		order = append(order, c.Key)
	}
	b.must(slices.Equal(order, []string{"large", hostile, "layered", "dead only"}), "the keys are %q", order)
	first := func(queue, key string) store.Entry { return b.list(queue, store.Filter{Key: key}, everything)[0] }
	want := func(c store.KeyCounts) {
		got := byKey[c.Key]
		b.must(got.Oldest.Equal(c.Oldest) && got.Next.Equal(c.Next), "key %q: the counts are %+v in place of %+v", c.Key, got, c)
		got.Oldest, got.Next = c.Oldest, c.Next
		b.must(reflect.DeepEqual(got, c), "key %q: the counts are %+v in place of %+v", c.Key, got, c)
	}
	large := first("q", "large")
	want(store.KeyCounts{Key: "large", Waiting: 4, Oldest: large.Arrived, Next: large.Meta.Due})
	layered := first("q-retry-1", "layered")
	want(store.KeyCounts{Key: "layered", Waiting: 3, Oldest: layered.Arrived, Next: layered.Meta.Due})
	odd := first("q", hostile)
	want(store.KeyCounts{Key: hostile, Waiting: 3, Dead: 2, Oldest: odd.Arrived, Next: odd.Meta.Due})
	want(store.KeyCounts{Key: "dead only", Dead: 5})

	keysOf := func(q store.KeyQuery) (keys []string) {
		for _, c := range b.countKeys(q) {
			keys = append(keys, c.Key)
		}
		return keys
	}
	some := all
	some.Max = 1
	got := keysOf(some)
	b.must(slices.Equal(got, []string{"large"}), "the first key is %q", got)
	some.Max = 3
	some.First = []string{"dead only", "unknown", "layered"}
	got = keysOf(some)
	b.must(slices.Equal(got, []string{"layered", "dead only", "large"}), "with two keys that come first the keys are %q", got)
	some.Contains = "e"
	got = keysOf(some)
	b.must(slices.Equal(got, []string{"layered", "dead only", "large"}), "of those that contain e the keys are %q", got)
	some.Contains = "lar"
	got = keysOf(some)
	b.must(slices.Equal(got, []string{"large"}), "a key that comes first and does not match is among %q", got)
	for text, keys := range map[string][]string{
		"la": {"large", "layered"}, "100%\xff": {hostile}, "% ": nil, "\u202e ": {hostile}, "%": {hostile}, "LARGE": nil, "_": nil, "00%25": nil,
	} {
		some = all
		some.Contains = text
		got = keysOf(some)
		b.must(slices.Equal(got, keys), "the keys that contain %q are %q", text, got)
	}
	got = keysOf(store.KeyQuery{Queues: []string{"q-retry-1"}, Max: 5})
	b.must(slices.Equal(got, []string{"layered"}), "the keys of a single queue are %q", got)
	for _, bad := range []store.KeyQuery{{Queues: []string{"q"}}, {Max: 1}, {Max: 1, Queues: []string{"q", "q"}}, {Max: 1, Queues: []string{"q"}, Dead: "q"}, {Max: 1, Queues: []string{""}}} {
		_, err := b.keyCounter().CountKeys(b.ctx, bad)
		b.must(err != nil, "the query %+v is not refused", bad)
	}
}

// countsOfLeasedAndHeldKeys checks when a key's messages can be taken next.
func countsOfLeasedAndHeldKeys(b *storeBench) {
	q := store.KeyQuery{Queues: []string{"q"}, Max: 10}
	b.keyCounter()
	b.put("q", ofKey("a", 2)...)
	b.must(len(b.take("q", 1000)) == 2, "Take has not returned what is due")
	end := b.list("q", store.Filter{}, everything)[0].LeasedUntil
	list := b.countKeys(q)
	b.must(len(list) == 1 && list[0].Waiting == 2 && list[0].Next.Equal(end), "leased messages count as %+v, and the lease ends at %v", list, end)
	if _, ok := b.Store.(store.Keeper); !ok {
		return
	}
	hold := func(e store.Entry) {
		b.ok(b.update(func(ctx context.Context, tx store.Tx) error {
			_, err := tx.Edit(ctx, store.Edit{Do: store.Hold, Queue: "q", Entry: e})
			return err
		}), "Update")
	}
	b.put("q", ofKey("b", 2)...)
	entries := b.list("q", store.Filter{Key: "b"}, everything)
	hold(entries[0])
	q.Contains = "b"
	list = b.countKeys(q)
	b.must(len(list) == 1 && list[0].Waiting == 2 && list[0].Held == 1 && !list[0].Next.IsZero(), "with one of two messages held the counts are %+v", list)
	hold(entries[1])
	list = b.countKeys(q)
	b.must(len(list) == 1 && list[0].Held == 2 && list[0].Next.Equal(time.Time{}), "with all messages held the counts are %+v", list)
}
