package leases

import (
	"maps"
	"math"
	"sync"
	"time"

	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/settle"
)

// KeysInFlight counts the messages in flight in a worker by key. A message counts until
// the store has recorded how it was settled. Messages without a key do not count. The
// sources of a queue and its layers share the counts.
//
// There are two limits:
//
//   - The limit of all keys holds for all workers together ([WithKeyRounds]). The store
//     applies it. The counts spare the store the keys that are at the limit in this
//     worker.
//   - A key may have a lower limit of its own: 0 while it is held or down, 1 while its
//     service is tried, and a growing limit after that. Only the counts apply this limit.
//
// A source leaves out the keys at a limit when it takes. So it treats a key that is down
// like a key at the limit of all keys.
//
// Safe for concurrent use.
type KeysInFlight struct {
	mu       sync.Mutex // guards the fields below
	inFlight map[string]int
	waiting  map[chan struct{}]bool // sources to wake: they have left out keys
	skipped  map[string]bool        // left-out keys with messages in flight here: when one is settled, leave wakes the sources
	restrict func() (list []gate.Restriction, next time.Duration)
	shares   map[string]float64 // of keys with their own limit, as of the last take
	held     map[string]bool    // keys that people hold: limit 0; never changed, only replaced
}

// NewKeysInFlight returns counts of 0.
func NewKeysInFlight() *KeysInFlight {
	return &KeysInFlight{inFlight: map[string]int{}, waiting: map[chan struct{}]bool{}, skipped: map[string]bool{}}
}

// WithKeysInFlight makes sources share counts. By default a source has its own.
func WithKeysInFlight(k *KeysInFlight) SourceOption {
	return func(set *sourceSettings) { set.inFlight = k }
}

// Restrict sets a function that returns the keys with their own limit. It is called
// before each take, without a lock.
func (k *KeysInFlight) Restrict(f func() (list []gate.Restriction, next time.Duration)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.restrict = f
}

// hold sets the keys that people hold, and wakes the sources that have left out keys.
// keys must not change later.
func (k *KeysInFlight) hold(keys map[string]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if maps.Equal(k.held, keys) {
		return
	}
	k.held = keys
	k.wakeAll()
}

// usualPerKey is the number of messages in flight of which a restricted key has a share,
// if the option of the queue sets no limit.
const usualPerKey = 100

// limitOf returns the limit of a key. most is the limit of all keys, or 0.
func (k *KeysInFlight) limitOf(key string, most int) int {
	share, isRestricted := k.shares[key]
	switch {
	case k.held[key]:
		return 0
	case isRestricted:
		if most == 0 {
			most = usualPerKey
		}
		return int(math.Ceil(share * float64(most)))
	case most == 0:
		return math.MaxInt
	}
	return most
}

// refreshShares reads the keys' own limits, and returns the time after which they may be
// higher, or 0 if keys do not have limits of their own.
func (k *KeysInFlight) refreshShares() (next time.Duration) {
	k.mu.Lock()
	restrict := k.restrict
	k.mu.Unlock()
	var list []gate.Restriction
	if restrict != nil {
		list, next = restrict()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shares = nil
	if len(list) == 0 {
		return 0
	}
	k.shares = make(map[string]float64, len(list))
	for _, r := range list {
		k.shares[r.Tenant] = r.Share
	}
	return next
}

// rooms describes the keys of which a take may take messages.
//
// A slow key has room for fewer messages than the other keys, because its tenant recovers.
// A take takes the same number of messages of each key, so a slow key would reduce that
// number for all keys. Therefore every other round leaves out the slow keys.
type rooms struct {
	except      []string      // keys to leave out
	each        int           // most messages of each other key
	leftOutSlow bool          // except has slow keys, which the next round includes
	next        time.Duration // after which except may be shorter; 0 if that does not depend on time
}

// room returns the keys to leave out, and how many messages of each other key may be
// taken: at most n. The other key with the least room decides. most is the limit of all
// keys, or 0.
//
// If room leaves out keys, two methods send to wake: leave, when a message of such a key
// is settled, and hold, when people hold or resume keys.
func (k *KeysInFlight) room(most, n int, includesSlow bool, wake chan struct{}) (r rooms) {
	r.next = k.refreshShares()
	r.each = n
	if most > 0 {
		r.each = min(n, most)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.limitUsual(&r, most)
	for key := range k.held {
		r.except = append(r.except, key)
	}
	k.limitRestricted(&r, most, includesSlow)
	if len(r.except) > 0 {
		k.waiting[wake] = true
	} else {
		delete(k.waiting, wake)
	}
	return r
}

// limitUsual applies the limit of all keys to r. It leaves out the keys at the limit. A
// key with less room than r.each lowers r.each: only for a while, since its messages in
// flight will be settled. Called with mu held.
func (k *KeysInFlight) limitUsual(r *rooms, most int) {
	for key, n := range k.inFlight {
		_, isRestricted := k.shares[key]
		if isRestricted || k.held[key] {
			continue
		}
		left := k.limitOf(key, most) - n
		if left <= 0 {
			r.except = append(r.except, key)
			k.skipped[key] = true
		} else {
			r.each = min(r.each, left)
		}
	}
}

// limitRestricted applies keys' own limits to r, after limitUsual. Slow keys are left out
// unless includesSlow is true. Called with mu held.
func (k *KeysInFlight) limitRestricted(r *rooms, most int, includesSlow bool) {
	usual := r.each
	for key := range k.shares {
		if k.held[key] {
			continue
		}
		left := k.limitOf(key, most) - k.inFlight[key]
		isSlow := left > 0 && left < usual
		switch {
		case left <= 0 || isSlow && !includesSlow:
			r.except = append(r.except, key)
			r.leftOutSlow = r.leftOutSlow || isSlow
			if k.inFlight[key] > 0 {
				k.skipped[key] = true
			}
		case isSlow:
			r.each = min(r.each, left)
		}
	}
}

// admit counts a taken message as in flight, unless the limit of its key is reached: then
// it returns false.
func (k *KeysInFlight) admit(key string, most int) bool {
	if key == "" {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.inFlight[key] >= k.limitOf(key, most) {
		return false
	}
	k.inFlight[key]++
	return true
}

// leave uncounts an admitted message, whose settlement is recorded, or which was released
// at once. It wakes the sources that have left out its key.
func (k *KeysInFlight) leave(key string) {
	if key == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inFlight[key]--
	if k.inFlight[key] <= 0 {
		delete(k.inFlight, key)
	}
	if k.skipped[key] {
		k.wakeAll()
	}
}

func (k *KeysInFlight) wakeAll() {
	for wake := range k.waiting {
		settle.Wake(wake)
	}
	clear(k.waiting)
	clear(k.skipped)
}
