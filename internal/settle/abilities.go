package settle

import (
	"context"
	"time"

	"github.com/weirflow/weir/internal/gate"
)

// LeaseCounter is a source that counts the leases that it has lost. delivery.Run reports
// the number in the state of its worker.
type LeaseCounter interface {
	// LeasesLost returns how many messages were delivered again while the source had
	// them, because their leases had ended. Any goroutine may call it.
	LeasesLost() int
}

// RefusalCounter is a source that counts the settlements that its engine refuses to
// record. delivery.Run reports the number in the state of its worker.
type RefusalCounter interface {
	// SettlementsRefused returns how often the engine has refused to record how a message
	// was settled. Any goroutine may call it.
	SettlementsRefused() int
}

// PurgeFinder is a source that finds that messages in flight were purged. delivery.Run
// then makes its operator end their calls.
type PurgeFinder interface {
	// OnPurge sets a function that is called when the source has found such messages. f
	// must return at once. It is called by any goroutine.
	OnPurge(f func())
	// LookForPurged looks whether messages in flight with this key were purged, or
	// messages with any key if it is "". Without it, the source finds that when it next
	// extends its leases. It returns when it has looked, or when ctx has ended.
	LookForPurged(ctx context.Context, key string)
}

// Buffer is a source that takes messages before Receive returns them.
type Buffer interface {
	// ReleaseBuffered releases the messages that the source has taken, and has not
	// returned yet. It is called by the goroutine that calls Receive.
	ReleaseBuffered()
}

// KeyLimiter is a source that can leave out messages of some keys: they stay in their
// queue at a cost that does not depend on their number.
type KeyLimiter interface {
	// RestrictKeys sets a function that returns the keys that are not up, and the time
	// after which it may allow more of their messages. The source calls it before it
	// takes messages. A key that the source limits by a number gets its share of that.
	// RestrictKeys returns false if the source cannot leave out keys. Any goroutine may
	// call it.
	RestrictKeys(f func() (list []gate.Restriction, next time.Duration)) bool
	// HoldKeys makes the source leave out the messages of these keys, and take the
	// messages of keys that it has left out before. It returns false if the source cannot
	// leave out keys. Any goroutine may call it.
	HoldKeys(keys map[string]bool) bool
}
