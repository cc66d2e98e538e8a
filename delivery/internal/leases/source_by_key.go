package leases

import (
	"context"

	"github.com/weirflow/weir/delivery/store"
)

// WithKeyRounds makes a source take messages in rounds of keys. At most n messages of a
// key are in flight in the source, and in the sources that share its [KeysInFlight]; 0
// means no limit.
func WithKeyRounds(s store.ByKey, n int) SourceOption {
	return func(set *sourceSettings) { set.byKey, set.most = s, n }
}

// takeByKey takes messages of the next keys of a round. It returns no message if no key
// has messages that may be taken.
func (s *Source[T]) takeByKey(ctx context.Context, n int) (taken []store.Leased, err error) {
	isWhole := s.after == "" // the loop visits all keys of a round
	for {
		taken, s.after, err = s.takeRound(ctx, n)
		if err != nil || len(taken) > 0 {
			return taken, err
		}
		switch {
		case s.after != "":
		case isWhole:
			return nil, nil
		default:
			isWhole = true
		}
	}
}

// takeRound takes messages of the rest of a round, and returns the key after which the
// round continues. With a limit per key it leaves out the keys at the limit.
func (s *Source[T]) takeRound(ctx context.Context, n int) (taken []store.Leased, next string, err error) {
	r := store.KeyRound{After: s.after, Each: n}
	if s.most > 0 {
		r.Except, r.Each = s.inFlight.room(s.most, n, s.again)
	}
	return s.byKey.TakeByKey(ctx, s.queue, r, n, s.lease)
}

// admit counts a message that was taken as in flight, and returns false if its key is at
// the limit: other sources have taken messages of the key at the same time.
func (s *Source[T]) admit(key string) bool {
	return s.byKey == nil || s.most == 0 || s.inFlight.admit(key, s.most)
}

// landed notes that a message that was admitted is not in flight, or no longer.
func (s *Source[T]) landed(key string) {
	if s.byKey != nil && s.most > 0 {
		s.inFlight.landed(key, s.most)
	}
}
