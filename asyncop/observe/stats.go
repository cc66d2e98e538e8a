package observe

import "time"

// Stats are the counts of an operator. Every accepted element is in a single state:
//
//	Accepted = InFlight + Completed + Dropped + HandedOver + Failed + Abandoned
//
// where Failed is the element that failed the pipeline. The counts may lag by a step of
// the operator's loop, some microseconds. They are exact when the operator is idle or has
// ended. After the end only these change: Discarded until In is closed, Undelivered until
// Via or To has ended, and Running and LateCompletions while calls still run.
type Stats struct {
	Accepted  int64 // elements that took a slot; watermarks are not counted
	Completed int64 // elements that left with their results, if any
	Emitted   int64 // results sent to Out, or to the buffer that Results reads from
	InFlight  int64 // elements with a slot

	Capacity int64 // slots
	MaxCalls int64 // permits: see WithMaxConcurrentCalls

	Running         int64 // running calls; a batch counts once, a blocking call until it returns
	Deciding        int64 // elements whose strategy is or will soon be asked off the loop
	WaitingForRetry int64 // elements in back-off, or waiting for a permit for their retry
	WaitingToLeave  int64 // of InFlight, complete elements that wait for their turn or for downstream
	WaitingForKey   int64 // elements that wait for another element of their key, or for its call: see KeyOrderedWait
	Attempts        int64 // attempts begun, including retries, each element of a batch, and lookups without a call of their own
	RetriesOnResult int64 // retries begun because of a result
	RetriesOnError  int64 // retries begun because of an error

	Timeouts        int64 // elements whose total time ran out
	AttemptTimeouts int64 // attempts whose own time ran out
	Exhausted       int64 // elements whose last outcome asked for a retry that was not allowed
	CutByEndOfInput int64 // of these, because of the end of the input or Stop: see WithDrainRetries
	OverBudget      int64 // of these, because the retry budget was used up
	TooManyWaiting  int64 // of these, because too many elements waited for a retry
	Failures        int64 // elements that failed, under any failure policy
	Failed          int64 // of these, the element that failed the pipeline
	Dropped         int64 // of these, dropped
	HandedOver      int64 // of these, taken by the failure sink, or rejected because it can never take them

	Rescued int64 // elements with results that a handler returned in place of a failure: see HandleFailure and TimeoutHandler

	LateCompletions int64 // completions without effect (law A2)
	Discarded       int64 // elements that arrived after the operator stopped reading; final when In is closed (InputClosed)
	Undelivered     int64 // emitted results that Via or To could not deliver after a cancel
	Abandoned       int64 // elements in flight at the end of the operator, even if the failure sink took them then, and failed elements that were not taken

	OldestAge time.Duration // since the oldest element in flight took its slot, or since the start of that step of the loop; 0 without elements
	LastError error         // of an attempt, or the timeout of an element during an attempt; nil without one. Successes do not reset it

	LastErrorAge time.Duration // since LastError, or 0
}

// Retries returns how many retries have begun.
func (s Stats) Retries() int64 { return s.RetriesOnResult + s.RetriesOnError }
