package leases

import (
	"context"
	"sync"

	"github.com/weirflow/weir/internal/settle"
)

// KeysInFlight counts the messages of each key that are in flight in a worker. The
// sources of a queue and of its layers share it, so the limit of [WithKeyRounds] holds
// for all of them together. Safe for concurrent use.
type KeysInFlight struct {
	// taking has capacity 1: the source that takes messages by key holds it from its look
	// at the counts until it has counted what it has taken.
	taking chan struct{}

	mu       sync.Mutex // guards the fields below
	flying   map[string]int
	excluded map[chan struct{}]bool // of the sources whose last round left out keys
}

// NewKeysInFlight returns counts of 0.
func NewKeysInFlight() *KeysInFlight {
	return &KeysInFlight{
		taking: make(chan struct{}, 1), flying: map[string]int{}, excluded: map[chan struct{}]bool{},
	}
}

// WithKeysInFlight makes a source share the counts of other sources. By default a source
// has its own.
func WithKeysInFlight(k *KeysInFlight) SourceOption {
	return func(set *sourceSettings) { set.inFlight = k }
}

// hold waits until no other source is taking messages by key.
func (k *KeysInFlight) hold(ctx context.Context) error {
	select {
	case k.taking <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (k *KeysInFlight) unhold() { <-k.taking }

// room returns the keys that have most messages in flight, and how many messages of each
// other key may be taken: at most n. It wakes again when a returned key may
// be taken from.
func (k *KeysInFlight) room(most, n int, again chan struct{}) (except []string, each int) {
	each = min(n, most)
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, flying := range k.flying {
		if flying >= most {
			except = append(except, key)
		} else {
			each = min(each, most-flying)
		}
	}
	if len(except) > 0 {
		k.excluded[again] = true
	} else {
		delete(k.excluded, again)
	}
	return except, each
}

// took counts a message that was taken.
func (k *KeysInFlight) took(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.flying[key]++
}

// landed counts a message that is no longer in flight. If its key was at the limit, the
// sources that left it out look again.
func (k *KeysInFlight) landed(key string, most int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	wasFull := k.flying[key] >= most
	k.flying[key]--
	if k.flying[key] <= 0 {
		delete(k.flying, key)
	}
	if !wasFull {
		return
	}
	for again := range k.excluded {
		settle.Wake(again)
	}
	clear(k.excluded)
}
