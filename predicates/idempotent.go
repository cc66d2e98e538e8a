package predicates

// Idempotent is implemented by elements that know whether their call may happen twice: whether two calls have the same effect as a single call.
// Their answer, yes or no, overrides the policy of the operator. If neither the element nor the policy says so, the call must not happen twice.
//
// A call whose requests are all deduplicated ([WithDeduplicated]) does not happen twice, and is repeated whatever the element says.
//
// The element is asked as it is: a method with a pointer receiver is not a method of an
// element that is a value. delivery.NewQueue refuses such a type.
type Idempotent interface {
	Idempotent() bool
}
