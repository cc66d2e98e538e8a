package wiring

// Failure is the last element that an operator or a flow that has failed sends to a next
// step of weir ([TakesFailures]). Flows without a failure of their own pass it on; the
// next operator or sink fails with Err.
type Failure struct{ Err error }
