package wiring

// Failure is the last element of a stream whose flow has failed. Flows without a failure of their own pass it on; the next
// operator or sink fails with Err.
type Failure struct{ Err error }
