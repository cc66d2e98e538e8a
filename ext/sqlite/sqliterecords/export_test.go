package sqliterecords

// Waiting returns how many calls of Run wait for a batch to end.
func (r *Records) Waiting() int { return r.group.Waiting() }
