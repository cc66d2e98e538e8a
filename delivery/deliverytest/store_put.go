package deliverytest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

const putPatience = 30 * time.Second

// putRules are about accepted puts: each stays a message of its own (law W5).
var putRules = []storeRule{
	{name: "the origin of a put", check: originOfAPut},
	{name: "an entry is used for one message", check: entryOfOneMessage},
	{name: "two puts under one id: dead letters", check: twoPutsDeadLetters},
	{name: "two puts under one id: a layer", check: twoPutsLayer},
	{name: "two puts under one id: results", check: twoPutsResults},
	{name: "a hand-over that is repeated", check: repeatedHandOver},
	{name: "a put that is repeated", check: repeatedPut},
}

// originOfAPut checks that messages with different origins of their put are two, and that
// the same origin has no effect.
func originOfAPut(b *storeBench) {
	user := newMessage("a")
	first := newMessage("a")
	second := newMessage("a")
	first.Meta.Put, second.Meta.Put = "orders//5", "orders//6"
	again := newMessage("a")
	again.Meta.Put, again.Payload = "orders//5", []byte("another payload")
	b.put("q", user, first)
	b.put("q", second, again)
	got := b.take("q", 20)
	b.must(len(got) == 3, "of three messages with one id and the origins of three puts, Take returned %d", len(got))
	for i, want := range []store.Message{user, first, second} {
		b.must(same(got[i].Message, want), "put %+v, taken %+v", want, got[i].Message)
	}
	b.ok(b.Done(b.ctx, got[1].Lease), "Done")
	b.put("q", again)
	b.must(same(b.takeOne("q", 20).Message, again), "a message whose predecessor is done was not put")
}

// entryOfOneMessage checks that a message keeps its entry and position, and that no later
// message has them: the origin of a put is derived from them.
func entryOfOneMessage(b *storeBench) {
	b.put("q", newMessage("a"))
	first := b.takeOne("q", 1)
	b.wait(2)
	lapsed := b.takeOne("q", 1000)
	b.ok(b.Release(b.ctx, 0, lapsed.Lease), "Release")
	released := b.takeOne("q", 1000)
	for _, l := range []store.Leased{lapsed, released} {
		b.must(l.Lease.Entry == first.Lease.Entry && l.Position == first.Position,
			"the entry of a message went from %q, position %d, to %q, position %d", first.Lease.Entry, first.Position, l.Lease.Entry, l.Position)
	}
	b.ok(b.Done(b.ctx, released.Lease), "Done")
	b.put("q", newMessage("a"))
	next := b.takeOne("q", 1000)
	b.must(next.Lease.Entry != first.Lease.Entry, "a later message has the entry %q again", next.Lease.Entry)
	b.must(next.Position == 0 || next.Position != first.Position, "a later message has the position %d again", next.Position)
}

func (b *storeBench) receiveOne(s delivery.Source[string]) message.Message[string] {
	ctx, cancel := context.WithTimeout(b.ctx, putPatience)
	defer cancel()
	ms, err := s.Receive(ctx, 1)
	b.ok(err, "Receive")
	b.must(len(ms) == 1, "Receive returned %d messages in place of one", len(ms))
	return ms[0]
}

// source returns a source of a queue. It is closed at the latest at the end of the rule.
func (b *storeBench) source(q *delivery.Queue[string]) delivery.Source[string] {
	s := q.Source(nil)
	b.sources = append(b.sources, s)
	return s
}

// fails hands a message over as an operator that could not connect to its service.
func (b *storeBench) fails(q *delivery.Queue[string], m message.Message[string]) {
	f := asyncop.Failure[string]{Element: m.Value, Attempts: 1, Err: fmt.Errorf("call for %s: %w", m.Value, syscall.ECONNREFUSED)}
	b.ok(q.TakeFailure(message.ContextWithMeta(b.ctx, m.Meta()), f), "TakeFailure")
}

func (b *storeBench) payloads(queue string) (all []string) {
	for _, l := range b.take(queue, 1000) {
		all = append(all, string(l.Payload))
	}
	slices.Sort(all)
	return all
}

func (b *storeBench) quietQueue(name string, opts ...delivery.QueueOption) *delivery.Queue[string] {
	return delivery.NewQueue[string](b.Store, name, append(opts, delivery.WithLogger(slog.New(slog.DiscardHandler)))...)
}

var bothAddresses = []string{`"address A"`, `"address B"`}

// putTwice puts "address A", calls use with it, and does the same with "address B" under
// the same id.
func (b *storeBench) putTwice(q *delivery.Queue[string], use func(message.Message[string])) {
	for _, v := range []string{"address A", "address B"} {
		b.ok(q.Put(b.ctx, v, delivery.ID("17")), "Put")
		s := b.source(q)
		m := b.receiveOne(s)
		b.must(m.Value == v && m.Meta().ID == "17", "Receive returned %q with the id %q in place of %q", m.Value, m.Meta().ID, v)
		use(m)
		b.ok(s.Close(b.ctx), "Close")
	}
}

