package message

import (
	"encoding/json"
	"slices"
	"time"
)

// Step is a call in the timeline of a message.
type Step struct {
	Visit   int           `json:"visit,omitempty"`   // from 1
	Attempt int           `json:"attempt,omitempty"` // of the visit, from 1
	Begun   time.Time     `json:"begun,omitzero"`
	Took    time.Duration `json:"took,omitempty"`    // in nanoseconds
	Wait    time.Duration `json:"wait,omitempty"`    // the back-off after it
	Retried bool          `json:"retried,omitempty"` // another call was to follow, in the same visit
	Reason  string        `json:"reason,omitempty"`  // why it was retried or failed, or empty
	Backend string        `json:"backend,omitempty"` // the state of the backend when it ended, such as "down"; "" without a backend
	Error   string        `json:"error,omitempty"`   // the first 120 bytes; empty if it had a result, or needed none
}

// Limits of a timeline in a stored form.
const (
	maxSteps     = 32 // the first ones and the last ones
	firstSteps   = 8
	maxStepError = 120 // bytes
	maxStepName  = 60  // bytes of a reason, and of a state
	maxTimeline  = maxSteps * 1 << 10
)

// formerStates has the names of states of a backend that earlier versions have stored,
// with the present names (law W4).
var formerStates = map[string]string{"open": "up", "closed": "down"}

// fitTimeline returns the steps as the stored forms have them.
func fitTimeline(steps []Step) []Step {
	if len(steps) == 0 {
		return nil
	}
	if over := len(steps) - maxSteps; over > 0 {
		steps = slices.Concat(steps[:firstSteps], steps[firstSteps+over:])
	}
	steps = slices.Clone(steps)
	for i := range steps {
		s := &steps[i]
		if name, ok := formerStates[s.Backend]; ok {
			s.Backend = name
		}
		s.Begun = s.Begun.UTC().Round(0)
		if checkYear(s.Begun) != nil {
			s.Begun = time.Time{}
		}
		s.Error = readable(cut(s.Error, maxStepError))
		s.Reason = readable(cut(s.Reason, maxStepName))
		s.Backend = readable(cut(s.Backend, maxStepName))
	}
	return steps
}

// timelineText returns steps that fit as text.
func timelineText(steps []Step) string {
	b, _ := json.Marshal(steps) // its times have years of RFC 3339
	return string(b)
}

// timeline returns the steps in a header.
func (r *headerReader) timeline() (steps []Step) {
	value, ok := r.take(headerTimeline, maxTimeline)
	if !ok {
		return nil
	}
	text, err := unescape(value)
	if err == nil {
		err = json.Unmarshal([]byte(text), &steps)
	}
	if !r.note(headerTimeline, value, err) {
		return nil
	}
	return fitTimeline(steps)
}
