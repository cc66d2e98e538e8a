package observe

import "time"

// Group is a group of similar failures: elements that failed for the same reason and with the same error, apart from numbers and ids in its
// text. See asyncop.AsyncWaitOperator.Groups.
type Group struct {
	Type   string `json:"type,omitempty"`   // of the error
	Reason string `json:"reason,omitempty"` // "": none was named
	Error  string `json:"error,omitempty"`  // the common text of the errors: words with a digit, and quoted words, are #. At most 200 bytes

	Count       int64     `json:"count"`
	First       time.Time `json:"first"`
	Last        time.Time `json:"last"`
	ExampleText string    `json:"exampleText,omitempty"` // the error of the last element
	Rest        bool      `json:"rest,omitempty"`        // the elements that did not fit elsewhere: only their count and times are known
}
