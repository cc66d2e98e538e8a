package decision

import "time"

// ControlledBackoff is the delay of reasons that are always retried, as RFC 0049 has it: fast at first, and a second at most.
func ControlledBackoff(retries int) time.Duration {
	return controlled[min(max(retries, 0), len(controlled)-1)]
}

var controlled = [...]time.Duration{
	1 * time.Millisecond,
	10 * time.Millisecond,
	50 * time.Millisecond,
	100 * time.Millisecond,
	500 * time.Millisecond,
	1000 * time.Millisecond,
}
