package store

import (
	"context"
	"time"
)

// KeyCounter is a store that counts messages by their keys ([message.Meta].Key).
type KeyCounter interface {
	Lister

	// CountKeys returns counts for up to q.Max keys with messages in the queues of q. The
	// keys in q.First come first, then keys with more waiting messages, then keys with
	// more dead letters, then the others in byte order. Messages without a key are not
	// counted. Payloads are not read. An engine on a database uses one statement, and
	// memory for twice q.Max keys.
	CountKeys(ctx context.Context, q KeyQuery) ([]KeyCounts, error)
}

// KeyQuery is the argument of [KeyCounter.CountKeys].
type KeyQuery struct {
	Queues   []string // a queue and its layers: 1 to 400 different names
	Dead     string   // the dead letters, not in Queues; "" leaves them out
	First    []string // keys that come first, in any order, if they have messages
	Contains string   // only keys that contain this text; "" for all
	Max      int      // most keys returned, at least 1
}

// KeyCounts are the counts of the messages of a key.
type KeyCounts struct {
	Key     string
	Waiting int       // in the queue and its layers, including leased messages
	Held    int       // of these
	Dead    int       // dead letters
	Oldest  time.Time // when the first waiting message arrived in its queue or layer; zero if Waiting is 0
	// Next is the earliest time at which a waiting message can be taken: when its delay
	// or another consumer's lease ends. It is zero if all waiting messages are held, or
	// parked behind a held one ([InOrder]), or if Waiting is 0.
	Next time.Time
}
