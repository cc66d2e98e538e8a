package asyncop

// SlotsTaken returns the number of slots taken. It may be called by user code that runs on the operator's loop.
func SlotsTaken[IN, OUT any](op *AsyncWaitOperator[IN, OUT]) int { return op.pump.core.queue.Len() }
