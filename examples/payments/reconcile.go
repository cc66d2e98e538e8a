package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/examples/internal/show"
)

// reconciliation compares the job's books with the providers' books and the payments that
// came out.
type reconciliation struct {
	orders    int64
	paid      map[string]int // by provider
	declined  int
	dead      int
	deadAgain int // further dead letters of the same orders
	charges   int // in the providers' books
	cents     int64
	receipts  int
	again     int
	wrong     []string
}

// reconcile checks every order, and reports charges of unknown orders.
func reconcile(ctx context.Context, c config, dir string, receipts []bank.Payment, dead []bank.Order) (*reconciliation, error) {
	payments, err := readPayments(ctx, dir)
	if err != nil {
		return nil, err
	}
	books, err := bank.ReadBooks(ctx, dir)
	if err != nil {
		return nil, err
	}
	r := &reconciliation{orders: c.Orders, paid: map[string]int{}}
	for _, o := range bank.Orders(c.Seed, c.Orders) {
		hopeless := true
		for _, provider := range bank.Providers {
			hopeless = hopeless && bank.Declines(c.Seed, provider, o.Number, declineOf)
		}
		r.order(o, payments, books[o.ID], hopeless)
	}
	r.compare(receipts, payments, c.scheme() == onKafka)
	r.bury(dead, payments)
	for _, o := range bank.Orders(c.Seed, c.Orders) {
		delete(books, o.ID)
		delete(payments, o.ID)
	}
	for id, charges := range books {
		r.charges += len(charges)
		r.complain(id, "is no order, and was charged: %s", list(charges))
	}
	for id := range payments {
		r.complain(id, "is no order, and the job has a payment of it")
	}
	slices.Sort(r.wrong)
	return r, nil
}

func (r *reconciliation) order(o bank.Order, payments map[string]bank.Booked, charges []bank.Booked, hopeless bool) {
	r.charges += len(charges)
	for _, charge := range charges {
		r.cents += charge.Cents
	}
	payment, known := payments[o.ID]
	switch {
	case !known:
		r.complain(o.ID, "is not finished; charges: %d", len(charges))
	case len(charges) > 1:
		r.complain(o.ID, "was charged %d times: %s", len(charges), list(charges))
	case hopeless != (payment.Provider == ""):
		r.complain(o.ID, "the job says %q; both providers decline it: %v", payment.Charge, hopeless)
	case hopeless && len(charges) > 0:
		r.complain(o.ID, "was declined, and charged: %s", list(charges))
	case hopeless:
		r.declined++
	case len(charges) == 0:
		r.complain(o.ID, "was not charged; the job says %s", payment.Charge)
	case charges[0] != payment || payment.Cents != o.Cents:
		r.complain(o.ID, "of %d cents: the job says %+v, the books %+v", o.Cents, payment, charges[0])
	default:
		r.paid[payment.Provider]++
	}
}

// compare checks that the payments that came out are the job's. On an engine that does
// not find messages by id, a payment may come out again after its worker was killed.
func (r *reconciliation) compare(receipts []bank.Payment, payments map[string]bank.Booked, mayComeAgain bool) {
	seen := map[string]int{}
	for _, got := range receipts {
		switch want, known := payments[got.Order]; {
		case !known:
			r.complain(got.Order, "has no payment, and one came out: %s", got.Charge)
		case got.Provider != want.Provider || got.Charge != want.Charge:
			r.complain(got.Order, "the job says %s, and what came out %s", want.Charge, got.Charge)
		}
		if seen[got.Order]++; seen[got.Order] == 2 && !mayComeAgain {
			r.complain(got.Order, "came out more than once")
		}
	}
	for id, p := range payments {
		if seen[id] == 0 && p.Provider != "" {
			r.complain(id, "has a payment that did not come out")
		}
	}
	r.receipts, r.again = len(receipts), len(receipts)-len(seen)
}

// bury checks that the dead letters are the orders that both providers have declined. An
// order gets a second dead letter if it is put again after its end and fails at another
// visit: in a run with the same -dir, or if a worker was killed after it had passed the
// order on.
func (r *reconciliation) bury(dead []bank.Order, payments map[string]bank.Booked) {
	seen := map[string]int{}
	for _, o := range dead {
		if p, known := payments[o.ID]; !known || p.Provider != "" {
			r.complain(o.ID, "is a dead letter, and was not declined by both")
		}
		seen[o.ID]++
	}
	for id, p := range payments {
		if p.Provider == "" && seen[id] == 0 {
			r.complain(id, "was declined by both, and is no dead letter")
		}
	}
	r.dead, r.deadAgain = len(seen), len(dead)-len(seen)
}

func (r *reconciliation) complain(id, format string, args ...any) {
	r.wrong = append(r.wrong, id+" "+fmt.Sprintf(format, args...))
}

func list(charges []bank.Booked) string {
	names := make([]string, len(charges))
	for i, c := range charges {
		names[i] = c.Charge
	}
	return strings.Join(names, ", ")
}

func again(n int) string {
	if n == 0 {
		return ""
	}
	return "   " + show.Count(n) + " of them again, with the same id"
}

// print writes the reconciliation, and reports whether all is well.
func (r *reconciliation) print(out io.Writer) bool {
	fmt.Fprintf(out, `
  orders                      %6s
    charged                   %6s   %s by %s, %s by %s
    declined by both          %6s   these are the dead letters: %s%s
    wrong                     %6s
  charges in their books      %6s   %d.%02d in all
  payments that came out      %6s%s
`, show.Count(r.orders), show.Count(r.paid[bank.North]+r.paid[bank.South]), show.Count(r.paid[bank.North]), bank.North,
		show.Count(r.paid[bank.South]), bank.South, show.Count(r.declined), show.Count(r.dead), again(r.deadAgain), show.Count(len(r.wrong)),
		show.Count(r.charges), r.cents/100, r.cents%100, show.Count(r.receipts), again(r.again))
	if len(r.wrong) == 0 {
		fmt.Fprintf(out, "\nproven: each of %s orders was charged once, or declined by both.\n", show.Count(r.orders))
		return true
	}
	show.Complaints(out, r.wrong)
	fmt.Fprintf(out, "\nNOT proven: the books of the providers do not fit the orders.\n")
	return false
}
