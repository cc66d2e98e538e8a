package decision

// LimitedStrategy is a strategy with a number of retries.
type LimitedStrategy interface{ MaxRetries() int }

// StrategyWrapper is a strategy around another strategy.
type StrategyWrapper interface{ Unwrap() any }

// MaxRetriesOf returns how many retries a strategy allows an element, by its method
// MaxRetries() int. If the strategy does not have the method, MaxRetriesOf asks the
// strategy inside it, by Unwrap() any. ok is false if no strategy has the method.
//
// Retries whose reason is always retried come in addition: no strategy is asked about
// them.
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
