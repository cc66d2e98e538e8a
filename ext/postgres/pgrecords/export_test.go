package pgrecords

import "time"

// Waiting returns how many calls of Exec do not run yet.
func Waiting(r *Records) int { return r.group.Waiting() }

// SetPatience sets how long a record is looked for after an attempt has failed.
func SetPatience(r *Records, d time.Duration) { r.patience = d }
