package decision

// LimitedStrategy is a strategy that knows its number of retries.
type LimitedStrategy interface{ MaxRetries() int }

// StrategyWrapper is a strategy around another strategy.
type StrategyWrapper interface{ Unwrap() any }

// MaxRetriesOf returns the number of retries that a strategy allows an element: the
// result of its method MaxRetries() int, or of the first strategy inside it, by Unwrap()
// any, that has this method. ok is false if no strategy has it.
//
// Retries whose reason is always retried come in addition, because no strategy is asked
// about them.
func MaxRetriesOf(strategy any) (n int, ok bool) {
	for {
		switch s := strategy.(type) {
		case LimitedStrategy:
			return s.MaxRetries(), true
		case StrategyWrapper:
			strategy = s.Unwrap()
		default:
			return 0, false
		}
	}
}
