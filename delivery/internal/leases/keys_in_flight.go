package leases

import (
	"sync"

	"github.com/weirflow/weir/internal/settle"
)

// KeysInFlight counts the messages of each key that are in flight in a worker. The
// sources of a queue and of its layers share it, so the limit of [WithKeyRounds] holds
// for all of them together. They take messages at the same time, and so may take more
// messages of a key than the limit: each message is admitted on its own, and a source
// releases the messages that are not admitted. Messages without a key are not counted.
// Safe for concurrent use.
type KeysInFlight struct {
	mu      sync.Mutex // guards the fields below
	flying  map[string]int
	waiting map[chan struct{}]bool // sources to wake: their last round left out keys
}

// NewKeysInFlight returns counts of 0.
func NewKeysInFlight() *KeysInFlight {
	return &KeysInFlight{flying: map[string]int{}, waiting: map[chan struct{}]bool{}}
}

// WithKeysInFlight makes a source share the counts of other sources. By default a source
// has its own.
func WithKeysInFlight(k *KeysInFlight) SourceOption {
	return func(set *sourceSettings) { set.inFlight = k }
}

// room returns the keys that have most messages in flight, and how many messages of each
// other key may be taken: at most n. If it returns keys, it remembers wake, and sends to
// it when a message of a full key is settled.
func (k *KeysInFlight) room(most, n int, wake chan struct{}) (except []string, each int) {
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
		k.waiting[wake] = true
	} else {
		delete(k.waiting, wake)
	}
	return except, each
}

// admit counts a message that was taken as in flight, unless most messages of its key are
// in flight already: then it returns false.
func (k *KeysInFlight) admit(key string, most int) bool {
	if key == "" {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flying[key] >= most {
		return false
	}
	k.flying[key]++
	return true
}

// landed counts a message that was admitted as no longer in flight. If its key was at the
// limit, the sources that left it out look again.
func (k *KeysInFlight) landed(key string, most int) {
	if key == "" {
		return
	}
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
	for wake := range k.waiting {
		settle.Wake(wake)
	}
	clear(k.waiting)
}
