package wiring

// Failure is the last element that a failed operator or flow sends downstream, if the
// next step takes it ([TakesFailures]). Flows that have not failed pass it on; the next
// operator or sink fails with Err.
type Failure struct{ Err error }
