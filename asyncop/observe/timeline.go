package observe

import "time"

// Timeline is the list of an element's attempts in the operator: see
// asyncop.AsyncWaitOperator.Timelines.
type Timeline struct {
	Element  string    // its label, as in logs
	ID       string    // ID of its message, or "" if the element is not a message
	Visit    int       // number of the message's visit, from 1
	Accepted time.Time // when the element took its slot
	Total    time.Duration
	Attempts int
	Steps    []Step // the attempts; of more than 32 the first 8 and the last 24. Do not change it.
	How      EndKind
	Err      error // the failure, or nil if the element did not fail
}

// Step is an attempt in the timeline of an element.
type Step struct {
	Outcome
	Begun   time.Time
	Backend string // state of the backend when the attempt ended ("up", "down", …), or "" without a backend
}
