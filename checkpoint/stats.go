package checkpoint

import (
	"encoding/json"
	"time"

	"github.com/weirflow/weir/internal/guard"
)

// Stats describes the checkpoints of a [Coordinator] in this run, by its clock.
type Stats struct {
	Completed uint64 // including a final checkpoint
	// Failed counts aborted checkpoints: some participant did not report or reported an
	// error, the checkpoint took too long, or could not be stored. The end of the run, or
	// of the caller's context, does not count.
	Failed      uint64
	FailedInRow int   // since the last completed checkpoint
	LastError   error // of the last failed checkpoint, or nil

	LastID       uint64        // last checkpoint that this run has stored, or 0
	LastTime     time.Time     // when it was stored
	LastDuration time.Duration // from its trigger until it was stored
	LastSize     int64         // of its states, in bytes

	// UnderWay is the number of the checkpoint that was triggered, is being stored or is
	// being published, or 0.
	UnderWay uint64
	Since    time.Time // when UnderWay was triggered
}

// MarshalJSON encodes LastError as text, without passwords and queries of URLs.
func (s Stats) MarshalJSON() ([]byte, error) {
	type plain Stats // has no MarshalJSON
	out := struct {
		plain
		LastError string `json:",omitempty"`
	}{plain: plain(s)}
	if s.LastError != nil {
		out.LastError = guard.Text(s.LastError)
	}
	return json.Marshal(out)
}

// Stats returns the current counts. It may be called at any time.
func (c *Coordinator) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Lag returns how many elements of its input the pipeline has not read yet. known is
// false if the input is not a [Lagger] or its lag is unknown.
func (c *Coordinator) Lag() (elements int64, known bool) {
	c.mu.Lock()
	l := c.lagger
	c.mu.Unlock()
	if l == nil || protect(func() error { elements = l.Lag(); return nil }) != nil || elements < 0 {
		return 0, false
	}
	return elements, true
}
