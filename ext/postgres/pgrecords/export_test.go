package pgrecords

// Waiting returns how many calls of Exec do not run yet.
func Waiting(r *Records) int { return r.group.Waiting() }