// twoPutsDeadLetters checks that a dead letter does not replace the next message under
// its id, and that both return to their queue.
func twoPutsDeadLetters(b *storeBench) {
	q := b.quietQueue("orders")
	b.putTwice(q, func(m message.Message[string]) {
		b.fails(q, m)
		m.Ack()
	})
	i, ok := b.Store.(store.Inspector)
	if !ok {
		got := b.payloads(q.DeadLetters())
		b.must(slices.Equal(got, bothAddresses), "of two puts under one id the dead letters are %v", got)
		return
	}
	dead, err := i.Claim(b.ctx, q.DeadLetters(), store.Filter{}, everything, b.units(1000))
	b.ok(err, "Claim")
	b.must(len(dead) == 2, "of two puts under one id there are %d dead letters", len(dead))
	for _, l := range dead {
		m := l.Message
		m.Cause, m.Meta.Visit = "", 0
		m.Meta.Merges++
		b.ok(i.Move(b.ctx, store.Move{Lease: l.Lease, Queue: "orders", Message: m}), "Move")
	}
	got := b.payloads("orders")
	b.must(slices.Equal(got, bothAddresses), "of two dead letters with one id, %v returned to the queue", got)
}

// twoPutsLayer checks the same of a layer. Both messages are in it before one is due: a
// source drains the layers of its queue.
func twoPutsLayer(b *storeBench) {
	const delay = 10
	q := b.quietQueue("orders", delivery.RetryAfter(b.units(delay)))
	for _, v := range []string{"address A", "address B"} {
		b.ok(q.Put(b.ctx, v, delivery.ID("17")), "Put")
		taken := b.takeOne("orders", 1000) // q's source would also take from the layer
		b.ok(b.Release(b.ctx, 0, taken.Lease), "Release")
		s := b.source(b.quietQueue("orders"))
		m := b.receiveOne(s)
		b.must(m.Value == v, "Receive returned %q in place of %q", m.Value, v)
		b.fails(q, m)
		m.Ack()
		b.ok(s.Close(b.ctx), "Close")
	}
	b.wait(delay + delay/5 + 1)
	got := b.payloads("orders-retry-1")
	b.must(slices.Equal(got, bothAddresses), "of two puts under one id, %v wait in the layer", got)
}

// twoPutsResults checks that the result of a put does not replace the next one.
func twoPutsResults(b *storeBench) {
	q, next, last := b.quietQueue("orders"), b.quietQueue("receipts"), b.quietQueue("mails")
	b.putTwice(q, func(m message.Message[string]) {
		b.ok(next.PutAll(b.ctx, []message.Message[string]{message.With(m, m.Value)}), "PutAll")
		m.Ack()
	})
	s := b.source(next)
	for range 2 {
		m := b.receiveOne(s)
		b.ok(last.PutAll(b.ctx, []message.Message[string]{message.With(m, m.Value)}), "PutAll")
		m.Ack()
	}
	b.ok(s.Close(b.ctx), "Close")
	got := b.payloads("mails")
	b.must(slices.Equal(got, bothAddresses), "of two puts under one id, the results are %v", got)
}

// repeatedHandOver checks that a worker's death between hand-over and acknowledgement
// leaves one message (law D1): its successor hands over the same.
func repeatedHandOver(b *storeBench) {
	q, next := b.quietQueue("orders"), b.quietQueue("receipts")
	b.ok(q.Put(b.ctx, "address A", delivery.ID("17")), "Put")
	for range 2 {
		s := b.source(q)
		m := b.receiveOne(s)
		b.ok(next.PutAll(b.ctx, []message.Message[string]{message.With(m, m.Value)}), "PutAll")
		b.fails(q, m)
		b.ok(s.Close(b.ctx), "Close") // releases the message
	}
	for _, queue := range []string{"receipts", q.DeadLetters()} {
		got := b.payloads(queue)
		b.must(slices.Equal(got, bothAddresses[:1]), "after a hand-over that was repeated, %q has %v", queue, got)
	}
}

func repeatedPut(b *storeBench) {
	q := b.quietQueue("orders")
	for range 2 {
		b.ok(q.Put(b.ctx, "address A", delivery.ID("17")), "Put")
	}
	s := b.source(q)
	m := b.receiveOne(s)
	b.ok(q.Put(b.ctx, "address A", delivery.ID("17")), "Put")
	m.Ack()
	b.ok(s.Close(b.ctx), "Close")
	got := b.payloads("orders")
	b.must(len(got) == 0, "a put under the id of a message that is in the queue left %v", got)
}
