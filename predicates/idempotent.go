package predicates

// Idempotent is implemented by elements that determine whether their call may happen
// twice, that is, whether two calls have the same effect as one. The result overrides the
// policy of the operator. If neither declares the call idempotent, it must not happen
// twice.
//
// A call whose requests are all deduplicated ([WithDeduplicated]) may be repeated even if
// Idempotent returns false.
//
// A method with a pointer receiver is not found if elements are values. delivery.NewQueue
// refuses such a type.
type Idempotent interface {
	Idempotent() bool
}
