package store

import (
	"context"
	"time"
)

// KeyCounter is a store that counts messages by their keys ([message.Meta].Key).
type KeyCounter interface {
	Lister

	// CountKeys returns counts for up to q.Max keys that have messages in the queues of
	// q. The keys in q.First come before the others. Otherwise keys with more waiting
	// messages come first, then keys with more dead letters, then the others in the byte
	// order of the keys. Messages without a key are not counted. It does not read
	// payloads. An engine on a database reads the queues in one
	// statement, and needs memory for twice q.Max keys.
	CountKeys(ctx context.Context, q KeyQuery) ([]KeyCounts, error)
}

// KeyQuery is the argument of [KeyCounter.CountKeys].
type KeyQuery struct {
	Queues   []string // a queue and its layers: 1 to 400 names, each once
	Dead     string   // the dead letters; "" to leave them out. It must not be in Queues
	First    []string // keys that come first, in any order; keys without messages are left out
	Contains string   // only keys that contain this text; "" for all keys
	Max      int      // the largest number of keys that are returned, at least 1
}

// KeyCounts are the counts of the messages of a key.
type KeyCounts struct {
	Key     string
	Waiting int       // in the queue and its layers, leased messages included
	Held    int       // of the waiting messages
	Dead    int       // dead letters
	Oldest  time.Time // when the first of the waiting messages arrived in its queue or layer; zero if Waiting is 0
	// Next is the earliest time at which a waiting message can be taken: when its delay
	// or the lease of another consumer ends. It is zero if all waiting messages are
	// held, or parked behind a held one ([InOrder]), or if Waiting is 0.
	Next time.Time
}
