package call

// Job is what a worker does: Task or, if that is nil, the call of Attempt, which the loop has started and which has its permit.
type Job[IN, OUT any] struct {
	Task    func()
	Attempt *Attempt[OUT]
	In      IN
}

// Do does a job, on a worker. Law A5: no call begins too late.
func (j Job[IN, OUT]) Do(direct func(a *Attempt[OUT], in IN)) {
	switch {
	case j.Task != nil:
		j.Task()
	case j.Attempt.Late() != nil: // the element ends without it: by its deadline, or with its operator
		j.Attempt.Returned()
	default:
		direct(j.Attempt, j.In)
	}
}
