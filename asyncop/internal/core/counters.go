package core

import "time"

// Counters are what a core counts. Their fields are those of asyncop.Stats, which explains them; the driver fills in
// Emitted, LateCompletions, Discarded and OldestAge.
type Counters struct {
	Accepted  int64
	Completed int64
	Emitted   int64
	InFlight  int64

	Running         int64
	Deciding        int64
	WaitingForRetry int64
	WaitingForKey   int64
	Attempts        int64
	RetriesOnResult int64
	RetriesOnError  int64

	Timeouts        int64
	AttemptTimeouts int64
	Exhausted       int64
	CutByEndOfInput int64
	OverBudget      int64
	TooManyWaiting  int64
	Failures        int64
	Failed          int64
	Dropped         int64
	HandedOver      int64

	LateCompletions int64
	Discarded       int64
	Abandoned       int64

	OldestAge time.Duration
}
