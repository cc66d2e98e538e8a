// Package ledger records every flight from its first reading to its end. At the end of a
// run it proves that every flight came out exactly once, with the right airports, and in
// ordered mode in order.
//
// Counters would not be enough: they do not notice that one flight came out twice and
// another one never.
//
// A [Ledger] is safe for concurrent use.
package ledger
