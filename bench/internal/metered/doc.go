// Package metered compares weir with other code at a metered service: a provider with a
// limit of calls, 429 answers, overloads, outages and a price. Each client sends the same
// rows to its own provider, with up to 500 calls in flight.
//
// The clients are a weir operator; a plain loop with golang.org/x/time/rate, errgroup and
// cenkalti/backoff; and rill with the same limiter and a loop that obeys Retry-After.
package metered
