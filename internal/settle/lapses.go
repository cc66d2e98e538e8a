package settle

import (
	"fmt"
	"time"
)

// MaxLapses is the number of ended leases after which a message is given up. A message
// that kills each worker that takes it would block the queue forever (D4, W2).
const MaxLapses = 5

// LapsedError is the error of a message whose leases have ended this many times.
type LapsedError int

func (e LapsedError) Error() string {
	return fmt.Sprintf("its lease ended %d times before it was settled: its workers died, or hung", int(e))
}

// HeadStart returns how long a message whose leases have ended is processed alone, at
// most: 100 ms after the first lapse, and then four times as long after each lapse, up to
// 5 s. If it is settled sooner, the next message is taken at once.
func HeadStart(lapses int) time.Duration {
	const first, last = 100 * time.Millisecond, 5 * time.Second
	return min(first<<min(2*(max(1, lapses)-1), 10), last)
}
