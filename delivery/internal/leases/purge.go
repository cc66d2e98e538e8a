package leases

import (
	"context"
	"errors"
	"log/slog"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// HandOver puts messages into a queue. from[i] is the delivery of the message in flight
// that ms[i] was made from, or nil. isGone[i] is true if ms[i] was not put because that
// message is gone: it was purged (law W5), or its lease had ended, and another worker has
// stored an outcome of its visit. The caller settles it as if ms[i] had been put. If the
// source has taken the message again meanwhile, it is not gone: see join.
//
// If the message was received from the same engine, and that is a [store.Inspector], the
// engine checks when it puts. Otherwise HandOver uses what the source has found before,
// and a purge may come in between.
func HandOver(ctx context.Context, engine store.Engine, queue string, ms []store.Message, from []message.Delivery) (isGone []bool, err error) {
	inspector, isInspector := engine.(store.Inspector)
	isGone = make([]bool, len(ms))
	moves := make([]store.Move, 0, len(ms)) // of messages that are not gone
	at := make([]int, 0, len(ms))           // index in ms of each move
	hasLease := false
	for i := range ms {
		h, isHandle := from[i].(*handle)
		if isHandle && h.isVisitOver.Load() {
			isGone[i] = true
			continue
		}
		move := store.Move{Queue: queue, Message: ms[i]}
		isLetter := ms[i].Cause != ""
		if isHandle && isLetter {
			h.source.addDoubt(h, &move.Message)
			move.Message.Cause = settle.CauseOf(&move.Message.Meta, move.Message.Cause)
		}
		if isHandle && isInspector && storearg.IsSame(h.source.engineOf(), engine) {
			lease, isInFlight := h.source.leaseOf(h)
			// A program may acknowledge the message before it puts the result. Then the
			// message may be missing because it was acknowledged, so a check would not
			// show a purge: the result is put unchecked.
			if isInFlight {
				move.Lease = lease.Lease
				move.Visit = lease.visit
				hasLease = true
			}
		}
		moves = append(moves, move)
		at = append(at, i)
	}
	areAllGone := len(moves) == 0 && len(ms) > 0
	if areAllGone {
		return isGone, nil
	}
	if !hasLease {
		return isGone, putUnchecked(ctx, engine, queue, moves, isGone)
	}
	err = inspector.HandOver(ctx, moves...)
	lost, isLost := errors.AsType[*store.LeaseError](err)
	if !isLost {
		return isGone, err
	}
	wasLost := make(map[store.Lease]bool, len(lost.Lost))
	for _, l := range lost.Lost {
		wasLost[l] = true
	}
	for n := range moves {
		h, isHandle := from[at[n]].(*handle)
		if isHandle && wasLost[moves[n].Lease] {
			isGone[at[n]] = true
			h.source.noteVisitOver(ctx, h, moves[n].Lease)
		}
	}
	return isGone, nil
}

// putUnchecked puts the messages of moves without checking their originals. The Errs of a
// *[store.PutError] are in the order of HandOver's ms.
func putUnchecked(ctx context.Context, engine store.Engine, queue string, moves []store.Move, isGone []bool) error {
	kept := make([]store.Message, len(moves))
	for i := range moves {
		kept[i] = moves[i].Message
	}
	return alignErrs(engine.Put(ctx, queue, kept...), isGone)
}

// alignErrs adds nil errors for gone messages to a [store.PutError], so that its Errs are
// in the order of HandOver's ms.
func alignErrs(err error, isGone []bool) error {
	of, ok := errors.AsType[*store.PutError](err)
	if !ok || len(of.Errs) == len(isGone) {
		return err
	}
	all := &store.PutError{Errs: make([]error, len(isGone))}
	next := 0 // in of.Errs
	for i := range isGone {
		if !isGone[i] {
			all.Errs[i] = of.Errs[next]
			next++
		}
	}
	return all
}

var _ settle.PurgeFinder = (*Source[any])(nil)

// OnPurge implements [settle.PurgeFinder].
func (s *Source[T]) OnPurge(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onPurge = f
}

// LookForPurged implements [settle.PurgeFinder]. It extends the leases: the store refuses
// the leases of purged messages.
func (s *Source[T]) LookForPurged(ctx context.Context, key string) {
	s.mu.Lock()
	s.purgeSearches++ // before the read, so that a running take looks again
	s.mu.Unlock()
	s.lookInFlight(ctx, key)
}

func (s *Source[T]) lookInFlight(ctx context.Context, key string) {
	s.extendSome(ctx, func(h *handle) bool { return key == "" || h.message.Meta.Key == key })
}

func (s *Source[T]) purgeSearchesBegun() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.purgeSearches
}

// noteVisitOver notes that the visit of h is over, as the store has found for a lease of
// h. While the lease lasts, no other worker can have settled the message, so it was
// purged. If h has a newer lease, this source has taken the message again since, so it
// was replaced (see hasNextLease).
func (s *Source[T]) noteVisitOver(ctx context.Context, h *handle, lease store.Lease) {
	s.mu.Lock()
	isReplaced := h.lease != lease
	isPurged := !isReplaced && s.clock.Now().Before(h.until)
	isNew := h.isVisitOver.CompareAndSwap(false, true)
	switch {
	case !isNew:
	case isReplaced:
		h.hasNextLease = true // join has counted the lost lease
	case isPurged:
		h.isPurged.Store(true)
	default:
		s.lose(h)
	}
	onPurge := s.onPurge
	s.mu.Unlock()
	if !isNew {
		return
	}
	id := slog.String("id", h.message.Meta.ID)
	if !isPurged {
		s.logger.LogAttrs(ctx, slog.LevelWarn, "weir: a message is gone whose lease had ended: another worker has settled it, or it was purged; "+
			"its outcome here is not stored", slog.String("queue", s.queue), id)
		return
	}
	s.logger.LogAttrs(ctx, slog.LevelInfo, "weir: a message in flight was purged; its outcome is not stored", slog.String("queue", s.queue), id)
	if onPurge != nil {
		onPurge()
	}
}

// findPurged returns the messages of lost that were purged: they are no longer in the
// queue, and their leases have not ended, so another worker cannot have settled them.
func (s *Source[T]) findPurged(ctx context.Context, lost []*handle) (purged []*handle) {
	inspector, ok := s.store.(store.Inspector)
	if !ok {
		return nil
	}
	for _, h := range lost {
		s.mu.Lock()
		mayBe := s.clock.Now().Before(h.until)
		s.mu.Unlock()
		if !mayBe {
			continue
		}
		found, err := inspector.List(ctx, s.queue, store.Filter{}, store.Page{After: h.position - 1, Until: h.position, Max: 1})
		if err != nil {
			// The lease counts as lost, even if the message was purged. While the
			// message is in flight, the next Extend repeats the search.
			return purged
		}
		if len(found) == 0 {
			purged = append(purged, h)
		}
	}
	return purged
}

func (s *Source[T]) engineOf() store.Engine { return s.store }

// heldLease is a lease with the visit that began with it.
type heldLease struct {
	store.Lease
	visit int
}

// leaseOf returns the lease of a message, and whether the message is in flight.
func (s *Source[T]) leaseOf(h *handle) (l heldLease, isInFlight bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return heldLease{h.lease, h.leaseVisit}, h.settlement == nil
}
