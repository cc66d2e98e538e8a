package leases

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

const resumePage = 500 // entries that are looked at at once

// Resume makes Receive deliver first what an earlier source of the queue has taken and
// not settled, in the order of the queue. It returns the accepted puts of these messages.
// As long as the lease of one has not ended, Receive waits: for the time of [WithLease]
// after a source was killed. Without Resume such messages come behind others, since they
// could be taken later.
//
// It is for one source of a queue whose order matters (delivery.WithKeepKeyOrder), and is
// called before the first Receive. A message that was nacked with a delay is delivered
// after its delay. Resume finds no messages if the store is not a [store.Inspector]. It
// stops looking behind the first 500 messages in a row that were never taken.
func (s *Source[T]) Resume(ctx context.Context) (puts []AcceptedPut, err error) {
	i, ok := s.store.(store.Inspector)
	if !ok {
		return nil, nil
	}
	var left []int64
	fresh := 0 // in a row
	for page := (store.Page{Max: resumePage}); fresh < resumePage; {
		entries, err := i.List(ctx, s.queue, store.Filter{}, page)
		if err != nil {
			return nil, fmt.Errorf("weir: messages that an earlier source has left in %q: %w", s.queue, err)
		}
		if len(entries) == 0 {
			break
		}
		for n := range entries {
			fresh++
			e := &entries[n]
			wasTaken := e.Fence > 0
			isLeasedOrDue := !e.LeasedUntil.IsZero() || !e.Meta.Due.After(s.clock.Now()) // not after a Nack with a delay
			if wasTaken && !e.Held && isLeasedOrDue {
				fresh = 0
				left = append(left, e.Position)
				puts = append(puts, AcceptedPut{e.Meta.ID, storearg.OriginOfPut(s.queue, &e.Meta, e.Position, "")})
			}
		}
		page.After = entries[len(entries)-1].Position
	}
	s.receiving <- struct{}{}
	defer func() { <-s.receiving }()
	s.left = left
	return puts, nil
}

// takeNext takes messages: first the messages that an earlier source has left, when their
// leases have ended (isLeft), and then others. It takes the former one at a time, because a
// message that is taken beside a suspect is released, and would lose its place (see
// choose).
func (s *Source[T]) takeNext(ctx context.Context, n int) (taken []store.Leased, isLeft bool, err error) {
	for len(s.left) > 0 {
		claimed, isLeased, err := s.claimLeft(ctx, s.left[0])
		if err != nil || isLeased {
			return nil, false, err
		}
		s.left = s.left[1:]
		if len(claimed) > 0 {
			return claimed, true, nil
		}
	}
	switch {
	case s.inOrder != nil:
		taken, err = s.inOrder.TakeInOrder(ctx, s.queue, n, s.lease)
	case s.byKey != nil:
		taken, err = s.takeByKey(ctx, n)
	default:
		taken, err = s.store.Take(ctx, s.queue, n, s.lease)
	}
	return taken, false, err
}

// claimLeft takes the message at a position, which an earlier source has left. isLeased
// reports that its lease has not ended. If the message is held or no longer in the queue,
// claimLeft returns neither a message nor an error.
func (s *Source[T]) claimLeft(ctx context.Context, position int64) (claimed []store.Leased, isLeased bool, err error) {
	i := s.store.(store.Inspector) // otherwise Resume has not found messages
	page := store.Page{After: position - 1, Until: position, Max: 1}
	claimed, err = i.Claim(ctx, s.queue, store.Filter{}, page, s.lease)
	if err != nil || len(claimed) > 0 {
		return claimed, false, err
	}
	found, err := i.List(ctx, s.queue, store.Filter{}, page)
	if err != nil {
		return nil, false, err
	}
	isLeased = len(found) > 0 && !found[0].Held
	return nil, isLeased, nil
}
