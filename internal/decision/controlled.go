package decision

import "time"

// ControlledBackoff returns the delay of a retry whose reason is always retried, as in
// RFC 0049: 1 ms to 1 s.
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
