package store

import (
	"context"
	"errors"
	"time"

	"github.com/weirflow/weir/delivery/lock"
)

// ErrChanged is returned by [Tx.Write] for a record that another transaction has written since it was read.
var ErrChanged = errors.New("store: the record was changed by another one")

// Keeper is an engine that keeps records beside its messages, and changes both in one transaction. Jobs are kept in records (package jobs),
// and so is what workers say about themselves.
type Keeper interface {
	Inspector

	// Locks returns the locks of the engine. They end with it.
	Locks() lock.Locks

	// Records returns up to limit records of a kind, in the order of the bytes of their names, which are behind after.
	Records(ctx context.Context, kind, after string, limit int) ([]Record, error)

	// Update runs f in a transaction: all that f has done takes effect when f returns nil, and nothing if it returns an error, which Update
	// returns. f may run more than once, so it sets what it returns, and adds nothing up. It uses nothing of the engine but tx.
	Update(ctx context.Context, f func(ctx context.Context, tx Tx) error) error
}

// Tx is a transaction of a [Keeper]. It is used by one goroutine, until f returns.
type Tx interface {
	// Now returns the time of the engine's clock.
	Now() time.Time

	// Records is [Keeper.Records], in the transaction.
	Records(ctx context.Context, kind, after string, limit int) ([]Record, error)

	// Write writes a record whose version is the one that was read, and gives it the next one. Version 0 is a record that is not there.
	// Without a value the record is removed. If another transaction was faster, it returns ErrChanged.
	Write(ctx context.Context, r Record) error

	// Edit changes messages, and says for each whether it did.
	Edit(ctx context.Context, edits ...Edit) (done []bool, err error)
}

// Record is a text beside the messages of an engine.
type Record struct {
	Kind, Name string
	Version    int64
	Value      string // UTF-8 without NUL, up to 16 MiB
}

// Edit changes a message that [Inspector.List] has shown. It is not done if the message is gone, leased, or was taken since it was shown.
type Edit struct {
	Do    EditKind
	Queue string
	Entry Entry
	To    string // of MoveEdit: the queue in which the message of Entry is put
}

// EditKind is what an [Edit] does.
type EditKind int

// The kinds of an [Edit].
const (
	// MoveEdit puts the message of the entry into another queue, where it is due after its Delay, and removes what was listed. It is not
	// done if a message with the same identity is there.
	MoveEdit EditKind = iota
	// RemoveEdit removes the message, also while it is leased.
	RemoveEdit
	// HoldEdit keeps the message from being taken and claimed, until it is released.
	HoldEdit
	// ReleaseEdit lets a held message be taken when it is due. It is not done if the message is not held.
	ReleaseEdit
	// DueEdit makes a message due now that waits for its delay, where it is. It is not done if the message is due or held.
	DueEdit
)

// Watcher is a [Keeper] that says when records of the kind [WatchedKind] are written. Where an engine is none, they are read once a second.
type Watcher interface {
	// Watch calls changed when such a record was written, until ctx ends or it cannot go on: it returns why. It calls changed first when it
	// misses nothing any more. changed does not block.
	Watch(ctx context.Context, changed func()) error
}

// WatchedKind is the kind of what people want of backends.
const WatchedKind = "backend"
