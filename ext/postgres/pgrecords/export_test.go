package pgrecords

import (
	"time"

	"github.com/benbjohnson/clock"
)

// Waiting returns how many calls of Exec do not run yet.
func Waiting(r *Records) int { return r.group.Waiting() }

// SetPatience sets how long a record is looked for after an attempt has failed.
func SetPatience(r *Records, d time.Duration) { r.patience = d }

// SetClock sets the clock for the times of answers.
func SetClock(r *Records, c clock.Clock) { r.clock = c }
