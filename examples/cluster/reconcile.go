package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/examples/internal/show"
	"github.com/weirflow/weir/ext/jetstream"
)

// declineOf is the rate of poison orders: the providers decline one order in declineOf.
const declineOf = 50

func isPoison(seed uint64, o bank.Order) bool {
	return bank.Declines(seed, o.First, o.Number, declineOf)
}

// endState is the state after the run, in the cluster and in the providers' books.
type endState struct {
	payments map[string][]bank.Payment
	dead     map[string][]store.Entry
	books    map[string][]bank.Booked

	// repeats counts, for each order, the puts that followed an unconfirmed put. The
	// cluster may have accepted that one, and a worker may have paid the order before the
	// next put, which then is another message with the same id (law W5).
	repeats map[string]int
}

func readEndState(ctx context.Context, e *jetstream.Engine, dir string) (o endState, err error) {
	orders, payments := queuesOn(e)
	o.payments = map[string][]bank.Payment{}
	err = eachEntry(ctx, e, payments.Name(), func(entry store.Entry) error {
		p, err := codec.JSON[bank.Payment]().Decode(entry.Payload)
		o.payments[p.Order] = append(o.payments[p.Order], p)
		return err
	})
	if err != nil {
		return o, err
	}
	o.dead = map[string][]store.Entry{}
	err = eachEntry(ctx, e, orders.DeadLetters(), func(entry store.Entry) error {
		o.dead[entry.Meta.ID] = append(o.dead[entry.Meta.ID], entry)
		return nil
	})
	if err != nil {
		return o, err
	}
	o.books, err = bank.ReadBooks(ctx, dir)
	return o, err
}

func eachEntry(ctx context.Context, e *jetstream.Engine, queue string, f func(store.Entry) error) error {
	for page := (store.Page{Max: 500}); ; {
		entries, err := again(ctx, func(ctx context.Context) ([]store.Entry, error) { return e.List(ctx, queue, store.Filter{}, page) })
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, entry := range entries {
			if err := f(entry); err != nil {
				return err
			}
		}
		page.After = entries[len(entries)-1].Position
	}
}

type reconciliation struct {
	orders, charged, poison int
	charges                 int
	repeated                int // payments and dead letters of repeated puts
	wrong                   []string
}

func reconcile(c config, o endState) *reconciliation {
	r := &reconciliation{orders: int(c.Orders)}
	for _, order := range bank.Orders(c.Seed, c.Orders) {
		id := order.ID
		payments := o.payments[id]
		dead := o.dead[id]
		charges := o.books[id]
		delete(o.payments, id)
		delete(o.dead, id)
		delete(o.books, id)
		r.charges += len(charges)
		wrong := len(r.wrong)
		if isPoison(c.Seed, order) {
			r.expect(id, "charges, although it cannot be charged", len(charges), 0)
			r.expect(id, "payments, although it cannot be charged", len(payments), 0)
			r.expectOnce(id, "dead letters", len(dead), o.repeats[id])
			if wrong == len(r.wrong) {
				r.poison++
			}
			continue
		}
		r.expect(id, "charges in the books", len(charges), 1)
		r.expectOnce(id, "payments in their queue", len(payments), o.repeats[id])
		r.expect(id, "dead letters, although it can be charged", len(dead), 0)
		if wrong < len(r.wrong) {
			continue
		}
		isOther := func(p bank.Payment) bool { return p.Charge != charges[0].Charge }
		if slices.ContainsFunc(payments, isOther) || charges[0].Cents != order.Cents {
			r.wrong = append(r.wrong, fmt.Sprintf("%s of %d cents: the payments are %+v, the books have %+v", id, order.Cents, payments, charges[0]))
			continue
		}
		r.charged++
	}
	for _, strangers := range [][]string{keysOf(o.payments), keysOf(o.dead), keysOf(o.books)} {
		for _, id := range strangers {
			r.wrong = append(r.wrong, id+" is no order")
		}
	}
	slices.Sort(r.wrong)
	return r
}

func keysOf[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

func (r *reconciliation) expect(id, what string, got, want int) {
	if got != want {
		r.wrong = append(r.wrong, fmt.Sprintf("%s has %d %s", id, got, what))
	}
}

// expectOnce expects one, plus at most one for each repeated put.
func (r *reconciliation) expectOnce(id, what string, got, repeats int) {
	if got < 1 || got > 1+repeats {
		r.expect(id, what, got, 1)
		return
	}
	r.repeated += got - 1
}

func (r *reconciliation) print(out io.Writer) bool {
	fmt.Fprintf(out, `
  orders                      %6s
    charged once              %6s
    dead letters: poison      %6s
    wrong                     %6s
  charges in the books        %6s
  put twice                   %6s
`, show.Count(r.orders), show.Count(r.charged), show.Count(r.poison), show.Count(len(r.wrong)), show.Count(r.charges), show.Count(r.repeated))
	if len(r.wrong) == 0 {
		fmt.Fprintf(out, "\nproven: each of %s orders was charged once; dead letters: %s, the poison.\n",
			show.Count(r.charged), show.Count(r.poison))
		return true
	}
	show.Complaints(out, r.wrong)
	fmt.Fprintf(out, "\nNOT proven: what is in the cluster and in the books does not fit the orders.\n")
	return false
}
