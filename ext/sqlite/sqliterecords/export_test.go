package sqliterecords

const DueSQL = dueSQL

// Waiting returns how many calls of Run wait for a batch to end.
func (r *Records) Waiting() int { return r.group.Waiting() }
