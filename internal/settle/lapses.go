package settle

import (
	"fmt"
	"time"
)

// MaxLapses is how many leases of a message may end before it is given up: a message that
// kills its worker would block the queue forever (D4, W2).
const MaxLapses = 5

// LapsedError is the error of a message whose leases have ended this many times.
type LapsedError int

func (e LapsedError) Error() string {
	return fmt.Sprintf("its lease ended %d times before it was settled: its workers died, or hung", int(e))
}

// HeadStart returns how long a message whose leases have ended is processed alone: the
// next message is taken when it is settled, or after that time. The time grows with the
// number of lapses.
func HeadStart(lapses int) time.Duration {
	const first, last = 100 * time.Millisecond, 5 * time.Second
	return min(first<<min(2*(max(1, lapses)-1), 10), last)
}
