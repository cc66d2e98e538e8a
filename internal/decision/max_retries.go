package decision

// MaxRetriesOf returns how many retries a strategy allows an element. It asks a method MaxRetries() int, and follows
// Unwrap() any to what is wrapped; ok is false if there is no such method along the way.
//
// Reasons that are always retried are not counted: no strategy is asked about them.
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
