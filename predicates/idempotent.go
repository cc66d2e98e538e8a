package predicates

// Idempotent is implemented by elements that know whether their call may happen
// twice: whether it leaves the same behind as one call would. Their answer counts,
// yes or no, whatever the policy of the operator says. Where neither the element
// nor the policy says so, the call may not happen twice.
//
// The element is asked as it is: a method with a pointer receiver is not one of an
// element that is a value.
type Idempotent interface {
	Idempotent() bool
}

// OfInput returns f as a function of any input, which is false for inputs of
// another type, so that what is known about a type of element can travel with a
// strategy, which knows the output type only.
//
//	policy.IdempotentIf(predicates.OfInput(httpretry.Idempotent))
//
// It panics if f is nil.
func OfInput[IN any](f func(in IN) bool) func(input any) bool {
	if f == nil {
		panic("predicates: OfInput: nil function")
	}
	return func(input any) bool {
		in, ok := input.(IN)
		return ok && f(in)
	}
}
