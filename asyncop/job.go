package asyncop

// job is what a worker does: a blocking call that the loop has started (attempt and in), or any other task.
type job[IN, OUT any] struct {
	attempt *attempt[IN, OUT]
	in      IN

	task   func()
	permit bool // the task's, given back when it has returned
}

// do does a job, on a worker.
func (c *core[IN, OUT]) do(j job[IN, OUT]) {
	if a := j.attempt; a != nil {
		if a.late() != nil { // the element ends without it: by its deadline, or with its operator
			c.release()
			return
		}
		c.direct.run((*attemptContext[IN, OUT])(a), j.in, a, nil)
		return
	}
	if j.permit {
		defer c.release() // even if the task ends its goroutine
	}
	j.task()
}

// directCall returns the blocking call that fn is, if it is one and nothing of the user's is around it.
func directCall[IN, OUT any](fn AsyncFunction[IN, OUT]) *blocking[IN, OUT] {
	if h, ok := fn.(*withTimeoutHandler[IN, OUT]); ok {
		return directCall(h.AsyncFunction)
	}
	call, _ := fn.(*blocking[IN, OUT])
	return call
}
