package leases

import (
	"time"

	"github.com/weirflow/weir/internal/storearg"
)

// forGood is the delay of a message that is set aside: about 100 years. The message stays
// in its queue, and is no longer taken. A dead letter points to it, or the log names it.
// Only its due time shows that it was set aside (IsSetAside).
const forGood = storearg.ForGood

// longestNack limits the delay of a user's release or nack to about 25 years, so that
// IsSetAside does not return true for it.
const longestNack = forGood / 4

// IsSetAside reports whether a message in a layer, or behind others of its key, was set
// aside. Such a message is due in more than 50 years. Other messages are due within their
// layer's delay, or within longestNack.
func IsSetAside(due, now time.Time) bool { return due.Sub(now) > forGood/2 }
