package asyncop

import (
	"fmt"
	"iter"
)

// Results drives the operator without channels and without boxing: it feeds it the elements of input, and yields the
// results in the operator's order. If the operator fails or is cancelled, the last pair is a zero value and Err; if Stop has
// ended it before the end of the input, a zero value and [ErrStopped].
//
//	for out, err := range op.Results(slices.Values(elements)) {
//		if err != nil {
//			return err
//		}
//		…
//	}
//
// The input is iterated on a goroutine of its own, which may run ahead of what is accepted by the places of
// [WithBuffer], at least one; a panic of the input fails the operator. Elements must not be changed once they were
// yielded, unless the function is a [Cloner]. Results that nobody asks for hold their slots; timers go on.
//
// To break off the loop cancels the operator with [ErrStopped]. However the loop ends, everything is done then, as told
// at Done; only the input, if it waits for something, ends with its next element: see [WithUpstreamCancel]. Results that
// were on their way, at most as many as there are places, are dropped, although Stats has them as emitted.
//
// When the input ends, retries run their course, up to the timeout of each element: the end of a list says nothing about what
// is not there yet, and whoever ranges over the results waits for all of them. With [WithCutRetries] each element that waits
// for a retry gets one last attempt at once, as in a flow.
//
// An operator has one loop over its results, which takes the place of In, Out, Via and To: Results panics if one of them
// was used, if it was ranged over before, and with [WithCheckpoints], whose barriers come through In. It carries elements
// only: if IN is an interface type, a [Watermark] is an element like any other.
//
// For an input that carries errors, such as the results of another operator, there is [AsyncWaitOperator.ResultsFrom].
func (op *AsyncWaitOperator[IN, OUT]) Results(input iter.Seq[IN]) iter.Seq2[OUT, error] {
	if input == nil {
		panic("asyncop: Results: nil input")
	}
	return op.results("Results", func(put func(IN) bool) error { input(put); return nil })
}

// ResultsFrom is [AsyncWaitOperator.Results] for an input that carries errors. So operators can be put in a row:
//
//	for row, err := range enrich.ResultsFrom(lookup.Results(slices.Values(keys))) {
//
// The first error ends the input, and its element is not taken. What was accepted before is finished, and its results are
// yielded. Then the operator fails: Err wraps the error of the input, and the last pair is a zero value and Err.
func (op *AsyncWaitOperator[IN, OUT]) ResultsFrom(input iter.Seq2[IN, error]) iter.Seq2[OUT, error] {
	if input == nil {
		panic("asyncop: ResultsFrom: nil input")
	}
	return op.results("ResultsFrom", func(put func(IN) bool) error {
		for v, err := range input {
			if err != nil {
				return err
			}
			if !put(v) {
				return nil
			}
		}
		return nil
	})
}

// results drives the operator with what iterate puts, until that returns or put reports false.
func (op *AsyncWaitOperator[IN, OUT]) results(
	method string, iterate func(put func(IN) bool) error,
) iter.Seq2[OUT, error] {
	if op.driver.Coordinator != nil {
		panic("asyncop: " + method + ": an operator WithCheckpoints needs a source of barriers: use it as a flow")
	}
	return func(yield func(OUT, error) bool) {
		if !op.use.CompareAndSwap(unused, byResults) {
			panic(fmt.Sprintf("asyncop: %s: the operator is driven by %s already", method, drivers[op.use.Load()]))
		}
		op.driver.Results(iterate, yield)
	}
}
