package observe

import "time"

// Timeline has the attempts of an element in the operator: see
// asyncop.AsyncWaitOperator.Timelines.
type Timeline struct {
	Element  string    // label, as in logs
	ID       string    // of its message, or ""
	Visit    int       // of the message, from 1
	Accepted time.Time // when the element took its slot
	Total    time.Duration
	Attempts int
	Steps    []Step // at most 32: the first 8 and the last 24. Do not change it
	How      EndKind
	Err      error // the failure, or nil
}

// Step is an attempt of a timeline.
type Step struct {
	Outcome
	Begun   time.Time
	Backend string // its state at the end of the attempt ("up", "down", …), or ""
}
