package observe

import "time"

// Way is the history of an element in the operator: see asyncop.AsyncWaitOperator.Ways.
type Way struct {
	Element  string    // its label, as in logs
	ID       string    // of its message; "": it is not a message
	Visit    int       // of that message, from 1
	Accepted time.Time // when it took its slot
	Total    time.Duration
	Attempts int
	Steps    []Step // its attempts: of more than 32 the first 8 and the last 24. It must not be changed
	How      EndKind
	Err      error // why it failed; else nil
}

// Step is an attempt on the way of an element.
type Step struct {
	Outcome
	Begun   time.Time
	Backend string // the state of the backend when the attempt had ended: "open", "closed", …; "": without a backend
}
