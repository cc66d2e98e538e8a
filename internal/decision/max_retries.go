package decision

// limitedStrategy is a strategy that knows its number of retries.
type limitedStrategy interface{ MaxRetries() int }

// strategyWrapper is a strategy around another strategy.
type strategyWrapper interface{ Unwrap() any }

// MaxRetriesOf returns the number of retries that a strategy allows an element: the
// result of its method MaxRetries() int, or of the first strategy inside it, by Unwrap()
// any, that has this method. ok is false if no strategy has it.
//
// Retries whose reason is always retried come in addition, because no strategy is asked
// about them.
func MaxRetriesOf(strategy any) (n int, ok bool) {
	for {
		switch s := strategy.(type) {
		case limitedStrategy:
			return s.MaxRetries(), true
		case strategyWrapper:
			strategy = s.Unwrap()
		default:
			return 0, false
		}
	}
}
