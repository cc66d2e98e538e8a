package checkpoint

import (
	"encoding/json"
	"time"

	"github.com/weirflow/weir/internal/guard"
)

// Stats describes the checkpoints of a [Coordinator] since it was made. Times are by its
// clock.
type Stats struct {
	Completed uint64 // stored, including a final checkpoint
	// Failed were aborted: not all have reported, a participant has reported an error, it
	// took too long, or it could not be stored. A checkpoint that ended with the run, or
	// with the context of the caller who asked for it, does not count.
	Failed      uint64
	FailedInRow int   // since the last that completed
	LastError   error // of the last failed checkpoint; nil: none failed

	LastID       uint64        // of the last that this run has stored; 0: none
	LastTime     time.Time     // when it was stored
	LastDuration time.Duration // from its trigger until it was stored
	LastSize     int64         // of its states, in bytes

	UnderWay uint64    // number of the checkpoint under way: triggered, being stored or being published; 0: none
	Since    time.Time // when it was triggered
}

// MarshalJSON encodes LastError as a text, without the passwords and queries of URLs.
func (s Stats) MarshalJSON() ([]byte, error) {
	type plain Stats // without this method
	out := struct {
		plain
		LastError string `json:",omitempty"`
	}{plain: plain(s)}
	if s.LastError != nil {
		out.LastError = guard.Text(s.LastError)
	}
	return json.Marshal(out)
}

// Stats returns the counts of the checkpoints so far. It may be called at any time.
func (c *Coordinator) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Lag returns how many elements of its input the pipeline has not read yet. known is
// false if the input is not a [Lagger], or does not know.
func (c *Coordinator) Lag() (elements int64, known bool) {
	c.mu.Lock()
	l := c.lagger
	c.mu.Unlock()
	if l == nil || protect(func() error { elements = l.Lag(); return nil }) != nil || elements < 0 {
		return 0, false
	}
	return elements, true
}
