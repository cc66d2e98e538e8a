package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// reconciliation compares the books of the job with those of the providers.
type reconciliation struct {
	orders   int64
	paid     map[string]int // by provider
	declined int
	charges  int   // in the books of the providers
	cents    int64 // of all of them
	wrong    []string
}

// reconcile looks at every order of the stream, and for charges of orders that are none.
func reconcile(ctx context.Context, c config, dir string) (*reconciliation, error) {
	payments, err := readPayments(ctx, dir)
	if err != nil {
		return nil, err
	}
	books, err := readBooks(ctx, dir)
	if err != nil {
		return nil, err
	}
	r := &reconciliation{orders: c.Orders, paid: map[string]int{}}
	for number := int64(1); number <= c.Orders; number++ {
		o := orderAt(c.Seed, number)
		r.order(o, payments, books[o.ID], declines(c.Seed, north, number) && declines(c.Seed, south, number))
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

func (r *reconciliation) order(o order, payments map[string]booked, charges []booked, hopeless bool) {
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

func (r *reconciliation) complain(id, format string, args ...any) {
	r.wrong = append(r.wrong, id+" "+fmt.Sprintf(format, args...))
}

func list(charges []booked) string {
	names := make([]string, len(charges))
	for i, c := range charges {
		names[i] = c.Charge
	}
	return strings.Join(names, ", ")
}

const shownWrong = 10

// print writes the reconciliation, and reports whether all is well.
func (r *reconciliation) print(out io.Writer) bool {
	fmt.Fprintf(out, `
  orders                      %6s
    charged                   %6s   %s by %s, %s by %s
    declined by both          %6s
    wrong                     %6s
  charges in their books      %6s   %d.%02d in all
`, thousands(r.orders), thousands(int64(r.paid[north]+r.paid[south])), thousands(int64(r.paid[north])), north,
		thousands(int64(r.paid[south])), south, thousands(int64(r.declined)), thousands(int64(len(r.wrong))), thousands(int64(r.charges)), r.cents/100, r.cents%100)
	if len(r.wrong) == 0 {
		fmt.Fprintf(out, "\nproven: of %s orders each was charged once, or declined by both providers and not charged.\n", thousands(r.orders))
		return true
	}
	fmt.Fprintln(out)
	for i, complaint := range r.wrong {
		if i == shownWrong {
			fmt.Fprintf(out, "  … and %s more\n", thousands(int64(len(r.wrong)-i)))
			break
		}
		fmt.Fprintf(out, "  %s\n", complaint)
	}
	fmt.Fprintf(out, "\nNOT proven: the books of the providers do not fit the orders.\n")
	return false
}

// thousands returns a number with commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
