package observe

import "time"

// Group is a group of elements that failed for the same reason and with the same error,
// apart from numbers and ids. See asyncop.AsyncWaitOperator.Groups.
type Group struct {
	Type   string `json:"type,omitempty"`   // of the error
	Reason string `json:"reason,omitempty"` // "" without a reason
	Error  string `json:"error,omitempty"`  // common text of the errors, at most 200 bytes. # replaces a quoted word or a word with a digit

	Count       int64     `json:"count"`
	First       time.Time `json:"first"`
	Last        time.Time `json:"last"`
	ExampleText string    `json:"exampleText,omitempty"` // the error of the last element
	Rest        bool      `json:"rest,omitempty"`        // failures in no other group: only their count and times are known
}
