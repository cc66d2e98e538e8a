package strategies

// MaxRetriesOf returns how many retries a strategy or policy allows an element,
// where that is known: from a method MaxRetries() int, as the strategies of this
// package have it, or that of what is wrapped, as a method Unwrap() any tells it.
// [Policy] and the wrappers of this package have the latter, and wrappers of your
// own should. ok is false if nothing along the way tells.
//
// [Unlimited] means no bound but the element's time. Reasons that are always
// retried are not counted: no strategy is asked about them.
func MaxRetriesOf(strategy any) (n int, ok bool) {
	for {
		switch s := strategy.(type) {
		case interface{ MaxRetries() int }:
			return s.MaxRetries(), true
		case interface{ Unwrap() any }:
			strategy = s.Unwrap()
		default:
			return 0, false
		}
	}
}
