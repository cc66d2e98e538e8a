// Package progress shows the progress of a finite job, in a line that a terminal redraws,
// or in log lines.
//
//	61 %  12,345 of 20,000, 7 failed, 4,100/s, 2s left, 64 in flight, 1,234 retries, region move
//
// A [Line] gets its numbers from a function of the program, as a [State]; [Of] derives
// them from an operator's counts.
//
// The first [State] of a restarted job includes the work of earlier runs. The rate and
// the time left are computed over the last ten seconds of this run.
//
// At the end a summary replaces the line. It also appears after Ctrl-C if the program
// then ends its job, as with [os/signal.NotifyContext] and a deferred stop:
//
//	20,000 of 20,000 orders in 4.9s, 4,100/s, 1,234 retries
//	stopped at 12,345 of 20,000 orders after 3.0s, 4,100/s, 1,234 retries, last error: region move
package progress
