// Package progress shows how far a finite job has come, in a line that a terminal
// redraws, or in lines of a log.
//
//	61 %  12,345 of 20,000, 7 failed, 4,100/s, 2s left, 64 in flight, 1,234 retries, region move
//
// [Line] does that. The numbers come from a function of the program, as a [State]; [Of]
// takes them from the counts of an operator.
//
// A restarted job continues its count: its first [State] says how much was done before.
// The rate and the time left are computed over the last ten seconds of this run.
//
// When the job ends, a summary takes the place of the line. It also comes after Ctrl-C,
// if the program ends its job then, as [os/signal.NotifyContext] and a deferred stop do:
//
//	20,000 of 20,000 orders in 4.9s, 4,100/s, 1,234 retries
//	stopped at 12,345 of 20,000 orders after 3.0s, 4,100/s, 1,234 retries, last error: region move
package progress
