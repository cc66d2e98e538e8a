// Package ledger keeps one line for every flight, from its first reading to its end, and
// proves at the end of a run that the books balance: every flight came out exactly once,
// with the airports it names, and in ordered mode in order.
//
// The pipeline could count instead; but a count does not notice that one flight came
// twice and another one never.
//
// A [Ledger] is safe for concurrent use.
package ledger
