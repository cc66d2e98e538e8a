// Package ledger records every flight from its first reading to its end. Then it proves
// that every flight came out exactly once, with the right airports, and in ordered mode
// in order.
//
// A [Ledger] is safe for concurrent use.
package ledger
