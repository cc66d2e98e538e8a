package settle

import (
	"fmt"
	"time"
)

// MaxLapses is how many leases of a message may end before it is given up: what kills its process would stop the queue for ever (D4, W2).
const MaxLapses = 5

// LapsedError is the error of a message whose leases have ended so often.
type LapsedError int

func (e LapsedError) Error() string {
	return fmt.Sprintf("its lease ended %d times before it was settled: its workers died, or hung", int(e))
}

// HeadStart is how long a message whose leases have ended is alone: the next one is taken when it is settled, or after that time. It is
// longer the more suspect the message is.
func HeadStart(lapses int) time.Duration {
	const first, last = 100 * time.Millisecond, 5 * time.Second
	return min(first<<min(2*(max(1, lapses)-1), 10), last)
}
