package settle

import (
	"context"
	"time"

	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/message"
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

// PurgeFinder is a source that finds messages in flight that were purged. delivery.Run
// then makes its operator end their calls.
type PurgeFinder interface {
	// OnPurge sets a function f. The source calls f when it has found purged messages, on
	// any goroutine. f must return at once.
	OnPurge(f func())
	// LookForPurged looks for purged messages among the messages in flight with this key.
	// The key "" means messages with any key. LookForPurged returns when it has looked,
	// or when ctx has ended. A source also finds purged messages without this call, when
	// it next extends its leases.
	LookForPurged(ctx context.Context, key string)
}

// Rejecter is a source that rejects messages itself, before Receive returns them, such as
// messages that its codec cannot decode. delivery.Run counts them, and its flood guard
// judges them (law D5).
type Rejecter interface {
	// OnReject sets a function f, before the first Receive. Receive calls f, on any
	// goroutine, before it rejects a message because of err. If f returns false, the
	// message is released, and stays in its queue. f must return at once.
	OnReject(f func(meta message.Meta, err error) (rejects bool))
}

// Buffer is a source that takes messages before Receive returns them.
type Buffer interface {
	// ReleaseBuffered releases the messages that the source has taken, and has not
	// returned yet. It is called by the goroutine that calls Receive.
	ReleaseBuffered()
}

// KeyLimiter is a source that can leave out messages of some keys. Messages that are left
// out stay in their queue, at a cost that does not depend on their number. Any goroutine
// may call the methods.
type KeyLimiter interface {
	// RestrictKeys sets a function f, which the source calls before it takes messages. f
	// returns the keys that are not up, each with its share of the usual limit of a key,
	// and the time after which it may return higher shares. RestrictKeys returns false if
	// the source cannot leave out keys.
	RestrictKeys(f func() (list []gate.Restriction, next time.Duration)) bool
	// HoldKeys sets the keys that people hold: the source leaves out their messages, and
	// takes the messages of keys that are no longer held. It returns false if the source
	// cannot leave out keys.
	HoldKeys(keys map[string]bool) bool
}
