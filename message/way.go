package message

import (
	"encoding/json"
	"slices"
	"time"
)

// Step is a call on the way of a message.
type Step struct {
	Visit   int           `json:"visit,omitempty"`   // from 1
	Attempt int           `json:"attempt,omitempty"` // of the visit, from 1
	Begun   time.Time     `json:"begun,omitzero"`
	Took    time.Duration `json:"took,omitempty"`    // in nanoseconds
	Wait    time.Duration `json:"wait,omitempty"`    // the back-off after it
	Retried bool          `json:"retried,omitempty"` // another call was to follow, in the same visit
	Reason  string        `json:"reason,omitempty"`  // why it was retried or failed; "": none was named
	Backend string        `json:"backend,omitempty"` // the state of the backend when it ended, such as "closed"; "": without a backend
	Error   string        `json:"error,omitempty"`   // the first 120 bytes; "": it had a result, or none was wanted
}

// Limits of a way in a stored form.
const (
	maxSteps     = 32 // the first ones and the last ones
	firstSteps   = 8
	maxStepError = 120 // bytes
	maxStepName  = 60  // bytes of a reason, and of a state
	maxWay       = maxSteps * 1 << 10
)

// fitWay returns a way as the stored forms have it.
func fitWay(way []Step) []Step {
	if len(way) == 0 {
		return nil
	}
	if over := len(way) - maxSteps; over > 0 {
		way = slices.Concat(way[:firstSteps], way[firstSteps+over:])
	}
	way = slices.Clone(way)
	for i := range way {
		s := &way[i]
		s.Begun = s.Begun.UTC().Round(0)
		if checkYear(s.Begun) != nil {
			s.Begun = time.Time{}
		}
		s.Error, s.Reason, s.Backend = readable(cut(s.Error, maxStepError)), readable(cut(s.Reason, maxStepName)), readable(cut(s.Backend, maxStepName))
	}
	return way
}

// wayText returns a way that fits as text.
func wayText(way []Step) string {
	b, _ := json.Marshal(way) // its times have years of RFC 3339
	return string(b)
}

// way returns the way that is a header.
func (r *headerReader) way() (way []Step) {
	value, ok := r.take(headerWay, maxWay)
	if !ok {
		return nil
	}
	text, err := unescape(value)
	if err == nil {
		err = json.Unmarshal([]byte(text), &way)
	}
	if !r.check(headerWay, value, err) {
		return nil
	}
	return fitWay(way)
}
