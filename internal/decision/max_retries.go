package decision

// limitedStrategy is a strategy that knows how many retries it allows.
type limitedStrategy interface{ MaxRetries() int }

// strategyWrapper is a strategy around another strategy.
type strategyWrapper interface{ Unwrap() any }

// MaxRetriesOf returns how many retries a strategy allows an element. It asks a method MaxRetries() int, and follows
// Unwrap() any to what is wrapped; ok is false if there is no such method along the way.
//
// Reasons that are always retried are not counted: no strategy is asked about them.
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
