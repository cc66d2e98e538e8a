package leases

import (
	"context"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/settle"
)

// WithKeyRounds makes a source take messages in rounds of keys. At most n messages of a
// key are leased in the queue and its layers, to all workers together
// ([store.KeyRound].Limit); 0 means no limit.
func WithKeyRounds(s store.ByKey, n int) SourceOption {
	return func(set *sourceSettings) { set.byKey, set.maxPerKey = s, n }
}

type keyRounds struct {
	after        string        // the round continues after this key; "" at its start
	includesSlow bool          // includes the slow keys: see rooms
	leftOutSlow  bool          // has left out slow keys
	next         time.Duration // after which a left-out key may be taken; 0 if that does not depend on time
}

// end ends a round. If it has left out slow keys, the next round includes them.
func (r *keyRounds) end() {
	r.includesSlow = r.leftOutSlow
	r.leftOutSlow = false
}

// takeByKey takes messages of the next keys of a round. It returns without messages only
// after it has visited all keys, also the slow keys, and found no message that may be
// taken.
func (s *Source[T]) takeByKey(ctx context.Context, n int) (taken []store.Leased, err error) {
	r := &s.rounds
	r.next = 0
	// isWhole reports that this call has visited the round from its start. Only then does
	// a round without messages show that no message may be taken.
	isWhole := r.after == ""
	for {
		taken, err = s.takeRound(ctx, n)
		if err != nil || len(taken) > 0 {
			return taken, err
		}
		if r.after != "" {
			continue
		}
		isAll := !r.leftOutSlow
		r.end()
		if isWhole && isAll {
			return nil, nil
		}
		isWhole = true
	}
}

// takeRound takes messages of the next keys of a round. It leaves out the keys at their
// limits.
func (s *Source[T]) takeRound(ctx context.Context, n int) (taken []store.Leased, err error) {
	r := &s.rounds
	room := s.inFlight.room(s.maxPerKey, n, r.includesSlow, s.wake)
	r.leftOutSlow = r.leftOutSlow || room.leftOutSlow
	if room.next > 0 && (r.next == 0 || room.next < r.next) {
		r.next = room.next
	}
	round := store.KeyRound{After: r.after, Each: room.each, Except: room.except, Limit: s.maxPerKey}
	taken, next, err := s.byKey.TakeByKey(ctx, s.queue, round, n, s.lease)
	r.after = next
	if next == "" && len(taken) > 0 { // takeByKey ends a round without messages
		r.end()
	}
	return taken, err
}

// admit counts a taken message as in flight. It returns false if its key is at its limit
// in this worker. That is rare, since takeRound has left out such keys. There are two
// causes:
//
//   - The key has a limit of its own, which the store does not know. The limit has become
//     lower meanwhile, or another source of this worker has taken messages of the key at
//     the same time.
//   - The leases of messages of the key in flight here have ended, so the store no longer
//     counts them. Then it can grant too many new leases to sources of this worker that
//     take at the same time.
func (s *Source[T]) admit(key string) bool {
	return s.byKey == nil || s.inFlight.admit(key, s.maxPerKey)
}

func (s *Source[T]) leave(key string) {
	if s.byKey != nil {
		s.inFlight.leave(key)
	}
}

var _ settle.KeyLimiter = (*Source[any])(nil)

// RestrictKeys implements [settle.KeyLimiter].
func (s *Source[T]) RestrictKeys(f func() (list []gate.Restriction, next time.Duration)) bool {
	if s.byKey == nil {
		return false
	}
	s.inFlight.Restrict(f)
	return true
}

// HoldKeys implements [settle.KeyLimiter].
func (s *Source[T]) HoldKeys(keys map[string]bool) bool {
	if s.byKey == nil {
		return false
	}
	s.inFlight.hold(keys)
	return true
}
