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
	Wait    time.Duration `json:"wait,omitempty"`    // back-off after it
	Retried bool          `json:"retried,omitempty"` // another call was to follow in the visit
	Reason  string        `json:"reason,omitempty"`  // why it was retried or failed, or empty
	Backend string        `json:"backend,omitempty"` // state of the backend at the end, such as "down"; "" without a backend
	Error   string        `json:"error,omitempty"`   // the first 120 bytes; empty if there was no error
}

// Limits of a timeline in a stored form.
const (
	maxSteps     = 32 // firstSteps from the beginning, the others from the end
	firstSteps   = 8
	maxStepError = 120 // bytes
	maxStepName  = 60  // bytes of a reason or a state
	maxTimeline  = maxSteps * 1 << 10
)

// formerStates maps states of a backend stored by earlier versions to present names (law
// W4).
var formerStates = map[string]string{"open": "up", "closed": "down"}

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

func timelineText(steps []Step) string {
	b, _ := json.Marshal(steps) // its times have years of RFC 3339
	return string(b)
}

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
