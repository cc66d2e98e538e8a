package store

import (
	"context"
	"errors"
	"time"

	"github.com/weirflow/weir/delivery/lock"
)

// ErrChanged is returned by [Tx.Write] if another transaction has written the record
// since it was read.
var ErrChanged = errors.New("store: another transaction changed the record")

// Keeper is an engine that keeps records, and changes them in one transaction with
// messages. Jobs (package jobs) and workers' reports are records.
type Keeper interface {
	Inspector

	// Locks returns the engine's locks. They end with it.
	Locks() lock.Locks

	// Records returns up to limit records of a kind whose names follow after, in the byte
	// order of names.
	Records(ctx context.Context, kind, after string, limit int) ([]Record, error)

	// Update runs f in a transaction, which commits if f returns nil. If f returns an
	// error, Update rolls back and returns it. f may run more than once, so it must set
	// its results anew each time. It must use only tx of the engine.
	Update(ctx context.Context, f func(ctx context.Context, tx Tx) error) error
	// Watch calls changed once when it begins to listen, and when a transaction that
	// called [Tx.Announce] has committed. It ends with ctx or when it fails, and returns
	// the reason. changed does not block. An engine that cannot watch returns
	// [errors.ErrUnsupported]; then consumers read once a second what was announced.
	Watch(ctx context.Context, changed func()) error
}

// Tx is a transaction of a [Keeper]. A single goroutine uses it, until f returns.
type Tx interface {
	// Now returns the time of the engine's clock.
	Now() time.Time

	// Records is [Keeper.Records] in the transaction.
	Records(ctx context.Context, kind, after string, limit int) ([]Record, error)

	// Write writes a record if the stored version is r.Version, and increments the
	// version. Otherwise it returns ErrChanged. Version 0 means that the record does not
	// exist. If r.Value is "", Write removes the record.
	Write(ctx context.Context, r Record) error

	// Announce makes the commit call the functions of [Keeper.Watch], on all machines,
	// unless the engine cannot watch.
	Announce()
	// Edit changes messages, and reports for each whether it did.
	Edit(ctx context.Context, edits ...Edit) (done []bool, err error)
}

// Record is a text beside the messages of an engine.
type Record struct {
	Kind, Name string
	Version    int64
	Value      string // UTF-8 without NUL, up to 16 MiB
}

// Edit changes a message that [Inspector.List] has shown. It is not done if the message
// is gone, leased, or was taken since.
type Edit struct {
	Do    Action
	Queue string
	Entry Entry
	To    string // of Merge: the target queue
}

// Action is an action of an [Edit] or a job (package jobs) on messages.
type Action string

// The actions.
const (
	// Merge puts a message into another queue, and removes it from its own. So a job
	// sends dead letters back, for a first visit, with their history and 1 more in
	// Meta.Merges. An edit puts the message of its entry, due after its Delay. It is not
	// done if the target has a message with the same identity.
	Merge Action = "merge"
	// Purge removes messages for good. An edit does so even while they are leased.
	Purge Action = "purge"
	// Hold keeps messages from being taken and claimed until they are released.
	Hold Action = "hold"
	// Release lets held messages be taken again when due. It is not done if a message is
	// not held.
	Release Action = "release"
	// Due makes delayed messages, for example in a layer, due now. They keep their place,
	// visits and order of keys. It is not done if a message is due or held.
	Due Action = "due"
)
