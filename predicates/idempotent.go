package predicates

// Idempotent is implemented by elements that determine whether their call may happen
// twice, that is, whether two calls have the same effect as a single call. The result
// overrides the policy of the operator. If neither the element nor the policy declares it
// idempotent, the call must not happen twice.
//
// A call whose requests are all deduplicated ([WithDeduplicated]) does not happen twice,
// so it may be repeated even if Idempotent returns false.
//
// If elements are values, a method with a pointer receiver is not found.
// delivery.NewQueue refuses such a type.
type Idempotent interface {
	Idempotent() bool
}
