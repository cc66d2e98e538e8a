package leases

import (
	"context"

	"github.com/weirflow/weir/delivery/store"
)

// WithKeyRounds makes a source take messages in rounds of keys. At most n messages of a
// key are in flight; 0 means no limit.
func WithKeyRounds(s store.ByKey, n int) SourceOption {
	return func(set *sourceSettings) { set.byKey, set.most = s, n }
}

// takeByKey takes messages of the next keys of a round. It returns none if no key has
// messages that may be taken.
func (s *Source[T]) takeByKey(ctx context.Context, n int) (taken []store.Leased, err error) {
	whole := s.after == "" // the loop visits all keys of a round
	for {
		r := s.round(n)
		if taken, s.after, err = s.byKey.TakeByKey(ctx, s.queue, r, n, s.lease); err != nil || len(taken) > 0 {
			return taken, err
		}
		switch {
		case s.after != "":
		case whole:
			return nil, nil
		default:
			whole = true
		}
	}
}

// round returns the rest of the round: the keys that may be taken from, and how many of
// each.
func (s *Source[T]) round(n int) store.KeyRound {
	r := store.KeyRound{After: s.after, Each: n}
	if s.most == 0 {
		return r
	}
	r.Each = min(n, s.most)
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, flying := range s.flying {
		if flying >= s.most {
			r.Except = append(r.Except, key)
		} else {
			r.Each = min(r.Each, s.most-flying)
		}
	}
	return r
}

// landed notes that a message of a key is no longer in flight. Called with mu held.
func (s *Source[T]) landed(key string) {
	if s.byKey == nil {
		return
	}
	if s.flying[key]--; s.flying[key] <= 0 {
		delete(s.flying, key)
	}
}
