package asyncop

// job is what a worker does for an attempt, unless that is late then.
type job[IN, OUT any] struct {
	attempt *attempt[IN, OUT]

	in      IN               // of a blocking call that the loop has started, if there is neither task nor wrapped
	task    func(late error) // anything else; called also if it is late
	wrapped func(late error) // a blocking call that a wrapper waits for: it is told if it is late
	permit  bool             // of wrapped, given back when that has returned
}

// do does a job, on a worker. Law A5: nothing begins too late.
func (c *core[IN, OUT]) do(j job[IN, OUT]) {
	late := j.attempt.late()
	switch {
	case j.wrapped != nil:
		if j.permit {
			defer c.release() // even if the call ends its goroutine
		}
		if late != nil {
			j.attempt.cutOff(late)
		}
		j.wrapped(late)
	case j.task != nil:
		j.task(late)
	case late != nil: // the element ends without it: by its deadline, or with its operator
		c.release()
	default:
		c.direct.run((*attemptContext[IN, OUT])(j.attempt), j.in, j.attempt, nil)
	}
}

// directCall returns the blocking call that fn is, if it is one and nothing of the user's is around it.
func directCall[IN, OUT any](fn AsyncFunction[IN, OUT]) *blocking[IN, OUT] {
	if h, ok := fn.(*withTimeoutHandler[IN, OUT]); ok {
		return directCall(h.AsyncFunction)
	}
	call, _ := fn.(*blocking[IN, OUT])
	return call
}
