package observe

import "time"

// Stats are the counts of an operator at a moment. Every accepted element is in a single state of these:
//
//	Accepted = InFlight + Completed + Dropped + HandedOver + Failed + Abandoned
//
// where Failed is the element that failed the pipeline. The counts may be late by a step of the operator's loop, some microseconds. They are
// exact when it is idle or has ended. After the end only four still change: Discarded until In is closed, Undelivered until Via or To has
// delivered the results, and Running and LateCompletions as long as calls run that ignore the end of their context.
type Stats struct {
	Accepted  int64 // elements that took a slot; watermarks are not counted
	Completed int64 // elements that left with their results, possibly none
	Emitted   int64 // results sent to Out, or to the buffer that Results reads from
	InFlight  int64 // elements with a slot

	Capacity int64 // slots: how many elements may be in flight
	MaxCalls int64 // how many calls may run at once: see WithMaxConcurrentCalls

	Running         int64 // calls that run; a batch counts once; a blocking call counts until it returns
	Deciding        int64 // elements whose strategy is being asked off the loop, or that wait for that
	WaitingForRetry int64 // elements in back-off, or whose retry waits for a permit
	WaitingForKey   int64 // elements that wait for another element of their key, or for its call: see KeyOrderedWait
	Attempts        int64 // calls begun, retries included; each element of a batch counts
	RetriesOnResult int64 // retries begun because of a result
	RetriesOnError  int64 // retries begun because of an error

	Timeouts        int64 // elements whose total time ran out
	AttemptTimeouts int64 // attempts whose own time ran out
	Exhausted       int64 // elements whose last outcome asked for a retry that they were not allowed
	CutByEndOfInput int64 // of these, because the input had ended, or Stop was called: see WithDrainRetries
	OverBudget      int64 // of these, for lack of a retry budget
	TooManyWaiting  int64 // of these, because the number of elements waiting for a retry was at its limit
	Failures        int64 // elements that failed, whatever the failure policy did with them
	Failed          int64 // of these, failed the pipeline
	Dropped         int64 // of these, dropped
	HandedOver      int64 // of these, taken by the failure sink, or rejected because it can never take them

	LateCompletions int64 // completions without effect (law A2)
	Discarded       int64 // elements that arrived after the operator had stopped reading; final when In is closed (InputClosed)
	Undelivered     int64 // emitted results that Via or To could not deliver after a cancel, because the next step had stopped reading
	Abandoned       int64 // elements in flight that the end of the operator cut off, even if the failure sink has taken them, and failed elements that it had not taken by then

	OldestAge time.Duration // since the oldest element in flight took its slot, or the step of the loop began; 0 if there is none
	LastError error         // the last error of an attempt, or timeout of an element; nil if none failed. Later successes do not reset it
}

// Retries returns the retries begun, for whatever reason.
func (s Stats) Retries() int64 { return s.RetriesOnResult + s.RetriesOnError }
