package leases

import (
	"context"

	"github.com/weirflow/weir/delivery/store"
)

// WithTurns makes a source take the messages of keys in turn, and lets at most n of a key be in flight; 0: no limit.
func WithTurns(s store.ByKey, n int) SourceOption {
	return func(set *sourceSettings) { set.byKey, set.most = s, n }
}

// takeInTurn takes messages of the keys whose turn it is. It returns none if none of any key may be taken.
func (s *Source[T]) takeInTurn(ctx context.Context, n int) (taken []store.Leased, err error) {
	whole := s.after == "" // a round from its begin to its end
	for {
		t := s.turn(n)
		if taken, s.after, err = s.byKey.TakeByKey(ctx, s.queue, t, n, s.lease); err != nil || len(taken) > 0 {
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

// turn returns which keys may have messages taken, and how many of each.
func (s *Source[T]) turn(n int) store.Turn {
	t := store.Turn{After: s.after, Each: n}
	if s.most == 0 {
		return t
	}
	t.Each = min(n, s.most)
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, flying := range s.flying {
		if flying >= s.most {
			t.Except = append(t.Except, key)
		} else {
			t.Each = min(t.Each, s.most-flying)
		}
	}
	return t
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
